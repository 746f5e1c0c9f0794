// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "starpipe/model/dataset.hpp"

namespace starpipe::model {

/// The layout of a file of tokens: a header, then the tokens as little-endian numbers.
struct TokenLayout {
  std::size_t header_bytes = 0;
  std::size_t token_bytes = 1;  ///< 1, 2, 4 or 8
  std::uint64_t tokens = 0;
  bool is_signed = false;  ///< true if the numbers are signed; no id is negative
};

/// Returns the layout of text: each byte is a token. Throws InputError with `path` for a file that is packed.
TokenLayout text_layout(const std::filesystem::path& path, std::span<const unsigned char> file);

/// Returns the layout of a file of token ids, `file` being all its bytes. Three forms of a file are known:
/// - A file whose first 4 bytes are a magic number of llm.c has llm.c's header of 1,024 bytes: 256 int32, of
///   which the first three are the magic number, a version and the number of tokens. Magic number 20240520
///   with version 1 is for tokens of 2 bytes, 20240801 with version 7 for tokens of 4 (llm.c,
///   dev/data/data_common.py). Other numbers from 20240001 to 20249999 are kept for other files of llm.c.
/// - A file that begins as NumPy's `save` writes one has the type and the number that its header states.
/// - Any other file is flat, as NumPy's `tofile` writes an array of numbers of `type`, and as nanoGPT reads
///   uint16.
///
/// Throws InputError with `path`, what was found and what is expected, for a header that is cut off, has
/// another version or another number of tokens than the file, for the magic number of another file of llm.c,
/// for an array of another type or of more than one dimension, and for a flat file with a part of a number at
/// its end. Also, with the remedy, for a file that would be flat but is text, JSON, or a known binary file.
TokenLayout token_layout(const std::filesystem::path& path, std::span<const unsigned char> file,
                         TokenType type = TokenType::uint16);

}  // namespace starpipe::model
