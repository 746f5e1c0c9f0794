// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/starpu_folder.hpp"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

// `folder` with its place for the measured links, which StarPU reads and writes in every run.
void make_folder(const char* variable, const std::filesystem::path& folder) {
  const std::filesystem::path links = folder / "bus";
  std::error_code error;
  std::filesystem::create_directories(links, error);
  const bool is_full = !error && !std::filesystem::is_empty(links, error);
  if (!error && !is_full && access(links.c_str(), W_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (!error) return;
  throw InputError(fmt::format("{}: StarPU cannot write to its folder {}: {}", variable, folder.string(),
                               error.message()));
}

}  // namespace

void make_starpu_folder() {
  constexpr const char* by_itself = "STARPU_PERF_MODEL_DIR";
  if (const auto folder = environment(by_itself).value_or(""); !folder.empty())
    return make_folder(by_itself, folder);
  // StarPU's order. Without any of them it takes a folder for temporary files.
  for (const char* variable : {"XDG_CACHE_HOME", "STARPU_HOME", "HOME"}) {
    if (const auto home = environment(variable)) return make_folder(variable, *home + "/.starpu/sampling");
  }
}

}  // namespace starpipe::runtime
