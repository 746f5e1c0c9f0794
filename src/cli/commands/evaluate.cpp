// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/evaluate.hpp"

#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "cli/commands/subcommand.hpp"
#include "cli/options/common_options.hpp"
#include "cli/options/config_options.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/model/dataset.hpp"

namespace starpipe::cli {
namespace {

struct EvaluateOptions {
  ConfigOptions config;
  std::string weights;
  std::optional<int> microbatches;
  runtime::EvaluateOutputs outputs;
};

/// Keys and sections that change nothing in an evaluation: it updates no weights and stashes nothing.
constexpr std::array<std::string_view, 10> unused_by_evaluate = {
    "model.init",    "data.path",          "data.order", "evaluate.every",     "training.steps",
    "training.clip", "training.optimizer", "checkpoint", "schedule.recompute", "schedule.memory_limit"};

runtime::Config evaluation_of(const EvaluateOptions& options) {
  runtime::Config config = options.config.load();
  options.config.refuse_overrides("evaluate", unused_by_evaluate);
  if (config.runtime.emulate) {
    throw InputError("runtime.emulate: does not apply to evaluate: emulated jobs compute no loss");
  }
  if (config.data.kind != model::synthetic_data && config.data.validation.empty()) {
    throw InputError("data.validation: is missing in the configuration: evaluate reads this file");
  }
  if (config.data.kind != model::synthetic_data && options.config.overrides("training.seed")) {
    throw InputError(
        "--set training.seed: does not apply to evaluate with a data file: it reads the same windows of it "
        "whatever the seed");
  }
  if (options.microbatches && options.config.overrides("evaluate.microbatches")) {
    throw InputError("--microbatches: is given, and so is --set evaluate.microbatches");
  }
  if (options.microbatches) config.evaluate.microbatches = options.microbatches;
  config.evaluate.alone = true;
  config.model.init = options.weights;
  const std::array outputs = {OutputFile{"--report", options.outputs.report, ".json"}};
  check_outputs(outputs, inputs_of(config));
  return config;
}

int evaluate(const EvaluateOptions& options) {
  return runtime::evaluate([&] { return evaluation_of(options); }, options.outputs);
}

void add_evaluate(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("evaluate", "Show the loss of a network's weights on the validation data");
  const auto options = std::make_shared<EvaluateOptions>();
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  command->add_option("--weights", options->weights, "The weights, as train --save-weights writes them")
      ->type_name("FILE.safetensors")
      ->required();
  command
      ->add_option("--microbatches", options->microbatches,
                   "Micro-batches to evaluate, instead of those of evaluate.microbatches")
      ->type_name("M")
      ->transform(whole_number(1, std::numeric_limits<int>::max()));
  command->add_flag("--json", options->outputs.json, "Print JSON");
  command
      ->add_option_function<std::string>(
          "--report", [options](const std::string& name) { (*options).outputs.report = name; },
          "Write the losses, the configuration and the machine")
      ->type_name("FILE.json");
  command->footer(
      "Examples:\n"
      "  starpipe evaluate recipe.yaml --weights trained.safetensors\n"
      "  mpiexec -n 2 starpipe evaluate recipe.yaml --weights trained.safetensors --microbatches 100 --json\n"
      "The forward passes of the configured schedule run on its workers, and no stash is kept.");
  command->callback([options, &action] { action = [options] { return evaluate(*options); }; });
}

const bool evaluate_registered =
    register_subcommand({.position = 14, .add = add_evaluate, .ranks = Ranks::watched});

}  // namespace
}  // namespace starpipe::cli
