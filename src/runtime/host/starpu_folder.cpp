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

// The files with all that StarPU has to know about this host.
std::array<fs::path, 4> files_of_host(const fs::path& links, const std::string& host) {
  const auto file = [&](const char* kind) { return links / fmt::format("{}.{}", host, kind); };
  return {file("config"), file("affinity"), file("latency"), file("bandwidth")};
}

// True if StarPU finds all of them, and writes nothing.
bool is_complete(const fs::path& links, const std::string& host) {
  return std::ranges::all_of(files_of_host(links, host),
                             [](const fs::path& file) { return access(file.c_str(), R_OK) == 0; });
}

// True if there is something else under the name of a file of StarPU's. Its files begin with a comment.
bool is_foreign(const fs::path& file) {
  std::error_code ignored;
  const fs::file_status status = fs::status(file, ignored);
  if (!fs::exists(status)) return false;
  if (!fs::is_regular_file(status)) return true;
  std::ifstream stream(file, std::ios::binary);
  const int first = stream.get();
  return first != std::ifstream::traits_type::eof() && first != '#';  // another run may begin to write it
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

struct Problem {
  std::string what = {};  // StarPU cannot do
  std::string_view remedy = {};
};

// Makes the folder. Returns an empty problem if StarPU can work with it.
Problem make_folder(const fs::path& folder) {
  const std::string host = name_of_host();
  const fs::path links = folder / "bus";
  std::error_code error;
  fs::create_directories(links, error);
  if (!error) {
    remove_broken_files(folder, host);
    const auto files = files_of_host(links, host);
    const auto foreign = std::ranges::find_if(files, is_foreign);
    if (foreign != files.end()) return {fmt::format("cannot read {}", foreign->string()), "remove it"};
    error = write_probe(links);
    const bool is_read_only =
        error == std::errc::permission_denied || error == std::errc::read_only_file_system;
    if (is_read_only && is_complete(links, host)) error.clear();
  }
  if (!error) return {};
  return {fmt::format("cannot write to its folder {}: {}", folder.string(), error.message()),
          "free space there"};
}

// Makes the folder `own` if only this user may have made it: others could put files there. True if StarPU can
// work with it.
bool make_own_folder(const fs::path& own) {
  struct stat found {};
  if (mkdir(own.c_str(), S_IRWXU) != 0 && errno != EEXIST) return false;
  if (lstat(own.c_str(), &found) != 0) return false;
  return S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
         make_folder(sampling_folder(own)).what.empty();
}

}  // namespace

fs::path sampling_folder(const fs::path& cache) { return cache / ".starpu" / "sampling"; }

StarpuFolder find_starpu_folder() {
  const auto [variable, folder] = users_folder();
  const Problem problem = make_folder(folder);
  if (problem.what.empty()) return {};
  const std::string reason = fmt::format("{}: StarPU {}", variable, problem.what);
  const std::string remedy = fmt::format("{}, or set STARPU_HOME to another folder", problem.remedy);
  std::error_code ignored;
  for (const fs::path& place : {fs::temp_directory_path(ignored), fs::path("/tmp"), fs::path("/dev/shm")}) {
    const fs::path own = place / fmt::format("starpipe-{}", geteuid());
    if (place.empty() || !make_own_folder(own)) continue;
    return {
        own,
        fmt::format("{}; its measurements of this machine are in {} now ({})", reason, own.string(), remedy),
        {}};
  }
  return {{}, {}, fmt::format("{} ({})", reason, remedy)};
}

}  // namespace starpipe::runtime
