// SPDX-License-Identifier: Apache-2.0
#include "model/data/token_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/random.hpp"
#include "starpipe/model/dataset.hpp"

namespace starpipe::model {
namespace {

/// The largest file whose digest covers all bytes: they are read in some hundredths of a second.
constexpr std::size_t max_hashed_bytes = std::size_t{64} << 20U;

std::uint64_t hash_of_bytes(std::span<const unsigned char> bytes, std::uint64_t hash) {
  std::uint64_t word = 0;
  for (; bytes.size() >= sizeof word; bytes = bytes.subspan(sizeof word)) {
    std::memcpy(&word, bytes.data(), sizeof word);
    hash = hash_of(word, hash);
  }
  for (const unsigned char byte : bytes) hash = hash_of(std::uint64_t{byte}, hash);
  return hash;
}

InputError unreadable(const std::filesystem::path& path, int error) {
  return InputError(
      fmt::format("{}: cannot be read: {}", path.string(), std::generic_category().message(error)));
}

/// Returns the bytes of an open regular file; nullopt for a directory, a pipe or a device.
std::optional<std::size_t> size_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, std::string_view kind, std::size_t vocabulary,
                     std::optional<TokenType> type)
    : file_(path),
      layout_(kind == text_data ? text_layout(path, file_.bytes())
                                : token_layout(path, file_.bytes(), type.value_or(TokenType::uint16))),
      vocabulary_(vocabulary) {
  constexpr std::size_t max_uint16_ids = std::size_t{1} << 16U;
  if (kind != text_data && layout_.header_bytes == 0 && !type && vocabulary > max_uint16_ids) {
    throw InputError(
        fmt::format("{}: has no header that says the type of its numbers, and the ids of model.vocabulary, "
                    "{}, do not fit uint16; give data.token_type",
                    path.string(), vocabulary));
  }
  sample(kind != text_data && layout_.header_bytes == 0);
}

void TokenFile::sample(bool is_flat) {
  constexpr std::uint64_t places = 64;
  std::array<float, 64> memory{};
  const auto tokens = std::span(memory).first(std::min<std::uint64_t>(memory.size(), size()));
  digest_ = hash_of(layout_.token_bytes, hash_of(size(), hash_start));
  // Numbers twice as wide, read in halves, have the upper half of an id at each odd position: 0 for most
  // files, more for ids of large vocabularies, all ones for a negative label.
  const bool is_short = layout_.token_bytes == 2;
  const std::array max_upper = {
      0.0F, is_short ? static_cast<float>(std::max((vocabulary_ - 1) >> 16U, std::size_t{3})) : 0.0F};
  constexpr float all_ones = 65'535;
  // For each bound, at even and at odd positions: the numbers that are not such halves.
  std::array<std::array<std::size_t, 2>, max_upper.size()> others{};
  for (std::uint64_t place = 0; place < places; ++place) {
    read((size() - tokens.size()) * place / (places - 1) / 2 * 2, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      digest_ = hash_of(static_cast<std::uint64_t>(tokens[i]), digest_);
      for (std::size_t bound = 0; bound < max_upper.size(); ++bound) {
        if (tokens[i] > max_upper[bound] && !(is_short && tokens[i] == all_ones)) ++others[bound][i % 2];
      }
    }
  }
  if (file_.bytes().size() <= max_hashed_bytes)
    digest_ = hash_of_bytes(file_.bytes().subspan(layout_.header_bytes), digest_);
  if (!is_flat || tokens.size() < 16) return;
  for (std::size_t bound = 0; bound < max_upper.size(); ++bound) {
    if (others[bound][0] <= 10 * others[bound][1]) continue;
    throw InputError(fmt::format(
        "{}: nearly every second uint{} is {}, so its numbers seem to have {} bytes or more; give their type "
        "as data.token_type",
        path().string(), 8 * layout_.token_bytes,
        max_upper[bound] == 0 ? "0" : fmt::format("at most {}", max_upper[bound]), 2 * layout_.token_bytes));
  }
}

void TokenFile::read(std::uint64_t start, std::span<float> out) const {
  file_.require_whole();
  if (layout_.token_bytes == 1) copy<std::uint8_t>(start, out);
  if (layout_.token_bytes == 2) copy<std::uint16_t>(start, out);
  if (layout_.token_bytes == 4) copy<std::uint32_t>(start, out);
  if (layout_.token_bytes == 8) copy<std::uint64_t>(start, out);
}

template <class Number>
void TokenFile::copy(std::uint64_t start, std::span<float> out) const {
  const unsigned char* from = file_.bytes().data() + layout_.header_bytes + start * sizeof(Number);
  for (float& to : out) {
    Number id = 0;
    std::memcpy(&id, from, sizeof id);
    const auto value = static_cast<std::make_signed_t<Number>>(id);
    const bool is_negative = layout_.is_signed && value < 0;
    if (id >= vocabulary_ || is_negative) {
      const std::uint64_t position = start + static_cast<std::uint64_t>(&to - out.data());
      throw InputError(fmt::format("{}: token {} at position {} is not below model.vocabulary, {}",
                                   path().string(), is_negative ? fmt::to_string(value) : fmt::to_string(id),
                                   position, vocabulary_));
    }
    to = static_cast<float>(id);
    from += sizeof id;
  }
}

MappedFile::MappedFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) throw unreadable(path_, errno);
  const std::optional<std::size_t> size = size_of(descriptor_);
  if (size == 0) return;
  void* const address = size ? mmap(nullptr, *size, PROT_READ, MAP_SHARED, descriptor_, 0) : MAP_FAILED;
  if (address != MAP_FAILED) {
    bytes_ = {static_cast<const unsigned char*>(address), *size};
    return;
  }
  const int error = errno;
  close(descriptor_);
  if (!size) throw InputError(fmt::format("{}: is not a file", path_.string()));
  throw unreadable(path_, error);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<unsigned char*>(bytes_.data()), bytes_.size());
  close(descriptor_);
}

void MappedFile::require_whole() const {
  const std::size_t now = size_of(descriptor_).value_or(0);
  if (now >= bytes_.size()) return;
  throw InputError(fmt::format("{}: has become shorter during the run: {} bytes, {} at its start",
                               path_.string(), now, bytes_.size()));
}

}  // namespace starpipe::model
