// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace starpipe::runtime {

// The CRC-32 of zlib, gzip and Python's zlib.crc32: it detects accidental damage, not forged data.

/// The checksum of empty data: where a checksum begins.
inline constexpr std::uint32_t checksum_start = 0;

/// Continues `checksum`, the checksum of the data so far, with `bytes`.
std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t checksum);
std::uint32_t checksum_of(std::string_view text, std::uint32_t checksum);

/// The checksum of data with `first`, followed by `bytes` bytes with `second`.
std::uint32_t joined_checksum(std::uint32_t first, std::uint32_t second, std::uint64_t bytes);

/// Eight hexadecimal digits.
std::string checksum_text(std::uint32_t checksum);
/// The checksum in eight hexadecimal digits; nothing for any other text.
std::optional<std::uint32_t> parse_checksum(std::string_view text);

}  // namespace starpipe::runtime
