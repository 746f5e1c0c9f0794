// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/handle.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include <fmt/format.h>
#include <sys/mman.h>

#include "runtime/engine/kernels.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

Handle::~Handle() {
  if (handle_ == nullptr) return;
  if (keep_value_) {
    starpu_data_unregister(handle_);
  } else {
    starpu_data_unregister_no_coherency(handle_);
  }
}

HostMemory HostMemory::unused(std::size_t size) {
  const std::size_t bytes = std::max<std::size_t>(1, size) * sizeof(float);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  HostMemory result;
  result.mapped_ = {static_cast<float*>(memory), [bytes](float* mapped) { munmap(mapped, bytes); }};
  result.all_ = {result.mapped_.get(), size};
  return result;
}

namespace {

constexpr std::size_t word_bytes = sizeof(float);
constexpr std::size_t max_words = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t max_message_bytes = std::numeric_limits<int>::max();

[[noreturn]] void refuse(int stage, std::string_view what, std::size_t words, std::string_view limit) {
  throw InputError(fmt::format(
      "stage {}: its {} would have {} words of {} bytes, {}; use more stages (schedule.stages) or smaller "
      "micro-batches (training.microbatch_size)",
      stage, what, words, word_bytes, limit));
}

/// The stage to name: for parameters that are shared, the first one that uses them.
int stage_of(const Datum& datum, const TaskGraph& graph) {
  if (datum.stage < 0 || is_temporary(datum.kind)) return datum.stage;
  return graph.parameters()[index(datum.stage)].first_stage();
}

void check_words(int stage, std::string_view what, std::size_t words) {
  if (words > max_words) refuse(stage, what, words, fmt::format("StarPU takes at most {}", max_words));
}

}  // namespace

void check_data_sizes(const TaskGraph& graph, const plan::Schedule& schedule, const model::Network& network,
                      const WorkerMap& map) {
  for (const Datum& datum : graph.data())
    check_words(stage_of(datum, graph), to_string(datum.kind), datum.size);
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    for (const bool on_gpu : {false, true}) {
      check_words(static_cast<int>(s), "scratch memory",
                  scratch_size(schedule, network.stages[s], on_gpu, graph.rules()));
    }
  }
  for (const Task& task : graph.tasks()) {
    for (const DataAccess& access : task.data) {
      const Datum& datum = graph.data()[access.datum];
      if (access.access == Access::precede || datum.size <= max_message_bytes / word_bytes) continue;
      if (map.rank_of(datum.worker) == map.rank_of(task.worker)) continue;
      refuse(stage_of(datum, graph), to_string(datum.kind), datum.size,
             fmt::format("and ranks send each other at most {} bytes at once", max_message_bytes));
    }
  }
}

void check_evaluation_sizes(const plan::Schedule& schedule, const model::Network& network,
                            const WorkerMap& map) {
  const plan::Schedule forward = plan::forward_passes(schedule, schedule.microbatches());
  check_data_sizes(TaskGraph::evaluation(schedule, forward, network), forward, network, map);
}

}  // namespace starpipe::runtime
