// SPDX-License-Identifier: Apache-2.0
#include "model/data/token_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/hash.hpp"
#include "starpipe/model/dataset.hpp"

namespace starpipe::model {
namespace {

/// The largest file whose digest covers all bytes: they are read in some hundredths of a second.
constexpr std::size_t most_hashed_bytes = std::size_t{64} << 20U;

std::uint64_t hash_of_bytes(std::span<const unsigned char> bytes, std::uint64_t hash) {
  std::uint64_t word = 0;
  for (; bytes.size() >= sizeof word; bytes = bytes.subspan(sizeof word)) {
    std::memcpy(&word, bytes.data(), sizeof word);
    hash = hash_of(word, hash);
  }
  for (const unsigned char byte : bytes) hash = hash_of(std::uint64_t{byte}, hash);
  return hash;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, std::string_view kind, std::size_t vocabulary)
    : file_(path),
      layout_(kind == text_data ? text_layout(file_.bytes()) : token_layout(path, file_.bytes())),
      vocabulary_(vocabulary) {
  sample();
}

void TokenFile::sample() {
  constexpr std::uint64_t places = 64;
  std::array<float, 64> memory{};
  const auto tokens = std::span(memory).first(std::min<std::uint64_t>(memory.size(), size()));
  digest_ = hash_of(layout_.token_bytes, hash_of(size(), hash_start));
  std::array<bool, 2> has_nonzero{};  // at even and at odd positions
  for (std::uint64_t place = 0; place < places; ++place) {
    read((size() - tokens.size()) * place / (places - 1) / 2 * 2, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      digest_ = hash_of(static_cast<std::uint64_t>(tokens[i]), digest_);
      has_nonzero[i % 2] = has_nonzero[i % 2] || tokens[i] != 0;
    }
  }
  if (file_.bytes().size() <= most_hashed_bytes)
    digest_ = hash_of_bytes(file_.bytes().subspan(layout_.header_bytes), digest_);
  const bool is_flat = layout_.header_bytes == 0 && layout_.token_bytes == sizeof(std::uint16_t);
  if (is_flat && tokens.size() == memory.size() && has_nonzero[0] && !has_nonzero[1]) {
    throw InputError(
        fmt::format("{}: every second uint16 is 0, so its numbers seem to have 4 or 8 bytes; a "
                    "flat file must hold uint16",
                    path().string()));
  }
}

void TokenFile::read(std::uint64_t start, std::span<float> out) const {
  file_.require_whole();
  if (layout_.token_bytes == 1) copy<std::uint8_t>(start, out);
  if (layout_.token_bytes == 2) copy<std::uint16_t>(start, out);
  if (layout_.token_bytes == 4) copy<std::uint32_t>(start, out);
}

template <class Number>
void TokenFile::copy(std::uint64_t start, std::span<float> out) const {
  const unsigned char* from = file_.bytes().data() + layout_.header_bytes + start * sizeof(Number);
  for (float& to : out) {
    Number id = 0;
    std::memcpy(&id, from, sizeof id);
    if (id >= vocabulary_) {
      const std::uint64_t position = start + static_cast<std::uint64_t>(&to - out.data());
      throw InputError(fmt::format("{}: token {} at position {} is not below model.vocabulary, {}",
                                   path().string(), id, position, vocabulary_));
    }
    to = static_cast<float>(id);
    from += sizeof id;
  }
}

}  // namespace starpipe::model
