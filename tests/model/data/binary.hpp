// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starpipe::model::testing {

/// The bytes of numbers, as a file holds them.
template <class Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

/// A header of llm.c's token files.
inline std::string llm_c_header(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return bytes_of_numbers(header);
}

/// A file as numpy.save writes it. `head`: the entries of its header, before the padding.
inline std::string npy_file(const std::string& head, const std::string& numbers, char version = 1) {
  std::string text = "{" + head + ", }";
  text.resize((text.size() / 64 + 1) * 64 - 1, ' ');
  text += '\n';
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::string file = std::string("\x93NUMPY") + version + '\0';
  for (std::size_t i = 0; i < length_bytes; ++i) file += static_cast<char>(text.size() >> 8 * i & 255U);
  return file + text + numbers;
}
inline std::string npy_head(const std::string& type, const std::string& shape) {
  return "'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + ")";
}

}  // namespace starpipe::model::testing
