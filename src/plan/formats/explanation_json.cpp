// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/explanation_json.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "starpipe/base/index.hpp"
#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/explain/idle_sums.hpp"
#include "plan/explain/slowness.hpp"
#include "plan/formats/compared_run_json.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Boundaries are rounded before they are subtracted: so the parts of a worker add up to the makespan.
std::int64_t length(double start, double end) { return nanoseconds(end) - nanoseconds(start); }

ordered_json idle_json(std::span<const IdlePart> parts, int workers) {
  std::vector<std::array<std::int64_t, idle_cause_count>> by_cause(index(workers));
  for (const IdlePart& part : parts)
    by_cause[index(part.worker)][index(part.cause)] += length(part.start, part.end);
  ordered_json all = ordered_json::array();
  for (const auto& of_worker : by_cause) {
    ordered_json& one = all.emplace_back(ordered_json::object());
    for (std::size_t c = 0; c < of_worker.size(); ++c) one[idle_cause_words[c]] = of_worker[c];
  }
  return all;
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

ordered_json kernel_json(int stage, Pass pass, int worker) {
  return {{"stage", stage}, {"pass", to_string(pass)}, {"worker", worker}};
}

template <class Range, class Of>
ordered_json array_of(const Range& range, Of of) {
  ordered_json all = ordered_json::array();
  for (const auto& element : range) all.push_back(of(element));
  return all;
}

ordered_json links_json(const std::vector<LinkWait>& links) {
  return array_of(links, [](const LinkWait& link) -> ordered_json {
    return {{"from", link.from}, {"to", link.to}, {"time", nanoseconds(link.seconds)}};
  });
}

ordered_json path_json(const RecordedStep& step) {
  const PathSummary path = summary(critical_path(step), step.as_run);
  const auto jobs = array_of(path.jobs, [](const PathSummary::Jobs& of_kind) {
    ordered_json one = kernel_json(of_kind.stage, of_kind.pass, of_kind.worker);
    one["jobs"] = of_kind.count;
    one["time"] = nanoseconds(of_kind.seconds);
    return one;
  });
  return {{"jobs", jobs}, {"transfers", links_json(path.links)}, {"runtime", nanoseconds(path.runtime)}};
}

}  // namespace

ordered_json explanation_json(const ComparedRun& run) {
  const std::vector<IdlePart> parts = idle_parts(run.measured);
  const int workers = run.measured.as_run.workers();
  ordered_json result = {
      {"busy", {{"predicted", busy_json(run.predicted)}, {"measured", busy_json(run.measured)}}},
      {"idle",
       {{"predicted", idle_json(idle_parts(run.predicted), workers)},
        {"measured", idle_json(parts, workers)}}}};
  result["waited_for"] = array_of(producer_waits(parts, run.measured), [](const ProducerWait& wait) {
    ordered_json one = kernel_json(wait.stage, wait.pass, wait.worker);
    one["time"] = nanoseconds(wait.seconds);
    return one;
  });
  result["waited_for_transfers"] = links_json(link_waits(parts));
  result["critical_path"] = path_json(run.measured);
  result["kernels"] = array_of(kernel_speeds(run.measured, run.work), [](const KernelSpeed& kernel) {
    ordered_json one = kernel_json(kernel.stage, kernel.pass, kernel.worker);
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
  return result;
}

ordered_json explain_json(const ComparedRun& run, std::span<const Answer> all) {
  ordered_json json = compared_run_json(run);
  json.erase("record");
  json.update(explanation_json(run));
  if (all.empty()) return json;
  ordered_json& list = json["what_if"] = ordered_json::array();
  for (const auto& [change, makespan, divided, memory_limits] : all) {
    list.push_back({{"change", change}, {"makespan", std::llround(makespan * 1e9)}});
    if (!memory_limits.empty()) list.back()["memory_limits"] = memory_limits;
    if (divided) list.back()["divided_backward"] = true;
  }
  return json;
}

}  // namespace starpipe::plan
