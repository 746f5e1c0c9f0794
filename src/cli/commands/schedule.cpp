// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "cli/commands/subcommand.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::cli {
namespace {

struct ListOptions {
  std::vector<std::string> plugins;
  bool long_text = false;
  bool json = false;
};

void add_options(std::vector<TableRow>& rows, const plan::ScheduleEntry& entry) {
  for (const plan::ScheduleOption& option : entry.options) {
    const std::string max =
        option.max == std::numeric_limits<int>::max() ? "" : fmt::format(" to {}", option.max);
    rows.push_back({"", fmt::format("option {}: {} ({}{}; default {})", option.name, option.meaning,
                                    option.min, max.empty() ? " or more" : max, option.default_value)});
  }
  if (!entry.options.empty()) return;
  rows.push_back({"", "no options"});
}

int list(const ListOptions& options) {
  load_plugins(options.plugins);
  const std::vector<plan::ScheduleEntry> entries = plan::schedule_entries();
  if (options.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const auto& entry : entries) {
      all.push_back({{"name", entry.name}, {"summary", entry.summary}, {"source", entry.source}});
      if (!entry.alias.empty()) all.back()["alias"] = entry.alias;
      for (const plan::ScheduleOption& option : entry.options) {
        all.back()["options"].push_back({{"name", option.name},
                                         {"meaning", option.meaning},
                                         {"default", option.default_value},
                                         {"min", option.min},
                                         {"max", option.max}});
      }
    }
    print(plan::json_text({{"schedules", all}}));
    return 0;
  }
  std::vector<TableRow> rows;
  for (const auto& entry : entries) {
    const std::string alias = entry.alias.empty() ? "" : fmt::format("; {} in PyTorch", entry.alias);
    rows.push_back({entry.name, entry.summary});
    rows.push_back({"", fmt::format("({}{})", entry.source, alias)});
    if (options.long_text) add_options(rows, entry);
  }
  constexpr std::array columns = {TableColumn{.align = Align::left}, TableColumn{.align = Align::left}};
  print(table_text(rows, columns));
  return 0;
}

void add_list(CLI::App& schedule, Action& action) {
  CLI::App* const command = schedule.add_subcommand("list", "List the named schedules");
  const auto options = std::make_shared<ListOptions>();
  add_plugin_option(*command, options->plugins);
  CLI::Option* const json = command->add_flag("--json", options->json, "Print JSON");
  command->add_flag("--long", options->long_text, "Print the options of each schedule, too")->excludes(json);
  command->callback([options, &action] { action = [options] { return list(*options); }; });
}

struct ShowOptions {
  std::string name;
  std::vector<std::string> plugins;
  plan::ScheduleRequest request;
  std::optional<int> stages;
  std::optional<std::string> discipline;
  std::vector<int> memory_limits;
  HomeOptions homes;
  bool per_share = false;
  TensorOptions tensor;
  CostOptions costs;
  ResultOptions result;
};

void show_prediction(const ResultOptions& result, const CostOptions& given, const plan::LimitedSchedule& made,
                     const plan::Costs& costs, const std::string& unit) {
  given.require_pairs(made.schedule);
  const plan::Timeline timeline = plan::simulate(made.schedule, costs);
  given.note_missing_bytes(made.schedule.name(), timeline);
  const plan::PredictedRun run{made.schedule, costs, timeline, unit, made.reordering};
  result.show(run, [&] { return result.drawn(run); });
}

int show(const ShowOptions& options) {
  options.result.check(options.costs.inputs(options.plugins));
  plan::load_plugins_for(options.plugins, {options.name}, "--plugin");
  require_one_or_each("--memory-limit", options.memory_limits.size(), options.request.workers);
  plan::ScheduleRequest request = options.request;
  request.homes = options.homes.homes;
  std::optional<int> stages = options.stages;
  if (!stages && !request.stage_workers.empty()) stages = static_cast<int>(request.stage_workers.size());
  const int own_stages = plan::default_stages(plan::find_schedule(options.name), request.workers,
                                              request.options, request.groups);
  if (!stages) stages = own_stages;
  plan::require_few_jobs("--microbatches", options.tensor.stages(*stages),
                         std::int64_t{request.microbatches} * request.slices);
  request.graph = plan::StageGraph::chain(*stages);
  plan::Costs costs;
  std::string unit;
  options.costs.apply(costs, unit, options.per_share ? request.workers : *stages);
  plan::OrderRequest order{.memory_limits = options.memory_limits, .home_way = options.homes.way};
  if (options.discipline) order.discipline = plan::parse_discipline(*options.discipline);
  try {
    plan::CostedSchedule made =
        plan::make_costed_schedule(options.name, request, order, costs, options.per_share);
    options.tensor.apply(made.made.schedule, made.costs);
    show_prediction(options.result, options.costs, made.made, made.costs, unit);
  } catch (const plan::RequestError& error) {
    throw InputError(fmt::format("--{}", error.what()));
  }
  return 0;
}

void add_show(CLI::App& schedule, Action& action) {
  CLI::App* const command = schedule.add_subcommand("show", "Build a named schedule and predict its run");
  const auto options = std::make_shared<ShowOptions>();
  add_option(*command, "name NAME", options->name, "Name from `starpipe schedule list`")->required();
  add_plugin_option(*command, options->plugins);
  add_size_options(*command, options->request.workers, plan::size_limits::workers,
                   options->request.microbatches, plan::size_limits::microbatches);
  add_option(*command, "--slices K", options->request.slices,
             "Slices (K) into which each micro-batch is cut along its sequences; durations and bytes are of "
             "whole micro-batches",
             whole_number(1, plan::size_limits::slices));
  add_option(*command, "--stages S", options->stages,
             "Number of stages (default: W times the schedule's number of stages on a worker)",
             whole_number(1, plan::size_limits::stages));
  add_option(
      *command, "--groups G", options->request.groups,
      "Groups (G) of W / G workers, each with a pipeline of its own; micro-batch b goes to group b mod G",
      whole_number(0, plan::size_limits::workers));
  add_schedule_option(*command, options->request.options);
  add_option(*command, "--placement W,W,...", options->request.stage_workers,
             "Worker of each stage, such as 0,1,1,0", whole_number(0, plan::size_limits::workers - 1));
  add_option(*command, "--discipline NAME", options->discipline,
             "How a worker uses the priorities: greedy, bounded or ordered (default: the schedule's own)",
             one_of(plan::discipline_words));
  add_memory_options(*command, options->memory_limits, options->homes);
  command->add_flag("--per-share", options->per_share,
                    "Durations and --memory-limit are of 1/W of the model, whatever the number of stages");
  options->tensor.add_to(*command);
  options->costs.add_to(*command, "1 for each pass");
  options->costs.add_overlap_to(*command);
  options->costs.add_copy_to(*command);
  options->costs.add_bytes_to(*command);
  options->costs.add_no_prefetch_to(*command);
  options->result.add_to(*command);
  options->result.add_width_to(*command);
  command->footer(
      "Example:\n"
      "  starpipe schedule show 1f1b --workers 4 --microbatches 8 --durations F=1,B=1,W=1 -o 1f1b.svg");
  command->callback([options, &action] { action = [options] { return show(*options); }; });
}

struct CheckOptions {
  std::string file;
  std::vector<int> memory_limits;
  HomeOptions homes;
  TensorOptions tensor;
  CostOptions costs;
  ResultOptions result;
};

void require_finishing(const std::string& file, const plan::Schedule& schedule) {
  const plan::CheckResult result = plan::check(schedule);
  if (!result.ok()) throw InputError(fmt::format("{}: {}", file, result.problem));
}

int check(const CheckOptions& options) {
  options.result.check(options.costs.inputs(std::vector{std::filesystem::path(options.file)}));
  auto [schedule, costs, unit] = plan::schedule_from_text(read_file(options.file), options.file);
  require_one_or_each("--memory-limit", options.memory_limits.size(), schedule.workers());
  const plan::Costs before = costs;
  options.costs.apply(costs, unit, schedule.stages());
  options.costs.divide_among_slices(costs, before, schedule);
  const bool runs_pairs = schedule.has_pairs() && costs.overlap;
  schedule = schedule.with_homes(options.homes.homes);
  require_finishing(options.file, schedule);
  plan::LimitedSchedule made = plan::as_requested(
      schedule, {.memory_limits = options.memory_limits, .home_way = options.homes.way}, costs);
  require_finishing(options.file, made.schedule);
  if (!made.reordering && options.homes.way.empty() && made.schedule.discipline() != schedule.discipline()) {
    print_message(
        fmt::format("starpipe: {}: its run keeps the memory limit; its order is now fixed (discipline {})\n",
                    options.file, plan::to_string(made.schedule.discipline())));
  }
  plan::require_few_jobs("--tensor", options.tensor.stages(schedule.stages()), schedule.microbatches());
  options.tensor.apply(made.schedule, costs);
  if (runs_pairs && !made.schedule.has_pairs())
    throw InputError(
        fmt::format("{}: its pairs do not apply with these homes, shards or limits; without \"overlap\" and "
                    "--overlap its jobs follow each other",
                    options.file));
  show_prediction(options.result, options.costs, made, costs, unit);
  return 0;
}

void add_check(CLI::App& schedule, Action& action) {
  CLI::App* const command =
      schedule.add_subcommand("check", "Prove that the schedule in a file finishes, and predict its run");
  const auto options = std::make_shared<CheckOptions>();
  add_option(*command, "file FILE.csv|FILE.json", options->file,
             "JSON that `schedule show` wrote, or CSV of torch.distributed.pipelining, with or without its "
             "communication actions")
      ->required();
  add_memory_options(*command, options->memory_limits, options->homes);
  options->tensor.add_to(*command);
  options->costs.add_to(*command, "the times in the file, or 1 for each pass",
                        "the time in the file, else 0");
  options->costs.add_overlap_to(*command);
  options->costs.add_copy_to(*command);
  options->costs.add_bytes_to(*command);
  options->costs.add_no_prefetch_to(*command);
  options->result.add_to(*command);
  options->result.add_width_to(*command);
  command->footer("Example:\n  starpipe schedule check schedule.csv --durations F=1,B=1,W=1 --comm 0.1");
  command->callback([options, &action] { action = [options] { return check(*options); }; });
}

}  // namespace

void add_schedule(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("schedule", "List, draw, export, check and compare schedules");
  command->require_subcommand(1);
  add_list(*command, action);
  add_show(*command, action);
  add_check(*command, action);
  add_schedule_compare(*command, action);
}

}  // namespace starpipe::cli
