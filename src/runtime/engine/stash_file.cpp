// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/stash_file.hpp"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

std::string text_of(int error) { return std::generic_category().message(error); }

// Calls `transfer(position, offset)`, which moves some of the bytes from `position` on, until all are moved.
// Returns 0, or the system's error; 0 bytes count as the end of the file.
template <class Transfer>
int move_all(std::uint64_t bytes, Transfer transfer) {
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t moved = transfer(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? errno : EIO;
    done += static_cast<std::uint64_t>(moved);
  }
  return 0;
}

}  // namespace

StashFile::StashFile(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::string name = (folder_ / "starpipe-stashes-XXXXXX").string();
  file_ = mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0)
    throw InputError(
        fmt::format("runtime.stash_folder: {}: no file can be made: {}", folder_.string(), text_of(errno)));
  unlink(name.c_str());
}

StashFile::~StashFile() { close(file_); }

void StashFile::fail(const char* what, int error) const {
  throw RunFailure(fmt::format("runtime.stash_folder: {}: a stash cannot be {}: {}", folder_.string(), what,
                               text_of(error)));
}

void StashFile::write(plan::JobId offload, model::ConstMemory stash) {
  const std::uint64_t bytes = stash.size() * sizeof(float);
  const auto place = static_cast<off_t>(take(offload, bytes));
  const auto* const data = static_cast<const char*>(stash.data());
  const int error = move_all(bytes, [&](std::uint64_t done) {
    return pwrite(file_, data + done, bytes - done, place + static_cast<off_t>(done));
  });
  if (error != 0) fail("written", error);
}

void StashFile::read(plan::JobId offload, model::Memory stash) {
  const std::uint64_t bytes = stash.size() * sizeof(float);
  std::uint64_t place = 0;
  {
    const std::scoped_lock lock(mutex_);
    place = places_.at(offload);
  }
  auto* const data = static_cast<char*>(stash.data());
  const int error = move_all(bytes, [&](std::uint64_t done) {
    return pread(file_, data + done, bytes - done, static_cast<off_t>(place + done));
  });
  if (error != 0) fail("read", error);
  const std::scoped_lock lock(mutex_);
  places_.erase(offload);
  free_[bytes].push_back(place);
}

std::uint64_t StashFile::bytes() const {
  const std::scoped_lock lock(mutex_);
  return end_;
}

std::uint64_t StashFile::take(plan::JobId offload, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t>& free = free_[bytes];
  std::uint64_t place = end_;
  if (free.empty()) {
    end_ += bytes;
  } else {
    place = free.back();
    free.pop_back();
  }
  places_[offload] = place;
  return place;
}

}  // namespace starpipe::runtime
