// SPDX-License-Identifier: Apache-2.0
// The time to generate a schedule, to check it, and to simulate it under each discipline. The argument is the
// number of jobs. The goal is to simulate a million jobs in about a second, with linear growth.
//
//   plan_benchmark --benchmark_filter=simulate --benchmark_counters_tabular=true
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace {

using namespace starpipe::plan;

constexpr int workers = 16;

/// A schedule of `jobs` forward and backward passes on 16 workers; lpp has 4 groups and 64 stages.
ScheduleRequest request(const std::string& name, std::int64_t jobs) {
  ScheduleRequest result;
  result.workers = workers;
  int stages = workers;
  if (name == "lpp" || name == "fslpp") {
    result.groups = 4;
    stages = 4 * workers;
  }
  result.graph = StageGraph::chain(stages);
  result.microbatches = static_cast<int>(jobs / (2 * stages));
  return result;
}

/// Costs with transfers: `simulate` then looks at every input of every job.
Costs costs(bool transfers, bool prefetch = true) {
  Costs result;
  result.durations = {{1, 1, 1}};
  if (transfers) {
    result.sizes = {{.activation = 4, .gradient = 4, .stash = 16, .gradient_stash = 4, .weights = 64}};
    result.links = Link{.alpha = 0.01, .beta = 0.001};
  }
  result.prefetch = prefetch;
  return result;
}

void count_jobs(benchmark::State& state, const Schedule& schedule) {
  const auto jobs = static_cast<std::int64_t>(schedule.job_count());
  state.SetItemsProcessed(state.iterations() * jobs);
  state.SetComplexityN(jobs);
}

void generate(benchmark::State& state, const std::string& name) {
  const auto asked = request(name, state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(make_schedule(name, asked));
  count_jobs(state, make_schedule(name, asked));
}

void run_check(benchmark::State& state, const Schedule& schedule) {
  for (auto _ : state) benchmark::DoNotOptimize(check(schedule));
  count_jobs(state, schedule);
}

void run_simulate(benchmark::State& state, const Schedule& schedule, const Costs& c) {
  for (auto _ : state) benchmark::DoNotOptimize(simulate(schedule, c));
  count_jobs(state, schedule);
}

template <class Function>
void sizes(const std::string& name, Function function) {
  benchmark::RegisterBenchmark(name.c_str(), function)
      ->Arg(10'000)
      ->Arg(100'000)
      ->Arg(1'000'000)
      ->Complexity()
      ->Unit(benchmark::kMillisecond);
}

Schedule build(const benchmark::State& state, const std::string& name) {
  return make_schedule(name, request(name, state.range(0)));
}

Schedule split(const Schedule& fused) {
  ScheduleSpec spec;
  spec.name = fused.name();
  spec.graph = fused.graph();
  spec.microbatches = fused.microbatches();
  spec.workers = fused.workers();
  spec.split_backward = [](int, int) { return true; };
  spec.placement = [](const Job& j) { return Placement{j.stage, j.stage}; };
  spec.priority = [&](const Job& j) {
    const auto id =
        j.pass == Pass::F ? fused.forward(j.stage, j.microbatch) : fused.backward(j.stage, j.microbatch);
    return std::int64_t{2} * fused.turn(id) + (j.pass == Pass::W ? 1 : 0);
  };
  spec.discipline = Discipline::greedy;
  return Schedule(spec);
}

bool register_all() {
  for (const std::string name : {"1f1b", "gpipe", "lpp", "fslpp"}) {
    sizes("generate/" + name, [name](benchmark::State& state) { generate(state, name); });
    sizes("check/" + name, [name](benchmark::State& state) { run_check(state, build(state, name)); });
    for (const auto discipline : {Discipline::ordered, Discipline::greedy}) {
      sizes("simulate/" + name + "/" + std::string(to_string(discipline)), [=](benchmark::State& state) {
        run_simulate(state, build(state, name).with(discipline), costs(false));
      });
    }
    sizes("simulate/" + name + "/transfers",
          [name](benchmark::State& state) { run_simulate(state, build(state, name), costs(true)); });
    for (const auto sharing : {Sharing::in_order, Sharing::fair}) {
      sizes("simulate/" + name + "/" + std::string(to_string(sharing)), [=](benchmark::State& state) {
        Costs c = costs(true);
        c.links = Links({{.link = c.link(0, 1), .sharing = sharing}});
        run_simulate(state, build(state, name), c);
      });
    }
    sizes("simulate/" + name + "/no_prefetch",
          [name](benchmark::State& state) { run_simulate(state, build(state, name), costs(true, false)); });
  }
  sizes("simulate/1f1b/bounded", [](benchmark::State& state) {
    run_simulate(state, build(state, "1f1b").with(Discipline::bounded, std::vector<int>(workers, workers)),
                 costs(false));
  });
  sizes("simulate/lpp/bounded", [](benchmark::State& state) {
    run_simulate(state, build(state, "lpp").with(Discipline::bounded, std::vector<int>(workers, 64)),
                 costs(false));
  });
  sizes("simulate/1f1b_split/greedy",
        [](benchmark::State& state) { run_simulate(state, split(build(state, "1f1b")), costs(false)); });
  // The same number of jobs on as many workers as micro-batches.
  for (const auto discipline : {Discipline::ordered, Discipline::greedy, Discipline::bounded}) {
    sizes("simulate/1f1b_wide/" + std::string(to_string(discipline)), [=](benchmark::State& state) {
      int wide = 1;
      while (2 * wide * wide < state.range(0)) ++wide;
      const Schedule ordered = make_schedule("1f1b", {.workers = wide, .microbatches = wide});
      const std::size_t limits = discipline == Discipline::bounded ? static_cast<std::size_t>(wide) : 0;
      run_simulate(state, ordered.with(discipline, std::vector<int>(limits, wide)), costs(false));
    });
  }
  return true;
}

const bool registered = register_all();

}  // namespace
