// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/gpu_memory_report.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/index.hpp"
#include "base/numbers.hpp"
#include "base/table.hpp"

namespace starpipe::runtime {
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
                            std::span<const WorkerMemory> needs) {
  std::vector<GpuUse> gpus;
  for (std::size_t g = 0; g < measured.size(); ++g) {
    GpuUse& gpu = gpus.emplace_back(GpuUse{measured[g], {}, needs[g].total()});
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
