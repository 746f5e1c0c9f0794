// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace starpipe::model {

/// A whole file, mapped read-only: it may be larger than memory, and the ranks of a host share one copy.
/// Thread-safe.
class MappedFile {
 public:
  /// Throws InputError with the file if it is missing, unreadable or not a regular file. Does not wait for
  /// the writer of a pipe.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const unsigned char> bytes() const { return bytes_; }

  /// Throws InputError with the file when it has become shorter since it was opened. Call it before bytes are
  /// read: behind the end of its file, a mapping ends the process (SIGBUS).
  void require_whole() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::span<const unsigned char> bytes_;
};

/// The layout of a file of tokens: a header, then the tokens as unsigned little-endian numbers.
struct TokenLayout {
  std::size_t header_bytes = 0;
  std::size_t token_bytes = 1;  ///< 1, 2 or 4
  std::uint64_t tokens = 0;
};

/// The layout of text: each byte is a token.
TokenLayout text_layout(std::span<const unsigned char> file);

/// The layout of a file of token ids, `file` being all its bytes. A file whose first 4 bytes are a magic
/// number of llm.c has llm.c's header of 1,024 bytes: 256 int32, of which the first three are the magic
/// number, a version and the number of tokens. Magic number 20240520 with version 1 is for tokens of 2 bytes,
/// 20240801 with version 7 for tokens of 4 (llm.c, dev/data/data_common.py). Other numbers from 20240001 to
/// 20249999 are kept for other files of llm.c. A file that begins with none of these is flat, as NumPy's
/// `tofile` writes an array of uint16, and as nanoGPT reads it.
///
/// Throws InputError with `path`, what was found and what is expected, for a header that is cut off, has
/// another version or another number of tokens than the file, for the magic number of another file of llm.c,
/// and for a flat file with an odd number of bytes.
TokenLayout token_layout(const std::filesystem::path& path, std::span<const unsigned char> file);

/// The tokens of a file, by position. Only the parts that are read are loaded. Thread-safe.
class TokenFile {
 public:
  /// `kind`: text_data or tokens_data. Token ids must be below `vocabulary`. Reads 64 places of the file, of
  /// 64 tokens each, and all of a small file. Throws InputError with the file for one that cannot be read or
  /// has no layout of the kind, for a token out of range in these places, and for a flat file in which every
  /// second number there is 0: then it holds wider numbers, such as NumPy's int64.
  TokenFile(const std::filesystem::path& path, std::string_view kind, std::size_t vocabulary);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t size() const { return layout_.tokens; }  ///< number of tokens

  /// Writes the tokens [start, start + out.size()), which must be in the file, as floats. Throws InputError
  /// with the file when it has become shorter, and with position, id and vocabulary for a token out of range.
  void read(std::uint64_t start, std::span<float> out) const;

  /// A hash of the layout and of the 64 places, and of all tokens of a file of up to 64 MiB. Files that
  /// differ almost certainly have different digests, except for larger files that differ in a few tokens
  /// only.
  [[nodiscard]] std::uint64_t digest() const { return digest_; }

 private:
  template <class Number>
  void copy(std::uint64_t start, std::span<float> out) const;
  void sample();

  MappedFile file_;
  TokenLayout layout_;
  std::size_t vocabulary_;
  std::uint64_t digest_ = 0;
};

}  // namespace starpipe::model
