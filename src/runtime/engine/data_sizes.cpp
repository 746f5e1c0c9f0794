// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/data_sizes.hpp"

#include <cstddef>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "runtime/engine/kernels.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::size_t word_bytes = sizeof(float);
constexpr std::size_t max_message_bytes = std::numeric_limits<int>::max();

[[noreturn]] void refuse(int stage, std::string_view what, std::size_t words, std::string_view limit) {
  throw InputError(fmt::format(
      "stage {}: its {} would have {} words of {} bytes, {}; use more stages (schedule.stages) or smaller "
      "micro-batches (training.microbatch_size)",
      stage, what, words, word_bytes, limit));
}

void check_words(int stage, std::string_view what, std::size_t words) {
  if (words > max_datum_words)
    refuse(stage, what, words, fmt::format("StarPU takes at most {}", max_datum_words));
}

}  // namespace

int stage_to_name(const Datum& datum, const TaskGraph& graph) {
  const bool of_stage = is_temporary(datum.kind) && datum.kind != DataKind::gradient_segment;
  if (datum.stage < 0 || of_stage) return datum.stage;
  return graph.parameters()[index(datum.stage)].first_stage();
}

void check_data_sizes(const TaskGraph& graph, const plan::Schedule& schedule, const model::Network& network,
                      const WorkerMap& map) {
  for (const Datum& datum : graph.data())
    check_words(stage_to_name(datum, graph), to_string(datum.kind), datum.size);
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    for (const bool on_gpu : {false, true}) {
      check_words(static_cast<int>(s), "scratch memory",
                  scratch_size(schedule, network, static_cast<int>(s), on_gpu, graph.rules()));
    }
  }
  for (const Task& task : graph.tasks()) {
    for (const DataAccess& access : task.data) {
      const Datum& datum = graph.data()[access.datum];
      if (access.access == Access::precede || datum.size <= max_message_bytes / word_bytes) continue;
      if (map.rank_of(datum.worker) == map.rank_of(task.worker)) continue;
      refuse(stage_to_name(datum, graph), to_string(datum.kind), datum.size,
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
