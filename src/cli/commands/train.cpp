// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/commands/train.hpp"

#include <memory>
#include <set>

#include <fmt/format.h>

#include "cli/commands/subcommand.hpp"
#include "cli/options/config_options.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/runtime/ranks/lost_rank.hpp"

namespace starpipe::cli {
namespace {

struct TrainOptions {
  ConfigOptions config;
  runtime::TrainOutputs outputs;
};

struct Output {
  const char* option;
  const char* type;
  const char* help;
  std::optional<std::filesystem::path> runtime::TrainOutputs::*file;
};
constexpr std::array output_options = {
    Output{"--report", "FILE.json", "Write losses, times, and predicted and measured values",
           &runtime::TrainOutputs::report},
    Output{"--trace", "FILE.json", "Write the predicted and the measured step as a trace for ui.perfetto.dev",
           &runtime::TrainOutputs::trace},
    Output{"--timeline", "FILE.svg", "Draw the predicted and the measured step as an SVG image",
           &runtime::TrainOutputs::timeline},
    Output{"--save-weights", "FILE.safetensors", "Save the trained weights",
           &runtime::TrainOutputs::save_weights}};

/// Throws InputError when an output file is also an input or another output. Other mistakes in the names are
/// found by runtime::train, on the rank that writes the files.
void require_distinct(const runtime::Config& config, const runtime::TrainOutputs& outputs) {
  std::error_code ignored;
  std::set<std::filesystem::path> seen;
  for (const std::filesystem::path& input :
       {std::filesystem::path(config.source), config.data.path, config.model.init.value_or("")}) {
    if (!input.empty())
      seen.insert(std::filesystem::weakly_canonical(std::filesystem::absolute(input, ignored), ignored));
  }
  for (const Output& output : output_options) {
    const auto& file = outputs.*output.file;
    if (!file) continue;
    std::error_code error;
    if (file->empty() ||
        seen.insert(std::filesystem::weakly_canonical(std::filesystem::absolute(*file, error), error)).second)
      continue;
    throw InputError(fmt::format("{}: {} is also an input of the run or the file of another option",
                                 output.option, file->string()));
  }
}

int train(const TrainOptions& options) {
  if (const auto status = runtime::watch_over_rank()) return *status;
  return runtime::train(
      [&] {
        runtime::Config config = options.config.load();
        require_distinct(config, options.outputs);
        return config;
      },
      options.outputs);
}

void add_train(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("train", "Train a network, and show predicted and measured times side by side");
  const auto options = std::make_shared<TrainOptions>();
  options->config.add_to(*command);
  for (const Output& output : output_options) {
    command
        ->add_option_function<std::string>(
            output.option,
            [options, file = output.file](const std::string& name) { (*options).outputs.*file = name; },
            output.help)
        ->type_name(output.type);
  }
  command->footer(
      "Examples:\n"
      "  starpipe train experiments/quickstart.yaml --set training.steps=10 --report report.json\n"
      "  mpiexec -n 2 starpipe train experiments/quickstart.yaml\n"
      "With several ranks, each rank runs a share of the schedule's workers on its devices.");
  command->callback([options, &action] { action = [options] { return train(*options); }; });
}

const bool registered = register_subcommand({.position = 10, .add = add_train});

}  // namespace
}  // namespace starpipe::cli
