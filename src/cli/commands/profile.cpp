// SPDX-License-Identifier: Apache-2.0
#include <span>

#include <fmt/ranges.h>

#include "cli/commands/subcommand.hpp"
#include "cli/input/input_files.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"

namespace starpipe::cli {
namespace {

struct ProfileOptions {
  ConfigOptions config;
  std::optional<std::string> file;
  int repetitions = 9;
  bool json = false;
  bool replace = false;
};

/// Keys and sections that change nothing in a profile: it runs no schedule, and updates no weights.
constexpr std::array<std::string_view, 18> unused_by_profile = {
    "model.init",         "data.validation",    "evaluate",
    "training.steps",     "training.nonfinite", "training.clip",
    "training.optimizer", "checkpoint",         "schedule",
    "runtime.policy",     "runtime.window",     "runtime.workers_per_core",
    "runtime.timeout",    "runtime.mapping",    "runtime.memory_limit",
    "runtime.emulate",    "runtime.links",      "runtime.stash_folder"};

/// Lists the keys of `schedule` that `profile` reads. They say how it cuts sequences into slices.
constexpr std::array<std::string_view, 2> used_by_profile = {"schedule.slices", "schedule.slice_sizes"};

/// Measuring takes time: an existing profile is not overwritten by accident.
void check_output(const ProfileOptions& options) {
  if (!options.file) return;
  constexpr std::array<std::string_view, 3> suffixes = {".json", ".yaml", ".yml"};
  require_suffix("-o", *options.file, std::span(suffixes).first(options.json ? 1 : 3));
  require_writable("-o", *options.file);
  if (!options.replace && std::filesystem::is_regular_file(*options.file)) {
    throw InputError(fmt::format("-o: {} exists already (--replace overwrites it)", *options.file));
  }
}

std::string summary(const runtime::MeasuredUnits& measured) {
  std::vector<TableRow> rows = {{"unit", "device", "F", "B", "W", "weights", "activation", "stash", "name"}};
  const auto time = [](double median, double spread) {
    return fmt::format("{:.3f} ms +- {:.3f}", median * 1e3, spread * 1e3);
  };
  const auto& [devices, units, shared, slice_sizes] = measured.profile;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const std::string& name = units[u].name;
    const plan::StageSizes& sizes = units[u].sizes;
    for (std::size_t kind = 0; kind < devices.size(); ++kind) {
      const plan::Durations& median = units[u].on(static_cast<int>(kind));
      const plan::Durations& spread = measured.spread[kind][u];
      rows.push_back({std::to_string(u), devices[kind], time(median.F, spread.F), time(median.B, spread.B),
                      time(median.W, spread.W), bytes_text(sizes.weights), bytes_text(sizes.activation),
                      bytes_text(sizes.stash), name});
    }
  }
  std::string text = table_text(rows);
  for (const plan::SharedUnits& set : shared) {
    text += fmt::format("{}: {} of weights, shared by units {}\n", set.name, bytes_text(set.weights),
                        fmt::join(set.units, " and "));
  }
  if (!slice_sizes.empty())
    text += fmt::format("Slices of {} tokens. Of equal times: schedule.slice_sizes: [{}]\n",
                        fmt::join(slice_sizes, ", "), fmt::join(measured.even_slices, ", "));
  return text + "Medians and interquartile ranges of one micro-batch.\n";
}

int profile(const ProfileOptions& options) {
  check_output(options);
  const runtime::Config config = options.config.load();
  options.config.refuse_overrides("profile", unused_by_profile, used_by_profile);
  OutputFiles({{"-o", options.file}}).check(inputs_of(config));
  runtime::check_for_profile(config);
  const runtime::MeasuredUnits measured = runtime::measure_units(config, options.repetitions);
  const bool json = options.json || (options.file && suffix_of(*options.file) == ".json");
  const std::string text = json ? plan::json_text(profile_json(measured)) : profile_yaml(measured);
  if (!options.file) {
    print(text);
    return 0;
  }
  write_file("-o", *options.file, text);
  print(summary(measured));
  return 0;
}

}  // namespace

void add_profile(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "profile", "Measure times and sizes of a model's units on this machine, for `partition`");
  const auto options = std::make_shared<ProfileOptions>();
  options->config.add_to(*command);
  add_option(*command, "--repetitions N", options->repetitions,
             "Number of micro-batches to measure, after one that warms up", whole_number(1, 10'000))
      ->capture_default_str();
  CLI::Option* const output = add_option(
      *command, "-o,--output FILE.yaml", options->file,
      "Write to a file instead of standard output (-), and print a table: .yaml, or .json for JSON");
  command->add_flag("--replace", options->replace, "Overwrite the file of -o if it exists")->needs(output);
  command->add_flag("--json", options->json, "Write JSON, which `partition` reads as well");
  command->footer(
      "Example:\n"
      "  starpipe profile experiments/quickstart.yaml -o layers.yaml\n"
      "  starpipe partition layers.yaml --workers 2");
  command->callback([options, &action] { action = [options] { return profile(*options); }; });
}

}  // namespace starpipe::cli
