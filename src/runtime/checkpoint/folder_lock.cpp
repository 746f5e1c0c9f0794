// SPDX-License-Identifier: Apache-2.0
// FolderLock of checkpoint_files.hpp.
#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "runtime/checkpoint/checkpoint_files.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

using Json = nlohmann::json;

InputError lock_error(const std::filesystem::path& path, int error) {
  return InputError(fmt::format("cannot write checkpoints to {}: {}", path.string(),
                                std::generic_category().message(error)));
}

/// Returns the description of this process that others read in the lock's file. Containers may have the same
/// host name and number of the process, so a random number tells this run from all others.
std::string own_text() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::random_device random;
  Json owner = {
      {"host", host.data()}, {"pid", ::getpid()}, {"run", fmt::format("{:08x}{:08x}", random(), random())}};
  if (const auto job = environment("SLURM_JOB_ID")) owner["slurm_job"] = *job;
  return owner.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Returns "process 123 on host a, Slurm job 7", or less where the lock's file is not readable or not whole.
std::string owner_text(const std::filesystem::path& file) {
  try {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) return "another process";
    const Json owner = Json::parse(read_file(file));
    std::string words = fmt::format("process {} on host {}", owner.at("pid").get<long>(),
                                    owner.at("host").get<std::string>());
    if (owner.contains("slurm_job")) words += ", Slurm job " + owner["slurm_job"].get<std::string>();
    return words;
  } catch (const std::exception&) {
    return "another process";
  }
}

}  // namespace

FolderLock::FolderLock(std::filesystem::path folder) : folder_(std::move(folder)), file_(folder_ / "lock") {
  take();
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FolderLock::renew() {
  struct stat held {};
  struct stat named {};
  if (::fstat(descriptor_, &held) == 0 && ::stat(file_.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
      held.st_ino == named.st_ino) {
    return;
  }
  take();
}

void FolderLock::take() {
  std::error_code error;
  // A link may name a folder that does not exist, for example on a scratch disk that has been emptied.
  std::filesystem::create_directories(target_of(folder_), error);
  if (error) throw lock_error(folder_, error.value());
  // An earlier run's lock file may be open to us where the folder is not.
  if (::access(folder_.c_str(), W_OK | X_OK) != 0) throw lock_error(folder_, errno);
  const int descriptor = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw lock_error(file_, errno);
  int status = 0;
  do {
    status = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  const int problem = status == 0 ? 0 : errno;
  if (problem == EWOULDBLOCK) {
    ::close(descriptor);
    throw InputError(
        fmt::format("the checkpoint folder {} is in use by {}; two runs cannot write to one folder",
                    folder_.string(), owner_text(file_)));
  }
  // Some network file systems have no locks. Checkpoints are worth more than the guard.
  warning_ = problem == 0 ? ""
                          : fmt::format("{} has no locks ({}): nothing keeps a second run from writing there",
                                        folder_.string(), std::generic_category().message(problem));
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = descriptor;
  const std::string text = own_text();
  // For the message of a second run, and for `shows_lock`: the lock holds without it, as on a full disk.
  const bool is_written = ::ftruncate(descriptor_, 0) == 0 &&
                          ::pwrite(descriptor_, text.data(), text.size(), 0) == std::ssize(text);
  ::fsync(descriptor_);  // a network file system then shows the text to other hosts
  text_ = is_written ? text : "";
}

bool shows_lock(const std::filesystem::path& folder, const std::string& text, int looks) {
  constexpr std::chrono::milliseconds pause{100};
  for (int look = 0; look < looks; ++look) {
    if (look > 0) std::this_thread::sleep_for(pause);
    std::error_code ignored;
    // A look at the folder makes a network file system forget that a file was missing.
    const std::filesystem::directory_iterator listed(folder, ignored);
    if (readable_part(folder / "lock") == text) return true;
  }
  return false;
}

}  // namespace starpipe::runtime
