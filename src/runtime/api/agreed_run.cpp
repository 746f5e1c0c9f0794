// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/agreed_run.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "base/numbers.hpp"
#include "model/weights.hpp"
#include "model/weights_file.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/engine/data_sizes.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/locality.hpp"
#include "runtime/host/product_library.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::runtime {
namespace {

// The variables by which StarPU decides what one rank sends and another expects: ranks that differ in one of
// them would wait for each other indefinitely, or report what is true of one rank only.
constexpr std::array variables_of_all_ranks = {
    "STARPU_SCHED",           "STARPU_SCHED_LIB", "STARPU_MPI_CACHE",      "STARPU_MPI_STATS",
    "STARPU_COMM_STATS",      "STARPU_FXT_TRACE", "STARPU_GENERATE_TRACE", "STARPU_MPI_TRACE_SYNC_CLOCKS",
    "STARPU_DISPLAY_BINDINGS"};

// Hashes of values that ranks have read from files of their own.

std::uint64_t hash_of_number(double number, std::uint64_t hash) {
  return hash_of(std::bit_cast<std::uint64_t>(number), hash);
}

std::uint64_t digest_of(const plan::Links& links) {
  std::uint64_t digest = hash_start;
  for (const plan::LinkLevel& level : links.levels()) {
    digest = hash_of_number(level.link.alpha, hash_of_number(level.link.beta, digest));
    for (const int number : {level.workers, static_cast<int>(level.sharing)})
      digest = hash_of(static_cast<std::uint64_t>(number), digest);
    for (const auto& [bytes, time] : level.link.times) digest = hash_of_number(time, hash_of(bytes, digest));
    for (const auto& [member, beta] : level.ports)
      digest = hash_of_number(beta, hash_of(static_cast<std::uint64_t>(member), digest));
  }
  return digest;
}

std::uint64_t digest_of(const EmulationConfig& emulated) {
  std::uint64_t digest = digest_of(emulated.links);
  for (const auto& home : {emulated.host, emulated.disk}) {
    digest = hash_of(std::uint64_t{home.has_value()}, digest);
    if (home) digest = hash_of_number(home->link.alpha, hash_of_number(home->link.beta, digest));
  }
  return digest;
}

std::uint64_t digest_of(const plan::Profile& profile) {
  std::uint64_t digest = hash_start;
  const auto add = [&digest](std::uint64_t word) { digest = hash_of(word, digest); };
  for (const std::string& device : profile.devices) digest = hash_of(device, digest);
  for (const plan::UnitCosts& unit : profile.units) {
    for (int kind = 0; kind <= static_cast<int>(unit.others.size()); ++kind) {
      for (const plan::PassTime& pass : plan::pass_times)
        digest = hash_of_number(unit.on(kind).*pass.time, digest);
    }
    const plan::StageSizes& sizes = unit.sizes;
    for (const std::uint64_t bytes :
         {sizes.activation, sizes.gradient, sizes.stash, sizes.gradient_stash, sizes.weights, sizes.master})
      add(bytes);
  }
  for (const plan::SharedUnits& shared : profile.shared) {
    for (const int unit : shared.units) add(index(unit));
    add(shared.weights);
    add(shared.master);
  }
  return digest;
}

std::uint64_t digest_of(const model::SetValues& weights) {
  std::uint64_t digest = hash_start;
  for (const std::vector<float>& set : weights) {
    digest = hash_of(std::uint64_t{set.size()}, digest);
    for (const float weight : set)
      digest = hash_of(std::uint64_t{std::bit_cast<std::uint32_t>(weight)}, digest);
  }
  return digest;
}

// Collective. Throws InputError on every rank if `digest`, of the content of a file, differs among the ranks.
void require_same_file(const Mpi& mpi, std::string_view key, const std::filesystem::path& file,
                       std::uint64_t digest) {
  if (mpi.all_equal(digest)) return;
  throw InputError(fmt::format("{}: {} is not the same file on all ranks", key, file.string()));
}

// Collective. Throws InputError on every rank if the ranks have read different profiles, links or plug-ins
// under the same names. Hosts may have copies of a file that are not equally old.
void require_same_files(const Mpi& mpi, const Config& config) {
  const ScheduleConfig& schedule = config.schedule;
  require_same_file(mpi, "schedule.profile", schedule.profile_file, digest_of(config.profile));
  require_same_file(mpi, "runtime.links", config.runtime.links_file, digest_of(config.runtime.links));
  if (const auto& emulated = config.runtime.emulate)
    require_same_file(mpi, "runtime.emulate.links", emulated->links_file, digest_of(*emulated));
  for (const std::string& file : schedule.plugins) {
    const std::uint64_t digest =
        agree(mpi, [&] { return hash_of(std::string_view(read_file(file)), hash_start); });
    require_same_file(mpi, "schedule.plugin", file, digest);
  }
}

// Collective. Throws InputError on every rank if the ranks' schedules differ: such ranks would wait for each
// other indefinitely. Schedules differ when the w or n of a plug-in depends on more than the request, or when
// hosts have different files.
void require_same(const Mpi& mpi, const plan::Schedule& schedule, const ScheduleConfig& wanted) {
  std::uint64_t digest = hash_start;
  const auto add = [&digest](std::uint64_t word) { digest = hash_of(word, digest); };
  add(static_cast<std::uint64_t>(schedule.discipline()));
  add(schedule.recomputes() ? schedule.recomputes_late() ? 2 : 1 : 0);
  for (const int limit : schedule.memory_limits()) add(static_cast<std::uint64_t>(limit));
  for (const plan::JobId id : schedule.order()) {
    add(id);
    add(static_cast<std::uint64_t>(schedule.placement(id).compute));
    add(static_cast<std::uint64_t>(schedule.placement(id).weights));
    const plan::Job job = schedule.job(id);
    add(static_cast<std::uint64_t>(schedule.home(job.stage, job.microbatch).code()));
  }
  if (wanted.file) return require_same_file(mpi, "schedule.file", *wanted.file, digest);
  if (mpi.all_equal(digest)) return;
  throw InputError(fmt::format(
      "schedule {}: the ranks have built different schedules; w and n must depend on the request alone",
      schedule.name()));
}

// Collective. Throws InputError on every rank if the ranks have opened different files under the same name.
// Different ranks read the inputs and the targets of a sequence, which would then not belong together.
void require_same(const Mpi& mpi, std::string_view key, const std::filesystem::path& file,
                  const model::Dataset* data) {
  if (data == nullptr) return;
  if (!file.empty()) return require_same_file(mpi, key, file, data->digest());
  if (mpi.all_equal(data->digest())) return;
  throw InputError(fmt::format("{}: the program's data differ among the ranks", key));
}

// Collective. Rank 0 measures, decides, and sends cuts and placement to the other ranks. These sleep
// meanwhile: they would measure other times, and their work would disturb rank 0.
PartitionChoice decide_partition(const Mpi& mpi, const Config& config) {
  mpi.show("divides the model into stages");
  PartitionChoice choice =
      agree(mpi, [&] { return mpi.rank() == 0 ? choose_partition(config).value() : PartitionChoice(); });
  std::tie(choice.partition.cuts, choice.placement) =
      share_all(mpi, std::pair(choice.partition.cuts, choice.placement));
  return choice;
}

// Collective. Plans run `number`. `measured`: the profile that was measured for an earlier schedule, or an
// empty one. Without schedule.profile it decides the cuts, so that all schedules are cut by the same times.
PlannedRun plan_on_ranks(const Mpi& mpi, std::size_t number, Config config, const plan::Profile& measured,
                         const TrainerParts& parts) {
  require_same_files(mpi, config);
  std::optional<PartitionChoice> partition;
  if (config.schedule.partition) {
    if (config.schedule.profile_file.empty()) config.profile = measured;
    partition = decide_partition(mpi, config);
    config = with_partition(std::move(config), *partition);
  }
  mpi.show("plans the run");
  Experiment experiment = agree(mpi, [&] {
    Experiment made = make_experiment(config, parts);
    check_kernels(config, made.network);
    check_submission_limits(made.schedule, made.emulated);
    check_homes(made.schedule, config.runtime, mpi.ranks());
    return made;
  });
  require_same(mpi, experiment.schedule, config.schedule);
  require_same(mpi, "data.path", config.data.path, experiment.data.get());
  require_same(mpi, "data.validation", config.data.validation, experiment.validation.get());
  return {number, std::move(config), std::move(partition), std::move(experiment)};
}

// Leaves a configuration out, in the order of their numbers. Called where the error is caught, which it
// throws again if there is no other configuration.
void leave_out(std::vector<LeftOut>& left_out, std::size_t count, std::size_t number, const std::string& name,
               const InputError& error) {
  if (count == 1) throw;
  const auto at = std::ranges::upper_bound(left_out, number, {}, &LeftOut::config);
  left_out.insert(at, {number, fmt::format("--schedules: {}: {}", name, error.what())});
}

// Collective. Plans a run of each configuration. Of several, those that cannot work are left out; messages
// name the schedule. Throws InputError if none can work.
std::vector<PlannedRun> plan_all(const Mpi& mpi, std::vector<Config> configs, const TrainerParts& parts,
                                 std::vector<LeftOut>& left_out) {
  std::vector<PlannedRun> plans;
  plan::Profile measured;
  for (std::size_t c = 0; c < configs.size(); ++c) {
    const std::string name = configs[c].schedule.name;
    try {
      const PlannedRun& made =
          plans.emplace_back(plan_on_ranks(mpi, c, std::move(configs[c]), measured, parts));
      if (made.partition) measured = made.partition->profile;
    } catch (const InputError& error) {
      leave_out(left_out, configs.size(), c, name, error);
    }
  }
  if (plans.empty()) throw InputError(left_out.front().problem);
  return plans;
}

// Collective. Throws InputError on every rank if the ranks have opened different weights under one name.
// Ranks that read files of one place need not compare them, also where hosts share it. Of several places, one
// rank each reads all.
void require_same_weights(const Mpi& mpi, const Config& config, model::WeightsFile& file) {
  if (mpi.all_equal(file.place())) return;
  const std::string own = std::to_string(file.place());
  const std::vector<std::string> places = mpi.gather(own);
  const bool is_first = std::ranges::find(places, own) == places.begin() + mpi.rank();
  constexpr std::uint64_t none = 0;
  const std::uint64_t digest = agree(mpi, [&] { return is_first ? file.digest() : none; });
  const std::uint64_t min =
      mpi.combine(digest == none ? std::numeric_limits<std::uint64_t>::max() : digest, Combine::min);
  if (min == mpi.combine(digest, Combine::max)) return;
  throw InputError(fmt::format("{}: {} does not have the same weights on all ranks",
                               config.evaluate.alone ? "weights" : "model.init",
                               config.model.init->string()));
}

// Throws InputError if the weights that the program has given are not as many as the network has parameters.
void check_given(const model::Network& network, const model::SetValues& given) {
  const bool fits = std::ranges::equal(
      given, network.sets(), {}, [](const auto& set) { return set.size(); }, &model::ParameterSet::size);
  if (!fits)
    throw InputError("TrainerParts::weights: not as many numbers as the network's sets have parameters");
}

// Collective. Returns the start values: `given` by the program, of a file, or drawn; with emulated jobs an
// empty function. Throws InputError on every rank for a file that does not fit, and for files or given values
// that differ among the ranks.
model::StartValues start_of(const Mpi& mpi, const PlannedRun& planned,
                            const std::optional<model::SetValues>& given) {
  const Experiment& made = planned.experiment;
  if (given) {
    agree(mpi, [&] {
      check_given(made.network, *given);
      return true;
    });
    if (!mpi.all_equal(digest_of(*given)))
      throw InputError("TrainerParts::weights: the program's weights differ among the ranks");
  }
  if (made.emulated) return {};
  if (given) return model::given_values(*given);
  if (const auto& init = made.network.config.init) {
    const auto file = agree(mpi, [&] {
      return std::make_shared<model::WeightsFile>(*init, made.network, model::FileContents::start_weights);
    });
    require_same_weights(mpi, planned.config, *file);
    return model::start_values(file, made.network);
  }
  return model::start_values(made.network, planned.config.training.seed);
}

// Throws InputError if StarPU or MPI cannot carry a datum of the run.
void check_sizes(const Config& config, const Experiment& made, const WorkerMap& map) {
  if (config.evaluate.alone) {
    check_evaluation_sizes(made.schedule, made.network, map);
    return;
  }
  const TaskGraph graph(made.schedule, made.network, config.training.optimizer, made.rules);
  check_data_sizes(graph, made.schedule, made.network, map);
}

}  // namespace

Engine make_engine(const Session& session, const AgreedRun& run, const model::StartValues& start) {
  const Experiment& e = run.experiment;
  return {session,
          e.schedule,
          e.network,
          optimizer_of(run.config),
          start,
          run.config.runtime,
          e.emulated ? &e.costs : nullptr,
          run.config.training.nonfinite,
          e.rules.evaluated};
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

AgreedRuns agree_on_runs(const Mpi& mpi, std::vector<Config> configs, const TrainerParts& parts) {
  agree(mpi, [&] {
    check_starpu_variables();
    for (const Config& config : configs) check_rank_device(config);
    return true;
  });
  RankRequest request("run");
  for (const char* name : variables_of_all_ranks) {
    const std::string value = environment(name).value_or("");
    if (!value.empty()) request.add(name, value);
  }
  for (const auto& [part, is_set] : {std::pair("TrainerParts::network", parts.network != nullptr),
                                     {"TrainerParts::schedule", parts.schedule.has_value()},
                                     {"TrainerParts::data", parts.data != nullptr},
                                     {"TrainerParts::validation", parts.validation != nullptr},
                                     {"TrainerParts::weights", parts.weights.has_value()}})
    if (is_set) request.add(part, std::string("a value"));
  request.require_same(mpi, configs);
  std::vector<LeftOut> left_out;
  const std::size_t count = configs.size();
  std::vector<PlannedRun> plans = plan_all(mpi, std::move(configs), parts, left_out);
  // The configurations differ in their schedule only, so all runs use the same devices.
  const RuntimeConfig runtime = plans.front().config.runtime;
  const WorkerMap linear(plans.front().experiment.schedule.workers(), mpi.ranks());
  CoreShare share = share_cores(mpi, linear, runtime);
  const GpuShare gpus = share_gpus(mpi, linear, runtime);
  const Topology& host = runtime.uses_gpus() ? Topology::host_with_devices() : Topology::host();
  share = near_gpus(host, std::move(share), gpus.devices);
  AgreedRuns agreed{.claims = claim_cores(mpi, share), .runs = {}, .left_out = std::move(left_out)};
  const std::vector<Device> devices = slot_devices(host, share, gpus.devices, linear.count(mpi.rank()));
  for (PlannedRun& planned : plans) {
    const Experiment& made = planned.experiment;
    const bool automatic = runtime.mapping == MappingKind::automatic;
    WorkerMap map =
        automatic ? map_to_ranks(mpi, devices, plan::count_traffic(made.schedule, made.costs)) : linear;
    check_sizes(planned.config, made, map);
    RankLocation own = own_location(mpi, map, share, devices);
    if (!runtime.emulate && workers_on_cores(map, runtime, mpi.rank()) > 0)
      own.products = fmt::format("{}, {}", product_library(), product_kernels());
    auto locations = locations_on_root(mpi, own);
    auto expected = agree(mpi, [&] {
      check_link_levels(planned.config.runtime, made.schedule.workers(), locations);
      return with_links_of_ranks(made.costs, planned.config.runtime, made.schedule.workers(), mpi.ranks());
    });
    std::vector<MainMemory> memory;
    try {
      memory = require_main_memory(mpi, planned.config, made, map, locations);
    } catch (const InputError& error) {
      leave_out(agreed.left_out, count, planned.number, planned.config.schedule.name, error);
      continue;
    }
    auto start = start_of(mpi, planned, parts.weights);
    agreed.runs.push_back({std::move(planned), mpi, std::move(start), std::move(expected), std::move(map),
                           share, gpus, std::move(locations), std::move(memory)});
  }
  if (agreed.runs.empty()) throw InputError(agreed.left_out.front().problem);
  return agreed;
}

void RankRequest::require_same(const Mpi& mpi, const std::vector<Config>& configs) const {
  using Json = nlohmann::ordered_json;
  Json mine = values_;
  const std::vector<ConfigKey> keys = config_keys();
  for (const Config& config : configs) {
    const std::string prefix =
        configs.size() > 1 ? fmt::format("--schedules: {}: ", config.schedule.name) : "";
    for (const ConfigKey& key : keys) {
      if (applies(key, config, keys)) mine[prefix + key.name] = key.get(config);
    }
  }
  const std::vector<std::uint8_t> bytes = Json::to_cbor(mine);  // names of files need not be UTF-8
  const std::string request(bytes.begin(), bytes.end());
  if (mpi.all_equal(hash_of(std::string_view(request), hash_start))) return;
  const Json first = Json::from_cbor(mpi.share(request));
  Json either = first;
  either.update(mine);
  std::string problem;
  for (const auto& [name, ignored] : either.items()) {
    const Json of_first = first.value(name, Json());
    const Json of_this = mine.value(name, Json());
    if (Json::to_cbor(of_first) == Json::to_cbor(of_this)) continue;  // NaN, too, equals itself
    const auto text = [](const Json& value) {
      if (value.is_null()) return std::string("no value");
      return value.is_string() ? value.get<std::string>()
                               : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    };
    problem = fmt::format("{}: rank 0 has {}, rank {} has {}; all ranks need the same configuration", name,
                          text(of_first), mpi.rank(), text(of_this));
    break;
  }
  throw InputError(mpi.first_problem(problem));
}

}  // namespace starpipe::runtime
