// SPDX-License-Identifier: Apache-2.0
#include "model/data/mapped_file.hpp"

#include <cerrno>
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

namespace starpipe::model {
namespace {

InputError unreadable(const std::filesystem::path& path, int error) {
  return InputError(
      fmt::format("{}: cannot be read: {}", path.string(), std::generic_category().message(error)));
}

/// Bytes of an open regular file. Nothing for a directory, a pipe or a device.
std::optional<std::size_t> size_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

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
