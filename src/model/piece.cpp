// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/piece.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace starpipe::model {
namespace {

/// Calls f(offset in the tensor, offset in the piece, count) for each run of neighbouring numbers.
template <class Function>
void for_each_run(const Piece& piece, Function&& f) {
  const std::size_t width = piece.whole.back();
  std::size_t at = 0;
  for (std::size_t row = piece.rows.first; row < piece.rows.first + piece.rows.count; ++row) {
    for (const auto& [first, count] : piece.columns) {
      f(row * width + first, at, count);
      at += count;
    }
  }
}

template <class Number>
void take_numbers(const Piece& piece, std::span<const Number> tensor, std::span<Number> numbers) {
  for_each_run(piece, [&](std::size_t from, std::size_t to, std::size_t count) {
    std::ranges::copy(tensor.subspan(from, count), numbers.subspan(to, count).begin());
  });
}

std::vector<Piece::Range> share_of_blocks(std::size_t columns, std::size_t shard, std::size_t shards,
                                          std::size_t blocks) {
  const std::size_t block = columns / blocks;
  const std::size_t share = block / shards;
  std::vector<Piece::Range> ranges;
  for (std::size_t b = 0; b < blocks; ++b) ranges.push_back({b * block + shard * share, share});
  return ranges;
}

std::string text_of(const Piece::Range& range) {
  return fmt::format("{}:{}", range.first, range.first + range.count);
}

/// Takes the character off the beginning of the text, if it is there.
bool take_character(std::string_view& text, char character) {
  if (!text.starts_with(character)) return false;
  text.remove_prefix(1);
  return true;
}

/// Takes a range within `extent` off the beginning of the text.
std::optional<Piece::Range> take_range(std::string_view& text, std::size_t extent) {
  std::size_t first = 0;
  std::size_t end = 0;
  for (std::size_t* number : {&first, &end}) {
    if (number == &end && !take_character(text, ':')) return std::nullopt;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (error != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  }
  if (first >= end || end > extent) return std::nullopt;
  return Piece::Range{first, end - first};
}

}  // namespace

std::size_t Piece::whole_size() const {
  return std::accumulate(whole.begin(), whole.end(), std::size_t{1}, std::multiplies<>());
}

std::vector<std::size_t> Piece::shape() const {
  std::size_t width = 0;
  for (const Range& range : columns) width += range.count;
  if (whole.size() == 1) return {width};
  return {rows.count, width};
}

std::string Piece::text() const {
  std::vector<std::string> ranges;
  for (const Range& range : columns) ranges.push_back(text_of(range));
  return fmt::format("[{}{}]", whole.size() == 1 ? "" : text_of(rows) + ",", fmt::join(ranges, "+"));
}

std::optional<Piece> piece_from_text(std::string_view text, std::vector<std::size_t> whole) {
  Piece piece = {.whole = std::move(whole), .rows = {0, 1}, .columns = {}};
  if (piece.whole.empty() || piece.whole.size() > 2 || !take_character(text, '[')) return std::nullopt;
  if (piece.whole.size() == 2) {
    const auto rows = take_range(text, piece.whole.front());
    if (!rows || !take_character(text, ',')) return std::nullopt;
    piece.rows = *rows;
  }
  for (bool more = true; more; more = take_character(text, '+')) {
    const auto columns = take_range(text, piece.whole.back());
    if (!columns) return std::nullopt;
    piece.columns.push_back(*columns);
  }
  return text == "]" ? std::optional(std::move(piece)) : std::nullopt;
}

void Piece::take(std::span<const float> tensor, std::span<float> piece) const {
  take_numbers(*this, tensor, piece);
}
void Piece::take(std::span<const double> tensor, std::span<double> piece) const {
  take_numbers(*this, tensor, piece);
}

void Piece::put(std::span<const float> piece, std::span<float> tensor) const {
  for_each_run(*this, [&](std::size_t to, std::size_t from, std::size_t count) {
    std::ranges::copy(piece.subspan(from, count), tensor.subspan(to, count).begin());
  });
}

Piece::Range share_of(std::size_t size, std::size_t shard, std::size_t shards) {
  const std::size_t first = size * shard / shards;
  return {first, size * (shard + 1) / shards - first};
}

Piece rows_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards) {
  return {.whole = {rows, columns}, .rows = share_of(rows, shard, shards), .columns = {{0, columns}}};
}

Piece columns_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards,
                    std::size_t blocks) {
  return {.whole = {rows, columns},
          .rows = {0, rows},
          .columns = share_of_blocks(columns, shard, shards, blocks)};
}

Piece vector_piece(std::size_t size, std::size_t shard, std::size_t shards, std::size_t blocks) {
  return {.whole = {size}, .rows = {0, 1}, .columns = share_of_blocks(size, shard, shards, blocks)};
}

}  // namespace starpipe::model
