// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/explanation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "plan/explain/busy_ports.hpp"
#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/explain/step_costs.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "plan/formats/json_value.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

constexpr std::size_t max_producers = 3;  // in a line
constexpr std::size_t max_rows = 5;       // of lists that begin with the most important

// Makespans are rounded before they are subtracted: so the figures of a table add up.
std::int64_t hundredths_of_ms(double seconds) { return std::llround(seconds * 1e5); }
std::string ms_text(std::int64_t hundredths) {
  return fmt::format("{:.2f}", static_cast<double>(hundredths) / 100);
}
std::string signed_ms_text(std::int64_t hundredths) {
  return fmt::format("{:+.2f}", static_cast<double>(hundredths) / 100);
}
std::int64_t hundredths_of(const Difference& step, const DifferencePart& part) {
  return hundredths_of_ms(step.*part.to) - hundredths_of_ms(step.*part.from);
}

// Returns "min .. max" over the compared steps.
template <class Of, class Text>
std::string range_text(std::span<const Difference> steps, Of of, Text text) {
  std::vector<std::int64_t> all;
  for (const Difference& step : steps) all.push_back(of(step));
  const auto [min, max] = std::ranges::minmax(all);
  return fmt::format("{} .. {}", text(min), text(max));
}

std::string steps_text(const ComparedRun& run) {
  return run.first_step == run.last_step() ? fmt::format("step {}", run.first_step)
                                           : fmt::format("steps {} to {}", run.first_step, run.last_step());
}

std::string kernel_text(const Kernel& kernel) {
  return fmt::format("{} of stage {} on worker {}", to_string(kernel.pass), kernel.stage, kernel.worker);
}

std::int64_t tenths_of_percent(double share) { return std::llround(share * 1e3); }
std::string tenths_text(std::int64_t tenths) {
  return fmt::format("{:.1f}", static_cast<double>(tenths) / 10);
}

// Without copies, or R, nothing waits for them.
std::vector<IdleCause> shown_causes(const Schedule& schedule) {
  std::vector<IdleCause> causes;
  for (std::size_t c = 0; c < idle_cause_count; ++c) {
    const auto cause = static_cast<IdleCause>(c);
    if (cause == IdleCause::copy && !schedule.copies()) continue;
    if (cause == IdleCause::recomputation && !schedule.recomputes()) continue;
    causes.push_back(cause);
  }
  return causes;
}

// Shares of a step in tenths of a percent: [worker][0] of computing, [worker][1 + cause] of idle time. Sums
// are rounded, not shares: so the shares of a worker add up to 100 %.
std::vector<std::array<std::int64_t, idle_cause_count + 1>> shares(const RecordedStep& step,
                                                                   std::span<const IdlePart> idle_parts) {
  const int workers = step.as_run.workers();
  const auto idle = idle_seconds(idle_parts, workers);
  std::vector<std::array<std::int64_t, idle_cause_count + 1>> all(index(workers));
  const double makespan = step.timeline.makespan;
  if (makespan <= 0) return all;  // emulated jobs may take no time
  for (std::size_t w = 0; w < all.size(); ++w) {
    double sum = 0;
    std::int64_t rounded = 0;
    for (std::size_t c = 0; c <= idle_cause_count; ++c) {
      sum += c == 0 ? step.timeline.busy[w] : idle[w][c - 1];
      all[w][c] = tenths_of_percent(sum / makespan) - rounded;
      rounded += all[w][c];
    }
  }
  return all;
}

// Names the port whose bytes take longest, and the port at which workers waited longest if it is another one.
std::string ports_text(const ComparedRun& run) {
  const std::vector<BusyPort> ports = busy_ports(run.measured, run.costs);
  const double makespan = run.measured.timeline.makespan;
  if (ports.empty() || makespan <= 0) return "";
  const BusyPort& busiest = ports.front();
  std::string text = fmt::format(
      "Busiest port: {}: its bytes take {:.2f} ms, {} of the step; workers waited {:.2f} ms for them.\n",
      to_string(busiest, run.costs.links), busiest.passing * 1e3, percent_text(busiest.passing / makespan),
      busiest.waited * 1e3);
  const BusyPort& slowest = *std::ranges::max_element(ports, {}, &BusyPort::waited);
  if (slowest.waited > busiest.waited)
    text += fmt::format("Longest waits at a port: {}, {:.2f} ms.\n", to_string(slowest, run.costs.links),
                        slowest.waited * 1e3);
  return text;
}

}  // namespace

std::string difference_table(const ComparedRun& run) {
  const Difference& step = run.median_difference();
  const std::span<const Difference> steps = run.differences;
  const bool several = steps.size() > 1;
  std::vector<TableColumn> columns = {{Align::left, 10}, {Align::right, 10}, {Align::right, 12}};
  if (several) columns.push_back({Align::right});
  columns.push_back({Align::left});
  std::vector<TableRow> rows = {{"", "ms", "of predicted"},
                                {"predicted", ms_text(hundredths_of_ms(step.predicted))}};
  if (several) rows[0].push_back(steps_text(run));
  const auto percent = [&](double from, double to) {
    if (step.predicted <= 0) return std::string();
    const auto tenths = tenths_of_percent(to / step.predicted) - tenths_of_percent(from / step.predicted);
    return fmt::format("{:+.1f} %", static_cast<double>(tenths) / 10);
  };
  for (const DifferencePart& part : difference_parts) {
    TableRow& row = rows.emplace_back(TableRow{part.name, signed_ms_text(hundredths_of(step, part)),
                                               percent(step.*part.from, step.*part.to)});
    const auto of = [&](const Difference& each) { return hundredths_of(each, part); };
    if (several) row.push_back(range_text(steps, of, signed_ms_text));
    row.emplace_back(part.meaning);
  }
  const auto measured = [](const Difference& d) { return hundredths_of_ms(d.measured); };
  TableRow& last =
      rows.emplace_back(TableRow{run.found, ms_text(measured(step)), percent(step.predicted, step.measured)});
  if (several) last.push_back(range_text(steps, measured, ms_text));
  return fmt::format("Why step {} took {} ms, not the predicted {} ms{}:\n{}", run.median_step,
                     ms_text(measured(step)), ms_text(hundredths_of_ms(step.predicted)),
                     several ? fmt::format(" (the median of {})", steps_text(run)) : "",
                     table_text(rows, columns));
}

std::string idle_table(const ComparedRun& run) {
  const std::vector<IdlePart> predicted_parts = idle_parts(run.predicted);
  const std::vector<IdlePart> measured_parts = idle_parts(run.measured);
  const auto predicted = shares(run.predicted, predicted_parts);
  const auto measured = shares(run.measured, measured_parts);
  std::vector<TableRow> rows = {{"worker", "busy"}};
  const std::vector<IdleCause> causes = shown_causes(run.measured.as_run);
  for (const IdleCause cause : causes) rows[0].emplace_back(to_string(cause));
  for (std::size_t w = 0; w < measured.size(); ++w) {
    TableRow& row = rows.emplace_back(TableRow{std::to_string(w)});
    const auto add = [&, w](std::size_t c) {
      row.push_back(tenths_text(predicted[w][c]) + " / " + tenths_text(measured[w][c]));
    };
    add(0);
    for (const IdleCause cause : causes) add(1 + index(cause));
  }
  constexpr std::array columns = {TableColumn{Align::left, 8}};
  std::string text =
      fmt::format("Where each worker's time went, % of the step; idle by cause (predicted / {}):\n{}",
                  run.found, table_text(rows, columns));
  const auto waits = producer_waits(measured_parts, run.measured);
  std::vector<std::string> producers;
  for (const ProducerWait& wait : waits) {
    if (producers.size() == max_producers) break;
    producers.push_back(fmt::format("{} ({:.2f} ms)", kernel_text(wait), wait.seconds * 1e3));
  }
  if (!producers.empty())
    text += fmt::format("Waited for longest, over all workers: {}.\n", fmt::join(producers, ", "));
  const auto links = link_waits(measured_parts);
  if (!links.empty()) {
    text += fmt::format("Longest wait for transfers: from worker {} to {}, {:.2f} ms.\n", links.front().from,
                        links.front().to, links.front().seconds * 1e3);
  }
  return text + ports_text(run);
}

namespace {

constexpr std::array ranking_columns = {TableColumn{Align::left, 28}, TableColumn{Align::right, 6},
                                        TableColumn{Align::right, 10}, TableColumn{Align::right, 12}};

std::string path_table(const RecordedStep& step) {
  const PathSummary path = summary(critical_path(step), step.as_run);
  const double makespan = step.timeline.makespan;
  std::vector<TableRow> rows = {{"Critical path", "jobs", "ms", "of the step"}};
  const auto add = [&](const std::string& name, const std::string& count, double seconds) {
    rows.push_back({name, count, fmt::format("{:.2f}", seconds * 1e3), percent_text(seconds / makespan)});
  };
  PathSummary::Jobs others;
  for (std::size_t i = 0; i < path.jobs.size(); ++i) {
    const PathSummary::Jobs& jobs = path.jobs[i];
    if (i < max_rows) {
      add(kernel_text(jobs), std::to_string(jobs.count), jobs.seconds);
    } else {
      others.seconds += jobs.seconds;
      others.count += jobs.count;
    }
  }
  if (others.count > 0) add("other jobs", std::to_string(others.count), others.seconds);
  double transfers = 0;
  for (const LinkWait& link : path.links) transfers += link.seconds;
  add("transfers", "", transfers);
  add("runtime", "", path.runtime);
  return table_text(rows, ranking_columns);
}

std::string kernel_table(const ComparedRun& run) {
  std::vector<TableRow> rows = {{"Slowest kernels", "jobs", "ms per job", "x typical"}};
  const auto kernels = kernel_speeds(run.measured, run.work);
  for (std::size_t i = 0; i < std::min(max_rows, kernels.size()); ++i) {
    const KernelSpeed& kernel = kernels[i];
    rows.push_back({kernel_text(kernel), std::to_string(kernel.jobs),
                    fmt::format("{:.3f}", kernel.mean * 1e3), fmt::format("{:.2f}", kernel.ratio)});
  }
  return table_text(rows, ranking_columns) +
         "Typical: the median time for the same work, over all stages and workers of the pass.\n";
}

std::string link_table(const RecordedStep& step) {
  const auto links = link_speeds(step);
  if (links.empty()) return "";
  std::vector<TableRow> rows = {{"Slowest links", "seen", "median ms", "x typical"}};
  for (std::size_t i = 0; i < std::min(max_rows, links.size()); ++i) {
    const LinkSpeed& link = links[i];
    rows.push_back({fmt::format("worker {} to {}", link.from, link.to), std::to_string(link.transfers),
                    fmt::format("{:.3f}", link.median * 1e3), fmt::format("{:.2f}", link.ratio)});
  }
  return "\n" + table_text(rows, ranking_columns);
}

std::string answers_table(std::span<const Answer> all, double measured, std::string_view found) {
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
  add(fmt::format("(nothing: as {})", found), measured);
  return "\n" + table_text(rows, columns) + notes;
}

}  // namespace

std::string explanation_text(const ComparedRun& run, std::span<const Answer> all) {
  const Schedule& schedule = run.measured.planned;
  std::string text = fmt::format(
      "{} on {}, {}, {}\n\n{}\n{}\n{}\n{}{}", schedule.name(), counted_text(schedule.workers(), "worker"),
      counted_text(schedule.stages(), "stage"), microbatches_text(schedule), difference_table(run),
      idle_table(run), path_table(run.measured), kernel_table(run), link_table(run.measured));
  if (!all.empty()) text += answers_table(all, run.measured.timeline.makespan, run.found);
  return text;
}

namespace {

using nlohmann::ordered_json;

// Boundaries are rounded before they are subtracted: so the parts of a worker add up to the makespan.
std::int64_t length(double start, double end) { return nanoseconds(end) - nanoseconds(start); }

ordered_json idle_json(std::span<const IdlePart> parts, const RecordedStep& step) {
  std::vector<std::array<std::int64_t, idle_cause_count>> by_cause(index(step.as_run.workers()));
  for (const IdlePart& part : parts)
    by_cause[index(part.worker)][index(part.cause)] += length(part.start, part.end);
  return array_of(by_cause, [&](const auto& of_worker) {
    ordered_json one;
    for (const IdleCause cause : shown_causes(step.as_run)) one[to_string(cause)] = of_worker[index(cause)];
    return one;
  });
}

ordered_json busy_json(const RecordedStep& step) {
  std::vector<std::int64_t> busy;
  for (const std::vector<JobId>& jobs : step.timeline.order) {
    busy.push_back(0);
    for (const JobId id : jobs) {
      const Span span = step.timeline.spans[id];
      busy.back() += length(span.start, span.end);
    }
  }
  return busy;
}

ordered_json kernel_json(const Kernel& kernel) {
  return {{"stage", kernel.stage}, {"pass", to_string(kernel.pass)}, {"worker", kernel.worker}};
}

ordered_json links_json(const std::vector<LinkWait>& links) {
  return array_of(links, [](const LinkWait& link) -> ordered_json {
    return {{"from", link.from}, {"to", link.to}, {"time", nanoseconds(link.seconds)}};
  });
}

ordered_json path_json(const RecordedStep& step) {
  const PathSummary path = summary(critical_path(step), step.as_run);
  const auto jobs = array_of(path.jobs, [](const PathSummary::Jobs& of_kind) {
    ordered_json one = kernel_json(of_kind);
    one["jobs"] = of_kind.count;
    one["time"] = nanoseconds(of_kind.seconds);
    return one;
  });
  return {{"jobs", jobs}, {"transfers", links_json(path.links)}, {"runtime", nanoseconds(path.runtime)}};
}

}  // namespace

ordered_json explanation_json(const ComparedRun& run) {
  const std::vector<IdlePart> parts = idle_parts(run.measured);
  ordered_json result = {
      {"busy", {{"predicted", busy_json(run.predicted)}, {"measured", busy_json(run.measured)}}},
      {"idle",
       {{"predicted", idle_json(idle_parts(run.predicted), run.predicted)},
        {"measured", idle_json(parts, run.measured)}}}};
  result["waited_for"] = array_of(producer_waits(parts, run.measured), [](const ProducerWait& wait) {
    ordered_json one = kernel_json(wait);
    one["time"] = nanoseconds(wait.seconds);
    return one;
  });
  result["waited_for_transfers"] = links_json(link_waits(parts));
  result["critical_path"] = path_json(run.measured);
  result["kernels"] = array_of(kernel_speeds(run.measured, run.work), [](const KernelSpeed& kernel) {
    ordered_json one = kernel_json(kernel);
    one["jobs"] = kernel.jobs;
    one["mean"] = nanoseconds(kernel.mean);
    one["times_typical"] = kernel.ratio;
    return one;
  });
  result["links"] = array_of(link_speeds(run.measured), [](const LinkSpeed& link) -> ordered_json {
    return {{"from", link.from},
            {"to", link.to},
            {"transfers", link.transfers},
            {"median", nanoseconds(link.median)},
            {"times_typical", link.ratio}};
  });
  const std::vector<BusyPort> ports = busy_ports(run.measured, run.costs);
  if (ports.empty()) return result;
  result["ports"] = array_of(ports, [&](const BusyPort& port) -> ordered_json {
    return {{"level", port.level},
            {"name", run.costs.links.levels()[port.level].name},
            {"workers", {port.first_worker, port.last_worker}},
            {"direction", port.out ? "out" : "in"},
            {"passing", nanoseconds(port.passing)},
            {"waited", nanoseconds(port.waited)}};
  });
  return result;
}

ordered_json explain_json(const ComparedRun& run, std::span<const Answer> all) {
  ordered_json json = compared_run_json(run);
  json.erase("record");
  json.update(explanation_json(run));
  if (all.empty()) return json;
  ordered_json& list = json["what_if"] = ordered_json::array();
  for (const auto& [change, makespan, divided, memory_limits] : all) {
    list.push_back({{"change", change}, {"makespan", nanoseconds(makespan)}});
    if (!memory_limits.empty()) list.back()["memory_limits"] = memory_limits;
    if (divided) list.back()["divided_backward"] = true;
  }
  return json;
}

}  // namespace starpipe::plan
