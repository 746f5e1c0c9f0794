// SPDX-License-Identifier: Apache-2.0
// Measures how many tasks per second the meter of a rank records, by the number of workers that call it at
// once.
#include <vector>

#include <benchmark/benchmark.h>

#include "runtime/engine/meter.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::runtime {
namespace {

constexpr int max_workers = 64;

struct Step {
  Step()
      : network([] {
          model::ModelConfig config;
          config.kind = "mlp";
          config.options = {{"layers", max_workers}, {"hidden", 4}, {"inputs", 4}, {"outputs", 4}};
          return model::build_network(config, 1, max_workers);
        }()),
        schedule(plan::make_schedule("1f1b",
                                     {.workers = max_workers, .microbatches = 64, .graph = network.graph})),
        graph(schedule, network, {.kind = "sgd"}),
        tasks_of(index(max_workers)) {
    for (const Task& task : graph.tasks()) tasks_of[index(task.worker)].push_back(&task);
  }

  model::Network network;
  plan::Schedule schedule;
  TaskGraph graph;
  std::vector<std::vector<const Task*>> tasks_of;  // by worker
};

void record_tasks(benchmark::State& state) {
  static const Step step;
  static Meter meter(step.graph, max_workers, std::vector<bool>(index(max_workers), true));
  const int worker = state.thread_index();
  const std::vector<const Task*>& tasks = step.tasks_of[index(worker)];
  std::size_t next = 0;
  for ([[maybe_unused]] auto iteration : state) {
    meter.start(*tasks[next], worker);
    meter.end(*tasks[next], worker, {});
    next = (next + 1) % tasks.size();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(record_tasks)->ThreadRange(1, max_workers)->UseRealTime();

}  // namespace
}  // namespace starpipe::runtime
