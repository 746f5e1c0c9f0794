// SPDX-License-Identifier: Apache-2.0
#include "plan/search/partition.hpp"

#include <cmath>

#include <fmt/ranges.h>

#include "cli/commands/subcommand.hpp"
#include "cli/input/input_files.hpp"
#include "plan/formats/results.hpp"
#include "plan/formats/schedule_values.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/search/search_problem.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {
namespace {

constexpr int max_partition_workers = 1 << 10;
constexpr int max_partition_chunks = 64;

struct PartitionOptions {
  std::string file;
  plan::ScheduledPartition asked;
  std::optional<std::string> comm;
  std::optional<std::string> comm_per_byte;
  std::optional<std::string> links;
  std::vector<std::string> devices;
  std::optional<int> microbatches;
  std::optional<std::string> layout;
  std::vector<std::uint64_t> memory_limits;
  bool json = false;
  std::optional<std::string> format;
  std::optional<std::string> output;
  const CLI::Option* optimizer_states = nullptr;
};

/// Reads the units, and sets the kind of device of each worker.
void follow_devices(PartitionOptions& options) {
  plan::Profile profile = read_profile(options.file);
  std::vector<std::string> devices = options.devices;
  const int workers = options.asked.request.workers;
  if (devices.size() > 1 && std::cmp_not_equal(devices.size(), workers)) {
    throw InputError(fmt::format("--device: {} devices for --workers {}", devices.size(), workers));
  }
  if (devices.empty() && profile.devices.size() > 1) {
    throw InputError(fmt::format("--device: {} has times on {}: give the kind of each worker", options.file,
                                 fmt::join(profile.devices, " and ")));
  }
  if (!devices.empty() && profile.devices.empty()) {
    throw InputError(fmt::format("--device: {} has times without a kind of device", options.file));
  }
  if (devices.empty()) devices = profile.devices;
  if (devices.empty()) devices = {""};
  try {
    options.asked.request.kinds = profile.kinds_of(devices, workers);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--device: {} has {}", options.file, error.what()));
  }
  options.asked.request.units = std::move(profile.units);
  options.asked.request.shared = std::move(profile.shared);
}

/// A form of the result, and the suffix of a file that has it.
struct StageFormat {
  std::string_view name;
  std::string_view suffix;
};
constexpr std::array stage_formats = {StageFormat{"text", ".txt"}, StageFormat{"json", ".json"},
                                      StageFormat{"megatron", ".txt"}, StageFormat{"torchtitan", ".toml"}};

std::string_view format_of(const PartitionOptions& options) {
  if (options.json) return "json";
  if (options.format) return *options.format;
  return options.output && suffix_of(*options.output) == ".json" ? "json" : "text";
}

void check_output(const PartitionOptions& options) {
  if (!options.output) return;
  std::vector<std::string_view> suffixes = {".json", ".txt"};
  if (options.json || options.format)
    suffixes = {std::ranges::find(stage_formats, format_of(options), &StageFormat::name)->suffix};
  require_suffix("-o", *options.output, suffixes);
  const OutputFiles outputs({{"-o", *options.output}});
  outputs.check(std::array<std::filesystem::path, 2>{options.file, options.links.value_or("")});
  outputs.require_writable();
}

/// Refuses options about sizes when the units have none: they would change nothing. Shared weights take
/// memory and are transferred.
void require_sizes(const PartitionOptions& options) {
  if (!options.asked.request.shared.empty()) return;
  const auto none = [&](auto... size) {
    return std::ranges::none_of(options.asked.request.units,
                                [&](const plan::UnitCosts& unit) { return ((unit.sizes.*size > 0) || ...); });
  };
  using Sizes = plan::StageSizes;
  const auto refuse = [&](const char* option, const char* sizes) {
    throw InputError(fmt::format("{}: the units of {} have no {}", option, options.file, sizes));
  };
  if (!options.memory_limits.empty() && none(&Sizes::weights, &Sizes::stash, &Sizes::gradient_stash)) {
    refuse("--memory-limit", "weights and no stash");
  }
  if (options.asked.request.links.has_bandwidths() && none(&Sizes::activation, &Sizes::gradient)) {
    refuse(options.links ? "--links" : "--comm-per-byte", "activation");
  }
  if (options.optimizer_states->count() > 0 && none(&Sizes::weights)) {
    refuse("--optimizer-states", "weights");
  }
}

std::string_view allocation_name(const plan::PartitionRequest& request) {
  constexpr std::array<std::string_view, 3> words = {"contiguous", "placed", "general"};  // as in the enum
  return words[static_cast<std::size_t>(request.allocation)];
}

/// The first and the last unit of a stage.
struct FirstLast {
  std::size_t first;
  std::size_t last;
};

FirstLast units_of(const plan::Partition& found, std::size_t stage, std::size_t units) {
  return {stage == 0 ? 0 : index(found.cuts[stage - 1]),
          (stage == found.cuts.size() ? units : index(found.cuts[stage])) - 1};
}

std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string stage_table(const plan::PartitionResult& result) {
  const plan::Partition& found = result.found;
  const plan::Costs& costs = result.costs;
  const auto& units = result.request.units;
  std::vector<TableRow> rows = {{"stage", "worker", "units", "F", "B", "W", "weights", "stash"}};
  const bool named = std::ranges::any_of(units, [](const auto& unit) { return !unit.name.empty(); });
  if (named) rows.front().emplace_back("first");
  for (std::size_t s = 0; s < found.stage_workers.size(); ++s) {
    const auto [first, last] = units_of(found, s, units.size());
    const plan::Durations& time = costs.durations[s];
    std::uint64_t weights = costs.sizes[s].weights;
    for (const plan::SharedWeights& shared : costs.shared)
      weights += std::cmp_equal(shared.stages.front(), s) ? shared.weights : 0;
    rows.push_back({std::to_string(s), std::to_string(found.stage_workers[s]),
                    first == last ? std::to_string(first) : fmt::format("{}-{}", first, last), number(time.F),
                    number(time.B), number(time.W), bytes_text(weights), bytes_text(costs.sizes[s].stash)});
    if (named) rows.back().push_back(units[first].name);
  }
  return table_text(rows);
}

/// Returns one bar for each worker: # for its computation, then ~ for its transfers.
std::string bars(const plan::Partition& found) {
  constexpr std::size_t columns = 50;
  constexpr std::array shown = {TableColumn{Align::left}, TableColumn{Align::left, columns},
                                TableColumn{Align::left}};
  const auto width = [&](double load) {
    return found.bottleneck > 0
               ? static_cast<std::size_t>(std::lround(load / found.bottleneck * static_cast<double>(columns)))
               : 0;
  };
  std::vector<TableRow> rows;
  for (std::size_t w = 0; w < found.loads.size(); ++w) {
    const plan::WorkerLoad& load = found.loads[w];
    const std::size_t compute = width(load.time);
    const std::string memory =
        load.memory > 0 ? ", " + bytes_text(static_cast<std::uint64_t>(load.memory)) : "";
    rows.push_back({fmt::format("worker {}", w),
                    std::string(compute, '#') + std::string(width(load.load()) - compute, '~'),
                    number(load.load()) + memory});
  }
  return table_text(rows, shown);
}

nlohmann::ordered_json to_json(const PartitionOptions& options, const plan::PartitionResult& result) {
  const auto& [request, found, costs, timeline] = result;
  nlohmann::ordered_json json = {{"workers", request.workers},
                                 {"layers", request.units.size()},
                                 {"allocation", allocation_name(request)},
                                 {"bottleneck", found.bottleneck},
                                 {"lower_bound", found.lower_bound},
                                 {"optimal", found.optimal()},
                                 {"cuts", found.cuts},
                                 {"placement", found.stage_workers}};
  const std::vector<std::uint64_t>& limits = options.memory_limits;
  if (!limits.empty())
    json["memory_limit"] = limits.size() == 1 ? nlohmann::json(limits.front()) : nlohmann::json(limits);
  for (std::size_t s = 0; s < found.stage_workers.size(); ++s) {
    std::vector<std::size_t> units;
    std::vector<std::string> names;
    const auto [first, last] = units_of(found, s, request.units.size());
    for (std::size_t l = first; l <= last; ++l) {
      units.push_back(l);
      names.push_back(request.units[l].name);
    }
    nlohmann::ordered_json stage = {{"worker", found.stage_workers[s]}, {"layers", units}, {"names", names}};
    stage.update(plan::durations_json(costs.durations[s]));
    json["stages"].push_back(std::move(stage));
  }
  for (const plan::WorkerLoad& load : found.loads) {
    json["loads"].push_back(
        {{"time", load.time}, {"transfers", load.transfers}, {"load", load.load()}, {"memory", load.memory}});
  }
  json["predicted"] = {
      {"schedule", options.asked.schedule},    {"microbatches", options.asked.microbatches},
      {"makespan", timeline.makespan},         {"bubble_fraction", timeline.bubble_fraction},
      {"device_span", timeline.device_span},   {"device_bubble_fraction", timeline.device_bubble_fraction},
      {"peak_stashes", timeline.peak_stashes}, {"peak_stash_bytes", timeline.peak_stash_bytes}};
  return json;
}

std::string to_text(const PartitionOptions& options, const plan::PartitionResult& result) {
  const auto& [request, found, costs, timeline] = result;
  const int stages = static_cast<int>(found.stage_workers.size());
  double sum = 0;
  for (const plan::WorkerLoad& load : found.loads) sum += load.load();
  const bool several = request.allocation == plan::Allocation::placed;
  std::string text = fmt::format(
      "{} units on {} workers: {}, {}\n\n", request.units.size(), request.workers,
      counted_text(stages, "stage"),
      several ? fmt::format("{} on each", stages / request.workers) : std::string(allocation_name(request)));
  text += stage_table(result) + "\n" + bars(found);
  text += fmt::format(
      "\nbottleneck            {}{}\n"
      "mean load             {}\n",
      number(found.bottleneck),
      found.optimal() ? ", optimal" : fmt::format(", none is below {}", number(found.lower_bound)),
      number(sum / request.workers));
  const int equal = std::min(request.workers, static_cast<int>(request.units.size()));
  std::vector<int> workers;
  for (int s = 0; s < equal; ++s) workers.push_back(s);
  const auto naive = plan::evaluate_partition(
      request, plan::equal_cuts(static_cast<int>(request.units.size()), equal), workers);
  text += fmt::format("equal unit counts     {}\n", number(naive.bottleneck));
  text += fmt::format("\n{}, {} micro-batches: {}\n", options.asked.schedule, options.asked.microbatches,
                      plan::makespan_sentence(timeline, number(timeline.makespan)));
  return text + fmt::format("cuts [{}], placement [{}]\n", fmt::join(found.cuts, ", "),
                            fmt::join(found.stage_workers, ", "));
}

std::string shown(const PartitionOptions& options, const plan::PartitionResult& result) {
  const std::string_view format = format_of(options);
  if (format == "json") return plan::json_text(to_json(options, result));
  if (format == "text") return to_text(options, result);
  const plan::PartitionRequest& request = result.request;
  try {
    return format == "megatron" ? plan::megatron_stages(request.units, result.found, request.workers)
                                : plan::torchtitan_stages(request.units, result.found, request.workers);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--format {}: {}", format, error.what()));
  }
}

/// Returns the link that --comm and --comm-per-byte describe.
plan::Link link_of(const PartitionOptions& options) {
  const auto time = [](const char* option, const std::optional<std::string>& text) {
    return text ? YamlValue(YAML::Node(*text), option).time_or_number() : Quantity{};
  };
  const Quantity alpha = time("--comm", options.comm);
  const Quantity beta = time("--comm-per-byte", options.comm_per_byte);
  if (alpha.value > 0 && beta.value > 0 && alpha.has_unit != beta.has_unit) {
    throw InputError(fmt::format(
        "--comm-per-byte {}: {}", *options.comm_per_byte,
        beta.has_unit ? "has a unit, but --comm has none" : "needs a unit (s, ms, us), as --comm has one"));
  }
  return {.alpha = alpha.value, .beta = beta.value};
}

/// Makes the partition. The message of a refused request names one of its parts; the command names the option
/// or the file instead.
plan::PartitionResult partition_for(const PartitionOptions& options) {
  try {
    return plan::partition_for(options.asked);
  } catch (const plan::RequestError& error) {
    const std::string_view problem = error.what();
    constexpr std::string_view units = "units: ";
    if (problem.starts_with(units))
      throw InputError(fmt::format("{}: {}", options.file, problem.substr(units.size())));
    throw InputError(fmt::format("--{}", problem));
  }
}

int partition(PartitionOptions options) {
  check_output(options);
  follow_devices(options);
  options.asked.request.links =
      options.links ? read_links(*options.links).links : plan::Links(link_of(options));
  require_sizes(options);
  require_one_or_each("--memory-limit", options.memory_limits.size(), options.asked.request.workers);
  if (!options.memory_limits.empty())
    options.asked.request.memory_limits.assign(options.memory_limits.begin(), options.memory_limits.end());
  options.asked.microbatches = options.microbatches.value_or(4 * options.asked.request.workers);
  if (options.layout) options.asked.layout = plan::parse_layout(*options.layout);
  const std::string text = shown(options, partition_for(options));
  write_file("-o", options.output.value_or("-"), text);
  return 0;
}

void add_cost_options(CLI::App& command, PartitionOptions& options) {
  add_option(command, "--comm T", options.comm,
             "Fixed time of a transfer between two workers, in the time unit of the file (default 0). With a "
             "unit, such as 2ms, the times of the file are in seconds, as `profile` writes them");
  add_option(command, "--comm-per-byte T", options.comm_per_byte,
             "Time that each byte of a transfer adds, like --comm (default 0)");
  add_option(command, "--links FILE.yaml", options.links,
             "YAML file with the links between workers, in place of these two. Where it has units, the times "
             "of the units of the model are in seconds")
      ->excludes("--comm")
      ->excludes("--comm-per-byte");
  add_option(command, "--memory-limit BYTES,...", options.memory_limits,
             "Bytes that a worker may hold, such as 12GiB: weights, gradients, optimizer state and stashes. "
             "One limit for all, or one for each worker",
             byte_count(1));
  options.optimizer_states = add_option(
      command, "--optimizer-states N", options.asked.request.optimizer_states,
      "Optimizer state as a multiple of the weights: 2 for AdamW (default), 1 for momentum, 0 for SGD",
      decimal_number({.min = 0, .max = 100}));
}

void add_schedule_options(CLI::App& command, PartitionOptions& options) {
  add_option(command, "--chunks C", options.asked.chunks,
             "Stages on each worker (default: the schedule's own number, 1 for 1f1b)",
             whole_number(1, max_partition_chunks));
  add_option(command, "--layout NAME", options.layout,
             "Worker of each stage with several chunks: loop (stage s on worker s mod W, default) or v (from "
             "worker 0 to W-1 and back)",
             one_of(plan::layout_words));
  command.add_flag("--general", options.asked.general,
                   "A worker may get any units, not only consecutive ones");
  add_option(
      command, "--schedule NAME", options.asked.schedule,
      "Schedule that decides how many stashes a worker holds, and is predicted at the end (default 1f1b)");
  add_option(command, "--microbatches B", options.microbatches,
             "Number of micro-batches in a step (default: 4 for each worker)", whole_number(1, 1 << 20));
}

}  // namespace

void add_partition(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("partition", "Cut a chain of units into stages and give each stage to a worker");
  const auto options = std::make_shared<PartitionOptions>();
  add_option(*command, "file FILE.yaml", options->file,
             "Times and sizes of the units, as `profile` writes them")
      ->required();
  add_option(*command, "--workers W", options->asked.request.workers, "Number of workers",
             whole_number(1, max_partition_workers))
      ->required();
  add_option(*command, "--device KIND,...", options->devices,
             "Kind of device of the workers, which chooses their times: cpu or cuda for all, or one kind for "
             "each worker, such as cuda,cpu,cpu",
             one_of(runtime::device_kinds))
      ->allow_extra_args();
  refuse_tensor(
      *command,
      "partition knows chains of units only; shards have the cuts of their units: give those that it "
      "finds as schedule.cuts, with model.tensor");
  add_schedule_options(*command, *options);
  add_cost_options(*command, *options);
  CLI::Option* const json = command->add_flag("--json", options->json, "The same as --format json");
  add_option(*command, "--format FORMAT", options->format,
             "text, json, megatron (options of Megatron-LM) or torchtitan (TOML of torchtitan 0.2). The last "
             "two need the units of gpt or llama. Default: by the suffix of the output file, else text",
             CLI::IsMember({"text", "json", "megatron", "torchtitan"}))
      ->excludes(json);
  add_option(*command, "-o,--output FILE", options->output,
             "Write to a file instead of standard output (-): .txt, .json or .toml, as the format is");
  command->footer(
      "Example:\n"
      "  starpipe partition experiments/layers.yaml --workers 4 --general");
  command->callback([options, &action] { action = [options] { return partition(*options); }; });
}

}  // namespace starpipe::cli
