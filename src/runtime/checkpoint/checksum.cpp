// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/checksum.hpp"

#include <charconv>
#include <system_error>

#include <fmt/format.h>
#include <zlib.h>

namespace starpipe::runtime {

std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t checksum) {
  if (bytes.empty()) return checksum;  // zlib takes a null pointer for a request of the start value
  return static_cast<std::uint32_t>(
      crc32_z(checksum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::uint32_t checksum_of(std::string_view text, std::uint32_t checksum) {
  return checksum_of(std::as_bytes(std::span(text)), checksum);
}

std::uint32_t joined_checksum(std::uint32_t first, std::uint32_t second, std::uint64_t bytes) {
  return static_cast<std::uint32_t>(crc32_combine(first, second, static_cast<z_off_t>(bytes)));
}

std::string checksum_text(std::uint32_t checksum) { return fmt::format("{:08x}", checksum); }

std::optional<std::uint32_t> parse_checksum(std::string_view text) {
  std::uint32_t checksum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), checksum, 16);
  if (error != std::errc() || text.size() != 8 || end != text.data() + text.size()) return {};
  return checksum;
}

}  // namespace starpipe::runtime
