// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/compare.hpp"

#include <limits>

#include <fmt/ranges.h>

#include "cli/commands/comparison_output.hpp"
#include "cli/commands/ranks.hpp"
#include "cli/commands/subcommand.hpp"
#include "plan/drawing/timeline_svg.hpp"

namespace starpipe::cli {
namespace {

using runtime::ComparedSchedule;
using runtime::Comparison;

struct CompareOptions {
  ConfigOptions config;
  runtime::Comparison comparison{
      .policies = {"starpipe", "on-worker", "worker-order", "eager", "lws", "prio", "dmdas"}};
  OutputFiles outputs;
  bool json = false;
  const CLI::Option* policies = nullptr;
  const CLI::Option* seed = nullptr;
};

void write_outputs(const CompareOptions& options, const Comparison& comparison,
                   const std::vector<ComparedSchedule>& schedules) {
  const ComparisonOutput output(comparison, schedules);
  options.outputs.write("--html", [&] { return output.page(); });
  print(options.json ? output.json() : output.table());
  options.outputs.write("--output", [&] { return output.json_with_jobs(); });
  options.outputs.write("--timeline", [&] { return output.timeline(); });
}

/// Keys and sections that change nothing in the compared steps.
constexpr std::array<std::string_view, 3> unused_by_compare = {"data.validation", "evaluate", "checkpoint"};

std::vector<runtime::OtherSchedule> configs_of(const CompareOptions& options,
                                               const runtime::Comparison& comparison) {
  if (options.seed->count() > 0 && comparison.policies.size() == 1 && comparison.schedules.size() < 2) {
    throw InputError("--seed: with one schedule and one policy there is no order to shuffle");
  }
  const Config config = options.config.load(comparison.schedules);
  options.config.refuse_overrides("compare", unused_by_compare);
  if (!comparison.schedules.empty() && options.config.overrides("schedule.name")) {
    throw InputError("--set schedule.name: compare runs the schedules of --schedules instead");
  }
  refuse_policy_in_compare(config);
  options.outputs.check(inputs_of(config));
  return runtime::configs_to_compare(config, comparison);
}

runtime::RankRequest comparison_request(const runtime::Comparison& comparison,
                                        const CompareOptions& options) {
  runtime::RankRequest request("compare");
  request.add("--policies", fmt::format("{}", fmt::join(comparison.policies, ",")));
  request.add("--schedules", fmt::format("{}", fmt::join(comparison.schedules, ",")));
  request.add("--repetitions", std::to_string(comparison.repetitions));
  request.add("--seed", std::to_string(comparison.seed));
  request.add_flag("--json", options.json);
  add_outputs(request, options.outputs);
  return request;
}

void compare(Runtime& runtime, const CompareOptions& options) {
  runtime::Comparison comparison = options.comparison;
  if (!comparison.schedules.empty() && options.policies->count() == 0) {
    comparison.policies = {runtime::RuntimeConfig().policy};
  }
  std::vector<runtime::OtherSchedule> configs;
  agree_on_configs(runtime, comparison_request(comparison, options), [&] {
    configs = configs_of(options, comparison);
    std::vector<Config> all;
    for (const runtime::OtherSchedule& other : configs) all.push_back(other.config);
    return all;
  });
  const ProgressLine progress;
  const runtime::ComparedRuns compared = runtime::compare(
      runtime.mpi(), std::move(configs), comparison,
      [&](const std::vector<runtime::AgreedRun>& runs) {
        std::size_t jobs = 0;  // of the timeline: predicted, and under each policy
        for (const runtime::AgreedRun& run : runs)
          jobs += run.experiment.schedule.job_count() * (1 + comparison.policies.size());
        if (options.outputs.has("--timeline")) plan::require_drawable(jobs);
        if (runtime.rank() == 0) options.outputs.require_writable();
      },
      [&](int repetition, const runtime::ComparedSchedule& schedule, const runtime::PolicyChoice& policy) {
        progress.show(fmt::format("repetition {}/{}  {}{}", repetition + 1, comparison.repetitions,
                                  comparison.schedules.empty() ? "" : schedule.schedule().name() + "  ",
                                  policy.name));
      });
  finish_on_ranks(runtime, [&] {
    if (runtime.rank() != 0) return;
    progress.clear();
    for (const runtime::LeftOut& one : compared.agreed.left_out)
      print_message(fmt::format("starpipe: {}\n", one_line(one.problem)));
    write_outputs(options, comparison, compared.schedules);
  });
}

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "compare", "Run one model under several schedules or scheduling policies and compare their times");
  const auto options = std::make_shared<CompareOptions>();
  runtime::Comparison& comparison = options->comparison;
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  options->policies =
      add_option(*command, "--policies NAME,NAME,...", comparison.policies,
                 "Policies to run: starpipe, any policy of StarPU or of the library in STARPU_SCHED_LIB, "
                 "on-worker (StarPU with the schedule's placement), worker-order (StarPU with the schedule's "
                 "placement and order). With --schedules only starpipe, unless they are named")
          ->capture_default_str();
  add_option(
      *command, "--schedules NAME,NAME,...", comparison.schedules,
      "Schedules to run in place of the configured one, each under every policy. Without the key "
      "schedule.stages each has its own number of stages; a time in runtime.emulate that is one for all "
      "stages is then scaled, so that all do the same work");
  add_option(*command, "--repetitions N", comparison.repetitions,
             "Runs of each schedule under each policy; the order of runs is shuffled", whole_number(1, 1000))
      ->capture_default_str();
  options->seed = add_option(*command, "--seed N", comparison.seed, "Seed of the shuffle",
                             whole_number(0, std::numeric_limits<std::uint64_t>::max()))
                      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  options->outputs.add(*command, "--output,-o FILE.json",
                       "Also write JSON to a file, with the jobs of each policy's median run, which `report` "
                       "reads");
  options->outputs.add(*command, "--timeline FILE.svg",
                       "Draw the prediction of each schedule and the median run of each policy");
  options->outputs.add(*command, "--html FILE.html",
                       "Write the same runs as a page for a browser, in one file");
  command->footer(
      "Examples:\n"
      "  starpipe compare experiments/emulated.yaml --policies starpipe,lws,prio --timeline compare.svg\n"
      "  starpipe compare experiments/quickstart.yaml --schedules 1f1b,zb-h1,v-half --set training.steps=5");
  command->callback([options, &action] {
    action = [options] { return run_on_ranks([&](Runtime& runtime) { compare(runtime, *options); }); };
  });
}

}  // namespace starpipe::cli
