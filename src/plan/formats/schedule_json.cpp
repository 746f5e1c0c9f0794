// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/formats/schedule_json.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/listing.hpp"
#include "plan/formats/schedule_values.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Returns, for each kind of transfers, the counts or the bytes that each worker received.
ordered_json received(const Timeline& timeline, std::uint64_t Received::*figure) {
  ordered_json result;
  for (const TransferKind& kind : transfer_kinds) {
    auto& row = result[kind.key] = ordered_json::array();
    for (const Transfers& transfers : timeline.received) row.push_back(transfers.*kind.member.*figure);
  }
  return result;
}

ordered_json ops(const Schedule& schedule, const Timeline& timeline) {
  ordered_json all = ordered_json::array();
  for (const auto& order : timeline.order) {
    ordered_json row = ordered_json::array();
    for (const JobId id : order) {
      const Job job = schedule.job(id);
      const Span span = timeline.spans[id];
      row.push_back({{"op", to_string(job.pass)},
                     {"stage", job.stage},
                     {"microbatch", job.microbatch},
                     {"start", number(span.start)},
                     {"end", number(span.end)},
                     {"weights_from", schedule.placement(id).weights}});
    }
    all.push_back(std::move(row));
  }
  return all;
}

constexpr std::array<std::string_view, 6> op_keys = {"op",    "stage", "microbatch",
                                                     "start", "end",   "weights_from"};

/// Times of an op, where the file has them. They describe the run that was written; reading checks them and
/// ignores them.
struct OpTimes {
  JsonValue op;
  std::optional<double> start;
  std::optional<double> end;
};

OpTimes read_times(const JsonValue& op) {
  OpTimes times{op, {}, {}};
  if (const auto start = op.find("start")) {
    times.start = start->number();
    if (*times.start < 0) start->fail(fmt::format("{} is before the run", *times.start));
  }
  if (const auto end = op.find("end")) {
    times.end = end->number();
    if (times.start && *times.end < *times.start)
      end->fail(fmt::format("{} is before the start", *times.end));
  }
  return times;
}

constexpr const char* advice = "the order of the list counts, and times may be left out";

/// True if `start` is before `end` by more than rounding explains.
bool is_before(double start, double end) { return start < end - 1e-9 * std::abs(end); }

/// Two ops of which the second begins while the first runs.
struct Overlap {
  OpTimes first;
  OpTimes second;
};

/// Returns an overlap of the ops of one worker, all of which have a start.
std::optional<Overlap> find_overlap(std::vector<OpTimes> row) {
  std::ranges::sort(row, {}, [](const OpTimes& times) { return std::pair(times.start, times.end); });
  for (std::size_t i = 1; i < row.size(); ++i) {
    const auto end = row[i - 1].end;
    if (end && is_before(*row[i].start, *end)) return Overlap{row[i - 1], row[i]};
  }
  return std::nullopt;
}

/// Refuses times that no run of one worker can have had: the user edited them, and the intended order is
/// unclear. When the times are possible but descend, the user edited the list of a written run: the list
/// counts. Without all ends overlaps cannot be found, so starts must ascend.
void require_agreement(std::vector<OpTimes> row) {
  std::erase_if(row, [](const OpTimes& times) { return !times.start; });
  const std::optional<Overlap> overlap = find_overlap(row);
  const bool ends = std::ranges::all_of(row, [](const OpTimes& times) { return times.end.has_value(); });
  const auto later = std::ranges::is_sorted_until(row, {}, &OpTimes::start);
  if (later != row.end() && (overlap || !ends)) {
    const OpTimes& earlier = *std::prev(later);
    later->op.at("start").fail(fmt::format("{} is before {}, the start of {}, which is listed earlier; {}",
                                           *later->start, *earlier.start, earlier.op.path(), advice));
  }
  if (!overlap) return;
  overlap->second.op.at("start").fail(fmt::format("{} is before {}, the end of {} on the same worker; {}",
                                                  *overlap->second.start, *overlap->first.end,
                                                  overlap->first.op.path(), advice));
}

std::vector<ListedJob> read_row(const JsonValue& row, std::size_t worker) {
  std::vector<ListedJob> jobs;
  std::vector<OpTimes> times;
  jobs.reserve(row.array().size());
  times.reserve(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const JsonValue op = row.at(i).object();
    op.only(op_keys);
    const JsonValue word = op.at("op");
    Job job{op.at("stage").whole(0), op.at("microbatch").whole(0), Pass::F};
    try {
      job.pass = parse_pass(word.word());
    } catch (const InputError&) {
      word.expected("F, B, W or BW");
    }
    const auto weights = op.find("weights_from");
    jobs.push_back({job, weights ? weights->whole(0) : static_cast<int>(worker), i});
    times.push_back(read_times(op));
  }
  require_agreement(std::move(times));
  return jobs;
}

/// Refuses a job that starts before a job that it waits for has ended: no run can have had such times.
void require_ready(const JsonValue& rows, const Listing& listing, const Schedule& schedule) {
  struct Times {
    double start = std::numeric_limits<double>::quiet_NaN();
    double end = start;  // the start where the file has no end
    std::size_t row = 0;
    std::size_t cell = 0;
  };
  std::vector<Times> all(schedule.id_count());
  bool any = false;
  for (std::size_t w = 0; w < listing.rows.size(); ++w) {
    for (const ListedJob& listed : listing.rows[w]) {
      const json& op = rows.raw()[w][listed.cell];
      const auto start = op.find("start");
      const auto end = op.find("end");
      Times& times = all[schedule.find(listed.job).value()];
      times.row = w;
      times.cell = listed.cell;
      if (start != op.end()) times.start = times.end = start->get<double>();
      if (end != op.end()) times.end = end->get<double>();
      any = any || start != op.end();
    }
  }
  for (const JobId id : schedule.order()) {
    if (!any) return;
    schedule.for_each_pred(id, [&](JobId before) {
      const Times& job = all[id];
      const Times& input = all[before];
      if (!is_before(job.start, input.end)) return;
      rows.at(job.row).at(job.cell).at("start").fail(
          fmt::format("{} is before {}, the end of {}, for which {} waits; {}", job.start, input.end,
                      rows.at(input.row).at(input.cell).path(), to_string(schedule.job(id)), advice));
    });
  }
}

Costs costs_of_file(const JsonValue& file, int stages) {
  Costs costs;
  if (const auto value = file.find("durations")) {
    costs.durations = read_per_stage<Durations>(*value, stages, read_durations);
  }
  read_sizes(file, stages, costs);
  read_links(file, costs);
  if (const auto value = file.find("prefetch")) {
    costs.prefetch = value->truth();
    if (!costs.prefetch && !costs.links.takes_time()) value->fail("false needs transfers that take time");
  }
  read_weights(file, stages, costs);
  return costs;
}

// The keys that a schedule is read from.
constexpr std::array<std::string_view, 21> schedule_keys = {"schedule",
                                                            "workers",
                                                            "stages",
                                                            "microbatches",
                                                            "split_backward",
                                                            "discipline",
                                                            "stage_graph",
                                                            "memory_limits",
                                                            "recompute",
                                                            "unit",
                                                            "durations",
                                                            "comm",
                                                            "comm_per_byte",
                                                            "links",
                                                            "workers_of_rank",
                                                            "prefetch",
                                                            "sizes",
                                                            "shared_weights",
                                                            "stages_without_weights",
                                                            "stages_that_add",
                                                            "shards"};
// The keys that describe the run that was written, or how the schedule was found. Reading ignores their
// values.
constexpr std::array<std::string_view, 6> ignored_numbers = {
    "makespan",    "gradients_summed",       "bubble_fraction",
    "device_span", "device_bubble_fraction", "lower_bound"};
constexpr std::array<std::string_view, 4> ignored_arrays = {"peak_activations", "peak_activation_bytes",
                                                            "memory", "memory_over_time"};
struct IgnoredObject {
  std::string_view name;
  std::vector<std::string_view> keys;
};
std::vector<IgnoredObject> ignored_objects() {
  std::vector<std::string_view> kinds;
  for (const TransferKind& kind : transfer_kinds) kinds.push_back(kind.key);
  return {{"received", kinds},
          {"received_bytes", kinds},
          {"search", {"layout", "chunks", "seed", "budget", "complete", "peak_memory", "memory_limit"}},
          {"pattern",
           {"period", "microbatches", "normalized_period", "lower_bound", "optimal", "concurrent_activations",
            "memory", "operations"}},
          {"reordered", {"worker", "stashes", "limit"}}};
}

/// Refuses unknown keys, and values of the wrong type among those that reading ignores.
void require_known_keys(const JsonValue& file) {
  std::vector<std::string_view> known(schedule_keys.begin(), schedule_keys.end());
  known.emplace_back("ops");
  const auto add = [&](const auto& keys, auto require_kind) {
    for (const std::string_view key : keys) {
      known.push_back(key);
      if (const auto value = file.find(key)) require_kind(*value);
    }
  };
  add(ignored_numbers, [](const JsonValue& value) { static_cast<void>(value.number()); });
  add(ignored_arrays, [](const JsonValue& value) { value.array(); });
  for (const IgnoredObject& object : ignored_objects()) {
    known.push_back(object.name);
    if (const auto value = file.find(object.name)) value->only(object.keys);
  }
  file.only(known);
}

std::string op_position(std::size_t row, std::size_t cell) { return fmt::format("ops[{}][{}]", row, cell); }

}  // namespace

ordered_json schedule_json(const Schedule& schedule, const Costs& costs, const Timeline& timeline,
                           const std::string& unit) {
  ordered_json result;
  result["schedule"] = schedule.name();
  result["workers"] = schedule.workers();
  result["stages"] = schedule.stages();
  result["microbatches"] = schedule.microbatches();
  result["split_backward"] = schedule.split_backward();
  result["discipline"] = to_string(schedule.discipline());
  if (!schedule.graph().is_chain()) result["stage_graph"] = schedule.graph().edges();
  if (!schedule.graph().shards().empty()) result["shards"] = schedule.graph().shards();
  if (!schedule.memory_limits().empty()) result["memory_limits"] = schedule.memory_limits();
  if (schedule.recompute()) result["recompute"] = true;
  if (!unit.empty()) result["unit"] = unit;
  result["durations"] =
      per_stage(schedule.stages(), [&](int s) { return durations_json(costs.duration(s)); });
  add_links(result, costs);
  if (!costs.prefetch && costs.links.takes_time()) result["prefetch"] = false;
  add_sizes(result, costs, schedule.stages());
  add_weights(result, costs, schedule.stages());
  result["makespan"] = number(timeline.makespan);
  if (timeline.gradients_summed) result["gradients_summed"] = number(*timeline.gradients_summed);
  result["bubble_fraction"] = number(timeline.bubble_fraction);
  result["device_span"] = number(timeline.device_span);
  result["device_bubble_fraction"] = number(timeline.device_bubble_fraction);
  result["peak_activations"] = timeline.peak_stashes;
  result["received"] = received(timeline, &Received::count);
  if (costs.has_sizes()) {
    result["peak_activation_bytes"] = timeline.peak_stash_bytes;
    result["received_bytes"] = received(timeline, &Received::bytes);
  }
  result["ops"] = ops(schedule, timeline);
  return result;
}

ImportedSchedule schedule_from_json(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph) {
  const json parsed = parse_json(text, source_name);
  if (!parsed.is_object()) {
    throw InputError(fmt::format("{}: expected an object with \"ops\"", source_name));
  }
  const JsonValue file(parsed, "", source_name);

  require_known_keys(file);

  Listing listing;
  listing.source_name = source_name;
  listing.position_text = op_position;
  const JsonValue rows = file.at("ops").array();
  for (std::size_t w = 0; w < rows.size(); ++w) listing.rows.push_back(read_row(rows.at(w), w));
  if (const auto value = file.find("workers")) {
    if (index(value->whole(1)) != rows.size()) {
      value->fail(fmt::format("{}, but \"ops\" has {} rows", value->whole(1), rows.size()));
    }
  }
  if (const auto value = file.find("schedule")) listing.name = read_name(*value);
  if (const auto value = file.find("stages")) listing.stages = value->whole(1);
  if (const auto value = file.find("microbatches")) listing.microbatches = value->whole(1);
  listing.graph = graph;
  if (const auto value = file.find("stage_graph")) listing.graph = read_graph(*value);
  if (const auto value = file.find("shards")) listing.graph = with_shards(listing.graph, *value);
  if (const auto value = file.find("recompute")) listing.recompute = value->truth();
  if (const auto value = file.find("discipline")) listing.discipline = read_discipline(*value);
  if (const auto value = file.find("memory_limits"))
    listing.memory_limits = read_memory_limits(*value, rows.size());
  Schedule schedule = schedule_from_listing(listing);
  require_ready(rows, listing, schedule);
  if (const auto value = file.find("split_backward")) {
    if (value->truth() != schedule.split_backward()) {
      value->fail(fmt::format("{}, but \"ops\" {} split backward pass", value->truth(),
                              schedule.split_backward() ? "has a" : "has no"));
    }
  }
  Costs costs = costs_of_file(file, schedule.stages());
  std::string unit;
  if (const auto value = file.find("unit")) {
    unit = value->word();
    if (unit != "s") value->expected("\"s\", the only unit with a name");
  }
  return {std::move(schedule), std::move(costs), std::move(unit)};
}

ImportedSchedule schedule_from_text(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph) {
  const auto first = text.find_first_not_of(" \t\r\n");
  const std::string suffix = suffix_of(source_name);
  const bool brace = first != std::string_view::npos && text[first] == '{';
  if (suffix == ".json" || (brace && suffix != ".csv")) {
    return schedule_from_json(text, source_name, graph);
  }
  return {schedule_from_csv(text, source_name, graph), Costs{}};
}

}  // namespace starpipe::plan
