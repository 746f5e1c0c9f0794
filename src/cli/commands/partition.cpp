// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/partition/partition.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/commands/partition_output.hpp"
#include "cli/commands/subcommand.hpp"
#include "cli/input/links_file.hpp"
#include "cli/input/profile_file.hpp"
#include "cli/input/yaml.hpp"
#include "cli/options/output_files.hpp"
#include "cli/options/value_checks.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/plan/partition/framework_stages.hpp"
#include "starpipe/plan/partition/schedule_demands.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/search/layout.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {
namespace {

constexpr int most_partition_workers = 1 << 10;
constexpr int most_partition_chunks = 64;
constexpr std::int64_t most_jobs = 2'000'000;

struct PartitionOptions {
  std::string file;
  plan::PartitionRequest request;
  std::optional<std::string> comm;
  std::optional<std::string> comm_per_byte;
  std::optional<std::string> links;
  std::vector<std::string> devices;
  std::string schedule = "1f1b";
  std::optional<int> microbatches;
  std::optional<int> chunks;
  std::optional<std::string> layout;
  std::vector<std::uint64_t> memory_limits;
  bool general = false;
  bool json = false;
  std::optional<std::string> format;
  std::optional<std::string> output;
  const CLI::Option* optimizer_states = nullptr;
};

/// The message of a schedule that refuses its request, `PART: WHY`. The option that asked for the part takes
/// the place of the part, which has no option of its own here.
std::string refusal(const PartitionOptions& options, std::string_view message) {
  const bool chunks = message.starts_with("stages: ") && options.chunks;
  const bool groups = message.starts_with("groups: ");
  return fmt::format("{}: {}{}", chunks ? "--chunks" : "--schedule", message.substr(message.find(": ") + 2),
                     groups ? ", which `partition` cannot give" : "");
}

/// The named schedule for `stages` stages.
plan::Schedule make(const PartitionOptions& options, int stages, const std::vector<int>& stage_workers) {
  try {
    return plan::make_schedule(options.schedule, {.workers = options.request.workers,
                                                  .microbatches = *options.microbatches,
                                                  .graph = plan::StageGraph::chain(stages),
                                                  .stage_workers = stage_workers});
  } catch (const plan::RequestError& error) {
    throw InputError(refusal(options, error.what()));
  }
}

bool takes_placement(const PartitionOptions& options) {
  try {
    make(options, 1, {0});
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Number of stages on each worker: --chunks, or else the schedule's own number.
int chunks_of(const PartitionOptions& options) {
  return options.chunks.value_or(plan::default_stages(plan::find_schedule(options.schedule), 1));
}

/// Sets which stages a worker may get, and how many stashes of each stage the schedule holds.
void follow_schedule(PartitionOptions& options) {
  plan::PartitionRequest& request = options.request;
  const int units = static_cast<int>(request.units.size());
  const int chunks = chunks_of(options);
  const bool free = takes_placement(options);
  if (options.general && !free) {
    throw InputError(
        fmt::format("--general: {} has a placement of its own (1f1b takes any)", options.schedule));
  }
  if (options.general && options.chunks) throw InputError("--chunks: does not apply to --general");
  if (options.layout && (options.general || chunks == 1)) {
    throw InputError("--layout: applies to --chunks of 2 or more");
  }
  const int stages = options.general || (free && chunks == 1)
                         ? std::min(units, options.general ? units : request.workers)
                         : request.workers * chunks;
  if (std::int64_t{stages} * *options.microbatches > most_jobs) {
    throw InputError(
        fmt::format("--microbatches: {} micro-batches of {} stages are too many jobs to simulate",
                    *options.microbatches, stages));
  }
  if (stages > units) {
    throw InputError(fmt::format("{}: {} units do not make {} stages, {} on each of {} workers", options.file,
                                 units, stages, chunks, request.workers));
  }
  const plan::Layout layout = options.layout ? plan::parse_layout(*options.layout) : plan::Layout::loop;
  std::vector<int> workers;
  if (free && chunks > 1) workers = plan::layout_workers(layout, request.workers, chunks);
  if (free && chunks == 1) {
    for (int s = 0; s < stages; ++s) workers.push_back(s % request.workers);
  }
  const plan::Schedule schedule = make(options, stages, workers);
  request.stashes = plan::stashes_held(schedule);
  request.allocation = options.general       ? plan::Allocation::general
                       : free && chunks == 1 ? plan::Allocation::contiguous
                                             : plan::Allocation::placed;
  if (schedule.split_backward()) {  // B's part of the stash also lasts until W
    for (plan::UnitCosts& unit : request.units) unit.sizes.stash += unit.sizes.gradient_stash;
  }
  if (request.allocation != plan::Allocation::placed) return;
  const auto placed = plan::stage_workers_of(schedule);
  if (!placed) {
    throw InputError(
        fmt::format("--schedule: {} computes a stage on several workers, so its stages cannot be placed",
                    options.schedule));
  }
  if (options.layout && *placed != plan::layout_workers(layout, request.workers, chunks)) {
    throw InputError(fmt::format("--layout: {} has a layout of its own, different from {}", options.schedule,
                                 *options.layout));
  }
  request.stage_workers = *placed;
}

/// Adds the predicted run with these stages. Transfers overlap with computation.
PartitionResult with_prediction(const PartitionOptions& options, const plan::Partition& found) {
  std::vector<int> kinds;
  for (const int worker : found.stage_workers) kinds.push_back(options.request.kinds[index(worker)]);
  plan::Costs costs = plan::stage_costs(options.request.units, found.cuts, kinds, options.request.shared);
  costs.links = options.request.links;
  const bool placed = options.request.allocation != plan::Allocation::placed || takes_placement(options);
  const int stages = static_cast<int>(found.stage_workers.size());
  plan::Timeline timeline =
      plan::simulate(make(options, stages, placed ? found.stage_workers : std::vector<int>{}), costs);
  return {options.request,       found,
          options.schedule,      *options.microbatches,
          options.memory_limits, std::move(costs),
          std::move(timeline)};
}

/// Reads the units, and sets the kind of device of each worker.
void follow_devices(PartitionOptions& options) {
  plan::Profile profile = read_profile(options.file);
  std::vector<std::string> devices = options.devices;
  const int workers = options.request.workers;
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
    options.request.kinds = profile.kinds_of(devices, workers);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--device: {} has {}", options.file, error.what()));
  }
  options.request.units = std::move(profile.units);
  options.request.shared = std::move(profile.shared);
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
  const std::array outputs = {OutputFile{"-o", *options.output}};
  const std::array inputs = {std::filesystem::path(options.file),
                             std::filesystem::path(options.links.value_or(""))};
  check_outputs(outputs, inputs);
  require_writable("-o", *options.output);
}

/// Refuses options about sizes when the units have none: they would change nothing. Shared weights take
/// memory and are transferred.
void require_sizes(const PartitionOptions& options) {
  if (!options.request.shared.empty()) return;
  const auto none = [&](auto... size) {
    return std::ranges::none_of(options.request.units,
                                [&](const plan::UnitCosts& unit) { return ((unit.sizes.*size > 0) || ...); });
  };
  using Sizes = plan::StageSizes;
  const auto refuse = [&](const char* option, const char* sizes) {
    throw InputError(fmt::format("{}: the units of {} have no {}", option, options.file, sizes));
  };
  if (!options.memory_limits.empty() && none(&Sizes::weights, &Sizes::stash, &Sizes::gradient_stash)) {
    refuse("--memory-limit", "weights and no stash");
  }
  if (options.request.links.has_bandwidths() && none(&Sizes::activation, &Sizes::gradient)) {
    refuse(options.links ? "--links" : "--comm-per-byte", "activation");
  }
  if (options.optimizer_states->count() > 0 && none(&Sizes::weights)) {
    refuse("--optimizer-states", "weights");
  }
}

std::string shown(const PartitionOptions& options, const plan::Partition& found) {
  const std::string_view format = format_of(options);
  const plan::PartitionRequest& request = options.request;
  if (format == "json") return plan::json_text(to_json(with_prediction(options, found)));
  if (format == "text") return to_text(with_prediction(options, found));
  try {
    return format == "megatron" ? plan::megatron_stages(request.units, found, request.workers)
                                : plan::torchtitan_stages(request.units, found, request.workers);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--format {}: {}", format, error.what()));
  }
}

/// The link that --comm and --comm-per-byte describe.
plan::Link link_of(const PartitionOptions& options) {
  const auto time = [](const char* option, const std::optional<std::string>& text) {
    return text ? YamlValue(YAML::Node(*text), option).time_or_number() : Time{};
  };
  const Time alpha = time("--comm", options.comm);
  const Time beta = time("--comm-per-byte", options.comm_per_byte);
  if (alpha.value > 0 && beta.value > 0 && alpha.has_unit != beta.has_unit) {
    throw InputError(fmt::format(
        "--comm-per-byte {}: {}", *options.comm_per_byte,
        beta.has_unit ? "has a unit, but --comm has none" : "needs a unit (s, ms, us), as --comm has one"));
  }
  return {.alpha = alpha.value, .beta = beta.value};
}

int partition(PartitionOptions options) {
  check_output(options);
  follow_devices(options);
  options.request.links = options.links ? read_links(*options.links).links : plan::Links(link_of(options));
  require_sizes(options);
  if (!options.microbatches) options.microbatches = 4 * options.request.workers;
  if (!options.memory_limits.empty())
    options.request.memory_limits.assign(options.memory_limits.begin(), options.memory_limits.end());
  follow_schedule(options);
  const plan::Partition found = plan::partition(options.request);
  const std::string text = shown(options, found);
  if (options.output) {
    write_file("-o", *options.output, text);
  } else {
    print(text);
  }
  return 0;
}

void add_cost_options(CLI::App& command, PartitionOptions& options) {
  command
      .add_option(
          "--comm", options.comm,
          "Fixed time of a transfer between two workers, in the time unit of the file (default 0). With "
          "a unit, such as 2ms, the times of the file are in seconds, as `profile` writes them")
      ->type_name("T");
  command
      .add_option("--comm-per-byte", options.comm_per_byte,
                  "Time that each byte of a transfer adds, like --comm (default 0)")
      ->type_name("T");
  command
      .add_option("--links", options.links,
                  "YAML file with the links between workers, in place of these two. Where it has units, the "
                  "times of the units of the model are in seconds")
      ->type_name("FILE.yaml")
      ->excludes("--comm")
      ->excludes("--comm-per-byte");
  command
      .add_option("--memory-limit", options.memory_limits,
                  "Bytes that a worker may hold, such as 12GiB: weights, gradients, optimizer state and "
                  "stashes. One limit for "
                  "all, or one for each worker")
      ->type_name("BYTES,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(byte_count(1));
  options.optimizer_states = command
                                 .add_option("--optimizer-states", options.request.optimizer_states,
                                             "Optimizer state as a multiple of the weights: 2 for AdamW "
                                             "(default), 1 for momentum, 0 for SGD")
                                 ->type_name("N")
                                 ->transform(decimal_number({.least = 0, .most = 100}));
}

void add_schedule_options(CLI::App& command, PartitionOptions& options) {
  command
      .add_option("--chunks", options.chunks,
                  "Stages on each worker (default: the schedule's own number, 1 for 1f1b)")
      ->type_name("C")
      ->transform(whole_number(1, most_partition_chunks));
  command
      .add_option("--layout", options.layout,
                  "Worker of each stage with several chunks: loop (stage s on worker s mod W, default) or v "
                  "(from worker 0 to W-1 and back)")
      ->type_name("NAME")
      ->check(CLI::IsMember(std::vector<std::string>(plan::layout_words.begin(), plan::layout_words.end())));
  command.add_flag("--general", options.general, "A worker may get any units, not only consecutive ones");
  command
      .add_option(
          "--schedule", options.schedule,
          "Schedule that decides how many stashes a worker holds, and is predicted at the end (default 1f1b)")
      ->type_name("NAME");
  command
      .add_option("--microbatches", options.microbatches,
                  "Number of micro-batches in a step (default: 4 for each worker)")
      ->type_name("B")
      ->transform(whole_number(1, 1 << 20));
}

void add_partition(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("partition", "Cut a chain of units into stages and give each stage to a worker");
  const auto options = std::make_shared<PartitionOptions>();
  command->add_option("file", options->file, "Times and sizes of the units, as `profile` writes them")
      ->required()
      ->type_name("FILE.yaml");
  command->add_option("--workers", options->request.workers, "Number of workers")
      ->required()
      ->type_name("W")
      ->transform(whole_number(1, most_partition_workers));
  command
      ->add_option("--device", options->devices,
                   "Kind of device of the workers, which chooses their times: cpu or cuda for all, or one "
                   "kind for each worker, such as cuda,cpu,cpu")
      ->type_name("KIND,...")
      ->delimiter(',')
      ->check(CLI::IsMember(
          std::vector<std::string>(runtime::device_kinds.begin(), runtime::device_kinds.end())));
  add_schedule_options(*command, *options);
  add_cost_options(*command, *options);
  CLI::Option* const json = command->add_flag("--json", options->json, "The same as --format json");
  command
      ->add_option("--format", options->format,
                   "text, json, megatron (options of Megatron-LM) or torchtitan (TOML of torchtitan 0.2). The "
                   "last two need "
                   "the units of gpt or llama. Default: by the suffix of the output file, else text")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"text", "json", "megatron", "torchtitan"}))
      ->excludes(json);
  command
      ->add_option("-o,--output", options->output,
                   "Write to a file instead of standard output (-): .txt, .json or .toml, as the format is")
      ->type_name("FILE");
  command->footer(
      "Example:\n"
      "  starpipe partition experiments/layers.yaml --workers 4 --general");
  command->callback([options, &action] { action = [options] { return partition(*options); }; });
}

const bool partition_registered = register_subcommand({.position = 70, .add = add_partition});

}  // namespace
}  // namespace starpipe::cli
