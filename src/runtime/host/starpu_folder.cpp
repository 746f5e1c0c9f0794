// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* by_itself = "STARPU_PERF_MODEL_DIR";

std::error_code last_error() { return {errno, std::generic_category()}; }

// Returns the variable that the user's folder follows from, and the folder.
std::pair<std::string, fs::path> users_folder() {
  if (const std::string folder = environment(by_itself).value_or(""); !folder.empty())
    return {by_itself, folder};
  // StarPU's order.
  for (const char* variable : {"XDG_CACHE_HOME", "STARPU_HOME", "HOME", "TMPDIR", "TEMP", "TMP"}) {
    if (const auto home = environment(variable)) return {variable, sampling_folder(*home)};
  }
  return {"HOME is not set", sampling_folder("/tmp")};
}

// Returns the name that StarPU gives the host in the names of files.
std::string name_of_host() {
  if (const auto name = environment("STARPU_HOSTNAME")) return *name;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const std::string_view whole(name.data());
  return std::string(whole.substr(0, whole.find('.')));
}

bool is_whole(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return true;  // another user's
  stream.seekg(-1, std::ios::end);
  return stream.get() == '\n';
}

bool is_new(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  return !error && fs::file_time_type::clock::now() - written < std::chrono::seconds(2);
}

void remove_broken_files(const fs::path& folder, const std::string& host) {
  constexpr int max_naps = 30;  // a clock of another host may be late
  constexpr std::chrono::milliseconds nap(100);
  std::error_code error;
  for (fs::recursive_directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (!name.starts_with(host + ".") && !name.ends_with("." + host)) continue;
    std::error_code ignored;
    if (!file->is_regular_file(ignored)) continue;
    for (int naps = 0; naps < max_naps && !is_whole(file->path()) && is_new(file->path()); ++naps)
      std::this_thread::sleep_for(nap);
    if (!is_whole(file->path())) fs::remove(file->path(), ignored);
  }
}

// True if StarPU finds all that it has to know about this host, and writes nothing.
bool is_complete(const fs::path& links, const std::string& host) {
  return std::ranges::all_of(std::array{"config", "affinity", "latency", "bandwidth"}, [&](const char* kind) {
    return access((links / fmt::format("{}.{}", host, kind)).c_str(), R_OK) == 0;
  });
}

// More than StarPU's files about a host usually need.
std::error_code write_probe(const fs::path& folder) {
  const fs::path probe = folder / fmt::format("starpipe-{}.probe", getpid());
  errno = 0;
  std::ofstream stream(probe, std::ios::binary);
  stream << std::string(std::size_t{1} << 16U, '\n') << std::flush;
  stream.close();
  std::error_code failed = stream ? std::error_code() : last_error();
  std::error_code ignored;
  fs::remove(probe, ignored);
  return failed;
}

// Makes the folder, and returns an error if StarPU could not work with it.
std::error_code make_folder(const fs::path& folder) {
  const std::string host = name_of_host();
  const fs::path links = folder / "bus";
  std::error_code error;
  fs::create_directories(links, error);
  if (error) return error;
  remove_broken_files(folder, host);
  error = write_probe(links);
  const bool is_read_only =
      error == std::errc::permission_denied || error == std::errc::read_only_file_system;
  return is_read_only && is_complete(links, host) ? std::error_code() : error;
}

// Only this user may have made it: others could put files there.
std::error_code make_own_folder(const fs::path& folder) {
  struct stat found {};
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) return last_error();
  if (lstat(folder.c_str(), &found) != 0) return last_error();
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid())
    return std::make_error_code(std::errc::permission_denied);
  return make_folder(sampling_folder(folder));
}

}  // namespace

fs::path sampling_folder(const fs::path& cache) { return cache / ".starpu" / "sampling"; }

StarpuFolder find_starpu_folder() {
  const auto [variable, folder] = users_folder();
  const std::error_code error = make_folder(folder);
  if (!error) return {};
  const std::string reason =
      fmt::format("{}: StarPU cannot write to its folder {}: {}", variable, folder.string(), error.message());
  constexpr std::string_view remedy = "free space there, or set STARPU_HOME to another folder";
  std::error_code ignored;
  for (const fs::path& place : {fs::temp_directory_path(ignored), fs::path("/tmp"), fs::path("/dev/shm")}) {
    const fs::path own = place / fmt::format("starpipe-{}", geteuid());
    if (place.empty() || make_own_folder(own)) continue;
    return {
        own,
        fmt::format("{}; its measurements of this machine are in {} now ({})", reason, own.string(), remedy),
        {}};
  }
  return {{}, {}, fmt::format("{} ({})", reason, remedy)};
}

}  // namespace starpipe::runtime
