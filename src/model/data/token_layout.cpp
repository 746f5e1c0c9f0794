// SPDX-License-Identifier: Apache-2.0
#include "model/data/token_layout.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::model {
namespace {

static_assert(std::endian::native == std::endian::little, "token files hold little-endian numbers");

/// What identifies a token file of llm.c.
struct HeaderKind {
  std::int32_t magic;
  std::int32_t version;
  std::size_t token_bytes;
};
constexpr std::array header_kinds = {HeaderKind{20240520, 1, 2}, HeaderKind{20240801, 7, 4}};
constexpr std::size_t header_bytes = 1024;
constexpr const char* known_kinds = "20240520 with version 1, 20240801 with version 7";

/// Whether the number is a date of 2024: all files of llm.c have one as magic number (checkpoints,
/// tokenizers, questions). As flat uint16 it would be a token above 54,912 before the token 308, so no file
/// with GPT-2's 50,257 tokens begins like this.
bool is_magic_number(std::int32_t number) { return number > 20240000 && number < 20250000; }

/// The int32 number `place` of the file, or 0 behind the file's end.
std::int32_t number_at(std::span<const unsigned char> file, std::size_t place) {
  std::int32_t number = 0;
  if (file.size() >= (place + 1) * sizeof number) {
    std::memcpy(&number, file.data() + place * sizeof number, sizeof number);
  }
  return number;
}

TokenLayout layout_behind_header(const std::filesystem::path& path, std::span<const unsigned char> file) {
  const auto fail = [&](const std::string& problem) {
    return InputError(fmt::format("{}: {}", path.string(), problem));
  };
  const std::int32_t magic = number_at(file, 0);
  const auto* const kind = std::ranges::find(header_kinds, magic, &HeaderKind::magic);
  if (kind == header_kinds.end()) {
    throw fail(
        fmt::format("begins with the magic number {}, expected one of token files: {}", magic, known_kinds));
  }
  if (file.size() < header_bytes) {
    throw fail(
        fmt::format("begins with the magic number {} but has {} bytes, fewer than the {} of its header",
                    magic, file.size(), header_bytes));
  }
  const std::int32_t version = number_at(file, 1);
  if (version != kind->version) {
    throw fail(fmt::format("has the magic number {} with version {}, expected version {}", magic, version,
                           kind->version));
  }
  const std::int64_t count = number_at(file, 2);
  const std::size_t rest = file.size() - header_bytes;
  if (count < 0 || static_cast<std::uint64_t>(count) * kind->token_bytes != rest) {
    throw fail(fmt::format("its header counts {} tokens of {} bytes, but {} bytes follow", count,
                           kind->token_bytes, rest));
  }
  return {header_bytes, kind->token_bytes, static_cast<std::uint64_t>(count)};
}

}  // namespace

TokenLayout text_layout(std::span<const unsigned char> file) { return {0, 1, file.size()}; }

TokenLayout token_layout(const std::filesystem::path& path, std::span<const unsigned char> file) {
  if (is_magic_number(number_at(file, 0))) return layout_behind_header(path, file);
  if (file.size() % sizeof(std::uint16_t) == 0) return {0, sizeof(std::uint16_t), file.size() / 2};
  throw InputError(
      fmt::format("{}: has {} bytes, an odd number, and no magic number; expected flat uint16, "
                  "or a header with the magic number {}",
                  path.string(), file.size(), known_kinds));
}

}  // namespace starpipe::model
