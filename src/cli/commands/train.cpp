// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/api/train.hpp"

#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/files.hpp"
#include "cli/commands/subcommand.hpp"
#include "cli/options/common_options.hpp"
#include "cli/options/config_options.hpp"
#include "plan/drawing/page.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::cli {
namespace {

struct TrainOptions {
  ConfigOptions config;
  runtime::TrainOutputs outputs;
  bool resume = false;
};

struct Output {
  const char* option;
  const char* type;  ///< "FILE" and the suffix
  const char* help;
  std::optional<std::filesystem::path> runtime::TrainOutputs::*file;
};
constexpr std::array output_options = {
    Output{"--report", "FILE.json", "Write losses, times, and predicted and measured values",
           &runtime::TrainOutputs::report},
    Output{"--html", "FILE.html", "Write the report as a page for a browser, in one file",
           &runtime::TrainOutputs::html},
    Output{"--trace", "FILE.json", "Write the predicted and the measured step as a trace for ui.perfetto.dev",
           &runtime::TrainOutputs::trace},
    Output{"--timeline", "FILE.svg", "Draw the predicted and the measured step as an SVG image",
           &runtime::TrainOutputs::timeline},
    Output{"--metrics", "FILE.jsonl", "Write a line of JSON after each step: loss, times, bubble, memory",
           &runtime::TrainOutputs::metrics},
    Output{"--save-weights", "FILE.safetensors", "Save the trained weights",
           &runtime::TrainOutputs::save_weights}};

/// Mistakes in the names of outputs that every rank finds. runtime::train finds the others, on the rank that
/// writes the files.
void check_names(const runtime::Config& config, const runtime::TrainOutputs& outputs) {
  if (outputs.save_weights && config.runtime.emulate) {
    throw InputError("--save-weights: with runtime.emulate no weights are trained");
  }
  std::vector<OutputFile> files;
  for (const Output& output : output_options) {
    if (const auto& file = outputs.*output.file; file && is_standard_output(*file)) {
      throw InputError(
          fmt::format("{}: standard output has the tables of the run; name a file", output.option));
    }
    files.push_back({output.option, outputs.*output.file, std::string_view(output.type).substr(4)});
  }
  check_outputs(files, inputs_of(config));
  if (outputs.html) plan::require_page("--html");
}

int train(const TrainOptions& options) {
  return runtime::train(
      [&] {
        runtime::Config config = options.config.load();
        check_names(config, options.outputs);
        if (options.resume && !config.checkpoint.enabled())
          throw InputError("--resume: needs checkpoint.folder, where the checkpoints are");
        return config;
      },
      options.outputs, options.resume);
}

void add_train(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("train", "Train a network, and show predicted and measured times side by side");
  const auto options = std::make_shared<TrainOptions>();
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  for (const Output& output : output_options) {
    command
        ->add_option_function<std::string>(
            output.option,
            [options, file = output.file](const std::string& name) { (*options).outputs.*file = name; },
            output.help)
        ->type_name(output.type);
  }
  command->add_flag("--resume", options->resume,
                    "Go on from the newest checkpoint in checkpoint.folder, if there is one");
  command->footer(
      "Examples:\n"
      "  starpipe train experiments/quickstart.yaml --set training.steps=10 --report report.json\n"
      "  mpiexec -n 2 starpipe train experiments/quickstart.yaml\n"
      "With several ranks, each rank runs a share of the schedule's workers on its devices.");
  command->callback([options, &action] { action = [options] { return train(*options); }; });
}

const bool train_registered =
    register_subcommand({.position = 10, .add = add_train, .ranks = Ranks::watched});

}  // namespace
}  // namespace starpipe::cli
