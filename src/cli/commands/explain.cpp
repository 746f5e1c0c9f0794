// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/subcommand.hpp"
#include "plan/explain/what_if.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "plan/formats/explanation.hpp"
#include "plan/formats/trace_json.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"

namespace starpipe::cli {
namespace {

struct ExplainOptions {
  std::filesystem::path report;
  std::vector<std::string> what_if;
  std::vector<std::string> plugins;
  bool json = false;
  OutputFiles outputs;
};

/// Loads the plug-ins. Refuses one that has none of the schedules asked for: it would change nothing.
void load_asked_plugins(const std::vector<std::string>& files, const std::vector<plan::WhatIf>& changes) {
  if (files.empty()) return;
  std::vector<std::string> unused = files;
  for (const plan::WhatIf& change : changes) {
    if (change.target != plan::WhatIf::Target::schedule) continue;
    const std::vector<std::string> without = plan::load_plugins_without(files, change.schedule);
    std::erase_if(unused, [&](const std::string& file) { return std::ranges::count(without, file) == 0; });
  }
  if (unused.empty()) return;
  throw InputError(fmt::format(
      "--plugin: {} has no schedule of --what-if schedule=NAME, so it would change nothing", unused.front()));
}

void draw(const ExplainOptions& options, const plan::ComparedRun& run) {
  const std::array runs = {plan::explained_run("predicted", run.predicted),
                           plan::explained_run(run.found, run.measured)};
  options.outputs.write("--timeline",
                        [&] { return plan::timeline_svg(runs, {.unit = "s", .memory = false}); });
  options.outputs.write("--trace", [&] { return plan::trace_json(runs).dump() + "\n"; });
}

int explain(const ExplainOptions& options) {
  options.outputs.check(std::array{options.report});
  options.outputs.require_writable();
  const std::vector<plan::WhatIf> changes = plan::parse_what_ifs(options.what_if);
  load_asked_plugins(options.plugins, changes);
  const plan::ComparedRun run =
      plan::compared_run_from_json(read_file(options.report), options.report.string());
  const std::vector<plan::Answer> all = plan::answers(changes, run);
  draw(options, run);
  print(options.json ? plan::json_text(plan::explain_json(run, all)) : plan::explanation_text(run, all));
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("explain", "Say why a run took other times than predicted, from its report");
  const auto options = std::make_shared<ExplainOptions>();
  add_option(*command, "report REPORT.json", options->report, "Report of `starpipe train --report`")
      ->required();
  add_option(*command, "--what-if CHANGE", options->what_if,
             "Say how long the median step would have taken with a change: comm=0 or comm=0.5x, "
             "link.0-1=0.5x, worker.2=median, stage.3.F=0.5x, runtime=0, schedule=zb-h1 (may be repeated; "
             "each change alone, the shortest step first)");
  add_plugin_option(*command, options->plugins);
  command->add_flag("--json", options->json, "Print JSON");
  options->outputs.add(*command, "--timeline FILE.svg",
                       "Draw the predicted and the measured step as an SVG image");
  options->outputs.add(*command, "--trace FILE.json",
                       "Write the predicted and the measured step as a trace for ui.perfetto.dev");
  command->footer(
      "Example:\n"
      "  starpipe explain report.json --what-if comm=0 --what-if schedule=zb-h1");
  command->callback([options, &action] { action = [options] { return explain(*options); }; });
}

}  // namespace starpipe::cli
