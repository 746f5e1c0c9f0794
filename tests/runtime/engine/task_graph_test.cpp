// SPDX-License-Identifier: Apache-2.0
// The step as tasks and data: each datum has one writer, tasks are in a valid order, the data that cross
// between workers are those that `plan` counts, and the tasks train the network.
#include "runtime/engine/task_graph.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <cblas.h>
#include <gtest/gtest.h>

#include "model/reference.hpp"
#include "plan/simulate/reductions.hpp"
#include "runtime/sequential_run.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/datasets.hpp"
#include "support/floats.hpp"
#include "support/network_schedules.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"
#include "support/random_schedules.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Schedule;

struct Case {
  std::string label;
  model::Network network;
  Schedule schedule;
};

void for_each_case(const std::function<void(const Case&)>& check) {
  std::vector<Case> cases;
  for (const int microbatches : {1, 3, 6}) {
    for (NamedCase& named : named_cases(4, microbatches)) {
      cases.push_back({named.name, named.network, named.schedule});
      cases.push_back({named.name + ", split", named.network, split(named.schedule)});
      cases.push_back(
          {named.name + ", greedy", named.network, named.schedule.with(plan::Discipline::greedy)});
      cases.push_back({named.name + ", recompute", named.network, named.schedule.with_recomputation()});
    }
    for (NamedCase& named : named_cases(4, microbatches, tied_gpt))
      cases.push_back({named.name + ", tied", named.network, named.schedule});
  }
  for (const std::vector<int>& shards : {std::vector{2}, std::vector{4}, std::vector{2, 4}}) {
    const model::Network network = sharded_gpt(2, shards);
    for (const char* name : {"1f1b", "fsdp"}) {
      const Schedule schedule = sharded_schedule(name, network, 2, 3);
      cases.push_back({std::string(name) + ", sharded", network, schedule});
      cases.push_back({std::string(name) + ", sharded, split", network, split(schedule)});
      cases.push_back({std::string(name) + ", sharded, recompute", network, schedule.with_recomputation()});
    }
  }
  const model::Network towers = two_towers();
  const model::Network shards = sharded_gpt(2, {2});
  const model::Network tied = tied_gpt(4);
  const model::Network tied_llama = tiny_llama(4, model::Precision::fp32, true);
  const model::Network chain = tiny_mlp(4);
  const model::Network tree = tiny_mlp(5, 2);
  const model::Network dag = dag_network({5, {{0, 2}, {1, 2}, {0, 3}, {2, 3}, {2, 4}, {3, 4}}});
  const model::Network bare = dag_network(plan::StageGraph::chain(3), true);
  for (const bool is_split : {false, true}) {
    for (const auto& [label, network] :
         {std::pair{"chain", &chain}, std::pair{"tree", &tree}, std::pair{"dag", &dag},
          std::pair{"shards", &shards}, std::pair{"bare", &bare}, std::pair{"towers", &towers},
          std::pair{"tied gpt", &tied}, std::pair{"tied llama", &tied_llama}}) {
      for (const int workers : {1, 2, 4}) {
        const Schedule schedule = scattered(network->graph, workers, 5, is_split);
        cases.push_back({std::string("scattered ") + label, *network, schedule});
        cases.push_back(
            {std::string("scattered ") + label + ", recompute", *network, schedule.with_recomputation()});
      }
      Schedule replicas =
          plan::make_schedule("ddp", {.workers = 3, .microbatches = 4, .graph = network->graph});
      cases.push_back({std::string("ddp ") + label, *network, is_split ? split(replicas) : replicas});
      Schedule sharded =
          plan::make_schedule("fsdp", {.workers = 3, .microbatches = 4, .graph = network->graph});
      cases.push_back({std::string("fsdp ") + label, *network, is_split ? split(sharded) : sharded});
    }
  }
  const std::size_t named_count = cases.size();
  std::mt19937_64 random(7);
  while (cases.size() < named_count + 100) {
    Schedule schedule(plan::testing::random_spec(random, {.sound_priority = 1}));
    if (!plan::check(schedule).ok()) continue;
    if (cases.size() % 2 == 0) schedule = schedule.with_recomputation();
    cases.push_back({"random " + std::to_string(cases.size()), dag_network(schedule.graph()), schedule});
  }
  for (const Case& one : cases) {
    SCOPED_TRACE(one.label);
    check(one);
    if (::testing::Test::HasFailure()) return;
  }
}

bool writes(Access access) { return access != Access::read; }

TEST(TaskGraph, EveryJobIsATaskOnceAfterWhatItWaitsFor) {
  for_each_case([](const Case& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::vector<bool> done(c.schedule.id_count(), false);
    std::vector<std::vector<plan::JobId>> ran(index(c.schedule.workers()));
    for (const Task& task : graph.tasks()) {
      if (!task.job) continue;
      const plan::Job job = c.schedule.job(*task.job);
      EXPECT_FALSE(done[*task.job]);
      EXPECT_EQ(task.worker, c.schedule.compute(*task.job));
      EXPECT_EQ(task.stage, job.stage);
      EXPECT_EQ(to_string(task.kind), to_string(job.pass));
      c.schedule.for_each_pred(*task.job, [&](plan::JobId before) { EXPECT_TRUE(done[before]); });
      done[*task.job] = true;
      ran[index(task.worker)].push_back(*task.job);
    }
    EXPECT_EQ(std::ranges::count(done, true), static_cast<std::ptrdiff_t>(c.schedule.job_count()));
    if (c.schedule.discipline() != plan::Discipline::ordered) return;
    for (int w = 0; w < c.schedule.workers(); ++w) {
      EXPECT_TRUE(std::ranges::equal(ran[index(w)], c.schedule.order(w)));
    }
  });
}

// Only the owner of a datum writes it: nothing ever travels back.
TEST(TaskGraph, OneWorkerWritesADatum) {
  for_each_case([](const Case& c) {
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
  for_each_case([](const Case& c) {
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
      // BW that recomputes uses the stash itself.
      if (graph.data()[d].kind == DataKind::stash && c.schedule.recompute()) continue;
      EXPECT_GE(read[d], 1) << "a datum that no task reads: kind " << static_cast<int>(graph.data()[d].kind);
    }
  });
}

// An accumulator is zeroed first, then jobs add to it, `close` follows, and only then it is read or reduced.
TEST(TaskGraph, AccumulatorsAreZeroedAndClosed) {
  for_each_case([](const Case& c) {
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

/// Tracks what the verdicts of a graph know after each task: the workers whose passes they have judged, and
/// the stages whose norm they have.
class Knowledge {
 public:
  explicit Knowledge(const TaskGraph& graph) : graph_(graph) {}

  void take(const Task& task) {
    if (task.kind == TaskKind::judge) {
      EXPECT_EQ(task.data[0].access, Access::write);
      known_[task.data[0].datum] = {};
      known_[task.data[0].datum].judged = {task.worker};
    } else if (task.kind == TaskKind::norm) {
      EXPECT_EQ(graph_.data()[task.data[0].datum].kind, DataKind::weight_gradient);
      EXPECT_EQ(task.data[0].access, Access::read);
      EXPECT_EQ(task.data[1].access, Access::update);
      EXPECT_EQ(known_[task.data[1].datum].judged, std::set{task.worker}) << "before it is merged";
      EXPECT_TRUE(known_[task.data[1].datum].stages.insert(task.stage).second);
    } else if (task.kind == TaskKind::merge) {
      EXPECT_EQ(task.data[1].access, Access::update);
      known_[task.data[1].datum].judged.merge(std::set(known_[task.data[0].datum].judged));
      known_[task.data[1].datum].stages.merge(std::set(known_[task.data[0].datum].stages));
    }
  }
  const std::set<int>& judged(std::size_t verdict) { return known_[verdict].judged; }
  const std::set<int>& stages(std::size_t verdict) { return known_[verdict].stages; }

 private:
  struct OfVerdict {
    std::set<int> judged;
    std::set<int> stages;
  };
  const TaskGraph& graph_;
  std::map<std::size_t, OfVerdict> known_;
};

std::set<int> sets_with_parameters(const model::Network& network) {
  std::set<int> found;
  const std::vector<model::ParameterSet> sets = network.sets();
  for (int s = 0; std::cmp_less(s, sets.size()); ++s) {
    if (sets[index(s)].size > 0) found.insert(s);
  }
  return found;
}

// In a graph that can skip, an update reads its worker's verdict. That verdict knows of every pass: each pass
// precedes the judgement on its worker, and merges bring all judgements to all holders.
TEST(TaskGraph, UpdatesWaitForTheVerdictsOfAllWorkers) {
  for_each_case([](const Case& c) {
    const TaskGraph graph(c.schedule, c.network, sgd, {.can_skip = true});
    const std::set<int> stages = sets_with_parameters(c.network);
    Knowledge knowledge(graph);
    std::set<int> passed;
    std::set<int> judged;
    int updates = 0;
    for (const Task& task : graph.tasks()) {
      knowledge.take(task);
      if (is_pass(task.kind)) {
        const DataAccess& last = task.data.back();
        EXPECT_EQ(last.access, Access::precede);
        EXPECT_EQ(graph.data()[last.datum].kind, DataKind::verdict);
        EXPECT_EQ(graph.data()[last.datum].worker, task.worker);
        EXPECT_FALSE(judged.contains(task.worker));
        passed.insert(task.worker);
      } else if (task.kind == TaskKind::judge) {
        judged.insert(task.worker);
      } else if (task.kind == TaskKind::optimize) {
        ++updates;
        EXPECT_EQ(task.data[0].access, Access::read);
        EXPECT_EQ(graph.data()[task.data[0].datum].worker, task.worker);
        EXPECT_TRUE(std::ranges::includes(knowledge.judged(task.data[0].datum), passed));
        EXPECT_EQ(knowledge.stages(task.data[0].datum), stages);
      }
    }
    EXPECT_GT(updates, 0);
  });
}

// Each stage's norm is computed once, by a holder. In the end one verdict has all of them. Updates wait for
// the complete verdict when they clip, and only then; an emulated step has no verdicts.
TEST(TaskGraph, TheNormsOfAllStagesMeetInOneVerdict) {
  model::OptimizerConfig clipped = sgd;
  clipped.clip = 1;
  for_each_case([&](const Case& c) {
    const std::set<int> stages = sets_with_parameters(c.network);
    for (const bool clips : {false, true}) {
      const TaskGraph graph(c.schedule, c.network, clips ? clipped : sgd);
      Knowledge knowledge(graph);
      std::map<int, int> norms;
      for (const Task& task : graph.tasks()) {
        knowledge.take(task);
        if (task.kind == TaskKind::norm) {
          EXPECT_TRUE(norms.emplace(task.stage, task.worker).second) << "two norms of a stage";
          const int first = graph.parameters()[index(task.stage)].first_stage();
          const auto holders = plan::weight_holders(c.schedule, first);
          EXPECT_NE(std::ranges::find(holders, task.worker), holders.end());
        }
        if (task.kind != TaskKind::optimize) continue;
        const std::size_t first = task.data[0].datum;
        EXPECT_EQ(graph.data()[first].kind == DataKind::verdict, clips);
        if (!clips) continue;
        EXPECT_EQ(task.data[0].access, Access::read);
        EXPECT_EQ(graph.data()[first].worker, task.worker);
        EXPECT_EQ(knowledge.stages(first), stages);
      }
      EXPECT_EQ(norms.size(), stages.size());
      ASSERT_TRUE(graph.complete_verdict());
      EXPECT_EQ(knowledge.stages(*graph.complete_verdict()), stages);
      std::size_t parameters = 0;
      const std::vector<model::ParameterSet> sets = c.network.sets();
      for (std::size_t s = 0; s < sets.size(); ++s) {
        EXPECT_EQ(graph.parameters()[s].first, parameters);
        parameters += sets[s].parameters.size();
      }
      EXPECT_EQ(graph.data()[*graph.complete_verdict()].size, Verdict::words(parameters));
    }
    const TaskGraph emulated(c.schedule, c.network, sgd, {.has_norm = false});
    EXPECT_FALSE(emulated.complete_verdict());
    EXPECT_TRUE(std::ranges::none_of(emulated.tasks(), [](const Task& task) {
      return task.kind == TaskKind::judge || task.kind == TaskKind::norm || task.kind == TaskKind::merge;
    }));
  });
}

// The bits of a complete verdict do not depend on the order of the merges, and merging twice changes nothing.
TEST(TaskGraph, VerdictsAreMergedWithoutAddition) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<Floats> memory(3, Floats(Verdict::words(4)));
  std::vector<Verdict> verdicts;
  for (Floats& words : memory) verdicts.emplace_back(words).begin(false);
  verdicts[0].sums()[0] = 0.1;
  verdicts[1].sums()[1] = std::numeric_limits<double>::quiet_NaN();
  verdicts[2].sums()[2] = 0.3;
  verdicts[2].sums()[3] = static_cast<double>(infinity);
  EXPECT_DOUBLE_EQ(verdicts[0].norm(), std::sqrt(0.1));
  EXPECT_FALSE(verdicts[0].skips());
  EXPECT_TRUE(verdicts[1].skips() && verdicts[2].skips());
  for (int time = 0; time < 2; ++time) {
    verdicts[0].merge(verdicts[1]);
    verdicts[2].merge(verdicts[0]);
    verdicts[1].merge(verdicts[2]);
    verdicts[0].merge(verdicts[1]);
  }
  for (const Verdict& verdict : verdicts) {
    EXPECT_EQ(verdict.sums()[0], 0.1);
    EXPECT_TRUE(std::isnan(verdict.sums()[1]));
    EXPECT_EQ(verdict.sums()[2], 0.3);
    EXPECT_TRUE(std::isinf(verdict.sums()[3]));
  }
  verdicts[0].begin(true);
  verdicts[1].begin(false);
  EXPECT_EQ(verdicts[0].norm(), 0);
  EXPECT_TRUE(verdicts[0].skips());
  EXPECT_FALSE(verdicts[1].skips());
  verdicts[1].merge(verdicts[0]);
  EXPECT_TRUE(verdicts[1].skips());
}

TEST(TaskGraph, EveryHolderIsUpdatedOnceAfterAllJobs) {
  for_each_case([](const Case& c) {
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
    case DataKind::weights:
      return transfers.weights;
    case DataKind::weight_gradient:
      return transfers.weight_gradients;
    default:
      ADD_FAILURE() << "data of kind " << static_cast<int>(kind) << " leaves its worker";
      return transfers.weights;
  }
}

// Tasks read from other workers exactly the data that `plan` counts as transfers.
TEST(TaskGraph, TransfersAreThoseOfThePlan) {
  for_each_case([](const Case& c) {
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::vector<plan::Transfers> counted(index(c.schedule.workers()));
    std::set<std::pair<std::size_t, int>> seen;
    for (const Task& task : graph.tasks()) {
      for (const DataAccess& access : task.data) {
        const Datum& datum = graph.data()[access.datum];
        if (datum.worker == task.worker || datum.kind == DataKind::loss) continue;
        if (datum.kind == DataKind::verdict) continue;  // a few bytes: bytes_between_ranks counts them
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
      expect_equal("weights", counted[w].weights, planned[w].weights);
      expect_equal("weight gradients", counted[w].weight_gradients, planned[w].weight_gradients);
    }
  });
}

// The tasks in their order, with the kernels of the engine, train as the reference does. Every other case
// clips, changes its rate, and decays matrices only.
TEST(TaskGraph, TasksInOrderTrain) {
  openblas_set_num_threads(1);
  const model::OptimizerConfig recipe = {.kind = "sgd",
                                         .learning_rate = 0.1,
                                         .weight_decay = 0.01,
                                         .momentum = 0.9,
                                         .decay = "matrices",
                                         .schedule = {"cosine", 1, 0.01, 4},
                                         .clip = 1e-2};
  int cases = 0;
  for_each_case([&](const Case& c) {
    const model::OptimizerConfig& optimizer = cases++ % 2 == 0 ? sgd : recipe;
    std::unique_ptr<model::Dataset> data = std::make_unique<Noise>();
    if (c.network.config.kind != "dag") data = data_for(c.network);
    constexpr int steps = 2;
    SequentialRun run(c.schedule, c.network, optimizer, start_values(c.network));
    const auto reference = model::train_reference(c.network, *data, optimizer, start_values(c.network),
                                                  c.schedule.microbatches(), steps);
    for (int step = 0; step < steps; ++step) {
      const Floats losses = run.step(step, *data);
      double mean = 0;
      for (const float loss : losses) mean += static_cast<double>(loss) / static_cast<double>(losses.size());
      const double expected = reference.losses[index(step)];
      EXPECT_NEAR(mean, expected, 1e-5 * expected);
      EXPECT_NEAR(run.gradient_norm(), reference.norms[index(step)], 1e-5 * reference.norms[index(step)]);
      EXPECT_GT(run.gradient_norm(), 1e-2) << "the clip binds";
    }
    expect_close(run.gradients(), reference.gradients, 1e-5, "gradient");
    expect_close(run.parameters(), reference.parameters, 1e-5, "parameters");
    run.expect_equal_replicas();
  });
}

// The same kernels run on the same inputs; only the writer of the stash differs.
TEST(TaskGraph, RecomputationChangesNoBit) {
  openblas_set_num_threads(1);
  for_each_case([](const Case& c) {
    if (!c.schedule.recompute()) return;
    const Schedule plain(plan::ScheduleSpec{
        .name = "plain",
        .graph = c.schedule.graph(),
        .microbatches = c.schedule.microbatches(),
        .workers = c.schedule.workers(),
        .split_backward = [&](int s, int b) { return c.schedule.split_backward(s, b); },
        .placement = [&](const plan::Job& job) { return c.schedule.placement(*c.schedule.find(job)); },
        .priority =
            [&](const plan::Job& job) { return std::int64_t{c.schedule.turn(*c.schedule.find(job))}; },
        .discipline = c.schedule.discipline()});
    std::unique_ptr<model::Dataset> data = std::make_unique<Noise>();
    if (c.network.config.kind != "dag") data = data_for(c.network);
    SequentialRun with(c.schedule, c.network, sgd, start_values(c.network));
    SequentialRun without(plain, c.network, sgd, start_values(c.network));
    for (int step = 0; step < 2; ++step) EXPECT_EQ(with.step(step, *data), without.step(step, *data));
    EXPECT_TRUE(with.gradients() == without.gradients());
    EXPECT_TRUE(with.parameters() == without.parameters());
  });
}

// F writes no stash; B, or BW, computes it from the inputs of F.
TEST(TaskGraph, RecomputationMovesTheStashToB) {
  int recomputing = 0;
  for_each_case([&](const Case& c) {
    if (!c.schedule.recompute()) return;
    ++recomputing;
    const TaskGraph graph(c.schedule, c.network, sgd);
    std::map<plan::JobId, std::multiset<std::tuple<DataKind, int, int>>> inputs;
    for (const Task& task : graph.tasks()) {
      if (!task.job) continue;
      const plan::Job job = c.schedule.job(*task.job);
      const bool is_backward = job.pass == plan::Pass::B || job.pass == plan::Pass::BW;
      for (const DataAccess& access : task.data) {
        const auto& [kind, stage, microbatch, worker, size] = graph.data()[access.datum];
        if (kind == DataKind::stash) {
          EXPECT_EQ(access.access, is_backward ? Access::write : Access::read);
          EXPECT_NE(job.pass, plan::Pass::F);
        }
        const bool is_input =
            kind == DataKind::input || kind == DataKind::activation || kind == DataKind::target;
        if (is_input && access.access == Access::read) inputs[*task.job].emplace(kind, stage, microbatch);
      }
      if (is_backward) {
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
