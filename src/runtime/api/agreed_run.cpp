// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/agreed_run.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/numbers.hpp"
#include "model/weights.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/locality.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "runtime/setup/run_checks.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/random.hpp"

// The choice of a partition, which rank 0 sends to the others.
namespace starpipe::plan {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Durations, F, B, W)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StageSizes, activation, gradient, stash, gradient_stash, weights, master)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(UnitCosts, name, time, sizes, others)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SharedUnits, name, units, weights, master)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Profile, devices, units, shared)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkerLoad, time, transfers, memory)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Partition, cuts, stage_workers, loads, bottleneck, lower_bound)
}  // namespace starpipe::plan

namespace starpipe::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartitionChoice, profile, profile_file, partition, placement, stage_kinds)

namespace {

// Collective. Throws InputError on every rank if their schedules differ: such ranks would wait for each other
// indefinitely. It happens when the w or n of a plug-in depends on more than the request, or when hosts have
// different files.
void require_same(const Mpi& mpi, const plan::Schedule& schedule) {
  std::uint64_t digest = hash_start;
  const auto add = [&digest](std::uint64_t word) { digest = hash_of(word, digest); };
  add(static_cast<std::uint64_t>(schedule.discipline()));
  for (const int limit : schedule.memory_limits()) add(static_cast<std::uint64_t>(limit));
  for (const plan::JobId id : schedule.order()) {
    add(id);
    add(static_cast<std::uint64_t>(schedule.placement(id).compute));
    add(static_cast<std::uint64_t>(schedule.placement(id).weights));
  }
  if (mpi.all_equal(digest)) return;
  throw InputError(fmt::format(
      "schedule {}: the ranks have built different schedules; w and n must depend on the request alone",
      schedule.name()));
}

// Collective. Throws InputError on every rank if they have opened different files under the same name: inputs
// and targets of a sequence, which different ranks read, would not fit.
void require_same(const Mpi& mpi, std::string_view key, const std::filesystem::path& file,
                  const model::Dataset* data) {
  if (data == nullptr || mpi.all_equal(data->digest())) return;
  throw InputError(fmt::format("{}: {} is not the same file on all ranks", key, file.string()));
}

// Collective. Rank 0 measures, decides and sends its choice to the others. They sleep meanwhile: their times
// would differ, and their work would disturb rank 0.
PartitionChoice decide_partition(const Mpi& mpi, const Config& config) {
  PartitionChoice choice;
  std::string problem;
  if (mpi.rank() == 0) {
    try {
      choice = choose_partition(config).value();
    } catch (const InputError& error) {
      problem = error.what();
    }
  }
  mpi.barrier();
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  return gather_all(mpi, choice).front();
}

// A run before it is known where its workers are.
struct Unplaced {
  Config config;
  std::optional<PartitionChoice> partition;
  Experiment experiment;
};

// Collective. `measured`: units that were measured for another schedule, or empty. Without schedule.profile
// their times decide the cuts, so that all schedules are cut by the same times.
Unplaced plan_on_ranks(const Mpi& mpi, Config config, const plan::Profile& measured, const RunParts& parts) {
  std::optional<PartitionChoice> partition;
  if (config.schedule.partition) {
    if (config.schedule.profile_file.empty()) config.profile = measured;
    partition = decide_partition(mpi, config);
    config = with_partition(std::move(config), *partition);
  }
  Experiment experiment = agree(mpi, [&] {
    Experiment made = make_experiment(config, parts);
    check_kernels(config, made.network);
    check_submission_limits(made.schedule, made.emulated.has_value());
    return made;
  });
  require_same(mpi, experiment.schedule);
  require_same(mpi, "data.path", config.data.path, experiment.data.get());
  require_same(mpi, "data.validation", config.data.validation, experiment.validation.get());
  return {std::move(config), std::move(partition), std::move(experiment)};
}

// Collective. When there are several configurations, messages name the schedule.
std::vector<Unplaced> plan_all(const Mpi& mpi, std::vector<Config> configs, const RunParts& parts) {
  std::vector<Unplaced> plans;
  plan::Profile measured;
  for (Config& config : configs) {
    const std::string name = config.schedule.name;
    try {
      const Unplaced& made = plans.emplace_back(plan_on_ranks(mpi, std::move(config), measured, parts));
      if (made.partition) measured = made.partition->profile;
    } catch (const InputError& error) {
      if (configs.size() == 1) throw;
      throw InputError(fmt::format("--schedules: {}: {}", name, error.what()));
    }
  }
  return plans;
}

// Throws InputError when the parameters, in fp32, do not fit this host's memory.
std::vector<std::vector<float>> parameters_in_memory(const model::Network& network, std::uint64_t seed) {
  try {
    return model::start_parameters(network, seed);
  } catch (const std::bad_alloc&) {
    throw InputError(fmt::format("model: this host has no memory for its {} parameters, {}",
                                 network.parameter_count(),
                                 bytes_text(network.parameter_count() * sizeof(float))));
  }
}

// Throws InputError unless there are as many weights as the network has parameters.
std::vector<std::vector<float>> checked_weights(const model::Network& network,
                                                const std::vector<std::vector<float>>& weights) {
  const std::vector<model::ParameterSet> sets = network.sets();
  bool fits = weights.size() == sets.size();
  for (std::size_t s = 0; fits && s < sets.size(); ++s) fits = weights[s].size() == sets[s].size;
  if (!fits)
    throw InputError("TrainerParts::weights: not as many numbers as the network's sets have parameters");
  return weights;
}

std::vector<plan::Traffic> traffic_of(const Experiment& experiment) {
  plan::Costs costs;
  costs.sizes = experiment.network.sizes();
  costs.shared = experiment.network.shared_weights();
  return plan::count_traffic(experiment.schedule, costs);
}

void check_sizes(const Config& config, const Experiment& made, const WorkerMap& map) {
  if (config.evaluate.alone) {
    check_evaluation_sizes(made.schedule, made.network, map);
    return;
  }
  const TaskGraph graph(made.schedule, made.network, config.training.optimizer,
                        step_rules(config, made.schedule.microbatches()));
  check_data_sizes(graph, made.schedule, made.network, map);
}

}  // namespace

model::OptimizerConfig optimizer_of(const Config& config) {
  model::OptimizerConfig optimizer = config.training.optimizer;
  if (!optimizer.schedule.steps) optimizer.schedule.steps = config.training.steps;
  return optimizer;
}

Engine make_engine(const Session& session, const AgreedRun& run) {
  const Experiment& e = run.experiment;
  return {session,
          e.schedule,
          e.network,
          optimizer_of(run.config),
          run.parameters,
          run.config.runtime,
          e.emulated ? &*e.emulated : nullptr,
          run.config.training.nonfinite,
          step_rules(run.config, e.schedule.microbatches()).evaluated};
}

void require_finite_weights(const AgreedRun& run, const Engine& engine) {
  const std::optional<int> stage = engine.first_nonfinite_stage();
  if (!stage) return;
  const auto& training = run.config.training;
  const bool skip = training.nonfinite == NonFinitePolicy::skip;
  throw RunFailure(
      fmt::format("after step {} the weights of stage {} hold infinity or NaN{}", training.steps, *stage,
                  skip ? "; training.nonfinite: skip cannot undo an update" : " (training.nonfinite: stop)"));
}

AgreedRuns agree_on_runs(const Mpi& mpi, std::vector<Config> configs, const RunParts& parts) {
  agree(mpi, [&] {
    check_starpu_variables();
    for (const Config& config : configs) check_rank_device(config);
    return true;
  });
  RankRequest("run").require_same(mpi, configs);
  std::vector<Unplaced> plans = plan_all(mpi, std::move(configs), parts);
  // The configurations differ in their schedule only, so all runs use the same devices.
  const RuntimeConfig runtime = plans.front().config.runtime;
  const WorkerMap linear(plans.front().experiment.schedule.workers(), mpi.ranks());
  CoreShare share = share_cores(mpi, linear, runtime);
  const GpuShare gpus = share_gpus(mpi, linear, runtime);
  const Topology& host = runtime.uses_gpus() ? Topology::host_with_devices() : Topology::host();
  share = near_gpus(host, std::move(share), gpus.devices);
  AgreedRuns agreed{.claims = claim_cores(mpi, share), .runs = {}};
  const std::vector<Device> devices = slot_devices(host, share, gpus.devices, linear.count(mpi.rank()));
  for (Unplaced& planned : plans) {
    const bool automatic = runtime.mapping == MappingKind::automatic;
    WorkerMap map = automatic ? map_to_ranks(mpi, devices, traffic_of(planned.experiment)) : linear;
    const Experiment& made = planned.experiment;
    check_sizes(planned.config, made, map);
    auto parameters = agree(mpi, [&] {
      if (parts.weights) return checked_weights(made.network, *parts.weights);
      return parameters_in_memory(made.network, planned.config.training.seed);
    });
    auto locations = gather_locations(mpi, map, share, devices);
    agreed.runs.push_back({mpi, std::move(planned.config), std::move(planned.partition),
                           std::move(planned.experiment), std::move(parameters), std::move(map), share, gpus,
                           std::move(locations)});
  }
  return agreed;
}

namespace {

using RequestValues = std::vector<std::pair<std::string, std::string>>;

// The value of a key for people. Names of files need not be UTF-8.
std::string request_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_request_keys(RequestValues& values, const std::string& prefix, const Config& config) {
  const std::vector<ConfigKey> keys = config_keys();
  for (const ConfigKey& key : keys) {
    if (!applies(key, config, keys)) continue;
    const nlohmann::json value = key.get(config);
    if (!value.is_null()) values.emplace_back(prefix + key.name, request_text(value));
  }
}

std::uint64_t request_digest(const RequestValues& values) {
  std::uint64_t digest = hash_start;
  for (const auto& [name, value] : values) {
    for (const std::string_view text : {std::string_view(name), std::string_view(value)})
      digest = hash_of(text, hash_of(std::uint64_t{text.size()}, digest));
  }
  return digest;
}

// CBOR keeps bytes that are not UTF-8.
std::string packed_request(const RequestValues& values) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(nlohmann::json(values));
  return {bytes.begin(), bytes.end()};
}

std::optional<std::string> requested_value(const RequestValues& values, const std::string& name) {
  const auto found = std::ranges::find(values, name, &RequestValues::value_type::first);
  if (found == values.end()) return std::nullopt;
  return found->second;
}

// The first difference between rank 0 and another rank; empty when there is none.
std::string request_difference(const RequestValues& first, const RequestValues& other, std::size_t rank) {
  RequestValues all = first;
  all.insert(all.end(), other.begin(), other.end());
  for (const auto& [name, value] : all) {
    const auto wanted = requested_value(first, name);
    const auto found = requested_value(other, name);
    if (wanted == found) continue;
    return fmt::format("{}: rank 0 has {}, rank {} has {}; all ranks need the same configuration", name,
                       wanted.value_or("none"), rank, found.value_or("none"));
  }
  return "";
}

}  // namespace

void RankRequest::require_same(const Mpi& mpi, const std::vector<Config>& configs) const {
  RequestValues mine = values_;
  for (const Config& config : configs) {
    const bool several = configs.size() > 1;
    add_request_keys(mine, several ? fmt::format("--schedules: {}: ", config.schedule.name) : "", config);
  }
  if (mpi.all_equal(request_digest(mine))) return;
  std::vector<RequestValues> all;
  for (const std::string& text : mpi.gather(packed_request(mine)))
    all.push_back(nlohmann::json::from_cbor(text).get<RequestValues>());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string problem = request_difference(all.front(), all[rank], rank);
    if (!problem.empty()) throw InputError(problem);
  }
}

}  // namespace starpipe::runtime
