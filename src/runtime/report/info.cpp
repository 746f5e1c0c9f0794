// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <cblas.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <mpi.h>
#include <starpu.h>

#include "runtime/hardware/cuda_devices.hpp"
#include "runtime/hardware/hardware.hpp"
#include "runtime/report/versions.hpp"
#include "runtime/session/policy_choice.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/runtime/commands/train.hpp"
#include "starpipe/version.hpp"

namespace starpipe::runtime {
namespace {

std::string starpu_version() {
  int major = 0;
  int minor = 0;
  int release = 0;
  starpu_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

// The first line of what the MPI library says of itself: it may print a page.
std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string line(text.data());
  line = line.substr(0, line.find('\n'));
  for (std::size_t at = 0; (at = line.find('\t', at)) != std::string::npos;) line[at] = ' ';
  return line;
}

}  // namespace

nlohmann::ordered_json versions() {
  return {{"starpipe", version},
          {"commit", commit()},
          {"compiler", compiler},
          {"build_type", build_type},
          {"starpu", starpu_version()},
          {"mpi", mpi_version()},
          {"openblas", openblas_get_config()},
          {"hwloc", fmt::format("{}.{}.{}", HWLOC_API_VERSION >> 16, (HWLOC_API_VERSION >> 8) & 0xff,
                                HWLOC_API_VERSION & 0xff)}};
}

std::string describe_runtime(bool json) {
  const Hardware hardware = find_hardware();
  nlohmann::ordered_json info = {{"versions", versions()},
                                 {"machine",
                                  {{"name", hardware.machine},
                                   {"processor", hardware.cpu},
                                   {"cores", hardware.cores},
                                   {"binding", hardware.binding}}},
                                 {"starpu_most_cpu_workers", STARPU_MAXCPUS},
#ifdef STARPU_USE_CUDA
                                 {"starpu_cuda", true},
#else
                                 {"starpu_cuda", false},
#endif
#ifdef STARPU_USE_FXT
                                 {"starpu_fxt", true},
#else
                                 {"starpu_fxt", false},
#endif
                                 {"cuda", built_with_cuda()},
                                 {"cuda_devices", cuda_devices()},
                                 {"policies", policy_names()},
                                 {"layers", model::layer_kinds()}};
  if (json) return info.dump(2) + "\n";
  std::string text;
  for (const auto& [name, value] : info["versions"].items())
    text += fmt::format("{:<12}{}\n", name, value.get<std::string>());
  text += fmt::format("{:<12}{}, {}, {} cores (PUs {})\n", "machine", hardware.machine,
                      hardware.cpu.empty() ? "unknown processor" : hardware.cpu, hardware.cores,
                      hardware.binding);
  text += fmt::format("{:<12}up to {} CPU workers a process, CUDA {}, FxT traces {}\n", "StarPU has",
                      STARPU_MAXCPUS, info["starpu_cuda"].get<bool>() ? "yes" : "no",
                      info["starpu_fxt"].get<bool>() ? "yes" : "no");
  if (!built_with_cuda()) {
    text += fmt::format("{:<12}not looked for: built without STARPIPE_WITH_CUDA\n", "GPUs");
  } else if (cuda_devices().empty()) {
    text += fmt::format("{:<12}none\n", "GPUs");
  }
  for (const std::string& device : cuda_devices()) text += fmt::format("{:<12}{}\n", "GPU", device);
  text += fmt::format("{:<12}{}\n", "policies", fmt::join(policy_names(), ", "));
  text += fmt::format("{:<12}{}\n", "layers", fmt::join(model::layer_kinds(), ", "));
  return text;
}

}  // namespace starpipe::runtime
