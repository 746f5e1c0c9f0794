// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

TEST(PieceText, IsReadAsTheSamePiece) {
  for (const std::size_t shards : {2U, 3U}) {
    for (std::size_t k = 0; k < shards; ++k) {
      for (const Piece& piece : {rows_piece(7, 5, k, shards), columns_piece(2, 12, k, shards),
                                 columns_piece(2, 18, k, shards, 3), vector_piece(18, k, shards, 3)})
        EXPECT_EQ(piece_from_text(piece.text(), piece.whole), piece) << piece.text();
    }
  }
  EXPECT_EQ(columns_piece(2, 12, 1, 2, 3).text(), "[0:2,2:4+6:8+10:12]");
  EXPECT_EQ(vector_piece(12, 1, 2, 3).text(), "[2:4+6:8+10:12]");
}

TEST(PieceText, OfAnotherTensorIsNone) {
  const std::vector<std::size_t> matrix = {4, 6};
  EXPECT_TRUE(piece_from_text("[0:4,0:6]", matrix));
  for (const char* text :
       {"", "[]", "[0:4]", "[0:4,0:7]", "[0:5,0:6]", "[2:2,0:6]", "[3:2,0:6]", "[0:4,0:6", "0:4,0:6]",
        "[0:4,0:6]x", "[0:4,0:2+]", "[0-4,0:6]", "[-1:4,0:6]", "[0:4, 0:6]", "[0:4,0:99999999999999999999]"})
    EXPECT_FALSE(piece_from_text(text, matrix)) << text;
  EXPECT_FALSE(piece_from_text("[0:4,0:6]", {6}));
  EXPECT_FALSE(piece_from_text("[0:4,0:6]", {1, 4, 6})) << "tensors of three extents have no pieces";
}

}  // namespace
}  // namespace starpipe::model
