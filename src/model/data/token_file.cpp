// SPDX-License-Identifier: Apache-2.0
#include "model/data/token_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
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

static_assert(std::endian::native == std::endian::little, "token files hold little-endian numbers");

/// The header that identifies a token file of llm.c.
struct HeaderKind {
  std::int32_t magic;
  std::int32_t version;
  std::size_t token_bytes;
};
constexpr std::array header_kinds = {HeaderKind{20240520, 1, 2}, HeaderKind{20240801, 7, 4}};
constexpr std::size_t header_bytes = 1024;
constexpr const char* known_kinds = "20240520 with version 1, 20240801 with version 7";

/// True if the number is a date of 2024: all files of llm.c have one as magic number (checkpoints,
/// tokenizers, questions). As flat uint16 it would be a token above 54,912 before the token 308, so no file
/// with GPT-2's 50,257 tokens begins like this.
bool is_magic_number(std::int32_t number) { return number > 20240000 && number < 20250000; }

/// The int32 number `place` of the file, or 0 behind the file's end.
std::int32_t number_at(std::span<const unsigned char> file, std::size_t place) {
  std::int32_t number = 0;
  if (file.size() >= (place + 1) * sizeof number) {
    std::memcpy(&number, file.data() + place * sizeof number, sizeof number);
  }
  return number;
}

TokenLayout layout_behind_header(const std::filesystem::path& path, std::span<const unsigned char> file) {
  const auto fail = [&](const std::string& problem) {
    return InputError(fmt::format("{}: {}", path.string(), problem));
  };
  const std::int32_t magic = number_at(file, 0);
  const auto* const kind = std::ranges::find(header_kinds, magic, &HeaderKind::magic);
  if (kind == header_kinds.end()) {
    throw fail(
        fmt::format("begins with the magic number {}, expected one of token files: {}", magic, known_kinds));
  }
  if (file.size() < header_bytes) {
    throw fail(
        fmt::format("begins with the magic number {} but has {} bytes, fewer than the {} of its header",
                    magic, file.size(), header_bytes));
  }
  const std::int32_t version = number_at(file, 1);
  if (version != kind->version) {
    throw fail(fmt::format("has the magic number {} with version {}, expected version {}", magic, version,
                           kind->version));
  }
  const std::int64_t count = number_at(file, 2);
  const std::size_t rest = file.size() - header_bytes;
  if (count < 0 || static_cast<std::uint64_t>(count) * kind->token_bytes != rest) {
    throw fail(fmt::format("its header counts {} tokens of {} bytes, but {} bytes follow", count,
                           kind->token_bytes, rest));
  }
  return {header_bytes, kind->token_bytes, static_cast<std::uint64_t>(count)};
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
  if (file_.bytes().size() <= max_hashed_bytes)
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

TokenLayout text_layout(std::span<const unsigned char> file) { return {0, 1, file.size()}; }

TokenLayout token_layout(const std::filesystem::path& path, std::span<const unsigned char> file) {
  if (is_magic_number(number_at(file, 0))) return layout_behind_header(path, file);
  if (file.size() % sizeof(std::uint16_t) == 0) return {0, sizeof(std::uint16_t), file.size() / 2};
  throw InputError(
      fmt::format("{}: has {} bytes, an odd number, and no magic number; expected flat uint16, "
                  "or a header with the magic number {}",
                  path.string(), file.size(), known_kinds));
}

}  // namespace starpipe::model
