// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/compare.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "cli/commands/subcommand.hpp"
#include "cli/options/common_options.hpp"
#include "cli/options/config_options.hpp"
#include "plan/drawing/page.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::cli {
namespace {

struct CompareOptions {
  ConfigOptions config;
  runtime::Comparison comparison{
      .policies = {"starpipe", "on-worker", "worker-order", "eager", "lws", "prio", "dmdas"}};
  const CLI::Option* policies = nullptr;
  const CLI::Option* seed = nullptr;
};

/// Keys and sections that change nothing in the compared steps.
constexpr std::array<std::string_view, 3> unused_by_compare = {"data.validation", "evaluate", "checkpoint"};

int compare(const CompareOptions& options) {
  runtime::Comparison comparison = options.comparison;
  if (!comparison.schedules.empty() && options.policies->count() == 0) {
    comparison.policies = {runtime::RuntimeConfig().policy};
  }
  return runtime::compare(
      [&] {
        if (options.seed->count() > 0 && comparison.policies.size() == 1 && comparison.schedules.size() < 2) {
          throw InputError("--seed: with one schedule and one policy there is no order to shuffle");
        }
        runtime::Config config = options.config.load(comparison.schedules);
        options.config.refuse_overrides("compare", unused_by_compare);
        if (!comparison.schedules.empty() && options.config.overrides("schedule.name")) {
          throw InputError("--set schedule.name: compare runs the schedules of --schedules instead");
        }
        refuse_policy_in_compare(config);
        const std::array outputs = {OutputFile{"--output", comparison.output, ".json"},
                                    OutputFile{"--timeline", comparison.timeline, ".svg"},
                                    OutputFile{"--html", comparison.html, ".html"}};
        check_outputs(outputs, inputs_of(config));
        if (comparison.html) plan::require_page("--html");
        return config;
      },
      comparison);
}

void add_compare(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "compare", "Run one model under several schedules or scheduling policies and compare their times");
  const auto options = std::make_shared<CompareOptions>();
  runtime::Comparison& comparison = options->comparison;
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  options->policies =
      command
          ->add_option(
              "--policies", comparison.policies,
              "Policies to run: starpipe, any policy of StarPU or of the library in STARPU_SCHED_LIB, "
              "on-worker (StarPU with the schedule's placement), worker-order (StarPU with the "
              "schedule's placement and order). With --schedules only starpipe, unless they are named")
          ->type_name("NAME,NAME,...")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->capture_default_str();
  command
      ->add_option(
          "--schedules", comparison.schedules,
          "Schedules to run in place of the configured one, each under every policy. Without the key "
          "schedule.stages each has its own number of stages; a time in runtime.emulate that is one for "
          "all stages is then scaled, so that all do the same work")
      ->type_name("NAME,NAME,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--repetitions", comparison.repetitions,
                   "Runs of each schedule under each policy; the order of runs is shuffled")
      ->type_name("N")
      ->transform(whole_number(1, 1000))
      ->capture_default_str();
  options->seed = command->add_option("--seed", comparison.seed, "Seed of the shuffle")
                      ->type_name("N")
                      ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
                      ->capture_default_str();
  command->add_flag("--json", comparison.json, "Print JSON");
  command
      ->add_option("-o,--output", comparison.output,
                   "Also write JSON to a file, with the jobs of each policy's median run, which "
                   "`report` reads")
      ->type_name("FILE.json");
  command
      ->add_option("--timeline", comparison.timeline,
                   "Draw the prediction of each schedule and the median run of each policy")
      ->type_name("FILE.svg");
  command->add_option("--html", comparison.html, "Write the same runs as a page for a browser, in one file")
      ->type_name("FILE.html");
  command->footer(
      "Examples:\n"
      "  starpipe compare experiments/emulated.yaml --policies starpipe,lws,prio --timeline compare.svg\n"
      "  starpipe compare experiments/quickstart.yaml --schedules 1f1b,zb-h1,v-half --set training.steps=5");
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

const bool compare_registered =
    register_subcommand({.position = 20, .add = add_compare, .ranks = Ranks::watched});

}  // namespace
}  // namespace starpipe::cli
