// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/commands/subcommand.hpp"
#include "cli/options/output_files.hpp"
#include "cli/options/plugin_option.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/numbers.hpp"
#include "starpipe/base/table.hpp"
#include "starpipe/plan/drawing/explained_run.hpp"
#include "starpipe/plan/drawing/timeline_svg.hpp"
#include "starpipe/plan/explain/what_if.hpp"
#include "starpipe/plan/formats/compared_run_json.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/plan/formats/trace_json.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/runtime/report/explanation.hpp"
#include "starpipe/runtime/report/explanation_json.hpp"

namespace starpipe::cli {
namespace {

struct ExplainOptions {
  std::filesystem::path report;
  std::vector<std::string> what_if;
  std::vector<std::string> plugins;
  bool json = false;
  std::optional<std::filesystem::path> timeline;
  std::optional<std::filesystem::path> trace;
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

/// The makespan that the median step would have had.
struct Answer {
  std::string change;
  double makespan = 0;
  bool divided = false;                 ///< BW was divided into B and W
  std::vector<int> memory_limits = {};  ///< of the run, by worker, when another schedule was made for them
};

/// The costs of the run, for schedules that choose their order by durations. A fused backward pass is divided
/// by the work of B and W.
plan::Costs divided_costs(const plan::ComparedRun& run) {
  plan::Costs costs = run.costs;
  for (std::size_t s = 0; s < costs.durations.size(); ++s) {
    plan::Durations& times = costs.durations[s];
    const plan::Durations& work = run.work[run.work.size() == 1 ? 0 : s];
    if (times.W > 0 || work.B + work.W <= 0) continue;
    times.W = times.B * work.W / (work.B + work.W);
    times.B -= times.W;
  }
  return costs;
}

/// The worker of each stage whose jobs and weights are all on one worker. Empty when a stage is on several.
std::vector<int> stage_workers_of(const plan::Schedule& planned) {
  std::vector<int> workers(index(planned.stages()), -1);
  for (const plan::JobId id : planned.order()) {
    const plan::Placement at = planned.placement(id);
    int& worker = workers[index(planned.job(id).stage)];
    if (worker < 0) worker = at.compute;
    if (at.compute != worker || at.weights != worker) return {};
  }
  return workers;
}

/// The schedule with the groups and the placement of `request`. A schedule that refuses one of them, since it
/// has no groups or a placement of its own, is made without it.
plan::LimitedSchedule make_for_run(const std::string& name, plan::ScheduleRequest request,
                                   const plan::OrderRequest& order, const plan::Costs& costs) {
  while (true) {
    try {
      return plan::make_limited_schedule(name, request, order, costs);
    } catch (const plan::RequestError& error) {
      const std::string_view problem = error.what();
      if (problem.starts_with("placement: ") && !request.stage_workers.empty()) {
        request.stage_workers.clear();
      } else if (problem.starts_with("groups: ")) {
        if (!request.groups) throw InputError(fmt::format("{}, and the run has none", problem));
        request.groups.reset();
      } else {
        throw;
      }
    }
  }
}

plan::Schedule named_schedule(const plan::WhatIf& change, const plan::ComparedRun& run,
                              const std::vector<int>& memory_limits) {
  const plan::Schedule& planned = run.measured.planned;
  const plan::Costs costs = divided_costs(run);
  std::optional<int> stages;  // that the schedule has by itself
  try {
    stages = plan::default_stages(plan::find_schedule(change.schedule), planned.workers());
    plan::LimitedSchedule made = make_for_run(change.schedule,
                                              {.workers = planned.workers(),
                                               .microbatches = planned.microbatches(),
                                               .graph = planned.graph(),
                                               .recompute = planned.recompute(),
                                               .costs = costs,
                                               .groups = run.groups,
                                               .stage_workers = stage_workers_of(planned)},
                                              {.memory_limits = memory_limits}, costs);
    if (const plan::CheckResult result = plan::check(made.schedule); !result.ok())
      throw InputError(result.problem);
    return std::move(made.schedule);
  } catch (const InputError& error) {
    if (stages.value_or(planned.stages()) == planned.stages())
      throw InputError(fmt::format("--what-if {}: {}", change.text, error.what()));
    throw InputError(fmt::format("--what-if {}: the schedule needs {} stages, the run measured {}",
                                 change.text, *stages, planned.stages()));
  }
}

Answer answer(const plan::WhatIf& change, const plan::ComparedRun& run) {
  if (change.target != plan::WhatIf::Target::schedule)
    return {change.text, plan::makespan_with(run.measured, change, run.work)};
  const std::span<const int> limits = run.measured.planned.memory_limits();
  std::vector<int> memory_limits(limits.begin(), limits.end());
  const plan::Schedule other = named_schedule(change, run, memory_limits);
  return {change.text, plan::makespan_under(run.measured, other, run.work, change.text),
          plan::splits_fused_backward(run.measured, other), std::move(memory_limits)};
}

/// The shortest makespan first.
std::vector<Answer> answers(const std::vector<plan::WhatIf>& changes, const plan::ComparedRun& run) {
  std::vector<Answer> all;
  for (const plan::WhatIf& change : changes) all.push_back(answer(change, run));
  std::ranges::stable_sort(all, {}, &Answer::makespan);
  return all;
}

std::string answers_table(const std::vector<Answer>& all, double measured) {
  constexpr std::array columns = {TableColumn{Align::left, 24}, TableColumn{Align::right, 12}};
  std::vector<TableRow> rows = {{"What if", "makespan", "change"}};
  std::string notes;
  const auto add = [&](const std::string& name, double makespan) {
    rows.push_back(
        {name, fmt::format("{:.2f} ms", makespan * 1e3), difference_text(makespan / measured - 1)});
  };
  for (const auto& [change, makespan, divided, memory_limits] : all) {
    add(change, makespan);
    if (!memory_limits.empty())
      notes += fmt::format("{}: within the run's memory limits (stashes by worker: {}).\n", change,
                           fmt::join(memory_limits, ", "));
    if (divided) notes += fmt::format("{}: the run's BW is divided into B and W by their work.\n", change);
  }
  add("(nothing: as measured)", measured);
  return "\n" + table_text(rows, columns) + notes;
}

std::string text_of(const plan::ComparedRun& run, const std::vector<Answer>& all) {
  const plan::Schedule& schedule = run.measured.planned;
  std::string text =
      fmt::format("{} on {}, {}, {} micro-batches\n\n{}\n{}\n{}", schedule.name(),
                  counted_text(schedule.workers(), "worker"), counted_text(schedule.stages(), "stage"),
                  schedule.microbatches(), runtime::difference_table(run), runtime::idle_table(run),
                  runtime::slowness_text(run));
  if (!all.empty()) text += answers_table(all, run.measured.timeline.makespan);
  return text;
}

nlohmann::ordered_json json_of(const plan::ComparedRun& run, const std::vector<Answer>& all) {
  nlohmann::ordered_json json = plan::compared_run_json(run);
  json.erase("record");
  json.update(runtime::explanation_json(run));
  if (all.empty()) return json;
  nlohmann::ordered_json& list = json["what_if"] = nlohmann::ordered_json::array();
  for (const auto& [change, makespan, divided, memory_limits] : all) {
    list.push_back({{"change", change}, {"makespan", std::llround(makespan * 1e9)}});
    if (!memory_limits.empty()) list.back()["memory_limits"] = memory_limits;
    if (divided) list.back()["divided_backward"] = true;
  }
  return json;
}

void draw(const ExplainOptions& options, const plan::ComparedRun& run) {
  const plan::RecordedStep& predicted = run.predicted;
  const plan::RecordedStep& measured = run.measured;
  if (options.timeline) {
    const std::array runs = {plan::explained_run("predicted", predicted),
                             plan::explained_run("measured", measured)};
    write_file("--timeline", *options.timeline, plan::timeline_svg(runs, {.unit = "s", .memory = false}));
  }
  if (options.trace) {
    const std::array runs = {plan::TracedRun{"predicted", &predicted.as_run, &predicted.timeline},
                             plan::TracedRun{"measured", &measured.as_run, &measured.timeline}};
    write_file("--trace", *options.trace, plan::trace_json(runs).dump() + "\n");
  }
}

int explain(const ExplainOptions& options) {
  const std::array outputs = {OutputFile{"--timeline", options.timeline, ".svg"},
                              OutputFile{"--trace", options.trace, ".json"}};
  const std::array inputs = {options.report};
  check_outputs(outputs, inputs);
  for (const OutputFile& output : outputs) {
    if (output.file) require_writable(output.option, *output.file);
  }
  std::vector<plan::WhatIf> changes;
  for (const std::string& text : options.what_if) {
    if (std::ranges::count(changes, text, &plan::WhatIf::text) > 0)
      throw InputError(fmt::format("--what-if: {} is given twice", text));
    changes.push_back(plan::parse_what_if(text));
  }
  load_asked_plugins(options.plugins, changes);
  const plan::ComparedRun run =
      plan::compared_run_from_json(read_file(options.report), options.report.string());
  const std::vector<Answer> all = answers(changes, run);
  draw(options, run);
  print(options.json ? plan::json_text(json_of(run, all)) : text_of(run, all));
  return 0;
}

void add_explain(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("explain", "Say why a run took other times than predicted, from its report");
  const auto options = std::make_shared<ExplainOptions>();
  command->add_option("report", options->report, "Report of `starpipe train --report`")
      ->required()
      ->type_name("REPORT.json");
  command
      ->add_option(
          "--what-if", options->what_if,
          "Say how long the median step would have taken with a change: comm=0 or comm=0.5x, "
          "link.0-1=0.5x, worker.2=median, stage.3.F=0.5x, runtime=0, schedule=zb-h1 (may be repeated; "
          "each change alone, the shortest step first)")
      ->type_name("CHANGE")
      ->allow_extra_args(false);
  add_plugin_option(*command, options->plugins);
  command->add_flag("--json", options->json, "Print JSON");
  command
      ->add_option("--timeline", options->timeline,
                   "Draw the predicted and the measured step as an SVG image")
      ->type_name("FILE.svg");
  command
      ->add_option("--trace", options->trace,
                   "Write the predicted and the measured step as a trace for ui.perfetto.dev")
      ->type_name("FILE.json");
  command->footer(
      "Example:\n"
      "  starpipe explain report.json --what-if comm=0 --what-if schedule=zb-h1");
  command->callback([options, &action] { action = [options] { return explain(*options); }; });
}

const bool explain_registered = register_subcommand({.position = 15, .add = add_explain});

}  // namespace
}  // namespace starpipe::cli
