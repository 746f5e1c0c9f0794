// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/verify.hpp"

#include "cli/commands/ranks.hpp"
#include "cli/commands/subcommand.hpp"

namespace starpipe::cli {
namespace {

struct VerifyOptions {
  ConfigOptions config;
  runtime::VerifyRequest request;
  bool json = false;  // print JSON instead of a table
  OutputFiles outputs;
};

/// Keys and sections that change nothing in the compared steps.
constexpr std::array<std::string_view, 4> unused_by_verify = {"data.validation", "evaluate", "checkpoint",
                                                              "runtime.links"};

Config config_to_check(const VerifyOptions& options) {
  Config config = options.config.load();
  options.config.refuse_overrides("verify", unused_by_verify);
  std::vector<std::filesystem::path> inputs = inputs_of(config);
  for (const auto& file : {options.request.against_gradients, options.request.against_weights}) {
    if (file) inputs.push_back(*file);
  }
  options.outputs.check(inputs);
  return runtime::config_to_verify(std::move(config), options.request);
}

runtime::RankRequest verify_request(const VerifyOptions& options) {
  const runtime::VerifyRequest& request = options.request;
  runtime::RankRequest asked("verify");
  if (request.steps) asked.add("--steps", std::to_string(*request.steps));
  if (request.tolerance) asked.add("--tolerance", fmt::format("{}", *request.tolerance));
  asked.add("--against-gradients", request.against_gradients);
  asked.add("--against-weights", request.against_weights);
  asked.add_flag("--no-derivatives", !request.derivatives);
  asked.add_flag("--json", options.json);
  add_outputs(asked, options.outputs);
  return asked;
}

void show(const VerifyOptions& options, const runtime::Verification& found, int ranks) {
  nlohmann::ordered_json json{
      {"schedule", found.schedule}, {"workers", found.workers}, {"ranks", ranks}, {"steps", found.steps}};
  json.update(found.figures);
  if (options.json) {
    print(plan::json_text(json));
  } else {
    print(fmt::format("{} on {}, {}, compared with a sequential run: {}\n\n{}", found.schedule,
                      counted_text(found.workers, "worker"), counted_text(ranks, "rank"),
                      counted_text(found.steps, "step"), found.table));
  }
  options.outputs.write("--report", [&] { return plan::json_text(json); });
}

void verify(Runtime& runtime, const VerifyOptions& options) {
  Config config = agree_on_config(runtime, verify_request(options), [&] { return config_to_check(options); });
  const ProgressLine progress;
  Trainer trainer(runtime, std::move(config));
  runtime.agree([&] {
    if (runtime.rank() == 0) options.outputs.require_writable();
  });
  const runtime::Verification found = runtime::verify(runtime, trainer, options.request,
                                                      [&](const std::string& text) { progress.show(text); });
  finish_on_ranks(runtime, [&] {
    if (runtime.rank() != 0) return;
    progress.clear();
    show(options, found, runtime.ranks());
  });
  if (!found.problem.empty()) runtime.fail(found.problem);
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "verify", "Train a few steps and compare each with the same step of a sequential run");
  const auto options = std::make_shared<VerifyOptions>();
  runtime::VerifyRequest& request = options->request;
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  add_option(*command, "--steps N", request.steps,
             "Steps to compare, the first ones of the run; 3, or fewer in a shorter run",
             whole_number(1, 1'000'000));
  add_option(*command, "--tolerance X", request.tolerance,
             "Largest relative difference of losses, gradients and norms, instead of what rounding explains",
             decimal_number({.min = 0}));
  add_option(*command, "--against-gradients FILE.safetensors", request.against_gradients,
             "Compare the gradients of the first step, too, with another framework's: before clipping, "
             "averaged over the micro-batches, with the names and shapes of the weights");
  add_option(*command, "--against-weights FILE.safetensors", request.against_weights,
             "Compare the weights after the last compared step, too, with another framework's");
  command->add_flag("!--no-derivatives", request.derivatives,
                    "Do not check the passes B and W by finite differences of the loss, which takes 20 runs "
                    "of F of up to 4 micro-batches for each parameter");
  command->add_flag("--json", options->json, "Print JSON");
  options->outputs.add(*command, "--report FILE.json", "Also write JSON to a file");
  command->footer(
      "Examples:\n"
      "  starpipe verify experiments/quickstart.yaml --set schedule.name=zb-h1\n"
      "  mpiexec -n 2 starpipe verify experiments/mlp.yaml\n"
      "Exit status: 0 all agree, 1 something differs, 2 bad input.");
  command->callback([options, &action] {
    action = [options] { return run_on_ranks([&](Runtime& runtime) { verify(runtime, *options); }); };
  });
}

}  // namespace starpipe::cli
