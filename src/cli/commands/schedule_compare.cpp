// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>
#include <list>
#include <numeric>
#include <set>

#include "cli/commands/subcommand.hpp"
#include "plan/drawing/page.hpp"
#include "plan/drawing/timeline_svg.hpp"
#include "plan/explain/recorded_step.hpp"
#include "plan/formats/schedule_values.hpp"
#include "plan/search/lower_bound.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/search/unit_costs.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::cli {
namespace {

/// A schedule of the command line: NAME or NAME:OPTION=VALUE,OPTION=VALUE
struct NamedSchedule {
  std::string name;
  plan::ScheduleOptions options = {};  ///< they count before the options of --option
  std::string text;                    ///< for people; with the schedule's name in place of an alias
};

struct ScheduleCompareOptions {
  std::vector<std::string> words;
  std::vector<NamedSchedule> schedules = {};  ///< of `words`
  std::vector<std::string> plugins;
  int workers = 1;
  std::vector<int> microbatches;
  int slices = 1;
  std::vector<int> memory_limits;
  plan::ScheduleOptions schedule_options;
  HomeOptions homes;
  bool per_share = true;
  TensorOptions tensor;
  CostOptions costs;
  bool json = false;
  OutputFiles outputs;

  /// Returns the number of stages on a worker that count as one in limits and peaks.
  [[nodiscard]] double parts(int stages) const {
    return per_share ? static_cast<double>(stages) / workers : 1;
  }

  /// Returns the schedule's own options, and the options of --option that it has.
  [[nodiscard]] plan::ScheduleOptions options_of(const NamedSchedule& schedule) const {
    plan::ScheduleOptions own = schedule.options;
    for (const plan::ScheduleOption& option : plan::find_schedule(schedule.name).options) {
      if (const auto given = schedule_options.find(option.name); given != schedule_options.end())
        own.insert(*given);
    }
    return own;
  }
};

/// The predicted run of a schedule.
struct Run {
  plan::Schedule schedule;
  std::optional<plan::Reordering> reordering;
  plan::Costs costs;
  plan::RecordedStep step;
  double peak = 0;                    ///< stashes of a worker, of a share of the model or of a stage
  std::optional<double> lower_bound;  ///< nullopt if the bound does not apply
};

/// A schedule at a number of micro-batches.
struct Row {
  std::string name;  ///< with its options
  int microbatches = 1;
  int stages = 1;
  std::optional<Run> run;
  std::string problem;  ///< why there is no run
};

/// Returns the homes to which stashes may be copied. A disk whose link equals the host's counts as the host.
std::set<plan::Home> homes_of_copies(const ScheduleCompareOptions& options, const plan::Schedule& schedule,
                                     const plan::Costs& costs) {
  std::set<plan::Home> homes;
  if (options.homes.way == "auto") {
    if (costs.host) homes.insert(plan::Home::host);
    if (costs.disk && costs.disk != costs.host) homes.insert(plan::Home::disk);
  }
  for (int s = 0; s < schedule.stages(); ++s) {
    for (int b = 0; b < schedule.microbatches(); ++b) {
      plan::Home home = schedule.home(s, b);
      if (home == plan::Home::disk && costs.disk == costs.host) home = plan::Home::host;
      if (plan::is_copied(home)) homes.insert(home);
    }
  }
  return homes;
}

/// Returns a lower bound on the makespan; nullopt unless each stage is on one worker and transfers overlap
/// compute.
std::optional<double> bound_of(const ScheduleCompareOptions& options, const plan::Schedule& schedule,
                               const plan::Costs& costs, const std::vector<int>& limits) {
  const auto stage_workers = plan::stage_workers_of(schedule);
  if (!stage_workers || !costs.prefetch || options.tensor.shards() > 1) return std::nullopt;
  const std::set<int> used(stage_workers->begin(), stage_workers->end());
  if (std::cmp_less(used.size(), schedule.workers())) return std::nullopt;
  if (costs.overlap) return plan::placement_bound(plan::with_split_passes(schedule), costs);
  plan::SearchProblem problem{.workers = schedule.workers(),
                              .microbatches = schedule.microbatches(),
                              .slices = schedule.slices(),
                              .stage_workers = *stage_workers,
                              .costs = costs};
  problem.may_recompute = options.homes.may_recompute() || schedule.recomputes();
  if (limits.empty()) return plan::lower_bound(problem);
  // The bound knows copies over one link, to the host or a disk. With others it is the one without a limit.
  const std::set<plan::Home> homes = homes_of_copies(options, schedule, costs);
  if (homes.size() > 1) return plan::lower_bound(problem);
  if (!homes.empty()) {
    if (homes.begin()->peer()) return plan::lower_bound(problem);
    problem.copies = *homes.begin();
  }
  problem.memory_limits.assign(limits.begin(), limits.end());
  return plan::lower_bound(problem);
}

Run predict(const ScheduleCompareOptions& options, const NamedSchedule& named, const Row& row,
            const plan::Costs& given) {
  const plan::ScheduleRequest request{.workers = options.workers,
                                      .microbatches = row.microbatches,
                                      .slices = options.slices,
                                      .graph = plan::StageGraph::chain(row.stages),
                                      .homes = options.homes.homes,
                                      .options = options.options_of(named)};
  // The limit is of whole micro-batches, as all figures here are.
  std::vector<int> within = options.memory_limits;
  for (int& limit : within)
    limit = static_cast<int>(
        std::min<std::int64_t>(std::int64_t{limit} * options.slices, std::numeric_limits<int>::max()));
  auto [made, costs] = plan::make_costed_schedule(named.name, request,
                                                  {.memory_limits = within, .home_way = options.homes.way},
                                                  given, options.per_share);
  auto& [schedule, reordering] = made;
  const std::vector<int> limits = plan::stage_stashes(within, options.parts(row.stages));
  options.tensor.apply(schedule, costs);
  plan::RecordedStep step = plan::simulated_step(schedule, costs);
  const double makespan = step.timeline.makespan;
  const double peak =
      std::ranges::max(step.timeline.peak_stashes) / (options.parts(row.stages) * schedule.slices());
  std::optional<double> bound = bound_of(options, schedule, costs, limits);
  if (bound) bound = plan::bound_of_makespan(*bound, makespan);
  return {std::move(schedule), reordering, std::move(costs), std::move(step), peak, bound};
}

std::uint64_t transfers_of(const Run& run) {
  std::uint64_t count = 0;
  for (const plan::Transfers& to : run.step.timeline.received) count += to.total().count;
  return count;
}

/// Reads a schedule of the command line. Throws InputError for options of another form.
NamedSchedule read_schedule(const std::string& word) {
  const auto colon = word.find(':');
  NamedSchedule schedule{.name = word.substr(0, colon), .text = {}};
  for (std::size_t at = colon; at != std::string::npos;) {
    const std::size_t next = word.find(',', at + 1);
    const std::string problem = read_schedule_option(word.substr(at + 1, next - at - 1), schedule.options);
    if (!problem.empty()) throw InputError(fmt::format("{}: {}", word, problem));
    at = next;
  }
  return schedule;
}

/// Throws InputError for an --option that none of the schedules has.
void require_known_options(const ScheduleCompareOptions& options) {
  for (const auto& [option, value] : options.schedule_options) {
    const bool known = std::ranges::any_of(options.schedules, [&, &option = option](const auto& schedule) {
      return std::ranges::count(plan::find_schedule(schedule.name).options, option,
                                &plan::ScheduleOption::name) > 0;
    });
    if (!known) throw InputError(fmt::format("--option: none of these schedules has an option '{}'", option));
  }
}

/// Returns one row for each number of micro-batches and each schedule.
std::vector<Row> rows_of(const ScheduleCompareOptions& options, std::string& unit) {
  const auto stages_of = [&](const NamedSchedule& schedule) {
    return plan::default_stages(plan::find_schedule(schedule.name), options.workers,
                                options.options_of(schedule));
  };
  std::int64_t stages = 0;
  for (const NamedSchedule& schedule : options.schedules)
    stages += options.tensor.stages(stages_of(schedule));
  plan::require_few_jobs("--microbatches", stages,
                         options.slices * std::reduce(options.microbatches.begin(),
                                                      options.microbatches.end(), std::int64_t{0}));
  std::vector<Row> rows;
  for (const int microbatches : options.microbatches) {
    for (const NamedSchedule& schedule : options.schedules) {
      rows.push_back({.name = schedule.text,
                      .microbatches = microbatches,
                      .stages = stages_of(schedule),
                      .run = {},
                      .problem = {}});
      Row& row = rows.back();
      plan::Costs costs;
      options.costs.apply(costs, unit, options.per_share ? options.workers : row.stages);
      try {
        row.run = predict(options, schedule, row, costs);
      } catch (const plan::BrokenSchedule&) {
        throw;
      } catch (const InputError& error) {
        row.problem = error.what();
      }
    }
  }
  if (std::ranges::none_of(rows, [](const Row& row) { return row.run.has_value(); })) {
    throw InputError(fmt::format("{}: {}", rows.front().name, rows.front().problem));
  }
  return rows;
}

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

/// The figures of a row: their names in JSON and CSV, and how to read them.
struct Figure {
  std::string_view name;
  Json (*value)(const Run&);
};
constexpr std::array figures = {
    Figure{"makespan", [](const Run& run) -> Json { return run.step.timeline.makespan; }},
    Figure{"gradients_summed", [](const Run& run) { return or_null(run.step.timeline.gradients_summed); }},
    Figure{"bubble_fraction", [](const Run& run) -> Json { return run.step.timeline.bubble_fraction; }},
    Figure{"recomputed_fraction",
           [](const Run& run) -> Json { return run.step.timeline.recomputed_fraction; }},
    Figure{"device_bubble_fraction",
           [](const Run& run) -> Json { return run.step.timeline.device_bubble_fraction; }},
    Figure{"peak_stashes", [](const Run& run) -> Json { return run.peak; }},
    Figure{"transfers", [](const Run& run) -> Json { return transfers_of(run); }},
    Figure{"lower_bound", [](const Run& run) { return or_null(run.lower_bound); }}};

Json to_json(const ScheduleCompareOptions& options, const std::vector<Row>& rows, const std::string& unit) {
  Json json = {{"workers", options.workers}, {"per", options.per_share ? "share" : "stage"}, {"unit", unit}};
  if (!options.memory_limits.empty()) json["memory_limits"] = options.memory_limits;
  for (const plan::Home home : options.homes.homes) json["homes"].push_back(plan::to_string(home));
  if (!options.homes.way.empty()) json["homes"] = options.homes.way;
  if (!options.schedule_options.empty()) json["options"] = options.schedule_options;
  for (const Row& row : rows) {
    Json& entry = json["schedules"].emplace_back();
    entry = {{"schedule", row.name}, {"microbatches", row.microbatches}, {"stages", row.stages}};
    if (!row.run) {
      entry["problem"] = row.problem;
      continue;
    }
    for (const Figure& figure : figures) entry[figure.name] = figure.value(*row.run);
    if (row.run->reordering) entry["reordered"] = plan::reordering_json(*row.run->reordering);
  }
  return json;
}

std::string to_csv(const ScheduleCompareOptions& options, const std::vector<Row>& rows,
                   const std::string& unit) {
  std::vector<TableRow> table = {{"schedule", "workers", "microbatches", "stages", "per", "unit"}};
  for (const Figure& figure : figures) table.front().emplace_back(figure.name);
  table.front().insert(table.front().end(), {"reordered", "problem"});
  for (const Row& row : rows) {
    TableRow& cells = table.emplace_back(
        TableRow{row.name, std::to_string(options.workers), std::to_string(row.microbatches),
                 std::to_string(row.stages), options.per_share ? "share" : "stage", unit});
    for (const Figure& figure : figures) {
      const auto value = row.run ? figure.value(*row.run) : Json();
      cells.push_back(value.is_null() ? "" : value.dump());
    }
    cells.emplace_back(row.run && row.run->reordering ? "true" : "false");
    cells.push_back(row.problem);
  }
  return csv_text(table);
}

std::string to_text(const ScheduleCompareOptions& options, const std::vector<Row>& rows,
                    const std::string& unit) {
  double longest = 0;
  for (const Row& row : rows) longest = std::max(longest, row.run ? row.run->step.timeline.makespan : 0);
  const plan::ShownUnit shown(unit, longest);
  std::string text =
      fmt::format("{}; durations and stashes are of {}\n", counted_text(options.workers, "worker"),
                  options.per_share ? fmt::format("1/{} of the model", options.workers) : "a stage");
  std::string notes;
  const bool summed = std::ranges::any_of(
      rows, [](const Row& row) { return row.run && row.run->step.timeline.gradients_summed; });
  const bool recomputed =
      std::ranges::any_of(rows, [](const Row& row) { return row.run && row.run->schedule.recomputes(); });
  std::vector<TableRow> table = {{"micro-batches", "schedule", "stages", shown.heading("makespan")}};
  if (summed) table.front().push_back(shown.heading("gradients summed"));
  table.front().emplace_back("bubble");
  if (recomputed) table.front().emplace_back("recomputation");
  table.front().insert(table.front().end(),
                       {"peak stashes", "transfers", shown.heading("lower bound"), "above"});
  for (const Row& row : rows) {
    TableRow& cells = table.emplace_back();
    cells = {std::to_string(row.microbatches), row.name, std::to_string(row.stages)};
    const std::string at = fmt::format("{} micro-batches: ", row.microbatches);
    if (!row.run) {
      notes += one_line(at + row.name + ": " + row.problem) + "\n";
      cells.emplace_back("-");
      continue;
    }
    const auto& [schedule, reordering, costs, step, peak, lower_bound] = *row.run;
    const double makespan = step.timeline.makespan;
    cells.push_back(shown.number(makespan));
    if (summed)
      cells.push_back(step.timeline.gradients_summed ? shown.number(*step.timeline.gradients_summed) : "");
    cells.push_back(percent_text(step.timeline.bubble_fraction));
    if (recomputed) cells.push_back(percent_text(step.timeline.recomputed_fraction));
    cells.push_back(number_text(peak));
    cells.push_back(std::to_string(transfers_of(*row.run)));
    if (lower_bound) cells.push_back(shown.number(*lower_bound));
    if (lower_bound && *lower_bound > 0) cells.push_back(percent_text(makespan / *lower_bound - 1));
    if (reordering) notes += at + plan::describe_reordering(row.name, reordering);
  }
  constexpr std::array columns = {TableColumn{Align::right}, TableColumn{Align::left}};
  return text + table_text(table, columns) + notes +
         "Peak stashes: the largest of a worker. Lower bound: no schedule with these stages on these "
         "workers" +
         (!options.memory_limits.empty() ? " and within this memory limit" : "") + " ends earlier." +
         (summed ? " Gradients summed: until the holders of each stage's weights have its summed gradient.\n"
                 : "\n");
}

std::string title_of(const ScheduleCompareOptions& options, const Row& row) {
  if (options.microbatches.size() == 1) return row.name;
  return fmt::format("{}, {} micro-batches", row.name, row.microbatches);
}

std::string page_of(const ScheduleCompareOptions& options, const std::vector<Row>& rows,
                    const std::string& unit) {
  std::list<Json> figures_of_rows;  // the page's runs refer to them
  std::vector<plan::PageRun> runs;
  for (const Row& row : rows) {
    if (!row.run) continue;
    Json& shown = figures_of_rows.emplace_back(Json::object());
    if (row.run->lower_bound) shown["lower_bound"] = *row.run->lower_bound;
    runs.push_back({.title = title_of(options, row),
                    .unit = unit,
                    .costs = row.run->costs,
                    .timelines = {{"predicted", &row.run->step}},
                    .report = &shown});
  }
  return plan::report_page(runs);
}

std::string timeline_of(const ScheduleCompareOptions& options, const std::vector<Row>& rows,
                        const std::string& unit) {
  std::vector<plan::DrawnRun> runs;
  for (const Row& row : rows) {
    if (!row.run) continue;
    runs.push_back(plan::explained_run(title_of(options, row), row.run->step));
  }
  // Stashes of larger and smaller stages would be drawn alike, and look like equal amounts of memory.
  const bool same_stashes = std::ranges::all_of(
      rows, [&](const Row& row) { return !row.run || row.stages == options.workers || !options.per_share; });
  return plan::timeline_svg(runs, {.unit = unit, .memory = same_stashes});
}

int compare(ScheduleCompareOptions options) {
  options.outputs.check(options.costs.inputs(options.plugins));
  options.outputs.require_writable();
  std::vector<std::string> names;
  for (const std::string& word : options.words)
    names.push_back(options.schedules.emplace_back(read_schedule(word)).name);
  plan::load_plugins_for(options.plugins, names, "--plugin");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string options_text = options.words[i].substr(names[i].size());
    options.schedules[i].text = plan::find_schedule(names[i]).name + options_text;
  }
  require_known_options(options);
  require_one_or_each("--memory-limit", options.memory_limits.size(), options.workers);
  std::string unit;
  const std::vector<Row> rows = rows_of(options, unit);
  const auto runs_pairs = [](const Row& row) { return row.run && row.run->step.planned.has_pairs(); };
  const auto first = std::ranges::find_if(rows, [](const Row& row) { return row.run.has_value(); });
  if (first != rows.end() && std::ranges::none_of(rows, runs_pairs))
    options.costs.require_pairs(first->run->step.planned);
  for (const Row& row : rows) {
    if (row.run && row.microbatches == options.microbatches.front())
      options.costs.note_missing_bytes(row.name, row.run->step.timeline);
  }
  const auto json = [&] { return plan::json_text(to_json(options, rows, unit)); };
  print(options.json ? json() : to_text(options, rows, unit));
  options.outputs.write("-o", [&] {
    return suffix_of(*options.outputs.file("-o")) == ".csv" ? to_csv(options, rows, unit) : json();
  });
  options.outputs.write("--timeline", [&] { return timeline_of(options, rows, unit); });
  options.outputs.write("--html", [&] { return page_of(options, rows, unit); });
  return 0;
}

}  // namespace

void add_schedule_compare(CLI::App& schedule, Action& action) {
  CLI::App* const command =
      schedule.add_subcommand("compare", "Predict several named schedules and show them side by side");
  const auto options = std::make_shared<ScheduleCompareOptions>();
  add_option(*command, "name NAME", options->words,
             "Names from `starpipe schedule list`. NAME:OPTION=VALUE,... sets options of this one, so that "
             "values of an option can be compared: wave:waves=1 wave:waves=2")
      ->required();
  add_plugin_option(*command, options->plugins);
  add_option(*command, "--workers W", options->workers, "Number of workers",
             whole_number(1, plan::size_limits::workers))
      ->required();
  add_option(*command, "--microbatches B,B,...", options->microbatches,
             "Numbers of micro-batches in a step, each compared on its own",
             whole_number(1, plan::size_limits::microbatches))
      ->required();
  add_option(*command, "--slices K", options->slices,
             "Slices (K) into which each micro-batch is cut along its sequences; all figures are of whole "
             "micro-batches",
             whole_number(1, plan::size_limits::slices));
  add_schedule_option(
      *command, options->schedule_options,
      "Option of those schedules that have it, as `schedule list --long` shows them; may be repeated");
  add_memory_options(*command, options->memory_limits, options->homes);
  command->add_flag(
      "--per-share,!--per-stage", options->per_share,
      "Durations and stashes are of 1/W of the model (the default), so that all schedules do the "
      "same work, or of a stage");
  options->tensor.add_to(*command);
  options->costs.add_to(*command, "1 for each pass");
  options->costs.add_overlap_to(*command);
  options->costs.add_copy_to(*command);
  options->costs.add_bytes_to(*command);
  options->costs.add_no_prefetch_to(*command);
  command->add_flag("--json", options->json, "Print JSON");
  options->outputs.add(*command, "-o,--output FILE.csv|FILE.json",
                       "Also write the figures to a file, as CSV or JSON");
  options->outputs.add(
      *command, "--timeline FILE.svg",
      "Draw all runs on one time axis, with the stashes that workers hold where these are of "
      "the same size in all of them");
  options->outputs.add(*command, "--html FILE.html",
                       "Write the same runs as a page for a browser, in one file");
  command->footer(
      "Example:\n"
      "  starpipe schedule compare 1f1b zb-h1 v-half --workers 4 --microbatches 8,16 --timeline compare.svg");
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

}  // namespace starpipe::cli
