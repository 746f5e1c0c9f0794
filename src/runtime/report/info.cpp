// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/info.hpp"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <starpu.h>

#include "runtime/host/cuda_devices.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/report/versions.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/rank_location.hpp"
#include "runtime/session/policy_choice.hpp"
#include "starpipe/base/index.hpp"
#include "base/table.hpp"
#include "starpipe/model/layer.hpp"
#include "runtime/host/lost_rank.hpp"

namespace starpipe::runtime {

namespace {

// This rank among those that the launcher has started; null without a launcher. How many workers each rank
// has is not known here, so that each counts as having one.
nlohmann::ordered_json describe_rank() {
  if (!launcher_rank()) return nullptr;
  const Mpi mpi;
  const WorkerMap one_each(mpi.ranks(), mpi.ranks());
  const RankLocation location =
      gather_locations(mpi, one_each, divide_host(mpi, one_each), {})[index(mpi.rank())];
  return {{"rank", mpi.rank()},
          {"ranks", mpi.ranks()},
          {"binding", location.binding},
          {"bound_by", location.bound_by},
          {"cores", location.cores}};
}

}  // namespace

std::string describe_runtime(bool json) {
  const Hardware hardware = find_hardware();
  nlohmann::ordered_json info = {{"versions", versions()},
                                 {"machine",
                                  {{"name", hardware.machine},
                                   {"processor", hardware.cpu},
                                   {"cores", hardware.cores},
                                   {"binding", hardware.binding}}},
                                 {"rank", describe_rank()},
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
  std::vector<TableRow> rows;
  for (const auto& [name, value] : info["versions"].items()) rows.push_back({name, value.get<std::string>()});
  rows.push_back({"machine", fmt::format("{}, {}, {} cores (PUs {})", hardware.machine,
                                         hardware.cpu.empty() ? "unknown processor" : hardware.cpu,
                                         hardware.cores, hardware.binding)});
  if (const auto& rank = info["rank"]; !rank.is_null()) {
    rows.push_back({"rank", fmt::format("{} of {}; on PUs {} in a run with equally many workers a rank",
                                        rank["rank"].get<int>(), rank["ranks"].get<int>(),
                                        rank["binding"].get<std::string>())});
  }
  rows.push_back({"StarPU has", fmt::format("up to {} CPU workers a process, CUDA {}, FxT traces {}",
                                            STARPU_MAXCPUS, info["starpu_cuda"].get<bool>() ? "yes" : "no",
                                            info["starpu_fxt"].get<bool>() ? "yes" : "no")});
  if (!built_with_cuda()) {
    rows.push_back({"GPUs", "not looked for: built without STARPIPE_WITH_CUDA"});
  } else if (cuda_devices().empty()) {
    rows.push_back({"GPUs", "none"});
  }
  for (const std::string& device : cuda_devices()) rows.push_back({"GPU", device});
  rows.push_back({"policies", fmt::format("{}", fmt::join(policy_names(), ", "))});
  rows.push_back({"layers", fmt::format("{}", fmt::join(model::layer_kinds(), ", "))});
  return table_text(rows, info_columns);
}

}  // namespace starpipe::runtime
