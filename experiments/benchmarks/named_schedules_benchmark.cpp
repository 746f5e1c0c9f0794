// SPDX-License-Identifier: Apache-2.0
// The time to generate, check and simulate each named schedule with 64 workers and 1024 micro-batches, with
// unequal durations and transfers. The goal is less than a second each; items are jobs.
//
//   named_schedules_benchmark --benchmark_filter=v-
#include <string>

#include <benchmark/benchmark.h>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace {

using namespace starpipe::plan;

void plan(benchmark::State& state, const std::string& name) {
  ScheduleRequest request;
  request.workers = 64;
  request.microbatches = 1024;
  Costs costs;
  costs.durations = {{12.96, 13.22, 9.76}};
  costs.links = Link{.alpha = 0.67};
  request.costs = costs;
  if (name == "lpp" || name == "fslpp") request.groups = 8;
  std::size_t jobs = 0;
  for (auto _ : state) {
    const Schedule schedule = make_schedule(name, request);
    benchmark::DoNotOptimize(check(schedule));
    benchmark::DoNotOptimize(simulate(schedule, costs));
    jobs += schedule.job_count();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(jobs));
}

bool register_all() {
  for (const auto& entry : schedule_entries()) {
    benchmark::RegisterBenchmark(entry.name.c_str(), [name = entry.name](benchmark::State& state) {
      plan(state, name);
    })->Unit(benchmark::kMillisecond);
  }
  return true;
}

const bool registered = register_all();

}  // namespace
