// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "model/data/token_layout.hpp"
#include "starpipe/model/dataset.hpp"

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

/// The tokens of a file, by position. Only the parts that are read are loaded. Thread-safe.
class TokenFile {
 public:
  /// `kind`: text_data or tokens_data. Token ids must be below `vocabulary`. `type`: of the numbers in a flat
  /// file. Reads 64 places of the file, of 64 tokens each, and all of a small file. Throws InputError with
  /// the file for one that cannot be read or has no layout of the kind, for a token out of range in these
  /// places, and for a flat file in which nearly every second number there can be the upper half of an id:
  /// then it holds wider numbers, such as NumPy's int64. Also for a flat file without `type` and a vocabulary
  /// whose ids do not fit uint16.
  TokenFile(const std::filesystem::path& path, std::string_view kind, std::size_t vocabulary,
            std::optional<TokenType> type = std::nullopt);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t size() const { return layout_.tokens; }  ///< number of tokens

  /// Writes the tokens [start, start + out.size()), which must be in the file, as floats. Throws InputError
  /// with the file when it has become shorter, and with position, id and vocabulary for a token out of range.
  void read(std::uint64_t start, std::span<float> out) const;

  /// Returns a hash of the layout and of the 64 places, and of all tokens of a file of up to 64 MiB. Files
  /// that differ almost certainly have different digests, except for larger files that differ in a few tokens
  /// only.
  [[nodiscard]] std::uint64_t digest() const { return digest_; }

 private:
  template <class Number>
  void copy(std::uint64_t start, std::span<float> out) const;
  void sample(bool is_flat);

  MappedFile file_;
  TokenLayout layout_;
  std::size_t vocabulary_;
  std::uint64_t digest_ = 0;
};

}  // namespace starpipe::model
