// SPDX-License-Identifier: Apache-2.0
// The way from a configuration to a checked run: network, costs, schedule, data (docs/internals/setup.md).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/memory_need.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Network, schedule and data, built and checked from a configuration.
struct Experiment {
  model::Network network;
  /// The schedule that runs. Without `schedule.dynamic`, `simulate` fixes the order of a greedy or bounded
  /// schedule here, from `costs`, so memory does not depend on timing.
  plan::Schedule schedule;
  plan::Discipline discipline;  ///< the schedule's discipline before `simulate` fixed its order
  /// Set if the schedule's own order would exceed `schedule.memory_limit`, so that another order runs.
  std::optional<plan::Reordering> reordering;
  plan::Costs costs;  ///< of emulated jobs and transfers, or by FLOPs; with recomputation, B includes F
  /// The rules of the run's steps. Emulated runs compute nothing, but have the rules of the run that they
  /// stand for.
  StepRules rules;
  bool emulated = false;                                  ///< jobs are timed waits, and last as `costs` says
  std::shared_ptr<const model::Dataset> data = {};        ///< null in a run that only evaluates
  std::shared_ptr<const model::Dataset> validation = {};  ///< null in a run that does not evaluate
};

/// Lets the matrix products of this process use the instructions of `runtime.instructions`, if the run
/// computes on cores. Throws InputError as `set_product_instructions` does. Call it before a network of the
/// run is built.
void use_instructions(const Config& config);

/// Checks the values, and builds model, schedule and data. Throws InputError naming the key for a
/// configuration that cannot work, also for a schedule that cannot finish or that needs more than
/// `runtime.memory_limit`.
Experiment make_experiment(const Config& config, const TrainerParts& parts = {});

/// Builds the experiment without its data. `own`: the schedule of a program, in place of the named one.
/// Throws InputError as `make_experiment` does, except for data and `runtime.memory_limit`.
Experiment plan_run(const Config& config, const std::optional<plan::Schedule>& own = {});

/// Returns the optimizer of a run. Its learning-rate schedule ends after `training.steps` unless it has an
/// end of its own.
model::OptimizerConfig optimizer_of(const Config& config);

/// Throws InputError if the file `model.init` does not fit the network. Reads only the file's header. Meant
/// for commands that build the experiment and do not train it.
void check_start(const Config& config, const model::Network& network);

/// Returns the model with the slices of `schedule`.
model::ModelConfig model_with_slices(const Config& config);

/// Refuses `runtime.emulate.overlap` where the schedule has no pairs.
void require_pairs(const Config& config, const plan::Schedule& schedule);

/// Checks what `profile` does not need for its measurements: the schedule (of `schedule.partition` only its
/// name), the optimizer and `model.init`. Throws InputError as make_experiment does, but not for
/// `runtime.memory_limit`: a model that does not fit yet may be measured.
void check_for_profile(const Config& config);

// Steps of plan_run that the choice of a partition takes as well.

/// Loads the plug-ins, and returns the number of stages S: `schedule.stages`, or else the named schedule's
/// own number. Throws InputError for an unknown schedule and for wrong options of it.
int stage_count(const Config& config);

/// Returns the request for the configured named schedule. `known`: costs without recomputation, for schedules
/// that depend on durations.
plan::ScheduleRequest schedule_request(const Config& config, plan::StageGraph graph,
                                       const std::optional<plan::Costs>& known = {});

/// Returns the named schedule under the configured discipline and memory limit. Throws InputError for a
/// schedule that cannot finish. `expected`: costs as `simulate` takes them; they decide the order of a greedy
/// or bounded schedule.
plan::LimitedSchedule build_schedule(const ScheduleConfig& wanted, plan::ScheduleRequest request,
                                     const plan::Costs& expected = {});

// Costs before anything is measured.

/// Returns costs by FLOPs: F, B and W of a stage each last as long as its share of the model's FLOPs, 1 for
/// an average stage. Transfers take no time.
plan::Costs costs_by_flops(const model::Network& network);

/// Returns the costs of jobs and transfers under `runtime.emulate`. Throws InputError where the number of
/// times is neither 1 nor the number of stages, or with `per_share` the number of workers. `workers`: of the
/// schedule, shards included. In a network of shards, one time for all, or one for each whole stage, is
/// divided among the parts of a stage by their FLOPs; one time for each part is taken as it is. With
/// `per_share`, all stages divide the times by their FLOPs.
plan::Costs emulated_costs(const EmulationConfig& wanted, const model::Network& network, int workers);

/// Returns the costs with the links of `runtime.links`, between the workers of so many ranks; as they are if
/// the configuration has no such links. Each rank has as many neighbouring workers. On cores the workers of a
/// rank share their data, so that transfers between them take no time and a rank has one port, whatever the
/// file says. Throws InputError if the workers or the groups of the file's levels cannot be divided among the
/// ranks.
plan::Costs with_links_of_ranks(plan::Costs costs, const RuntimeConfig& config, int workers, int ranks);

/// Throws InputError if the groups of the file of `runtime.links` are not those of the run: on several hosts,
/// the workers of a host are neighbours, as many on each host, and a group of a level. `locations`: of all
/// ranks.
void check_link_levels(const RuntimeConfig& config, int workers, const std::vector<RankLocation>& locations);

// Configurations of other runs.

/// Returns the configuration with these durations in `runtime.emulate`, on workers without a kind of device.
/// `of_stages`: in seconds and without recomputation, one per stage or one for all.
Config with_emulated_times(Config config, std::span<const plan::Durations> of_stages);

/// The configuration of the same work under another named schedule.
struct OtherSchedule {
  Config config;
  /// Factor on the times of `runtime.emulate`, which are for a stage of the configured schedule: with
  /// twice as many stages a stage is half the work.
  double stage_share = 1;
};

/// Returns a configuration for each of these schedules, with `schedule.name` set to it. Plug-ins that do not
/// have the schedule are dropped, and so are options of another schedule. One emulated time for all stages is
/// multiplied by `stage_share`. Every other key is kept. Without `schedule.stages` each schedule has its own
/// number of stages. Throws InputError for `schedule.file`, for an unknown schedule, for a schedule that is
/// named twice, and for a list of emulated times by stage if the schedule has another number of stages.
std::vector<OtherSchedule> with_schedules(const Config& config, const std::vector<std::string>& names);

// Memory.

/// Returns the memory that each device needs in a run with these times. `workers.on_gpu` follows from the
/// configuration.
std::vector<DeviceNeed> memory_need_of(const Config& config, const Experiment& experiment,
                                       const plan::Costs& costs, const plan::Timeline& timeline,
                                       WorkerDevices workers = {});

/// Throws InputError when a worker needs more than `runtime.memory_limit`: one line that names the worker,
/// its need, and the recomputation or the fastest named schedule that would fit, by `simulate`.
void require_memory(const Config& config, const Experiment& run);

}  // namespace starpipe::runtime
