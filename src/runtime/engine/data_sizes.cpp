// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/data_sizes.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "runtime/engine/kernels.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/forward_passes.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::size_t word_bytes = sizeof(float);
constexpr std::size_t most_words = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t most_message_bytes = std::numeric_limits<int>::max();

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
  if (words > most_words) refuse(stage, what, words, fmt::format("StarPU takes at most {}", most_words));
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
      if (access.access == Access::precede || datum.size <= most_message_bytes / word_bytes) continue;
      if (map.rank_of(datum.worker) == map.rank_of(task.worker)) continue;
      refuse(stage_of(datum, graph), to_string(datum.kind), datum.size,
             fmt::format("and ranks send each other at most {} bytes at once", most_message_bytes));
    }
  }
}

void check_evaluation_sizes(const plan::Schedule& schedule, const model::Network& network,
                            const WorkerMap& map) {
  const plan::Schedule forward = plan::forward_passes(schedule, schedule.microbatches());
  check_data_sizes(TaskGraph::evaluation(schedule, forward, network), forward, network, map);
}

}  // namespace starpipe::runtime
