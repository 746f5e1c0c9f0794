// SPDX-License-Identifier: Apache-2.0
// random_graphs.so FIRST COUNT WORKERS PERCENT, which random_graphs_test starts through smpirun: steps of
// random schedules on random stage graphs, in sequence, on simulated GPUs with little memory. A
// wake-up that is lost is a deadlock, which SimGrid finds at once. Each step must also run every job once, on
// its worker, after the jobs that it waits for, and move what the schedule implies. The last line says how
// many steps have ended and how many of them were wrong.
#include "simgrid/random_graphs.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <simgrid/s4u.hpp>
#include <starpu.h>  // renames main: StarPU starts SimGrid, and then calls it

#include "runtime/api/simulated_rank.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/memory_need.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::runtime::testing {
namespace {

using plan::Discipline;
using plan::Schedule;
using plan::testing::between;
using plan::testing::chance;
using plan::testing::Random;

const model::OptimizerConfig sgd = {.kind = "sgd", .learning_rate = 0.1, .momentum = 0.9};

/// Linear stages on any stage graph. Stashes and activations grow with `rows`.
model::Network network_on(const plan::StageGraph& graph, std::size_t rows) {
  constexpr std::size_t columns = 16;
  constexpr auto precision = model::Precision::fp32;
  model::Network network;
  network.config.kind = "dag";
  network.graph = graph;
  for (int s = 0; s < graph.size(); ++s) {
    const std::size_t joined = std::max<std::size_t>(1, graph.pred(s).size());
    std::vector<model::StageOp> ops;
    ops.push_back(
        {model::StageOp::Kind::layer, model::make_layer({"linear",
                                                         "s" + std::to_string(s),
                                                         rows,
                                                         columns * joined,
                                                         {{"outputs", static_cast<double>(columns)}}},
                                                        precision)});
    std::shared_ptr<const model::Loss> loss;
    if (s == graph.sink()) loss = model::make_loss("mse", rows, columns, precision);
    network.stages.emplace_back(std::move(ops), rows, std::vector<std::size_t>(joined, columns),
                                std::move(loss), precision);
  }
  return network;
}

/// A schedule and the network that it trains.
struct Graph {
  Schedule schedule;
  model::Network network;
  plan::Costs costs;  // in seconds
  int window = 0;
};

Schedule draw_schedule(Random& random, int workers) {
  const auto discipline = static_cast<Discipline>(between(random, 0, 2));
  const plan::testing::Options options{.max_stages = 5,
                                       .max_microbatches = 5,
                                       .max_workers = workers,
                                       .one_worker_a_stash = discipline == Discipline::bounded,
                                       .sound_priority = 1};
  for (;;) {
    plan::ScheduleSpec spec = plan::testing::random_spec(random, options);
    spec.workers = workers;  // some of them may have nothing to do
    const Schedule drawn(spec);
    const Schedule schedule = discipline == Discipline::bounded
                                  ? drawn.with(discipline, plan::testing::random_limits(random, drawn))
                                  : drawn.with(discipline);
    if (plan::check(schedule).ok()) return schedule;
  }
}

std::uint64_t max_needed(const Schedule& schedule, const model::Network& network, const plan::Costs& costs) {
  const auto needs =
      memory_need(schedule, network, sgd, costs, plan::simulate(schedule, costs),
                  {.devices = {}, .on_gpu = std::vector<bool>(index(schedule.workers()), true)});
  return std::ranges::max(needs, {}, &WorkerMemory::total).total();
}

/// The same graph on every rank. By `memory_need`, its data fill between half of a GPU and `percent` of it.
Graph draw_graph(std::uint64_t seed, int workers, int percent) {
  Random random(seed);
  Graph graph{.schedule = draw_schedule(random, workers), .network = {}, .costs = {}};
  const int stages = graph.schedule.stages();
  graph.costs = plan::testing::random_costs(random, stages);
  for (plan::Durations& durations : graph.costs.durations) {
    for (const plan::PassTime& pass : plan::pass_times) durations.*pass.time *= 1e-3;
  }
  graph.costs.links = small_cluster(1).links;
  graph.costs.prefetch = true;
  const auto need = [&](std::size_t rows) {
    graph.network = network_on(graph.schedule.graph(), rows);
    graph.costs.sizes = graph.network.sizes();
    return static_cast<double>(max_needed(graph.schedule, graph.network, graph.costs));
  };
  const double wanted = between(random, 50, percent) / 100.0 * static_cast<double>(small_gpu_memory);
  constexpr std::size_t probe = 4096;
  const double each = (need(2 * probe) - need(probe)) / static_cast<double>(probe);
  auto rows =
      static_cast<std::size_t>(std::max(1.0, static_cast<double>(probe) + (wanted - need(probe)) / each));
  // Transfers last longer with more rows, so the need is not exactly linear in them.
  while (rows > 1 && need(rows) > wanted) rows -= std::max<std::size_t>(1, rows / 50);
  need(rows);
  graph.window = chance(random, 0.5) ? RuntimeConfig().window : between(random, 1, 40);
  return graph;
}

/// Returns what is wrong with the step; empty if it is right. On rank 0.
std::string problem_of(const Graph& graph, const StepResult& step) {
  const Schedule& schedule = graph.schedule;
  std::vector<const JobRecord*> ran(schedule.id_count(), nullptr);
  for (const JobRecord& job : step.jobs) {
    if (job.job >= ran.size() || !schedule.exists(job.job) || ran[job.job] != nullptr)
      return fmt::format("job {} ran twice, or is none", job.job);
    ran[job.job] = &job;
    if (job.worker != schedule.compute(job.job)) return fmt::format("job {} ran elsewhere", job.job);
  }
  for (const plan::JobId id : schedule.order()) {
    if (ran[id] == nullptr) return fmt::format("job {} did not run", id);
    std::string early;
    schedule.for_each_pred(id, [&](plan::JobId before) {
      if (ran[before]->end > ran[id]->start) early = fmt::format("job {} ran before job {}", id, before);
    });
    if (!early.empty()) return early;
  }
  if (schedule.discipline() == Discipline::ordered) {
    for (int w = 0; w < schedule.workers(); ++w) {
      const auto order = schedule.order(w);
      for (std::size_t i = 1; i < order.size(); ++i) {
        if (ran[order[i]]->start < ran[order[i - 1]]->end)
          return fmt::format("job {} did not wait for its turn", order[i]);
      }
    }
  }
  const auto planned = plan::count_transfers(schedule, graph.costs);
  for (std::size_t w = 0; w < planned.size(); ++w) {
    if (step.workers[w].received != planned[w]) return fmt::format("worker {} received other data", w);
    if (schedule.discipline() == Discipline::bounded &&
        step.workers[w].peak_stashes > schedule.memory_limits()[w])
      return fmt::format("worker {} held {} stashes", w, step.workers[w].peak_stashes);
  }
  return {};
}

std::string run_graph(const Session& session, std::uint64_t seed, int percent) {
  const Graph graph = draw_graph(seed, session.map().workers(), percent);
  RuntimeConfig config;
  config.window = graph.window;
  Engine engine(session, graph.schedule, graph.network, sgd, {}, config, &graph.costs,
                NonFinitePolicy::proceed);
  class Nothing : public model::Dataset {
    void input(int, int, int, std::span<float>) const override {}
    void target(int, int, std::span<float>) const override {}
    [[nodiscard]] std::vector<std::uint64_t> offsets(int, int) const override { return {}; }
    [[nodiscard]] std::string sample_word() const override { return "samples"; }
    [[nodiscard]] std::size_t samples_per_microbatch() const override { return 1; }
  };
  const StepResult step = engine.run_step(0, Nothing());
  return session.mpi().rank() == 0 ? problem_of(graph, step) : "";
}

std::uint64_t current = 0;  // the graph that runs

// Whole lines at once: SimGrid may end the process at any time.
void say(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

}  // namespace
}  // namespace starpipe::runtime::testing

int main(int argc, char** argv) {
  namespace testing = starpipe::runtime::testing;
  try {
    if (argc != 5) throw std::runtime_error("random_graphs.so: random_graphs_test starts it");
    const std::uint64_t first = std::stoull(argv[1]);
    const std::uint64_t count = std::stoull(argv[2]);
    const starpipe::runtime::Mpi mpi;
    const starpipe::runtime::WorkerMap map(std::stoi(argv[3]), mpi.ranks());
    simgrid::s4u::Engine::on_deadlock_cb([rank = mpi.rank()] {
      if (rank == 0) testing::say(fmt::format("graph {}: deadlock\n", testing::current));
    });
    const auto session = starpipe::runtime::simulated_session(
        mpi, map, starpipe::runtime::configured_policy(starpipe::runtime::Config()));
    int wrong = 0;
    for (testing::current = first; testing::current < first + count; ++testing::current) {
      const std::string problem = testing::run_graph(*session, testing::current, std::stoi(argv[4]));
      if (problem.empty()) continue;
      ++wrong;
      testing::say(fmt::format("graph {}: {}\n", testing::current, problem));
    }
    if (mpi.rank() == 0) testing::say(testing::last_line(count, wrong));
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    testing::say(fmt::format("graph {}: {}\n", testing::current, error.what()));
    return 1;
  }
}
