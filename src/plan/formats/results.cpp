// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/results.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "plan/drawing/page.hpp"
#include "plan/explain/recorded_step.hpp"
#include "plan/formats/schedule_values.hpp"
#include "plan/formats/trace_json.hpp"
#include "plan/schedules/best_pattern.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/search/unit_costs.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {

nlohmann::ordered_json predicted_json(const PredictedRun& run, const nlohmann::ordered_json& more) {
  nlohmann::ordered_json json = schedule_json(run.schedule, run.costs, run.timeline, run.unit);
  nlohmann::ordered_json ops = std::move(json["ops"]);
  json.erase("ops");
  if (run.discipline) json["discipline"] = to_string(*run.discipline);
  if (run.reordering) json["reordered"] = reordering_json(*run.reordering);
  if (const auto kept = with_stashes_kept(run.schedule, run.costs)) {
    json["stashes_kept"] = {{"remade", kept->remade},
                            {"stashes", kept->stashes},
                            {"makespan", kept->makespan},
                            {"peak_stashes", kept->peak_stashes}};
    if (kept->copied > 0) json["stashes_kept"]["copied"] = kept->copied;
  }
  json.update(more);
  json["ops"] = std::move(ops);
  return json;
}

std::optional<KeptRun> with_stashes_kept(const Schedule& schedule, const Costs& costs) {
  if (!schedule.recomputes() && !schedule.copies()) return std::nullopt;
  const Schedule ordered =
      schedule.discipline() == Discipline::ordered ? schedule : ordered_as_simulated(schedule, costs);
  const Schedule kept = ordered.with_homes([](int, int) { return Home::worker; }).with(Discipline::ordered);
  const Timeline timeline = simulate(kept, costs);
  const auto count = [&](Pass pass) {
    const auto has = [&](JobId id) { return schedule.job(id).pass == pass; };
    return static_cast<int>(std::ranges::count_if(schedule.order(), has));
  };
  return KeptRun{.remade = count(Pass::R),
                 .copied = count(Pass::O),
                 .stashes = schedule.stages() * schedule.microbatches(),
                 .makespan = timeline.makespan,
                 .peak_stashes = timeline.peak_stashes};
}

std::string describe_kept(const PredictedRun& run) {
  const std::optional<KeptRun> kept = with_stashes_kept(run.schedule, run.costs);
  if (!kept) return "";
  const ShownUnit shown(run.unit, run.timeline.makespan);
  std::string what = fmt::format("{} of {} stashes are made again", kept->remade, kept->stashes);
  if (kept->copied > 0) {
    what = fmt::format("{} of {} stashes are copied to their homes", kept->copied, kept->stashes);
    if (kept->remade > 0) what += fmt::format(", {} are made again", kept->remade);
  }
  return fmt::format("{}; with all kept, the makespan is {}, and a worker holds up to {}\n", what,
                     shown.text(kept->makespan), std::ranges::max(kept->peak_stashes));
}

std::string lost_in_csv(const Schedule& schedule) {
  const bool moves_weights = std::ranges::any_of(
      schedule.order(), [&](JobId id) { return schedule.placement(id).weights != schedule.compute(id); });
  std::vector<std::string_view> lost;
  if (!schedule.graph().is_chain()) lost.emplace_back("which stages read which");
  if (moves_weights) lost.emplace_back("which workers hold the weights");
  if (lost.empty()) return "";
  return fmt::format("a CSV file cannot say {}; a JSON file can", fmt::join(lost, " and "));
}

std::string predicted_page(const PredictedRun& run, const nlohmann::ordered_json& more) {
  const RecordedStep step = simulated_step(run.schedule, run.costs);
  const std::array runs = {PageRun{.title = run.schedule.name(),
                                   .unit = run.unit,
                                   .costs = run.costs,
                                   .timelines = {{"predicted", &step}},
                                   .report = &more}};
  return report_page(runs);
}

std::string predicted_svg(const PredictedRun& run) {
  const Schedule schedule = run.costs.overlap ? run.schedule : run.schedule.without_pairs();
  const std::array runs = {DrawnRun{schedule.name(), &schedule, &run.timeline}};
  return timeline_svg(runs, {.unit = run.unit});
}

std::string predicted_trace(const PredictedRun& run) {
  const std::array runs = {DrawnRun{"predicted", &run.schedule, &run.timeline}};
  return trace_json(runs).dump() + "\n";
}

namespace {

PeriodicResult shortest(const PeriodicRequest& request) {
  if (!request.workers.empty()) {
    for (const auto& [given, part] :
         {std::pair(request.period.has_value(), "period"), {request.repeat.has_value(), "repeat"}}) {
      if (given) throw RequestError(fmt::format("{}: applies to chains with one stage per worker", part));
    }
    const PeriodicPattern pattern = busiest_worker_pattern(request.chain, request.workers);
    return {.pattern = pattern, .bound = pattern.period, .best_of = 1};
  }
  std::vector<int> limits(request.chain.size(), std::numeric_limits<int>::max());
  if (request.memory) limits = stash_limits(request.chain, *request.memory);
  const double bound = period_bound(request.chain, limits);
  if (request.period)
    return {.pattern = one_forward_one_backward_star(request.chain, *request.period), .bound = bound};
  const int max = request.repeat.value_or(1);
  PeriodicSearch best = best_pattern(request.chain, limits, max);
  return {.pattern = std::move(best.pattern), .bound = bound, .best_of = best.optimal ? max : 0};
}

}  // namespace

PeriodicResult solve_periodic(const PeriodicRequest& request) {
  PeriodicResult result = shortest(request);
  const std::vector<double> held = pattern_memory(result.pattern, request.chain);
  for (std::size_t w = 0; w < held.size(); ++w) {
    if (held[w] <= request.memory.value_or(held[w]) * (1 + 1e-9)) continue;
    throw RequestError(fmt::format("memory {}: worker {} would hold {}", *request.memory, w, held[w]));
  }
  return result;
}

Costs costs_of_chain(std::span<const ChainStage> chain) {
  Costs costs;
  costs.durations.clear();
  for (const ChainStage& stage : chain) costs.durations.push_back({stage.forward, stage.backward, 0});
  return costs;
}

nlohmann::ordered_json periodic_json(const PeriodicResult& result, std::span<const ChainStage> chain) {
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (const PeriodicOperation& op : result.pattern.operations) {
    operations.push_back({{"op", to_string(op.pass)},
                          {"stage", op.stage},
                          {"worker", op.worker},
                          {"start", op.start},
                          {"shift", op.shift}});
  }
  return {{"pattern",
           {{"period", result.pattern.period},
            {"microbatches", result.pattern.microbatches},
            {"normalized_period", result.pattern.normalized_period()},
            {"lower_bound", result.bound},
            {"optimal", result.best_of > 0},
            {"concurrent_activations", concurrent_activations(result.pattern, chain)},
            {"memory", pattern_memory(result.pattern, chain)},
            {"operations", std::move(operations)}}}};
}

nlohmann::ordered_json search_json(const SearchResult& result, const SearchOptions& options) {
  nlohmann::ordered_json search = {{"layout", to_string(result.layout)},
                                   {"chunks", result.chunks},
                                   {"seed", options.seed},
                                   {"budget", options.budget},
                                   {"complete", result.complete},
                                   {"peak_memory", result.peak_memory}};
  const std::vector<double>& limits = result.memory_limits;
  if (std::ranges::any_of(limits, [](double limit) { return std::isfinite(limit); }))
    search["memory_limit"] =
        limits.size() == 1 ? nlohmann::ordered_json(limits.front()) : nlohmann::ordered_json(limits);
  return {{"lower_bound", result.lower_bound}, {"search", search}};
}

namespace {

constexpr std::int64_t max_jobs = 2'000'000;

/// Returns the message of a schedule that refuses its request, `PART: WHY`. The option that asked for the
/// part takes the place of the part, which has no option of its own here.
std::string refusal(const ScheduledPartition& options, std::string_view message) {
  const bool chunks = message.starts_with("stages: ") && options.chunks;
  const bool groups = message.starts_with("groups: ");
  return fmt::format("{}: {}{}", chunks ? "chunks" : "schedule", message.substr(message.find(": ") + 2),
                     groups ? ", which `partition` cannot give" : "");
}

/// Returns the named schedule for `stages` stages.
Schedule make(const ScheduledPartition& options, int stages, const std::vector<int>& stage_workers) {
  try {
    return make_schedule(options.schedule, {.workers = options.request.workers,
                                            .microbatches = options.microbatches,
                                            .graph = StageGraph::chain(stages),
                                            .stage_workers = stage_workers});
  } catch (const RequestError& error) {
    throw RequestError(refusal(options, error.what()));
  }
}

bool takes_placement(const ScheduledPartition& options) {
  try {
    make(options, 1, {0});
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Returns the number of stages on each worker: --chunks, or else the schedule's own number.
int chunks_of(const ScheduledPartition& options) {
  return options.chunks.value_or(default_stages(find_schedule(options.schedule), 1));
}

/// Sets which stages a worker may get, and how many stashes of each stage the schedule holds.
void follow_schedule(ScheduledPartition& options) {
  PartitionRequest& request = options.request;
  const int units = static_cast<int>(request.units.size());
  const int chunks = chunks_of(options);
  const bool free = takes_placement(options);
  if (options.general && !free) {
    throw RequestError(
        fmt::format("general: {} has a placement of its own (1f1b takes any)", options.schedule));
  }
  if (options.general && options.chunks) throw RequestError("chunks: does not apply to a general partition");
  if (options.layout && (options.general || chunks == 1)) {
    throw RequestError("layout: applies to 2 chunks or more");
  }
  const int stages = options.general || (free && chunks == 1)
                         ? std::min(units, options.general ? units : request.workers)
                         : request.workers * chunks;
  if (std::int64_t{stages} * options.microbatches > max_jobs) {
    throw RequestError(
        fmt::format("microbatches: {} micro-batches of {} stages are too many jobs to simulate",
                    options.microbatches, stages));
  }
  if (stages > units) {
    throw RequestError(fmt::format("units: {} units do not make {} stages, {} on each of {} workers", units,
                                   stages, chunks, request.workers));
  }
  const Layout layout = options.layout.value_or(Layout::loop);
  std::vector<int> workers;
  if (free && chunks > 1) workers = layout_workers(layout, request.workers, chunks);
  if (free && chunks == 1) {
    for (int s = 0; s < stages; ++s) workers.push_back(s % request.workers);
  }
  const Schedule schedule = make(options, stages, workers);
  request.stashes = stashes_held(schedule);
  request.allocation = options.general       ? Allocation::general
                       : free && chunks == 1 ? Allocation::contiguous
                                             : Allocation::placed;
  if (schedule.split_backward()) {  // B's part of the stash also lasts until W
    for (UnitCosts& unit : request.units) unit.sizes.stash += unit.sizes.gradient_stash;
  }
  if (request.allocation != Allocation::placed) return;
  const auto placed = stage_workers_of(schedule);
  if (!placed) {
    throw RequestError(
        fmt::format("schedule: {} computes a stage on several workers, so its stages cannot be placed",
                    options.schedule));
  }
  if (options.layout && *placed != layout_workers(layout, request.workers, chunks)) {
    throw RequestError(fmt::format("layout: {} has a layout of its own, different from {}", options.schedule,
                                   to_string(layout)));
  }
  request.stage_workers = *placed;
}

}  // namespace

PartitionResult partition_for(const ScheduledPartition& asked) {
  ScheduledPartition options = asked;
  follow_schedule(options);
  const PartitionRequest& request = options.request;
  Partition found = partition(request);
  std::vector<int> kinds;
  for (const int worker : found.stage_workers) kinds.push_back(request.kinds[index(worker)]);
  Costs costs = stage_costs(request.units, found.cuts, kinds, request.shared);
  costs.links = request.links;
  const bool placed = request.allocation != Allocation::placed || takes_placement(options);
  const int stages = static_cast<int>(found.stage_workers.size());
  Timeline timeline =
      simulate(make(options, stages, placed ? found.stage_workers : std::vector<int>{}), costs);
  return {request, std::move(found), std::move(costs), std::move(timeline)};
}

}  // namespace starpipe::plan
