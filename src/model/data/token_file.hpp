// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "model/data/mapped_file.hpp"
#include "model/data/token_layout.hpp"

namespace starpipe::model {

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

  /// A hash of the layout and of the 64 places, and of all tokens of a file of up to 64 MiB. Such files that
  /// differ have almost certainly another one; so have larger ones, unless they differ in a few tokens only.
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
