// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/experiment.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/files.hpp"
#include "model/data/make_dataset.hpp"
#include "model/weights.hpp"
#include "plan/schedules/detached_parts.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedules/finer.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {

namespace {

void check_learning_rates(const TrainingConfig& training) {
  const model::OptimizerConfig& optimizer = training.optimizer;
  const auto& [kind, warmup, floor, steps] = optimizer.schedule;
  if (floor > optimizer.learning_rate) {
    throw InputError(
        fmt::format("training.optimizer.schedule.floor: {} is more than training.optimizer.learning_rate, {}",
                    floor, optimizer.learning_rate));
  }
  if (steps && *steps <= warmup) {
    throw InputError(fmt::format(
        "training.optimizer.schedule.steps: {} is not more than training.optimizer.schedule.warmup, {}",
        *steps, warmup));
  }
  const bool has_end = kind == "linear" || kind == "cosine";
  if (has_end && !steps && training.steps <= warmup) {
    throw InputError(fmt::format(
        "training.optimizer.schedule.warmup: {} is not less than training.steps, {}, where the learning rate "
        "reaches the floor; give training.optimizer.schedule.steps to end elsewhere",
        warmup, training.steps));
  }
}

// Returns the rules of the run's steps. `microbatches`: number of micro-batches per step.
StepRules step_rules(const Config& config, int microbatches) {
  const bool evaluates = config.evaluates() || config.evaluate.alone;
  return {.has_norm = true,
          .can_skip = config.training.nonfinite == NonFinitePolicy::skip,
          .evaluated = evaluates ? config.evaluate.microbatches.value_or(microbatches) : 0};
}

}  // namespace

model::OptimizerConfig optimizer_of(const Config& config) {
  model::OptimizerConfig optimizer = config.training.optimizer;
  if (!optimizer.schedule.steps) optimizer.schedule.steps = config.training.steps;
  return optimizer;
}

void use_instructions(const Config& config) {
  const std::vector<std::string>& devices = config.runtime.device;
  const bool on_cores = std::ranges::find(devices, cpu_device) != devices.end();
  if (on_cores && !config.runtime.emulate) set_product_instructions(config.runtime.instructions);
}

void check_start(const Config& config, const model::Network& network) {
  if (config.model.init) model::check_weights(*config.model.init, network);
}

model::ModelConfig model_with_slices(const Config& config) {
  model::ModelConfig model = config.model;
  model.slices = config.schedule.slices;
  model.slice_sizes = config.schedule.slice_sizes;
  model.slice_tokens = config.schedule.slice_tokens;
  return model;
}

void require_pairs(const Config& config, const plan::Schedule& schedule) {
  require_input(!config.runtime.emulate || !config.runtime.emulate->overlap || schedule.has_pairs(),
                "runtime.emulate.overlap",
                fmt::format("schedule {} has no pairs of F and a backward pass", schedule.name()));
}

void check_for_profile(const Config& config) {
  check_values(config);
  use_instructions(config);
  check_learning_rates(config.training);
  const model::Network units = model::build_units(config.model, config.training.microbatch_size);
  check_start(config, units);
  model::require_data_sizes(units, config.data.kind);
  if (config.schedule.partition) {
    stage_count(config);
  } else {
    plan_run(config);
  }
}

int stage_count(const Config& config) {
  plan::load_plugins_for(config.schedule.plugins, {config.schedule.name}, "schedule.plugin",
                         config.model.kind);
  const ScheduleConfig& wanted = config.schedule;
  // Called even if the number of stages is given, because it refuses wrong options.
  const int own = plan::default_stages(plan::find_schedule(wanted.name), wanted.workers.value(),
                                       wanted.options, wanted.groups);
  return wanted.stages.value_or(own);
}

namespace {

// Throws InputError, beginning with the key, when a step or an evaluation would have too many jobs.
void refuse_many_jobs(std::string_view key, int stages, int microbatches) {
  constexpr std::int64_t max = 1'000'000;  // StarPU's bookkeeping for more would fill the memory
  if (std::int64_t{stages} * microbatches <= max) return;
  throw InputError(
      fmt::format("{}: {} micro-batches of {} stages are too many jobs to run", key, microbatches, stages));
}

model::Network network_of(const Config& config, int stages) {
  try {
    return model::build_network(model_with_slices(config), config.training.microbatch_size, stages,
                                config.schedule.cuts);
  } catch (const std::bad_alloc&) {
    throw InputError("model: this host has no memory for the description of so large a network");
  }
}

// True if the stages of the model are cut into shards.
bool has_shards(const Config& config) { return model::max_shards(config.model) > 1; }

// The model, cut into the stages of its schedule, and the schedule if it is given as a table.
struct CutModel {
  model::Network network;
  std::optional<plan::Schedule> listed = {};  ///< the table: from the program, or from `schedule.file`
  int workers_each = 1;                       ///< workers of the run per worker of a named schedule
};

// Reads `schedule.file`. If the model has shards, the file's stages are the shards of `schedule.stages`
// stages. Throws InputError if the configuration gives another number of workers, stages or micro-batches
// than the file, or if the file's stage graph differs from the model's.
CutModel read_schedule(const Config& config) {
  const ScheduleConfig& wanted = config.schedule;
  const std::string file = wanted.file->string();
  const bool sharded = has_shards(config);
  std::optional<model::Network> network;
  const auto graph = [&](int stages) {
    try {
      if (!network || network->graph.size() != stages)
        network = network_of(config, sharded ? wanted.stages.value() : stages);
      if (network->graph.size() == stages) return network->graph;
      throw InputError(fmt::format("with its shards it has {} stages", network->graph.size()));
    } catch (const InputError& error) {
      throw InputError(
          fmt::format("{}: the model cannot be cut into its {} stages: {}", file, stages, error.what()));
    }
  };
  if (sharded && !wanted.stages) {
    throw InputError(
        "schedule.stages: is required with schedule.file and model.tensor: the number of stages of which the "
        "file has the shards");
  }
  plan::Schedule schedule = plan::schedule_from_text(read_file(file), file, graph).schedule;
  for (const auto& [key, asked, found] :
       {std::tuple{"schedule.workers", wanted.workers, schedule.workers()},
        {"schedule.stages", sharded ? std::nullopt : wanted.stages, schedule.stages()},
        {"schedule.slices", std::optional(wanted.slices), schedule.slices()},
        {"training.microbatches", config.training.microbatches, schedule.whole_microbatches()}}) {
    if (asked && *asked != found)
      throw InputError(fmt::format("{}: {}, but {} has {}", key, *asked, file, found));
  }
  if (schedule.graph() != graph(schedule.stages())) {
    throw InputError(fmt::format("{}: its stage graph differs from the model's", file));
  }
  return {*std::move(network), std::move(schedule)};
}

// Cuts the model into the stages of the program's schedule. Throws InputError if the stage graphs differ.
CutModel cut_as(const Config& config, const plan::Schedule& own) {
  if (has_shards(config)) throw InputError("model.tensor: does not apply to a schedule of the program");
  model::Network network = network_of(config, own.stages());
  if (own.slices() != config.schedule.slices)
    throw InputError(fmt::format("schedule.slices: {}, but the program's schedule has {}",
                                 config.schedule.slices, own.slices()));
  if (own.graph() != network.graph)
    throw InputError(fmt::format("schedule {}: its stage graph differs from the model's", own.name()));
  return {std::move(network), own};
}

plan::OrderRequest order_request(const ScheduleConfig& wanted) {
  return {.discipline = wanted.discipline,
          .memory_limits = wanted.memory_limits,
          .dynamic = wanted.dynamic,
          .home_way = wanted.home_way};
}

// Returns the schedule as it is. Throws InputError if it cannot finish.
plan::LimitedSchedule finishing(plan::LimitedSchedule made) {
  if (const plan::CheckResult result = plan::check(made.schedule); !result.ok()) {
    throw InputError(fmt::format("schedule {}: {}", made.schedule.name(), result.problem));
  }
  return made;
}

// Refuses data that are too large for a handle of StarPU. This needs no task graph, so predictions refuse
// them as well. Before a run, check_data_sizes checks all other data, and the size of MPI's messages.
void refuse_large_stages(const Config& config, const model::Network& network) {
  constexpr std::uint64_t max = max_datum_words * sizeof(float);
  std::vector<plan::StageSizes> sizes = network.sizes();  // with slices: several for each stage
  const std::size_t slices = sizes.size() / network.stages.size();
  for (const plan::SharedWeights& shared : network.shared_weights()) {
    plan::StageSizes& first = sizes[index(shared.stages.front()) * slices];
    first.weights = std::max(first.weights, shared.weights);
    first.master = std::max(first.master, shared.master);
  }
  std::uint64_t handed_back = 0;  // to the slice before
  std::uint64_t up_to_here = 0;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const plan::StageSizes& size = sizes[s];
    handed_back = s % slices == 0 ? 0 : up_to_here;
    up_to_here = handed_back + size.keys_values_gradient;
    const std::uint64_t state = model::optimizer_state_size(config.training.optimizer, size.updated());
    for (const auto& [what, bytes, in_training] : {std::tuple{"weights", size.weights, false},
                                                   {"an output", size.activation, false},
                                                   {"parameters", size.updated(), true},
                                                   {"optimizer state", state, true},
                                                   {"a stash", size.stash, true},
                                                   {"a gradient stash", size.gradient_stash, true},
                                                   {"keys and values", size.keys_values, false},
                                                   {"a gradient of keys and values", handed_back, true}}) {
      if (bytes <= max || (in_training && config.evaluate.alone)) continue;
      throw InputError(
          fmt::format("schedule.stages: stage {} has {} of {} bytes; one handle holds at most {} "
                      "(more stages, or a smaller training.microbatch_size)",
                      s / slices, what, bytes, max));
    }
  }
}

// Throws InputError for keys that do not apply to a named schedule whose stages are cut into shards. They do
// apply to a file, in which shards are stages like others.
void refuse_with_shards(const Config& config, const model::Network& network) {
  if (network.parts.empty() || config.schedule.file) return;
  const bool divides_workers = network.shards() > 1;
  const auto refuse = [&](bool is_set, const char* key, const char* why) {
    if (!is_set) return;
    throw InputError(fmt::format("{}: does not apply with {}: {}", key,
                                 divides_workers ? "model.tensor" : "schedule.vocabulary.shards", why));
  };
  refuse(!config.schedule.memory_limits.empty(), "schedule.memory_limit",
         "stashes of whole stages and of shards differ");
  refuse(!config.schedule.home_way.empty(), "schedule.home: a way",
         "stashes of whole stages and of shards differ");
  refuse(config.schedule.dynamic, "schedule.dynamic", "shards run in a fixed order");
}

// Returns Config::workers_each(). Throws InputError if this is more than the number of shards.
int workers_each(const Config& config, const model::Network& network) {
  const int shards = network.shards();
  const int workers = config.workers_each();
  if (workers <= shards) return workers;
  throw InputError(fmt::format("schedule.tensor: {} workers are more than the shards of model.tensor, {}",
                               workers, shards));
}

// Builds the named schedule for the chain of whole stages, then replaces each stage by its shards and each
// worker by `each` workers. Places shards of the vocabulary where these workers have time. The result is
// ordered; `discipline` receives the discipline of the chain's schedule.
plan::LimitedSchedule build_sharded_schedule(const Config& config, const model::Network& network,
                                             const std::optional<plan::Costs>& known,
                                             const plan::Costs& expected, int each,
                                             std::optional<plan::Discipline>& discipline) {
  const auto whole = [&](const plan::Costs& costs) {
    return plan::costs_of_whole_stages(plan::costs_of_microbatches(costs), network.graph, network.parts,
                                       network.whole_stages(), each);
  };
  plan::LimitedSchedule made =
      build_schedule(config.schedule,
                     schedule_request(config, plan::StageGraph::chain(network.whole_stages()),
                                      known ? std::optional(whole(*known)) : std::nullopt),
                     whole(expected));
  discipline = made.schedule.discipline();
  if (discipline != plan::Discipline::ordered)
    made.schedule = plan::ordered_as_simulated(made.schedule, whole(expected));
  made.schedule = plan::with_parts(made.schedule, network.graph, network.parts, each,
                                   network.config.vocabulary.placement);
  if (network.config.vocabulary.shards > 1) {
    made.schedule = plan::with_detached_where_free(made.schedule, network.parts, expected,
                                                   config.schedule.vocabulary_ahead);
  }
  return finishing(std::move(made));
}

}  // namespace

plan::ScheduleRequest schedule_request(const Config& config, plan::StageGraph graph,
                                       const std::optional<plan::Costs>& known) {
  plan::ScheduleRequest request;
  request.workers = config.schedule.workers.value();
  request.microbatches = config.training.microbatches.value();
  request.slices = config.schedule.slices;
  request.graph = std::move(graph);
  request.groups = config.schedule.groups;
  request.stage_workers = config.schedule.placement;
  request.options = config.schedule.options;
  request.homes = config.schedule.homes;
  if (known) request.costs = plan::with_recomputation(*known, request.homes);
  return request;
}

plan::LimitedSchedule build_schedule(const ScheduleConfig& wanted, plan::ScheduleRequest request,
                                     const plan::Costs& expected) {
  try {
    return finishing(
        plan::make_limited_schedule(wanted.name, std::move(request), order_request(wanted), expected));
  } catch (const plan::RequestError& error) {
    throw InputError(fmt::format("schedule.{}", error.what()));
  }
}

namespace {

// Builds the network: the first step of plan_run, and the only one that does so.
CutModel cut_model(const Config& config, const std::optional<plan::Schedule>& own) {
  if (own) return cut_as(config, *own);
  if (config.schedule.file) return read_schedule(config);
  const int stages = stage_count(config);
  refuse_many_jobs("training.microbatches", stages, config.training.microbatches.value());
  return {network_of(config, stages)};
}

// Throws InputError for keys that do not go with slices of sequences.
void check_slices(const Config& config) {
  if (config.schedule.slices == 1) return;
  const auto refuse = [](bool is_set, const char* key) {
    if (is_set) throw InputError(fmt::format("{}: does not apply with schedule.slices", key));
  };
  refuse(!config.schedule.home_way.empty(), "schedule.home");
  const auto is_elsewhere = [](plan::Home home) { return home != plan::Home::worker; };
  refuse(std::ranges::any_of(config.schedule.homes, is_elsewhere), "schedule.home");
}

// Sets `cut.workers_each`. Throws InputError for a cut that cannot run, and for keys that do not go with it.
void check_cut(const Config& config, CutModel& cut, const std::optional<plan::Schedule>& own) {
  const auto& [network, listed, each] = cut;
  for (const auto& [key, count] : {std::pair{"runtime.device", config.runtime.device.size()},
                                   {"schedule.memory_limit", config.schedule.memory_limits.size()}}) {
    if (!listed || count < 2 || std::cmp_equal(count, listed->workers())) continue;
    throw InputError(fmt::format("{}: {} values for the {} workers of {}", key, count, listed->workers(),
                                 own ? own->name() : config.schedule.file->string()));
  }
  refuse_with_shards(config, network);
  cut.workers_each = workers_each(config, network);
  refuse_many_jobs("training.microbatches", network.graph.size(),
                   listed ? listed->microbatches() : config.training.microbatches.value());
  refuse_large_stages(config, network);
}

// Returns the costs of emulated jobs; nullopt if the run is not emulated.
std::optional<plan::Costs> known_costs(const Config& config, const CutModel& cut) {
  if (!config.runtime.emulate) return std::nullopt;
  const int workers = cut.listed ? cut.listed->workers() : config.schedule.workers.value() * cut.workers_each;
  return emulated_costs(*config.runtime.emulate, cut.network, workers);
}

// Returns the schedule with pairs only where the configuration says how long they last: other workers run one
// job at a time. Its order is the same.
plan::Schedule with_possible_pairs(const plan::Schedule& schedule, const RuntimeConfig& config) {
  if (!config.emulate || !config.emulate->overlap) return schedule.without_pairs();
  require_input(!schedule.has_pairs() || config.window >= 2 * schedule.workers(), "runtime.window",
                "must be at least 2 for each worker, since F of a pair waits for its partner's task");
  return schedule;
}

// Opens the training data. Returns null in a run that only evaluates.
std::shared_ptr<const model::Dataset> open_data(const Config& config, const Experiment& run) {
  model::require_data_sizes(run.network, config.data.kind);
  if (config.evaluate.alone) return nullptr;
  return model::make_dataset(
      config.data, config.model,
      {.microbatches = run.schedule.whole_microbatches(), .microbatch_size = config.training.microbatch_size},
      config.training.seed);
}

// Opens the validation data. Returns null in a run that does not evaluate.
std::shared_ptr<const model::Dataset> open_validation(const Config& config, const Experiment& run) {
  const int microbatches = run.rules.evaluated;
  if (microbatches == 0) return nullptr;
  refuse_many_jobs("evaluate.microbatches", run.schedule.stages(), microbatches);
  return model::make_validation(
      config.data, config.model,
      {.microbatches = microbatches, .microbatch_size = config.training.microbatch_size},
      config.training.seed);
}

plan::Schedule with_homes(const plan::Schedule& schedule, const ScheduleConfig& wanted) {
  try {
    return schedule.with_homes(wanted.homes);
  } catch (const InputError& error) {
    throw InputError(fmt::format("schedule.home: {}", error.what()));
  }
}

}  // namespace

Experiment plan_run(const Config& config, const std::optional<plan::Schedule>& own) {
  check_values(config);
  use_instructions(config);
  if (config.runtime.emulate && config.runtime.uses_gpus()) {
    throw InputError("runtime.device: cuda: runtime.emulate needs device cpu");
  }
  check_slices(config);
  CutModel cut = cut_model(config, own);
  check_cut(config, cut, own);
  auto& [network, listed, each] = cut;
  if (listed) listed = with_homes(*listed, config.schedule);
  const std::optional<plan::Costs> known = known_costs(config, cut);
  plan::Costs costs = known ? *known : costs_by_flops(network);
  std::optional<plan::Discipline> chain_discipline;  // set if the stages are cut into shards
  auto [schedule, reordering] =
      listed ? finishing(plan::as_requested(*listed, order_request(config.schedule), costs))
      : network.parts.empty()
          ? build_schedule(config.schedule, schedule_request(config, network.graph, known), costs)
          : build_sharded_schedule(config, network, known, costs, each, chain_discipline);
  const plan::Discipline discipline = chain_discipline.value_or(schedule.discipline());
  if (discipline == plan::Discipline::ordered && config.schedule.dynamic) {
    throw InputError("schedule.dynamic: the ordered discipline leaves nothing to pick at run time");
  }
  if (schedule.discipline() != plan::Discipline::ordered && !config.schedule.dynamic) {
    schedule = plan::ordered_as_simulated(schedule, costs);
  }
  schedule = with_possible_pairs(schedule, config.runtime);
  const StepRules rules = step_rules(config, schedule.whole_microbatches());
  return {std::move(network), std::move(schedule), discipline, reordering, std::move(costs), rules,
          known.has_value()};
}

Experiment make_experiment(const Config& config, const TrainerParts& parts) {
  Experiment run = plan_run(config, parts.schedule);
  check_learning_rates(config.training);
  run.data = parts.data ? parts.data : open_data(config, run);
  run.validation = parts.validation ? parts.validation : open_validation(config, run);
  if (run.validation)
    run.rules.evaluated = static_cast<int>(run.validation->evaluated(run.rules.evaluated).counts.size());
  require_memory(config, run);
  return run;
}

}  // namespace starpipe::runtime
