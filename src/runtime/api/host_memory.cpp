// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/host_memory.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/numbers.hpp"
#include "plan/simulate/reductions.hpp"
#include "runtime/engine/received_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryLimit, id, name, bytes)

namespace {

/// Holds the memory that the process of a rank has now, in bytes, and the limits on it.
struct ProcessMemory {
  std::uint64_t resident = 0;
  std::uint64_t anonymous = 0;  ///< the part that is in no file, so that no other process shares it
  std::vector<MemoryLimit> limits;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProcessMemory, resident, anonymous, limits)

// Bytes per parameter that verify's sequential computation takes on rank 0 with AdamW, as measured
// (docs/memory.md): values, gradients and optimizer state, and in double the change that rounding may make.
constexpr std::uint64_t reference_bytes = 68;

void add(WorkerMemory& sum, const WorkerMemory& more) {
  for (const MemoryPart& part : memory_parts) sum.*part.bytes += more.*part.bytes;
}

// Throws InputError if the ranks that share `limit` need more than it.
void require_within(const MemoryLimit& limit, std::span<const MainMemory> needs,
                    std::span<const ProcessMemory> processes, const std::vector<RankLocation>& locations) {
  MainMemory sum;
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < needs.size(); ++r) {
    if (std::ranges::find(processes[r].limits, limit.id, &MemoryLimit::id) == processes[r].limits.end())
      continue;
    ranks.push_back(r);
    add(sum.data, needs[r].data);
    sum.kept += needs[r].kept;
    sum.checkpoint += needs[r].checkpoint;
    sum.reference += needs[r].reference;
    sum.message += needs[r].message;
    sum.process += needs[r].process;
  }
  if (sum.total() <= limit.bytes) return;
  std::vector<std::string> parts;
  const auto name = [&](std::string_view of, std::uint64_t bytes) {
    if (bytes > 0) parts.push_back(fmt::format("{} {}", of, bytes_text(bytes)));
  };
  for (const MemoryPart& part : memory_parts) name(part.name, sum.data.*part.bytes);
  name("kept for later data", sum.kept);
  name("copy for checkpoints", sum.checkpoint);
  name("sequential computation", sum.reference);
  name("messages of emulated jobs", sum.message);
  name(ranks.size() == 1 ? "process" : "processes", sum.process);
  const auto [need, given] = bytes_texts(sum.total(), limit.bytes);
  throw InputError(fmt::format("host {}: {} {} {} of main memory ({}), more than {}, {}",
                               locations[ranks.front()].machine, ranks.size() == 1 ? "rank" : "ranks",
                               fmt::join(ranks, ", "), (ranks.size() == 1 ? "needs " : "need ") + need,
                               fmt::join(parts, ", "), limit.name, given));
}

void require_within_limits(std::span<const MainMemory> needs, std::span<const ProcessMemory> processes,
                           const std::vector<RankLocation>& locations) {
  for (const ProcessMemory& process : processes) {
    for (const MemoryLimit& limit : process.limits) require_within(limit, needs, processes, locations);
  }
}

std::vector<ProcessMemory> processes_on_root(const Mpi& mpi) {
  return values_on_root(mpi, ProcessMemory{.resident = memory_of_process("VmRSS"),
                                           .anonymous = memory_of_process("RssAnon"),
                                           .limits = find_memory_limits()});
}

}  // namespace

std::vector<MainMemory> main_memory_need(const Config& config, const Experiment& experiment,
                                         const WorkerMap& map, int ranks) {
  // The cores of a rank share its memory. A GPU has its own, with numbers behind the ranks'.
  const int workers = experiment.schedule.workers();
  const std::vector<bool> on_gpu = config.runtime.on_gpu_of(workers);
  WorkerDevices at;
  int gpus = 0;
  for (int w = 0; w < workers; ++w) {
    at.rank_of.push_back(map.rank_of(w));
    at.devices.push_back(on_gpu[index(w)] ? ranks + gpus++ : map.rank_of(w));
  }
  std::vector<MainMemory> all(index(ranks));
  if (experiment.emulated) {
    const TaskGraph graph(experiment.schedule, experiment.network, config.training.optimizer,
                          experiment.rules);
    const std::vector<std::uint64_t> messages = largest_received(graph, at.rank_of);
    for (std::size_t r = 0; r < messages.size(); ++r) all[r].message = messages[r];
    return all;
  }
  // Other policies get the tasks of a whole step.
  const bool keeps_order =
      experiment.schedule.discipline() == plan::Discipline::ordered &&
      (config.runtime.policy == RuntimeConfig().policy || config.runtime.policy == "worker-order");
  if (keeps_order) at.window = config.runtime.window;
  const plan::Costs costs = plan::with_known_copies(experiment.costs);
  const std::vector<DeviceNeed> needs =
      memory_need_of(config, experiment, costs, plan::simulate(experiment.schedule, costs), at);
  for (std::size_t r = 0; r < all.size() && r < needs.size(); ++r) {
    all[r].data = needs[r].peak;
    all[r].kept = needs[r].kept;
  }
  // StarPU allocates the main memory of a rank that has GPUs, and keeps none.
  for (int w = 0; w < workers; ++w) {
    if (on_gpu[index(w)]) all[index(map.rank_of(w))].kept = 0;
  }
  if (config.evaluate.alone || !config.checkpoint.enabled()) return all;
  for (const model::ParameterSet& set : experiment.network.sets()) {
    const int holder = plan::weight_holders(experiment.schedule, set.first_stage()).front();
    const std::size_t numbers = set.size + model::optimizer_state_size(config.training.optimizer, set.size);
    all[index(map.rank_of(holder))].checkpoint += numbers * sizeof(float);
  }
  return all;
}

std::vector<MainMemory> require_main_memory(const Mpi& mpi, const Config& config,
                                            const Experiment& experiment, const WorkerMap& map,
                                            const std::vector<RankLocation>& locations) {
  if (on_simgrid) return {};
  const std::vector<ProcessMemory> processes = processes_on_root(mpi);
  return agree(mpi, [&] {
    std::vector<MainMemory> needs;
    if (mpi.rank() != 0) return needs;
    needs = main_memory_need(config, experiment, map, mpi.ranks());
    for (std::size_t r = 0; r < needs.size(); ++r) {
      // Most memory of an emulated rank is libraries, and the ranks of a host share these.
      needs[r].process = experiment.emulated ? processes[r].anonymous + emulated_runtime_bytes
                                             : processes[r].resident + runtime_bytes;
    }
    require_within_limits(needs, processes, locations);
    if (experiment.emulated) needs.clear();
    return needs;
  });
}

void require_reference_memory(const Mpi& mpi, const model::Network& network, std::vector<MainMemory> needs,
                              const std::vector<RankLocation>& locations) {
  const std::vector<ProcessMemory> processes = processes_on_root(mpi);
  agree(mpi, [&] {
    const bool is_root = mpi.rank() == 0;
    if (is_root) needs.front().reference = network.parameter_count() * reference_bytes;
    if (is_root) require_within_limits(needs, processes, locations);
    return is_root;
  });
}

}  // namespace starpipe::runtime
