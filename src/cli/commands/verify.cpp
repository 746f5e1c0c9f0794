// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/verify.hpp"

#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "cli/commands/subcommand.hpp"
#include "cli/options/common_options.hpp"
#include "cli/options/config_options.hpp"

namespace starpipe::cli {
namespace {

struct VerifyOptions {
  ConfigOptions config;
  runtime::VerifyRequest request;
};

/// Keys and sections that change nothing in the compared steps.
constexpr std::array<std::string_view, 3> unused_by_verify = {"data.validation", "evaluate", "checkpoint"};

int verify(const VerifyOptions& options) {
  return runtime::verify(
      [&] {
        runtime::Config config = options.config.load();
        options.config.refuse_overrides("verify", unused_by_verify);
        const std::array outputs = {OutputFile{"--report", options.request.report, ".json"}};
        std::vector<std::filesystem::path> inputs = inputs_of(config);
        for (const auto& file : {options.request.against_gradients, options.request.against_weights}) {
          if (file) inputs.push_back(*file);
        }
        check_outputs(outputs, inputs);
        return config;
      },
      options.request);
}

void add_verify(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "verify", "Train a few steps and compare each with the same step computed by one job after the other");
  const auto options = std::make_shared<VerifyOptions>();
  runtime::VerifyRequest& request = options->request;
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  command
      ->add_option("--steps", request.steps,
                   "Steps to compare, the first ones of the run; 3, or fewer in a shorter run")
      ->type_name("N")
      ->transform(whole_number(1, 1'000'000));
  command
      ->add_option(
          "--tolerance", request.tolerance,
          "Largest relative difference of losses, gradients and norms, instead of what rounding explains")
      ->type_name("X")
      ->transform(decimal_number({.min = 0}));
  command
      ->add_option("--against-gradients", request.against_gradients,
                   "Compare the gradients of the first step, too, with another framework's: before clipping, "
                   "averaged over the micro-batches, with the names and shapes of the weights")
      ->type_name("FILE.safetensors");
  command
      ->add_option("--against-weights", request.against_weights,
                   "Compare the weights after the last compared step, too, with another framework's")
      ->type_name("FILE.safetensors");
  command->add_flag("!--no-derivatives", request.derivatives,
                    "Do not check the passes B and W by finite differences of the loss, which takes 20 runs "
                    "of F of up to 4 micro-batches for each parameter");
  command->add_flag("--json", request.json, "Print JSON");
  command->add_option("--report", request.report, "Also write JSON to a file")->type_name("FILE.json");
  command->footer(
      "Examples:\n"
      "  starpipe verify experiments/quickstart.yaml --set schedule.name=zb-h1\n"
      "  mpiexec -n 2 starpipe verify experiments/mlp.yaml\n"
      "Exit status: 0 all agree, 1 something differs, 2 bad input.");
  command->callback([options, &action] { action = [options] { return verify(*options); }; });
}

const bool verify_registered =
    register_subcommand({.position = 12, .add = add_verify, .ranks = Ranks::watched});

}  // namespace
}  // namespace starpipe::cli
