// SPDX-License-Identifier: Apache-2.0
#include "plan/search/partition.hpp"

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

#include "base/files.hpp"
#include "cli/commands/partition_output.hpp"
#include "cli/commands/subcommand.hpp"
#include "cli/input/links_file.hpp"
#include "cli/input/profile_file.hpp"
#include "cli/input/yaml.hpp"
#include "cli/options/common_options.hpp"
#include "cli/options/schedule_options.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/results.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
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
  const std::array outputs = {OutputFile{"-o", *options.output}};
  const std::array inputs = {std::filesystem::path(options.file),
                             std::filesystem::path(options.links.value_or(""))};
  check_outputs(outputs, inputs);
  require_writable("-o", *options.output);
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

std::string shown(const PartitionOptions& options, const plan::PartitionResult& result) {
  const std::string_view format = format_of(options);
  const ShownPartition all{result, options.asked.schedule, options.asked.microbatches, options.memory_limits};
  if (format == "json") return plan::json_text(to_json(all));
  if (format == "text") return to_text(all);
  const plan::PartitionRequest& request = result.request;
  try {
    return format == "megatron" ? plan::megatron_stages(request.units, result.found, request.workers)
                                : plan::torchtitan_stages(request.units, result.found, request.workers);
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
                                 .add_option("--optimizer-states", options.asked.request.optimizer_states,
                                             "Optimizer state as a multiple of the weights: 2 for AdamW "
                                             "(default), 1 for momentum, 0 for SGD")
                                 ->type_name("N")
                                 ->transform(decimal_number({.min = 0, .max = 100}));
}

void add_schedule_options(CLI::App& command, PartitionOptions& options) {
  command
      .add_option("--chunks", options.asked.chunks,
                  "Stages on each worker (default: the schedule's own number, 1 for 1f1b)")
      ->type_name("C")
      ->transform(whole_number(1, max_partition_chunks));
  command
      .add_option("--layout", options.layout,
                  "Worker of each stage with several chunks: loop (stage s on worker s mod W, default) or v "
                  "(from worker 0 to W-1 and back)")
      ->type_name("NAME")
      ->check(CLI::IsMember(std::vector<std::string>(plan::layout_words.begin(), plan::layout_words.end())));
  command.add_flag("--general", options.asked.general,
                   "A worker may get any units, not only consecutive ones");
  command
      .add_option(
          "--schedule", options.asked.schedule,
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
  command->add_option("--workers", options->asked.request.workers, "Number of workers")
      ->required()
      ->type_name("W")
      ->transform(whole_number(1, max_partition_workers));
  command
      ->add_option("--device", options->devices,
                   "Kind of device of the workers, which chooses their times: cpu or cuda for all, or one "
                   "kind for each worker, such as cuda,cpu,cpu")
      ->type_name("KIND,...")
      ->delimiter(',')
      ->check(CLI::IsMember(
          std::vector<std::string>(runtime::device_kinds.begin(), runtime::device_kinds.end())));
  refuse_tensor(
      *command,
      "partition knows chains of units only; shards have the cuts of their units: give those that it "
      "finds as schedule.cuts, with model.tensor");
  add_schedule_options(*command, *options);
  add_cost_options(*command, *options);
  CLI::Option* const json = command->add_flag("--json", options->json, "The same as --format json");
  command
      ->add_option(
          "--format", options->format,
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
