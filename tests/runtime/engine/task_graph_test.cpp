// SPDX-License-Identifier: Apache-2.0
// The step as tasks and data: each datum has one writer, tasks are in a valid order, and the data that cross
// between workers are those that `plan` counts.
#include "runtime/engine/task_graph.hpp"

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
#include "runtime/engine/graph_cases.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Schedule;

bool writes(Access access) { return access != Access::read; }

TEST(TaskGraph, EveryJobIsATaskOnceAfterWhatItWaitsFor) {
  for_each_case([](const GraphCase& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::vector<bool> done(c.schedule.id_count(), false);
    std::vector<std::vector<plan::JobId>> ran(index(c.schedule.workers()));
    for (const Task& task : graph.tasks()) {
      if (!task.job) continue;
      const plan::Job job = c.schedule.job(*task.job);
      EXPECT_FALSE(done[*task.job]);
      const bool copies = is_stash_copy(task.kind);
      EXPECT_EQ(task.worker, copies ? c.schedule.ends(*task.job).second : c.schedule.compute(*task.job));
      EXPECT_EQ(task.channel.has_value(), copies);
      EXPECT_EQ(task.stage, job.stage);
      EXPECT_EQ(to_string(task.kind), to_string(job.pass));
      c.schedule.for_each_pred(*task.job, [&](plan::JobId before) { EXPECT_TRUE(done[before]); });
      done[*task.job] = true;
      if (!copies) ran[index(task.worker)].push_back(*task.job);
    }
    EXPECT_EQ(std::ranges::count(done, true), static_cast<std::ptrdiff_t>(c.schedule.job_count()));
    if (c.schedule.discipline() != plan::Discipline::ordered) return;
    for (int w = 0; w < c.schedule.workers(); ++w) {
      EXPECT_TRUE(std::ranges::equal(ran[index(w)], c.schedule.order(w)));
    }
  });
}

// For each job, the jobs that have ended when its data are there.
std::vector<std::vector<bool>> jobs_before(const TaskGraph& graph, const Schedule& schedule) {
  std::vector<std::vector<bool>> before(schedule.id_count(), std::vector<bool>(schedule.id_count()));
  std::map<std::uint32_t, plan::JobId> writers;
  for (const Task& task : graph.tasks()) {
    if (!task.job) continue;
    std::vector<bool>& mine = before[*task.job];
    for (const DataAccess& access : task.data) {
      const auto writer = writers.find(access.datum);
      if (access.access == Access::write) writers[access.datum] = *task.job;
      if (access.access != Access::read || writer == writers.end()) continue;
      mine[writer->second] = true;
      for (std::size_t job = 0; job < mine.size(); ++job)
        mine[job] = mine[job] || before[writer->second][job];
    }
  }
  return before;
}

void expect_data_keep_the_order(const GraphCase& c) {
  const TaskGraph graph(c.schedule, c.network, sgd);
  const std::vector<std::vector<bool>> before = jobs_before(graph, c.schedule);
  for (const plan::JobId id : c.schedule.order()) {
    c.schedule.for_each_pred(id, [&](plan::JobId pred) {
      EXPECT_TRUE(before[id][pred]) << plan::to_string(c.schedule.job(id)) << " does not wait for "
                                    << plan::to_string(c.schedule.job(pred));
    });
  }
}

// Policies other than ours run a job as soon as its data are there, so data alone must keep a job behind the
// jobs that it waits for: also where these leave it nothing, as in stages without parameters.
TEST(TaskGraph, AJobsDataComeAfterAllThatItWaitsFor) {
  for_each_case(expect_data_keep_the_order);
  const model::Network sums = model::build_network(
      small("gpt", {{"heads", 4}, {"tensor", std::vector{2}}, {"sums", std::string("one")}}), 1, 2);
  for (const char* name : {"1f1b", "zb-h1"}) {
    const plan::Schedule schedule = split(sharded_schedule(name, sums, 2, 2));
    expect_data_keep_the_order({name, sums, schedule});
    expect_data_keep_the_order({name, sums, schedule.with_recomputation()});
  }
}

/// The mean of its input, whose derivative needs no stash.
class MeanLoss final : public model::Loss {
 public:
  using Loss::Loss;
  [[nodiscard]] std::size_t target_columns() const override { return 0; }
  [[nodiscard]] std::size_t stash_size() const override { return 0; }
  float forward(model::ConstFloatView /*input*/, model::ConstFloatView /*target*/,
                model::FloatView /*stash*/) const noexcept override {
    return 0;
  }
};

TEST(TaskGraph, BWaitsForALossWithoutStash) {
  model::Network network = dag_network(plan::StageGraph::chain(2));
  network.stages.back() = model::Stage({}, 3, {4}, std::make_shared<MeanLoss>(3, 4));
  const plan::Schedule schedule =
      plan::make_schedule("1f1b", {.workers = 2, .microbatches = 3, .graph = network.graph});
  expect_data_keep_the_order({"no stash", network, schedule});
  expect_data_keep_the_order({"no stash, split", network, split(schedule)});
  expect_data_keep_the_order({"no stash, recompute", network, schedule.with_recomputation()});
}

// Only the owner of a datum writes it: nothing ever travels back.
TEST(TaskGraph, OneWorkerWritesADatum) {
  for_each_case([](const GraphCase& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    for (const Task& task : graph.tasks()) {
      for (const DataAccess& access : task.data) {
        const Datum& datum = graph.data()[access.datum];
        if (writes(access.access)) {
          EXPECT_EQ(datum.worker, task.worker);
        }
        if (datum.kind == DataKind::input || datum.kind == DataKind::target) {
          EXPECT_EQ(access.access, Access::read);
          EXPECT_EQ(datum.worker, task.worker) << "the host fills it where it is read";
        }
        EXPECT_GT(datum.size, 0U);
        EXPECT_EQ(std::ranges::count(task.data, access.datum, &DataAccess::datum), 1);
      }
    }
  });
}

TEST(TaskGraph, TemporariesAreWrittenOnceAndReadAfterwards) {
  for_each_case([](const GraphCase& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::vector<int> written(graph.data().size(), 0);
    std::vector<int> read(graph.data().size(), 0);
    for (const Task& task : graph.tasks()) {
      for (const DataAccess& access : task.data) {
        if (!is_temporary(graph.data()[access.datum].kind)) continue;
        if (access.access == Access::read) {
          EXPECT_EQ(written[access.datum], 1);
          ++read[access.datum];
        } else {
          EXPECT_EQ(access.access, Access::write);
          EXPECT_EQ(read[access.datum], 0);
          ++written[access.datum];
        }
      }
    }
    for (std::size_t d = 0; d < graph.data().size(); ++d) {
      if (!is_temporary(graph.data()[d].kind)) continue;
      EXPECT_EQ(written[d], 1);
      EXPECT_GE(read[d], 1) << "a datum that no task reads: kind " << static_cast<int>(graph.data()[d].kind);
    }
  });
}

// An accumulator is zeroed first, then jobs add to it, `close` follows, and only then it is read or reduced.
TEST(TaskGraph, AccumulatorsAreZeroedAndClosed) {
  for_each_case([](const GraphCase& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    enum class State { stale, zeroed, adding, closed };
    std::map<std::size_t, State> states;
    std::map<std::size_t, int> terms;
    for (std::size_t d = 0; d < graph.data().size(); ++d) {
      if (graph.data()[d].kind == DataKind::weight_gradient) states[d] = State::stale;
    }
    for (const Task& task : graph.tasks()) {
      for (const DataAccess& access : task.data) {
        const auto at = states.find(access.datum);
        if (at == states.end()) {
          EXPECT_NE(access.access, Access::accumulate);
          continue;
        }
        State& state = at->second;
        if (access.access == Access::accumulate) {
          EXPECT_TRUE(state == State::zeroed || state == State::adding)
              << "added to before zero or after close";
          state = State::adding;
          ++terms[access.datum];
        } else if (task.kind == TaskKind::zero) {
          EXPECT_EQ(state, State::stale) << "zeroed twice";
          state = State::zeroed;
        } else if (task.kind == TaskKind::close) {
          EXPECT_EQ(access.access, Access::update) << "it must have the sum for itself";
          EXPECT_EQ(state, State::adding);
          state = State::closed;
        } else {
          EXPECT_TRUE(state == State::closed || state == State::zeroed) << "read before it is complete";
        }
      }
    }
    int all = 0;
    for (const auto& [datum, count] : terms) {
      EXPECT_EQ(states[datum], State::closed);
      all += count;
    }
    int expected = 0;
    for (const model::ParameterSet& set : c.network.sets()) {
      if (set.size > 0) expected += c.schedule.microbatches() * static_cast<int>(set.stages.size());
    }
    EXPECT_EQ(all, expected);
  });
}

TEST(TaskGraph, EveryHolderIsUpdatedOnceAfterAllJobs) {
  for_each_case([](const GraphCase& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::multiset<std::pair<int, int>> updated;
    for (const Task& task : graph.tasks()) {
      if (task.kind == TaskKind::optimize) updated.emplace(task.stage, task.worker);
      for (const DataAccess& access : task.data) {
        if (graph.data()[access.datum].kind != DataKind::weights) continue;
        EXPECT_EQ(access.access, task.kind == TaskKind::optimize ? Access::update : Access::read);
        if (task.job) {
          EXPECT_TRUE(updated.empty());
        }
      }
    }
    std::multiset<std::pair<int, int>> expected;
    const std::vector<model::ParameterSet> sets = c.network.sets();
    for (int s = 0; std::cmp_less(s, sets.size()); ++s) {
      if (sets[index(s)].size == 0) continue;
      for (const int holder : plan::weight_holders(c.schedule, sets[index(s)].first_stage()))
        expected.emplace(s, holder);
    }
    EXPECT_EQ(updated, expected);
  });
}

plan::Received& received(plan::Transfers& transfers, DataKind kind) {
  switch (kind) {
    case DataKind::activation:
      return transfers.activations;
    case DataKind::stash:
    case DataKind::gradient_stash:
      return transfers.stashes;
    case DataKind::gradient:
      return transfers.gradients;
    case DataKind::keys_values:
      return transfers.keys_values;
    case DataKind::keys_values_gradient:
      return transfers.keys_values_gradients;
    case DataKind::weights:
      return transfers.weights;
    case DataKind::gradient_segment:
      return transfers.weight_gradients;
    default:
      ADD_FAILURE() << "data of kind " << static_cast<int>(kind) << " leaves its worker";
      return transfers.weights;
  }
}

// Tasks read from other workers exactly the data that `plan` counts as transfers.
TEST(TaskGraph, TransfersAreThoseOfThePlan) {
  for_each_case([](const GraphCase& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::vector<plan::Transfers> counted(index(c.schedule.workers()));
    std::set<std::pair<std::size_t, int>> seen;
    for (const Task& task : graph.tasks()) {
      for (const DataAccess& access : task.data) {
        const Datum& datum = graph.data()[access.datum];
        if (datum.worker == task.worker || datum.kind == DataKind::loss) continue;
        // A few bytes: bytes_between_ranks counts them.
        if (datum.kind == DataKind::verdict || datum.kind == DataKind::end_of_pass) continue;
        if (!seen.emplace(access.datum, task.worker).second) continue;
        plan::Received& count = received(counted[index(task.worker)], datum.kind);
        ++count.count;
        count.bytes += datum.size * sizeof(float);
      }
    }
    const auto planned = plan::count_transfers(c.schedule, costs_of(c.network));
    for (std::size_t w = 0; w < counted.size(); ++w) {
      // Compared by kind, so that a failure names the kind. `plan` counts empty data too; they do not travel.
      const auto expect_equal = [&](const char* kind, const plan::Received& mine,
                                    const plan::Received& theirs) {
        EXPECT_EQ(mine.bytes, theirs.bytes) << kind << " to worker " << w;
        if (c.label.find("bare") == std::string::npos) {
          EXPECT_EQ(mine.count, theirs.count) << kind << " to worker " << w;
        }
      };
      expect_equal("activations", counted[w].activations, planned[w].activations);
      expect_equal("stashes", counted[w].stashes, planned[w].stashes);
      expect_equal("gradients", counted[w].gradients, planned[w].gradients);
      expect_equal("keys and values", counted[w].keys_values, planned[w].keys_values);
      expect_equal("their gradients", counted[w].keys_values_gradients, planned[w].keys_values_gradients);
      expect_equal("weights", counted[w].weights, planned[w].weights);
      expect_equal("weight gradients", counted[w].weight_gradients, planned[w].weight_gradients);
    }
  });
}

// Without a home F writes no stash; R computes it from the inputs of F.
TEST(TaskGraph, RWritesTheStashWithoutAHome) {
  int recomputing = 0;
  for_each_case([&](const GraphCase& c) {
    if (!c.schedule.recomputes()) return;
    ++recomputing;
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::map<plan::JobId, std::multiset<std::tuple<DataKind, int, int>>> inputs;
    for (const Task& task : graph.tasks()) {
      if (!task.job) continue;
      const plan::Job job = c.schedule.job(*task.job);
      const bool has_home = !c.schedule.recomputes(job.stage, job.microbatch);
      for (const DataAccess& access : task.data) {
        const auto& [kind, stage, microbatch, worker, size] = graph.data()[access.datum];
        if (kind == DataKind::stash && !c.schedule.home(job.stage, job.microbatch).peer()) {
          const bool makes =
              job.pass == (has_home ? plan::Pass::F : plan::Pass::R) || job.pass == plan::Pass::L;
          EXPECT_EQ(access.access, makes ? Access::write : Access::read);
        }
        const bool is_input =
            kind == DataKind::input || kind == DataKind::activation || kind == DataKind::target;
        if (is_input && access.access == Access::read) inputs[*task.job].emplace(kind, stage, microbatch);
      }
      if (job.pass == plan::Pass::R) {
        EXPECT_EQ(inputs[*task.job], inputs[c.schedule.forward(job.stage, job.microbatch)]);
      }
    }
  });
  EXPECT_GT(recomputing, 50);
}

TEST(TaskGraph, RefusesAnotherStageGraph) {
  const model::Network network = tiny_mlp(3);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = 2, .microbatches = 2});
  EXPECT_THROW(TaskGraph(schedule, network, sgd), std::logic_error);
}

TEST(TaskGraph, OptimizerStateOnlyWhereTheOptimizerHasSome) {
  const model::Network network = tiny_mlp(2);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = 2, .microbatches = 2});
  const auto state = [&](const model::OptimizerConfig& optimizer) {
    std::size_t floats = 0;
    const TaskGraph graph(schedule, network, optimizer);
    for (const Datum& datum : graph.data())
      floats += datum.kind == DataKind::optimizer_state ? datum.size : 0;
    return floats;
  };
  EXPECT_EQ(state({.kind = "sgd"}), 0U);
  EXPECT_EQ(state({.kind = "sgd", .momentum = 0.5}), network.parameter_count());
  EXPECT_EQ(state({.kind = "adamw"}), 2 * network.parameter_count());
}

}  // namespace
}  // namespace starpipe::runtime
