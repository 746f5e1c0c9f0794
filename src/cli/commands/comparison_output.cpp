// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/comparison_output.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "plan/drawing/page.hpp"
#include "plan/drawing/timeline_svg.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/schedule_values.hpp"
#include "runtime/report/report.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::cli {
namespace {

using runtime::ComparedPolicy;
using runtime::ComparedSchedule;
using runtime::Comparison;

std::uint64_t bytes_moved(const plan::Timeline& timeline) {
  std::uint64_t bytes = 0;
  for (const plan::Transfers& to : timeline.received) bytes += to.total().bytes;
  return bytes;
}

ComparisonPrediction predict(const ComparedSchedule& compared) {
  const plan::Schedule& schedule = compared.schedule();
  const auto costs = [](const ComparedPolicy& policy) -> const plan::Costs& {
    return policy.median_repetition().costs;
  };
  ComparisonPrediction predictions{.first = plan::simulated_step(schedule, costs(compared.policies.front())),
                                   .makespans = {}};
  for (const ComparedPolicy& policy : compared.policies)
    predictions.makespans.push_back(plan::simulated_makespan(schedule, costs(policy)));
  return predictions;
}

/// True if the prediction's durations are configured. They are then the same under all policies.
bool emulated(const std::vector<ComparedSchedule>& schedules) {
  return schedules.front().run->experiment.emulated;
}

std::string ran_as(const ComparedPolicy& policy) {
  constexpr std::array words = {"", ", bound to workers", ", bound and ordered"};  // by StarpuControl
  return policy.ran + words[static_cast<std::size_t>(policy.choice.control)];
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

std::string spread_of(const ComparedPolicy& policy) {
  const std::vector<double> makespans = policy.makespans();
  return fmt::format("{:.2f} .. {:.2f}", makespans.front() * 1e3, makespans.back() * 1e3);
}

nlohmann::ordered_json to_json(const ComparedPolicy& policy, double predicted) {
  const plan::Timeline& timeline = policy.median_repetition().run.timeline;
  std::vector<double> makespans;  // in the order of the repetitions
  for (const runtime::Repetition& r : policy.repetitions) makespans.push_back(r.makespan);
  nlohmann::ordered_json result = {{"policy", policy.choice.name},
                                   {"ran", policy.ran},
                                   {"predicted_makespan", predicted},
                                   {"makespan", policy.median()},
                                   {"makespans", makespans},
                                   {"submission", policy.median_repetition().submission},
                                   {"bubble_fraction", timeline.bubble_fraction},
                                   {"peak_stashes", timeline.peak_stashes},
                                   {"peak_stash_bytes", timeline.peak_stash_bytes},
                                   {"bytes_moved", bytes_moved(timeline)}};
  if (const int skipped = policy.skipped(); skipped > 0) result["skipped_steps"] = skipped;
  return result;
}

/// Writes the memory of the predicted run, and of each measured run whose policy can keep a memory limit.
void add_memory(const ComparedSchedule& compared, const ComparisonPrediction& predictions,
                nlohmann::ordered_json& report) {
  const runtime::AgreedRun& run = *compared.run;
  const auto add = [&](const std::string& name, const plan::Costs& costs, const plan::Timeline& timeline) {
    const auto needs = runtime::memory_need_of(run.config, run.experiment, costs, timeline);
    report["memory"][name] = runtime::memory_json(needs);
    report["memory_over_time"][name] = runtime::memory_over_time_json(needs, run.config.runtime);
  };
  add("predicted", compared.policies.front().median_repetition().costs, predictions.first.timeline);
  for (const ComparedPolicy& policy : compared.policies) {
    const std::string& name = policy.choice.name;
    if (!runtime::policies_without("runtime.memory_limit", std::span(&name, 1)).empty()) continue;
    const runtime::Repetition& median = policy.median_repetition();
    add(name, median.costs, median.run.timeline);
  }
}

nlohmann::ordered_json to_json(const Comparison& comparison, const ComparedSchedule& compared,
                               const ComparisonPrediction& predictions) {
  const plan::Timeline& predicted = predictions.first.timeline;
  const runtime::AgreedRun& run = *compared.run;
  nlohmann::ordered_json report = runtime::report_head(run.config, run.partition, run.locations);
  report["repetitions"] = comparison.repetitions;
  report["seed"] = comparison.seed;
  report["emulated"] = run.experiment.emulated;
  for (const std::string& key : runtime::keys_of_policies(run.config)) {
    if (const auto without = runtime::policies_without(key, comparison.policies); !without.empty())
      report["not_kept"][key] = without;
  }
  if (compared.stage_share != 1) report["stage_share"] = compared.stage_share;
  if (run.experiment.reordering) report["reordered"] = plan::reordering_json(*run.experiment.reordering);
  report["stages"] = compared.schedule().stages();
  report["cuts"] = run.experiment.network.cuts;
  report["predicted"] = {{"makespan", predicted.makespan},
                         {"bubble_fraction", predicted.bubble_fraction},
                         {"peak_stashes", predicted.peak_stashes},
                         {"peak_stash_bytes", predicted.peak_stash_bytes},
                         {"bytes_moved", bytes_moved(predicted)}};
  if (!run.experiment.emulated) report["predicted"]["durations_of"] = compared.policies.front().choice.name;
  if (!run.config.runtime.memory_limits.empty()) add_memory(compared, predictions, report);
  for (std::size_t p = 0; p < compared.policies.size(); ++p)
    report["policies"].push_back(to_json(compared.policies[p], predictions.makespans[p]));
  return report;
}

/// Returns a line for each schedule that cuts the model into other numbers of stages than the first.
std::string describe_stages(const std::vector<ComparedSchedule>& schedules) {
  std::string text;
  const plan::Schedule& first = schedules.front().schedule();
  for (const ComparedSchedule& compared : schedules) {
    const plan::Schedule& schedule = compared.schedule();
    if (compared.stage_share != 1) {
      text += fmt::format("{} has {}: each lasts {} times the time in runtime.emulate, for equal work\n",
                          schedule.name(), counted_text(schedule.stages(), "stage"),
                          number_text(compared.stage_share));
    } else if (schedule.stages() != first.stages() && !compared.run->experiment.emulated) {
      text += fmt::format("{} cuts the model into {}, {} into {}\n", schedule.name(),
                          counted_text(schedule.stages(), "stage"), first.name(), first.stages());
    }
  }
  return text;
}

std::string heading(const Comparison& comparison, const std::vector<ComparedSchedule>& schedules) {
  const ComparedSchedule& first = schedules.front();
  const std::string what =
      schedules.size() > 1 ? counted_text(std::ssize(schedules), "schedule") : first.schedule().name();
  const bool named_below = comparison.schedules.empty() || first.policies.size() > 1;
  std::string text =
      fmt::format("{} on {}, {}{}; {} of {}\n", what, counted_text(first.schedule().workers(), "worker"),
                  counted_text(std::ssize(first.run->locations), "rank"),
                  named_below ? "" : ", policy " + first.policies.front().choice.name,
                  counted_text(comparison.repetitions, "repetition"),
                  counted_text(first.run->config.training.steps, "step"));
  for (const ComparedSchedule& compared : schedules) {
    const std::string partition = runtime::describe_partition(compared.run->partition);
    if (!partition.empty() && schedules.size() > 1) text += compared.schedule().name() + ": ";
    text += partition +
            plan::describe_reordering(compared.schedule().name(), compared.run->experiment.reordering);
  }
  return text + describe_stages(schedules) + "\n";
}

constexpr std::array compare_columns = {
    TableColumn{Align::left, 16},  TableColumn{Align::left, 16},  TableColumn{Align::right, 10},
    TableColumn{Align::right, 10}, TableColumn{Align::right, 10}, TableColumn{Align::right, 16},
    TableColumn{Align::right, 7},  TableColumn{Align::right, 8},  TableColumn{Align::right, 12},
    TableColumn{Align::right, 12}, TableColumn{Align::left, 0}};
constexpr std::array<std::string_view, compare_columns.size()> compare_headings = {
    "schedule", "policy",  "predicted",   "makespan", "difference",     "min .. max",
    "bubble",   "stashes", "stash bytes", "moved",    "policy that ran"};

/// Returns a row with a cell for each of `compare_columns`. `predicted`: nullopt in the row of a prediction.
TableRow row_of(const std::string& schedule, const std::string& policy, std::optional<double> predicted,
                double makespan, const std::string& spread, const plan::Timeline& timeline,
                const std::string& ran) {
  return {schedule,
          policy,
          predicted ? milliseconds(*predicted) : "",
          milliseconds(makespan),
          predicted ? difference_text(*predicted > 0 ? makespan / *predicted - 1 : 0) : "",
          spread,
          percent_text(timeline.bubble_fraction),
          std::to_string(*std::ranges::max_element(timeline.peak_stashes)),
          bytes_text(*std::ranges::max_element(timeline.peak_stash_bytes)),
          bytes_text(bytes_moved(timeline)),
          ran};
}

/// Returns a line for each policy under which updates were skipped.
std::string describe_skipped(const std::vector<ComparedSchedule>& schedules) {
  std::string text;
  for (const ComparedSchedule& compared : schedules) {
    for (const ComparedPolicy& policy : compared.policies) {
      if (policy.skipped() == 0) continue;
      text +=
          fmt::format("{} under {}: {} of all repetitions skipped their update, for infinity or NaN\n",
                      compared.schedule().name(), policy.choice.name, counted_text(policy.skipped(), "step"));
    }
  }
  return text;
}

/// Returns a line for each key that some of the policies do not keep.
std::string describe_not_kept(const Comparison& comparison, const runtime::Config& config) {
  std::string text;
  for (const std::string& key : runtime::keys_of_policies(config)) {
    if (const auto without = runtime::policies_without(key, comparison.policies); !without.empty())
      text += fmt::format("{} is not kept by {}\n", key, fmt::join(without, ", "));
  }
  return text;
}

std::string comparison_table(const Comparison& comparison, const std::vector<ComparedSchedule>& schedules,
                             const std::vector<ComparisonPrediction>& predictions) {
  const bool by_schedule = !comparison.schedules.empty();
  std::vector<TableRow> rows = {TableRow(compare_headings.begin(), compare_headings.end())};
  for (std::size_t s = 0; s < schedules.size(); ++s) {
    const std::string& name = schedules[s].schedule().name();
    const plan::Timeline& predicted = predictions[s].first.timeline;
    if (!by_schedule)
      rows.push_back(row_of(name, "(prediction)", std::nullopt, predicted.makespan, "", predicted, ""));
    for (std::size_t p = 0; p < schedules[s].policies.size(); ++p) {
      const ComparedPolicy& policy = schedules[s].policies[p];
      rows.push_back(row_of(name, policy.choice.name, predictions[s].makespans[p], policy.median(),
                            spread_of(policy), policy.median_repetition().run.timeline, ran_as(policy)));
    }
  }
  // Columns with the same value in each row, and columns whose values have rows of their own.
  std::set<std::string_view> hidden;
  if (!by_schedule) hidden = {"schedule"};
  if (!by_schedule && emulated(schedules)) hidden.insert({"predicted", "difference"});
  if (by_schedule && schedules.front().policies.size() == 1) hidden = {"policy", "policy that ran"};
  std::vector<TableColumn> shown;
  std::vector<TableRow> cells(rows.size());
  for (std::size_t c = 0; c < compare_columns.size(); ++c) {
    if (hidden.contains(compare_headings[c])) continue;
    shown.push_back(compare_columns[c]);
    for (std::size_t r = 0; r < rows.size(); ++r) cells[r].push_back(rows[r][c]);
  }
  std::string text =
      table_text(cells, shown) + describe_skipped(schedules) +
      describe_not_kept(comparison, schedules.front().run->config) +
      "Medians. Stashes, stash bytes: the largest of a worker. Moved: bytes that all workers received.\n";
  if (emulated(schedules)) return text;
  text += "Predicted: with the durations measured in the run itself";
  if (!by_schedule)
    text +=
        fmt::format("; (prediction): with those under {}", schedules.front().policies.front().choice.name);
  return text + ".\n";
}

std::string timeline_of(const Comparison& comparison, const std::vector<ComparedSchedule>& schedules,
                        const std::vector<ComparisonPrediction>& predictions) {
  const std::string& first = schedules.front().policies.front().choice.name;
  const bool same_costs = emulated(schedules) || schedules.front().policies.size() == 1;
  const std::string predicted = same_costs ? "predicted" : "predicted with the durations under " + first;
  std::vector<plan::DrawnRun> runs;
  for (std::size_t s = 0; s < schedules.size(); ++s) {
    const std::string before = comparison.schedules.empty() ? "" : schedules[s].schedule().name() + ", ";
    runs.push_back(plan::explained_run(before + predicted, predictions[s].first));
    for (const ComparedPolicy& policy : schedules[s].policies)
      runs.push_back(plan::explained_run(before + policy.choice.name, policy.median_repetition().run));
  }
  return plan::timeline_svg(runs, {.unit = "s"});
}

// `reports`: of each schedule.
std::string page_of(const std::vector<ComparedSchedule>& schedules,
                    const std::vector<ComparisonPrediction>& predictions,
                    const nlohmann::ordered_json& reports) {
  std::vector<plan::PageRun> runs;
  for (std::size_t s = 0; s < schedules.size(); ++s) {
    plan::PageRun& run = runs.emplace_back();
    run.title = schedules[s].schedule().name();
    run.unit = "s";
    run.costs = schedules[s].policies.front().median_repetition().costs;
    run.timelines = {{"predicted", &predictions[s].first}};
    for (const ComparedPolicy& policy : schedules[s].policies)
      run.timelines.push_back({policy.choice.name, &policy.median_repetition().run});
    run.report = &reports.at(s);
  }
  return plan::report_page(runs);
}

// The jobs of each policy's median run, which make the JSON long.
void add_records(const std::vector<ComparedSchedule>& schedules, nlohmann::ordered_json& reports) {
  for (std::size_t s = 0; s < schedules.size(); ++s) {
    for (std::size_t p = 0; p < schedules[s].policies.size(); ++p) {
      const runtime::Repetition& median = schedules[s].policies[p].median_repetition();
      reports[s]["policies"][p]["record"] = plan::policy_record_json(median.run, median.costs);
    }
  }
}

}  // namespace

ComparisonOutput::ComparisonOutput(const Comparison& comparison,
                                   const std::vector<ComparedSchedule>& schedules)
    : comparison_(comparison), schedules_(schedules) {
  for (const ComparedSchedule& compared : schedules) {
    predictions_.push_back(predict(compared));
    reports_.push_back(to_json(comparison, compared, predictions_.back()));
  }
}

std::string ComparisonOutput::table() const {
  return heading(comparison_, schedules_) + comparison_table(comparison_, schedules_, predictions_);
}

std::string ComparisonOutput::text_of(const nlohmann::ordered_json& reports) const {
  return plan::json_text(comparison_.schedules.empty() ? reports.front()
                                                       : nlohmann::ordered_json{{"schedules", reports}});
}

std::string ComparisonOutput::json() const { return text_of(reports_); }

std::string ComparisonOutput::json_with_jobs() const {
  nlohmann::ordered_json reports = reports_;
  add_records(schedules_, reports);
  return text_of(reports);
}

std::string ComparisonOutput::page() const { return page_of(schedules_, predictions_, reports_); }

std::string ComparisonOutput::timeline() const { return timeline_of(comparison_, schedules_, predictions_); }

}  // namespace starpipe::cli
