// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/formats/schedule_json.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "plan/formats/schedule_values.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Returns, for each kind of transfers that may occur, the counts or the bytes that each worker received.
ordered_json received(const Schedule& schedule, const Timeline& timeline, std::uint64_t Received::*figure) {
  ordered_json result;
  for (const TransferKind& kind : transfer_kinds) {
    if (!may_occur(kind, schedule)) continue;
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
      if (schedule.has_peers()) row.back()["n"] = schedule.turn(id);
      if (schedule.last_of_pair(id) != id) row.back()["with_next"] = true;
    }
    all.push_back(std::move(row));
  }
  return all;
}

/// Returns the copies of each worker's stashes. `position`: so many ops of the worker come before, by n.
ordered_json copies(const Schedule& schedule, const Timeline& timeline) {
  ordered_json all = ordered_json::array();
  for (int worker = 0; worker < schedule.workers(); ++worker) {
    ordered_json row = ordered_json::array();
    const auto order = schedule.order(worker);
    for (const JobId id : schedule.copies_of(worker)) {
      if (schedule.compute(id) != worker) continue;
      const Job job = schedule.job(id);
      const Span span = timeline.spans[id];
      const auto before = std::ranges::partition_point(
          order, [&](JobId other) { return schedule.turn(other) < schedule.turn(id); });
      row.push_back({{"op", to_string(job.pass)},
                     {"stage", job.stage},
                     {"microbatch", job.microbatch},
                     {"home", to_string(schedule.home(job.stage, job.microbatch))},
                     {"position", before - order.begin()},
                     {"start", number(span.start)},
                     {"end", number(span.end)}});
      if (schedule.has_peers()) row.back()["n"] = schedule.turn(id);
    }
    all.push_back(std::move(row));
  }
  return all;
}

std::optional<std::int64_t> read_n(const JsonValue& job) {
  const auto n = job.find("n");
  return n ? std::optional<std::int64_t>(n->whole(0)) : std::nullopt;
}

ListedCopy read_copy(const JsonValue& value) {
  constexpr std::array<std::string_view, 8> keys = {"op",       "stage", "microbatch", "home",
                                                    "position", "start", "end",        "n"};
  value.object().only(keys);
  ListedCopy copy = {
      .job = {value.at("stage").whole(0), value.at("microbatch").whole(0), read_pass(value.at("op"))},
      .home = value.at("home").parsed(parse_home, "host, disk or worker:N"),
      .position = index(value.at("position").whole(0)),
      .n = read_n(value)};
  if (!is_copy(copy.job.pass)) value.at("op").expected("O or L");
  if (!is_copied(copy.home)) value.at("home").expected("host, disk or worker:N");
  return copy;
}

constexpr std::array<std::string_view, 8> op_keys = {"op",  "stage",        "microbatch", "start",
                                                     "end", "weights_from", "n",          "with_next"};

/// An op of a file. Its times describe the run that was written; reading checks them and does not use them.
struct ReadOp {
  JsonValue value;
  Job job;
  std::optional<int> weights = {};
  std::optional<std::int64_t> n = {};
  std::optional<double> start = {};
  std::optional<double> end = {};
  bool with_next = false;
};
using OpRow = std::vector<ReadOp>;

/// Reads an op or a copy: its job and its times.
ReadOp read_timed(const JsonValue& value) {
  ReadOp op{value, {value.at("stage").whole(0), value.at("microbatch").whole(0), read_pass(value.at("op"))}};
  if (const auto start = value.find("start")) {
    op.start = start->number();
    if (*op.start < 0) start->fail(fmt::format("{} is before the run", *op.start));
  }
  if (const auto end = value.find("end")) {
    op.end = end->number();
    if (op.start && *op.end < *op.start) end->fail(fmt::format("{} is before the start", *op.end));
  }
  return op;
}

ReadOp read_op(const JsonValue& value) {
  value.object().only(op_keys);
  ReadOp op = read_timed(value);
  if (is_copy(op.job.pass)) value.at("op").fail("is a copy, and belongs in \"copies\"");
  if (const auto weights = value.find("weights_from")) op.weights = weights->whole(0);
  op.n = read_n(value);
  if (const auto pair = value.find("with_next")) op.with_next = pair->truth();
  return op;
}

/// Refuses the start of `later`, which is before `bound`, a time of `other`.
[[noreturn]] void refuse_start(const ReadOp& later, double bound, std::string_view time, const ReadOp& other,
                               std::string_view relation) {
  later.value.at("start").fail(
      fmt::format("{} is before {}, the {} of {}{}; the order of the list counts, and times may be left out",
                  *later.start, bound, time, other.value.path(), relation));
}

/// True if `start` is before `end` by more than rounding explains.
bool is_before(double start, double end) { return start < end - 1e-9 * std::abs(end); }

/// Returns two ops of one worker, all of which have a start, of which the second begins while the first runs.
std::optional<std::pair<ReadOp, ReadOp>> find_overlap(OpRow row) {
  std::ranges::sort(row, {}, [](const ReadOp& op) { return std::pair(op.start, op.end); });
  for (std::size_t i = 1; i < row.size(); ++i) {
    const auto end = row[i - 1].end;
    if (end && is_before(*row[i].start, *end)) return std::pair(row[i - 1], row[i]);
  }
  return std::nullopt;
}

/// Refuses times that no run of one worker can have had: the user edited them, and the intended order is
/// unclear. When the times are possible but descend, the user edited the list of a written run: the list
/// counts. Without all ends overlaps cannot be found, so starts must ascend.
void require_agreement(OpRow row) {
  std::erase_if(row, [](const ReadOp& op) { return !op.start; });
  const auto overlap = find_overlap(row);
  const bool ends = std::ranges::all_of(row, [](const ReadOp& op) { return op.end.has_value(); });
  const auto later = std::ranges::is_sorted_until(row, {}, &ReadOp::start);
  if (later != row.end() && (overlap || !ends)) {
    const ReadOp& earlier = *std::prev(later);
    refuse_start(*later, *earlier.start, "start", earlier, ", which is listed earlier");
  }
  if (overlap)
    refuse_start(overlap->second, *overlap->first.end, "end", overlap->first, " on the same worker");
}

OpRow read_row(const JsonValue& value) {
  OpRow row = value.list(read_op);
  require_agreement(row);
  return row;
}

/// Refuses a job that starts before a job that it waits for has ended: no run can have had such times.
void require_ready(const std::vector<OpRow>& rows, const Schedule& schedule) {
  std::vector<const ReadOp*> ops(schedule.id_count());
  for (const OpRow& row : rows) {
    for (const ReadOp& op : row) ops[schedule.find(op.job).value()] = &op;
  }
  for (const JobId id : schedule.order()) {
    const ReadOp& op = *ops[id];
    schedule.for_each_pred(id, [&](JobId before) {
      const ReadOp& input = *ops[before];
      const std::optional<double> end = input.end ? input.end : input.start;
      if (!op.start || !end || !is_before(*op.start, *end)) return;
      refuse_start(op, *end, "end", input, fmt::format(", for which {} waits", to_string(op.job)));
    });
  }
}

/// Refuses unknown keys, and values of the wrong type where reading ignores the value: keys that describe the
/// run that was written, or how the schedule was found.
void require_known_keys(const JsonValue& file) {
  using Keys = std::vector<std::string_view>;
  Keys known;
  const auto add = [&](const Keys& keys, auto require_kind) {
    for (const std::string_view key : keys) {
      known.push_back(key);
      if (const auto value = file.find(key)) require_kind(*value);
    }
  };
  const auto is_read = [](const JsonValue& /*value*/) {};
  add({"schedule", "workers", "stages", "microbatches", "slices", "split_backward", "discipline",
       "stage_graph", "memory_limits", "recompute", "late_recomputation", "unit"},
      is_read);
  add({"durations",       "comm",
       "comm_per_byte",   "links",
       "workers_of_rank", "ordered_messages",
       "relays",          "messages_pass_hosts",
       "prefetch",        "sizes",
       "shared_weights",  "stages_without_weights",
       "stages_that_add", "stages_without_keys_values",
       "shards",          "ops",
       "copies",          "host_link",
       "disk_link",       "peer_link",
       "overlap"},
      is_read);
  add({"makespan", "gradients_summed", "bubble_fraction", "recomputed_fraction", "device_span",
       "device_bubble_fraction", "lower_bound"},
      [](const JsonValue& value) { static_cast<void>(value.number()); });
  add({"peak_stashes", "peak_stash_bytes", "memory", "memory_over_time", "cuts"},
      [](const JsonValue& value) { value.array(); });
  const auto add_object = [&](std::string_view name, const Keys& keys) {
    add({name}, [&](const JsonValue& value) { value.only(keys); });
  };
  Keys kinds;
  for (const TransferKind& kind : transfer_kinds) kinds.push_back(kind.key);
  add_object("received", kinds);
  add_object("received_bytes", kinds);
  add_object("search", {"layout", "chunks", "seed", "budget", "complete", "peak_memory", "memory_limit"});
  add_object("pattern", {"period", "microbatches", "normalized_period", "lower_bound", "optimal",
                         "concurrent_activations", "memory", "operations"});
  add_object("reordered", {"worker", "stashes", "limit"});
  add_object("stashes_kept", {"remade", "stashes", "makespan", "peak_stashes", "copied"});
  file.only(known);
}

std::string op_position(std::size_t row, std::size_t cell) { return fmt::format("ops[{}][{}]", row, cell); }
std::string copy_position(std::size_t row, std::size_t cell) {
  return fmt::format("copies[{}][{}]", row, cell);
}

}  // namespace

ordered_json schedule_json(const Schedule& schedule, const Costs& costs, const Timeline& timeline,
                           const std::string& unit) {
  ordered_json result;
  result["schedule"] = schedule.name();
  result["workers"] = schedule.workers();
  result["stages"] = schedule.stages();
  result["microbatches"] = schedule.microbatches();
  if (schedule.slices() > 1) result["slices"] = schedule.slices();
  result["split_backward"] = schedule.split_backward();
  result["discipline"] = to_string(schedule.discipline());
  if (!schedule.graph().is_chain()) result["stage_graph"] = schedule.graph().edges();
  if (!schedule.graph().shards().empty()) result["shards"] = schedule.graph().shards();
  if (!schedule.memory_limits().empty()) result["memory_limits"] = schedule.memory_limits();
  if (schedule.recomputes_late() && schedule.discipline() == Discipline::ordered)
    result["late_recomputation"] = true;
  if (!unit.empty()) result["unit"] = unit;
  add_costs(result, costs, schedule, CostsForm::schedule);
  result["makespan"] = number(timeline.makespan);
  if (timeline.gradients_summed) result["gradients_summed"] = number(*timeline.gradients_summed);
  result["bubble_fraction"] = number(timeline.bubble_fraction);
  if (schedule.recomputes()) result["recomputed_fraction"] = number(timeline.recomputed_fraction);
  result["device_span"] = number(timeline.device_span);
  result["device_bubble_fraction"] = number(timeline.device_bubble_fraction);
  result["peak_stashes"] = timeline.peak_stashes;
  result["received"] = received(schedule, timeline, &Received::count);
  if (costs.has_sizes()) {
    result["peak_stash_bytes"] = timeline.peak_stash_bytes;
    result["received_bytes"] = received(schedule, timeline, &Received::bytes);
  }
  result["ops"] = ops(schedule, timeline);
  if (schedule.copies()) result["copies"] = copies(schedule, timeline);
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

  std::vector<OpRow> rows = file.at("ops").list(read_row);
  Listing listing{.source_name = source_name, .position_text = op_position, .graph = graph};
  for (const OpRow& row : rows) {
    const int worker = static_cast<int>(listing.rows.size());
    std::vector<ListedJob>& jobs = listing.rows.emplace_back();
    for (const ReadOp& op : row)
      jobs.push_back({op.job, op.weights.value_or(worker), jobs.size(), op.n, op.with_next});
  }
  if (const auto value = file.find("copies")) {
    value->array();
    if (value->size() != rows.size())
      value->fail(fmt::format("{} entries, but \"ops\" has {} rows", value->size(), rows.size()));
    listing.copies = value->list([](const JsonValue& row) { return row.list(read_copy); });
    listing.copy_text = copy_position;
  }
  if (const auto value = file.find("workers")) {
    if (index(value->whole(1)) != rows.size())
      value->fail(fmt::format("{}, but \"ops\" has {} rows", value->whole(1), rows.size()));
  }
  if (const auto value = file.find("schedule")) listing.name = read_name(*value);
  read_schedule(file, listing);
  if (const auto limits = file.find("memory_limits"); limits && limits->size() == 0)
    limits->fail(fmt::format("0 entries for {} workers", rows.size()));
  Schedule schedule = schedule_from_listing(listing);
  if (const auto copied = file.find("copies")) {
    for (OpRow& row : copied->list([](const JsonValue& of) { return of.list(read_timed); }))
      rows.push_back(std::move(row));
  }
  require_ready(rows, schedule);
  if (const auto value = file.find("split_backward")) {
    if (value->truth() != schedule.split_backward()) {
      value->fail(fmt::format("{}, but \"ops\" {} split backward pass", value->truth(),
                              schedule.split_backward() ? "has a" : "has no"));
    }
  }
  Costs costs = read_costs(file, schedule, CostsForm::schedule);
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
