// SPDX-License-Identifier: Apache-2.0
#include "base/durable_file.hpp"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace starpipe {
namespace {

std::runtime_error write_error(const std::filesystem::path& file, int error) {
  return std::runtime_error(
      fmt::format("cannot write {}: {}", file.string(), std::generic_category().message(error)));
}

// `flags`: of open, beside those for reading.
void sync(const std::filesystem::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) throw write_error(path, errno);
  int error = 0;
  while (::fsync(descriptor) != 0) {
    error = errno;
    if (error != EINTR) break;
    error = 0;
  }
  ::close(descriptor);
  if (error != 0 && error != EINVAL && error != ENOTSUP) throw write_error(path, error);
}

}  // namespace

DurableFile::DurableFile(std::filesystem::path file) : file_(std::move(file)) {
  if (::unlink(file_.c_str()) != 0 && errno != ENOENT) throw write_error(file_, errno);
  descriptor_ = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw write_error(file_, errno);
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(file_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t most_bytes = std::size_t{1} << 30U;  // Linux writes at most 2 GiB at once
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), most_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void DurableFile::finish() {
  while (::fsync(descriptor_) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == ENOTSUP) break;  // a file system that has nothing to wait for
    fail(errno);
  }
  // Network file systems report a full disk when a file is closed.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) {
    const int error = errno;
    ::unlink(file_.c_str());
    fail(error);
  }
}

void DurableFile::fail(int error) const { throw write_error(file_, error); }

void sync_folder(const std::filesystem::path& folder) { sync(folder, O_DIRECTORY); }

void sync_file(const std::filesystem::path& file) { sync(file, O_NONBLOCK); }

}  // namespace starpipe
