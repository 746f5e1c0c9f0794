// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <sys/types.h>

namespace starpipe::cli {

/// A process that this one starts, in a process group of its own. Ending signals (starpipe/base/signals.hpp)
/// have their default actions in it. It does not outlive this object, nor this process: its group is killed.
class ChildProcess {
 public:
  /// How the destructor ends a process that still runs. A launcher of ranks is killed: if it were asked while
  /// it starts, it might leave its ranks behind. When it is killed, its helpers on the hosts end the ranks.
  /// `sim` is asked first, so that it removes its files; it is killed if it has not ended after a second.
  enum class Ending : std::uint8_t { kill, ask };

  /// Calls `work` in a copy of this process. `work` must not return. Throws std::system_error if no process
  /// can be started.
  explicit ChildProcess(const std::function<void()>& work, Ending ending = Ending::kill);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// The status of waitpid once it has ended; nullopt while it runs. Does not wait.
  std::optional<int> status();

 private:
  pid_t id_;
  Ending ending_;
  std::optional<int> status_;
};

/// For a child: becomes the program of this name on PATH. Ends with status 127 when there is none.
[[noreturn]] void become_program(const std::vector<std::string>& command);

/// Returns why a process with this status of waitpid has failed: "it ended with exit status 1", "it was ended
/// by signal 11 (Segmentation fault)". Empty if it succeeded.
std::string how_it_failed(int status);

/// A new folder for temporary files, removed with all that is in it. Throws std::system_error when none can
/// be made. Hold signals (HeldSignals) while it lives.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "starpipe-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace starpipe::cli
