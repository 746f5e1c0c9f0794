// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "cli/commands/ranks.hpp"
#include "cli/commands/subcommand.hpp"
#include "runtime/api/training.hpp"
#include "runtime/report/report.hpp"
#include "starpipe/model/dataset.hpp"

namespace starpipe::cli {
namespace {

struct EvaluateOptions {
  ConfigOptions config;
  std::string weights;
  std::optional<int> microbatches;
  bool json = false;  // JSON on standard output instead of a line
  OutputFiles outputs;
};

/// Keys and sections that change nothing in an evaluation: it updates no weights and stashes nothing.
constexpr std::array<std::string_view, 12> unused_by_evaluate = {
    "model.init",    "data.path",           "data.order", "evaluate.every", "training.steps",
    "training.clip", "training.optimizer",  "checkpoint", "schedule.home",  "schedule.memory_limit",
    "runtime.links", "runtime.stash_folder"};

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
  options.outputs.check(inputs_of(config));
  return config;
}

nlohmann::ordered_json evaluation_json(const runtime::Training& training, const Evaluation& done) {
  const runtime::Experiment& experiment = training.agreed().experiment;
  const model::Dataset& data = *experiment.validation;
  const model::EvaluatedSamples evaluated = data.evaluated(static_cast<int>(done.losses.size()));
  const std::uint64_t samples = evaluated.total();
  nlohmann::ordered_json json = {
      {"schedule", experiment.schedule.name()},
      {"workers", experiment.schedule.workers()},
      {"policy", {{"requested", training.session().choice().name}, {"ran", training.session().policy()}}},
      {"parameters", experiment.network.parameter_count()},
      {"microbatches", done.losses.size()},
      {data.sample_word(), samples},
      {"loss", done.loss},
      {"losses", done.losses},
      {"seconds", done.seconds},
      {data.sample_word() + "_per_second", static_cast<double>(samples) / done.seconds}};
  if (evaluated.all > 0) json[data.sample_word() + "_in_file"] = evaluated.all;
  return json;
}

void show(const EvaluateOptions& options, const runtime::Training& training, const Evaluation& done) {
  const nlohmann::ordered_json json = evaluation_json(training, done);
  options.outputs.write("--report", [&] {
    const runtime::AgreedRun& run = training.agreed();
    nlohmann::ordered_json report = report_head(run.config, run.partition, run.locations);
    report.update(json);
    return plan::json_text(report);
  });
  print(options.json ? plan::json_text(json)
                     : runtime::evaluation_text(done.loss, static_cast<int>(done.losses.size()),
                                                *training.agreed().experiment.validation) +
                           "\n");
}

void evaluate(Runtime& runtime, const EvaluateOptions& options) {
  runtime::RankRequest request("evaluate");
  request.add_flag("--json", options.json);
  add_outputs(request, options.outputs);
  Trainer trainer(runtime, agree_on_config(runtime, request, [&] { return evaluation_of(options); }));
  runtime.agree([&] {
    if (runtime.rank() == 0) options.outputs.require_writable();
    return true;
  });
  const Evaluation done = trainer.evaluate();
  finish_on_ranks(runtime, [&] {
    if (runtime.rank() == 0) show(options, trainer.training(), done);
  });
}

}  // namespace

void add_evaluate(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("evaluate", "Show the loss of a network's weights on the validation data");
  const auto options = std::make_shared<EvaluateOptions>();
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  add_option(*command, "--weights FILE.safetensors", options->weights,
             "The weights, as train --save-weights writes them")
      ->required();
  add_option(*command, "--microbatches M", options->microbatches,
             "Micro-batches to evaluate, instead of evaluate.microbatches",
             whole_number(1, std::numeric_limits<int>::max()));
  command->add_flag("--json", options->json, "Print JSON");
  options->outputs.add(*command, "--report FILE.json", "Write the losses, the configuration and the machine");
  command->footer(
      "Examples:\n"
      "  starpipe evaluate recipe.yaml --weights trained.safetensors\n"
      "  mpiexec -n 2 starpipe evaluate recipe.yaml --weights trained.safetensors --microbatches 100 --json\n"
      "The forward passes of the configured schedule run on its workers, and no stash is kept.");
  command->callback([options, &action] {
    action = [options] { return run_on_ranks([&](Runtime& runtime) { evaluate(runtime, *options); }); };
  });
}

}  // namespace starpipe::cli
