// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/engine/task_graph.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Parts of a run that a program has made itself, in place of what the configuration says.
struct RunParts {
  std::optional<plan::Schedule> schedule = {};  ///< the configuration has its workers, stages, micro-batches
  std::shared_ptr<const model::Dataset> data = {};
  std::shared_ptr<const model::Dataset> validation = {};
  std::optional<std::vector<std::vector<float>>> weights = {};  ///< start values, [set]
};

/// Network, schedule and data, built and checked from a configuration.
struct Experiment {
  model::Network network;
  /// The schedule that runs. Without `schedule.dynamic`, `simulate` fixes the order of a greedy or bounded
  /// schedule here, from the emulated times or the FLOPs, so memory does not depend on timing.
  plan::Schedule schedule;
  plan::Discipline discipline;  ///< the schedule's discipline before `simulate` fixed its order
  /// Set where the schedule's own order would exceed `schedule.memory_limit`, so that another one runs.
  std::optional<plan::Reordering> reordering;
  std::shared_ptr<const model::Dataset> data;        ///< null in a run that only evaluates
  std::shared_ptr<const model::Dataset> validation;  ///< null in a run that does not evaluate
  /// Durations of emulated jobs (with recomputation, B includes F) and transfers; nullopt if kernels run.
  std::optional<plan::Costs> emulated;
};

/// The rules of the run's steps, as its configuration asks for them. Emulated runs compute nothing, but have
/// the rules of the run that they stand for. `microbatches`: how many a step has.
StepRules step_rules(const Config& config, int microbatches);

/// Builds model, data and schedule. Throws InputError naming the key for a configuration that cannot work,
/// also for a schedule that cannot finish or that needs more than `runtime.memory_limit`.
Experiment make_experiment(const Config& config, const RunParts& parts = {});

/// Throws InputError when the file `model.init` does not fit the network. Reads only the file's header: for
/// commands that build the experiment and do not train it.
void check_start(const Config& config, const model::Network& network);

/// Checks what `profile` does not need for its measurements: the schedule (of `schedule.partition` only its
/// name), the optimizer and `model.init`. Throws InputError as make_experiment does, but not for
/// `runtime.memory_limit`: a model that does not fit yet may be measured.
void check_for_profile(const Config& config);

// Network, schedule and costs of a configuration: `make_experiment` adds the data. Choosing a partition, and
// the advice on memory limits, plan runs of changed configurations.

/// The number of stages S, as configured or as the named schedule has. Loads the plug-ins first. Throws
/// InputError for an unknown schedule.
int stage_count(const Config& config);

/// The named schedule under the configured discipline and memory limit. Throws InputError for a schedule that
/// cannot finish. `known`: costs without recomputation, for schedules that depend on durations. `expected`:
/// costs as `simulate` takes them, which tell the order of a greedy or bounded schedule; unit durations when
/// absent.
plan::LimitedSchedule build_schedule(const Config& config, const plan::StageGraph& graph,
                                     const std::optional<plan::Costs>& known = {},
                                     const plan::Costs& expected = {});

/// An experiment without its data.
struct PlannedRun {
  model::Network network;
  plan::Schedule schedule;      ///< as it runs
  plan::Discipline discipline;  ///< the schedule's discipline before `simulate` fixed its order
  std::optional<plan::Reordering> reordering;
  plan::Costs costs;  ///< emulated, or by FLOPs; with recomputation, B includes F
};

/// Throws InputError, beginning with the key, when a step or an evaluation would have too many jobs.
void refuse_many_jobs(std::string_view key, int stages, int microbatches);

/// `own`: the schedule of a program, in place of the named one. Throws InputError as `make_experiment` does,
/// but for data and `runtime.memory_limit`.
PlannedRun plan_run(const Config& config, const std::optional<plan::Schedule>& own = {});

/// Throws InputError when a worker needs more than `runtime.memory_limit`: one line that names the worker,
/// its need, and the recomputation or the fastest named schedule that would fit, by `simulate`.
void require_memory(const Config& config, const PlannedRun& run);

}  // namespace starpipe::runtime
