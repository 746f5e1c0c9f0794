// SPDX-License-Identifier: Apache-2.0
// The GPUs in report.hpp.
#include <algorithm>
#include <array>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <starpu.h>

#include "base/environment.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "runtime/report/report.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

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
  GpuCopies copies;
  const auto is_gpu = [](int node) {
    return starpu_node_get_kind(static_cast<unsigned>(node)) == STARPU_CUDA_RAM;
  };
  for (int bus = 0; bus < starpu_bus_get_count(); ++bus) {
    const int from = starpu_bus_get_src(bus);
    const int to = starpu_bus_get_dst(bus);
    if (from == to || !is_gpu(from) || !is_gpu(to)) continue;
    ++copies.pairs;
    if (starpu_bus_get_direct(bus) != 0) ++copies.peer_to_peer;
  }
  copies.pairs = mpi.combine(copies.pairs, Combine::sum);
  copies.peer_to_peer = mpi.combine(copies.peer_to_peer, Combine::sum);
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

namespace {

std::string name_of(int gpu) { return fmt::format("cuda{}", gpu); }

double relative_difference(std::uint64_t measured, std::uint64_t predicted) {
  return predicted == 0 ? 0 : static_cast<double>(measured) / static_cast<double>(predicted) - 1;
}

}  // namespace

std::vector<int> gpu_of_workers(std::span<const GpuMemory> measured,
                                std::span<const RankLocation> locations) {
  std::size_t workers = 0;
  for (const RankLocation& location : locations) workers += location.logical_workers.size();
  std::vector<int> numbers(workers);
  int next = static_cast<int>(measured.size());
  for (std::size_t rank = 0; rank < locations.size(); ++rank) {
    const RankLocation& location = locations[rank];
    for (std::size_t i = 0; i < location.logical_workers.size(); ++i) {
      const auto gpu = std::ranges::find_if(measured, [&](const GpuMemory& memory) {
        return std::cmp_equal(memory.rank, rank) && name_of(memory.gpu) == location.devices[i];
      });
      numbers[index(location.logical_workers[i])] =
          gpu == measured.end() ? next++ : static_cast<int>(gpu - measured.begin());
    }
  }
  return numbers;
}

std::vector<GpuUse> gpu_use(std::span<const GpuMemory> measured, std::span<const int> gpu_of_worker,
                            std::span<const DeviceNeed> needs) {
  std::vector<GpuUse> gpus;
  for (std::size_t g = 0; g < measured.size(); ++g) {
    GpuUse& gpu = gpus.emplace_back(GpuUse{measured[g], {}, needs[g].peak.total()});
    for (std::size_t w = 0; w < gpu_of_worker.size(); ++w) {
      if (std::cmp_equal(gpu_of_worker[w], g)) gpu.workers.push_back(static_cast<int>(w));
    }
  }
  return gpus;
}

nlohmann::ordered_json to_json(std::span<const GpuUse> gpus) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const auto& [measured, workers, predicted] : gpus) {
    json.push_back({{"rank", measured.rank},
                    {"device", name_of(measured.gpu)},
                    {"workers", workers},
                    {"predicted", predicted},
                    {"starpu_peak", measured.starpu_peak},
                    {"driver",
                     {{"before", measured.driver_before},
                      {"initialised", measured.driver_initialised},
                      {"peak", measured.driver_peak},
                      {"added_by_steps", measured.driver_added()}}}});
  }
  return json;
}

std::string to_text(std::span<const GpuUse> gpus) {
  if (gpus.empty()) return {};
  constexpr std::array columns = {TableColumn{Align::left, 14},  TableColumn{Align::left, 12},
                                  TableColumn{Align::right, 10}, TableColumn{Align::right, 10},
                                  TableColumn{Align::right, 10}, TableColumn{Align::right, 12},
                                  TableColumn{Align::right, 12}};
  std::vector<TableRow> rows = {
      {"device memory", "workers", "predicted", "StarPU", "difference", "driver start", "steps added"}};
  for (const auto& [measured, workers, predicted] : gpus) {
    rows.push_back({fmt::format("rank {} {}", measured.rank, name_of(measured.gpu)),
                    fmt::format("{}", fmt::join(workers, " ")), bytes_text(predicted),
                    bytes_text(measured.starpu_peak),
                    difference_text(relative_difference(measured.starpu_peak, predicted)),
                    bytes_text(measured.driver_initialised), bytes_text(measured.driver_added())});
  }
  std::string text = "\n";
  text += table_text(rows, columns);
  text +=
      "StarPU: its peak of allocated memory, including blocks it keeps for later use. Driver: bytes that\n"
      "all processes used on the card before the first step (CUDA contexts and cuBLAS included), and the\n"
      "largest increase during the steps.\n";
  return text;
}

}  // namespace starpipe::runtime
