// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/rank_request.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "starpipe/base/error.hpp"
#include "starpipe/base/hash.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/config/config_rules.hpp"

namespace starpipe::runtime {
namespace {

using RequestValues = std::vector<std::pair<std::string, std::string>>;

// The value of a key for people. Names of files need not be UTF-8.
std::string request_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_request_keys(RequestValues& values, const std::string& prefix, const Config& config) {
  const std::vector<ConfigKey> keys = config_keys();
  for (const ConfigKey& key : keys) {
    if (!applies(key, config, keys)) continue;
    const nlohmann::json value = key.get(config);
    if (!value.is_null()) values.emplace_back(prefix + key.name, request_text(value));
  }
}

std::uint64_t request_digest(const RequestValues& values) {
  std::uint64_t digest = hash_start;
  for (const auto& [name, value] : values) {
    for (const std::string_view text : {std::string_view(name), std::string_view(value)})
      digest = hash_of(text, hash_of(std::uint64_t{text.size()}, digest));
  }
  return digest;
}

// CBOR keeps bytes that are not UTF-8.
std::string packed_request(const RequestValues& values) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(nlohmann::json(values));
  return {bytes.begin(), bytes.end()};
}

std::optional<std::string> requested_value(const RequestValues& values, const std::string& name) {
  const auto found = std::ranges::find(values, name, &RequestValues::value_type::first);
  if (found == values.end()) return std::nullopt;
  return found->second;
}

// The first difference between rank 0 and another rank; empty when there is none.
std::string request_difference(const RequestValues& first, const RequestValues& other, std::size_t rank) {
  RequestValues all = first;
  all.insert(all.end(), other.begin(), other.end());
  for (const auto& [name, value] : all) {
    const auto wanted = requested_value(first, name);
    const auto found = requested_value(other, name);
    if (wanted == found) continue;
    return fmt::format("{}: rank 0 has {}, rank {} has {}; all ranks need the same configuration", name,
                       wanted.value_or("none"), rank, found.value_or("none"));
  }
  return "";
}

}  // namespace

void RankRequest::require_same(const Mpi& mpi, const std::vector<Config>& configs) const {
  RequestValues mine = values_;
  for (const Config& config : configs) {
    const bool several = configs.size() > 1;
    add_request_keys(mine, several ? fmt::format("--schedules: {}: ", config.schedule.name) : "", config);
  }
  if (mpi.all_equal(request_digest(mine))) return;
  std::vector<RequestValues> all;
  for (const std::string& text : mpi.gather(packed_request(mine)))
    all.push_back(nlohmann::json::from_cbor(text).get<RequestValues>());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string problem = request_difference(all.front(), all[rank], rank);
    if (!problem.empty()) throw InputError(problem);
  }
}

}  // namespace starpipe::runtime
