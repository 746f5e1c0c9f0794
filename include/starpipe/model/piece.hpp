// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starpipe::model {

/// A part of a tensor of the saved file: a shard has some rows of a matrix, or some of its columns. The
/// tensor is row-major; a vector is a matrix of one row.
struct Piece {
  /// From `first`, `count` rows or columns.
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  std::vector<std::size_t> whole;  ///< shape of the tensor, of one or two extents
  Range rows;
  std::vector<Range> columns;  ///< in the order in which the piece has them

  /// Whether it is a part of a tensor, and not the empty piece of a parameter that is a tensor of its own.
  explicit operator bool() const { return !whole.empty(); }

  /// How many numbers the tensor has.
  [[nodiscard]] std::size_t whole_size() const;
  /// The piece itself has as many extents as the tensor.
  [[nodiscard]] std::vector<std::size_t> shape() const;
  /// Its rows and columns, from the first to the one behind the last: "[0:16,0:32]", and of a vector
  /// "[0:8+16:24]".
  [[nodiscard]] std::string text() const;

  /// Copies the piece out of the tensor, or into it. `tensor` has the size of `whole`, `piece` that of
  /// shape().
  void take(std::span<const float> tensor, std::span<float> piece) const;
  void take(std::span<const double> tensor, std::span<double> piece) const;
  void put(std::span<const float> piece, std::span<float> tensor) const;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// The piece with this text() of a tensor. `whole`: the tensor's shape. Nothing when no piece of it has the
/// text.
std::optional<Piece> piece_from_text(std::string_view text, std::vector<std::size_t> whole);

/// Share `shard` of `shards` of `size` things: sizes of shares differ by one at most.
Piece::Range share_of(std::size_t size, std::size_t shard, std::size_t shards);

/// The piece with share `shard` of `shards` of the rows of a matrix with this shape.
Piece rows_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards);
/// The piece with 1 / `shards` of the columns, the `shard`-th one. The matrix is `blocks` blocks side by
/// side, and the piece has 1 / `shards` of the columns of each block. An attention layer's queries, keys and
/// values are three such blocks.
Piece columns_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards,
                    std::size_t blocks = 1);
/// The same of a vector.
Piece vector_piece(std::size_t size, std::size_t shard, std::size_t shards, std::size_t blocks = 1);

}  // namespace starpipe::model
