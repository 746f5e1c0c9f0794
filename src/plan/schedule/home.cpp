// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/home.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

namespace {

constexpr std::string_view peer_prefix = "worker:";

std::optional<int> number_of_peer(std::string_view text) {
  if (!text.starts_with(peer_prefix)) return std::nullopt;
  text.remove_prefix(peer_prefix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

std::string to_string(Home home) {
  if (const auto peer = home.peer()) return fmt::format("{}{}", peer_prefix, *peer);
  return std::string(home_words[index(home.code())]);
}

Home parse_home(std::string_view text) {
  if (const auto found = std::ranges::find(home_words, text); found != home_words.end())
    return Home::of_code(static_cast<int>(found - home_words.begin()));
  if (const auto peer = number_of_peer(text)) return Home::at(*peer);
  throw InputError(fmt::format("unknown home '{}' ({}, or {}N for worker N)", text,
                               fmt::join(home_words, ", "), peer_prefix));
}

}  // namespace starpipe::plan
