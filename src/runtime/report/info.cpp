// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/report/info.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <starpu.h>

#include "runtime/hardware/cuda_devices.hpp"
#include "runtime/hardware/hardware.hpp"
#include "runtime/report/versions.hpp"
#include "runtime/session/policy_choice.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::runtime {

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
