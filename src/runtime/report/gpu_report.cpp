// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/gpu_report.hpp"

#include <cstdlib>

#include <dlfcn.h>
#include <fmt/format.h>
#include <starpu.h>

#include "runtime/host/gather.hpp"
#include "base/environment.hpp"

namespace starpipe::runtime {
namespace {

// A rank's ordered pairs of GPUs, which it sends to all others.
struct GpuPairs {
  int all = 0;
  int peer_to_peer = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuPairs, all, peer_to_peer)

// StarPU has no function for this. Its library has a variable with the answer, readable where symbols are
// exported.
std::optional<bool> starpu_uses_gpu_direct() {
  const auto* const uses = static_cast<const int*>(dlsym(RTLD_DEFAULT, "_starpu_mpi_has_cuda"));
  if (uses == nullptr) return std::nullopt;
  return *uses != 0;
}

bool mpi_takes_gpu_memory() {
#ifdef MPIX_GPU_SUPPORT_CUDA
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

}  // namespace

std::string path_between_ranks(std::optional<bool> uses, bool mpi_can, bool disabled) {
  if (!uses) return "unknown: this StarPU-MPI does not say whether it gives GPU memory to MPI";
  if (*uses) return "direct: StarPU-MPI gives GPU memory to MPI";
  if (disabled) return "through the host: STARPU_MPI_GPUDIRECT=0";
  if (!mpi_can) return "through the host: this MPI was not built for GPU memory";
  return "through the host: StarPU-MPI was not built for this MPI's GPU support (scripts/setup builds one)";
}

GpuCopies find_gpu_copies(const Mpi& mpi) {
  GpuPairs mine;
  const auto is_gpu = [](int node) {
    return starpu_node_get_kind(static_cast<unsigned>(node)) == STARPU_CUDA_RAM;
  };
  for (int bus = 0; bus < starpu_bus_get_count(); ++bus) {
    const int from = starpu_bus_get_src(bus);
    const int to = starpu_bus_get_dst(bus);
    if (from == to || !is_gpu(from) || !is_gpu(to)) continue;
    ++mine.all;
    mine.peer_to_peer += starpu_bus_get_direct(bus) != 0 ? 1 : 0;
  }
  GpuCopies copies;
  for (const GpuPairs& pairs : gather_all(mpi, mine)) {
    copies.pairs += pairs.all;
    copies.peer_to_peer += pairs.peer_to_peer;
  }
  if (mpi.ranks() > 1) {
    copies.between_ranks = path_between_ranks(starpu_uses_gpu_direct(), mpi_takes_gpu_memory(),
                                              environment("STARPU_MPI_GPUDIRECT") == "0");
  }
  return copies;
}

nlohmann::ordered_json to_json(const GpuCopies& copies) {
  nlohmann::ordered_json json;
  json["within_ranks"] = {{"pairs", copies.pairs}, {"peer_to_peer", copies.peer_to_peer}};
  if (copies.between_ranks) json["between_ranks"] = *copies.between_ranks;
  return json;
}

std::string to_text(const GpuCopies& copies) {
  std::string text;
  if (copies.pairs > 0) {
    text += fmt::format("GPU to GPU within ranks: peer to peer for {} of {} ordered pairs\n",
                        copies.peer_to_peer, copies.pairs);
  }
  if (copies.between_ranks) text += fmt::format("GPU to GPU between ranks: {}\n", *copies.between_ranks);
  return text;
}

}  // namespace starpipe::runtime
