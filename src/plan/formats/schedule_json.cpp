// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/formats/schedule_json.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "plan/formats/listing.hpp"
#include "plan/simulate/run_order.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/durations_json.hpp"

namespace starpipe::plan {
namespace {

using detail::JsonValue;
using detail::number;
using nlohmann::json;
using nlohmann::ordered_json;

/// The value of `of(stage)` when it is the same for all stages, else an array with one value a stage.
template <class Of>
ordered_json per_stage(int stages, Of of) {
  ordered_json all = ordered_json::array();
  for (int s = 0; s < stages; ++s) all.push_back(of(s));
  const bool equal = std::all_of(all.begin(), all.end(), [&](const auto& v) { return v == all[0]; });
  return equal ? all[0] : all;
}

/// For each kind of transfers, the counts or the bytes that each worker received.
ordered_json received(const Timeline& timeline, std::uint64_t Received::*figure) {
  ordered_json result;
  for (const TransferKind& kind : transfer_kinds) {
    auto& row = result[kind.key] = ordered_json::array();
    for (const Transfers& transfers : timeline.received) row.push_back(transfers.*kind.member.*figure);
  }
  return result;
}

struct SizeKind {
  const char* key;
  std::uint64_t StageSizes::*size;
};
constexpr std::array<SizeKind, 6> size_kinds = {{{"activation", &StageSizes::activation},
                                                 {"gradient", &StageSizes::gradient},
                                                 {"stash", &StageSizes::stash},
                                                 {"gradient_stash", &StageSizes::gradient_stash},
                                                 {"weights", &StageSizes::weights},
                                                 {"master", &StageSizes::master}}};

bool has_sizes(const Costs& costs) {
  return std::any_of(costs.sizes.begin(), costs.sizes.end(), [](const StageSizes& sizes) {
    return std::any_of(size_kinds.begin(), size_kinds.end(),
                       [&](const SizeKind& kind) { return sizes.*kind.size != 0; });
  });
}

ordered_json ops(const Schedule& schedule, const Timeline& timeline) {
  ordered_json all = ordered_json::array();
  for (const auto& order : detail::run_order(schedule, timeline)) {
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

std::vector<detail::ListedJob> read_row(const JsonValue& row, std::size_t worker) {
  std::vector<detail::ListedJob> jobs;
  std::vector<double> starts;
  jobs.reserve(row.array().size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const JsonValue op = row.at(i).object();
    const JsonValue word = op.at("op");
    Job job{op.at("stage").whole(0), op.at("microbatch").whole(0), Pass::F};
    try {
      job.pass = parse_pass(word.word());
    } catch (const InputError&) {
      word.expected("F, B, W or BW");
    }
    const auto weights = op.find("weights_from");
    jobs.push_back({job, weights ? weights->whole(0) : static_cast<int>(worker), i});
    if (const auto start = op.find("start"); start && !start->raw().is_null()) {
      if (!start->raw().is_number()) start->expected("a number");
      starts.push_back(start->raw().get<double>());
    }
  }
  if (starts.size() == jobs.size()) {
    // Stable: jobs that take no time stay as listed.
    std::stable_sort(jobs.begin(), jobs.end(),
                     [&](const auto& a, const auto& b) { return starts[a.cell] < starts[b.cell]; });
  }
  return jobs;
}

/// Reads one value for all stages, or an array with one value a stage.
template <class T, class Read>
std::vector<T> read_per_stage(const JsonValue& value, int stages, Read read) {
  if (!value.raw().is_array()) return {read(value.object())};
  if (value.size() != index(stages)) {
    value.fail(fmt::format("{} entries for {} stages", value.size(), stages));
  }
  std::vector<T> all;
  for (std::size_t s = 0; s < value.size(); ++s) all.push_back(read(value.at(s).object()));
  return all;
}

Costs read_costs(const JsonValue& file, int stages) {
  Costs costs;
  if (const auto value = file.find("durations")) {
    costs.durations = read_per_stage<Durations>(*value, stages, [](const JsonValue& v) {
      Durations durations;
      for (const auto& [name, time] : pass_times) durations.*time = v.at(name).time();
      return durations;
    });
  }
  if (const auto value = file.find("sizes")) {
    costs.sizes = read_per_stage<StageSizes>(*value, stages, [](const JsonValue& v) {
      StageSizes sizes;
      for (const auto& [key, size] : size_kinds) {
        if (const auto bytes = v.find(key)) sizes.*size = bytes->bytes();
      }
      return sizes;
    });
  }
  if (const auto value = file.find("comm")) costs.alpha = value->time();
  if (const auto value = file.find("comm_per_byte")) costs.beta = value->time();
  if (const auto value = file.find("prefetch")) costs.prefetch = value->truth();
  return costs;
}

GraphOfStages read_graph(const JsonValue& value) {
  std::vector<std::pair<int, int>> edges;
  for (std::size_t i = 0; i < value.array().size(); ++i) {
    const JsonValue edge = value.at(i);
    if (!edge.raw().is_array() || edge.size() != 2) edge.expected("a pair of stages [from, to]");
    edges.emplace_back(edge.at(std::size_t{0}).whole(0), edge.at(std::size_t{1}).whole(0));
  }
  return [edges, value](int stages) {
    try {
      return StageGraph(stages, edges);
    } catch (const InputError& error) {
      value.fail(error.what());
    }
  };
}

std::string where(std::size_t row, std::size_t cell) { return fmt::format("ops[{}][{}]", row, cell); }

}  // namespace

ordered_json schedule_json(const Schedule& schedule, const Costs& costs, const Timeline& timeline) {
  ordered_json result;
  result["schedule"] = schedule.name();
  result["workers"] = schedule.workers();
  result["stages"] = schedule.stages();
  result["microbatches"] = schedule.microbatches();
  result["split_backward"] = schedule.split_backward();
  result["discipline"] = to_string(schedule.discipline());
  if (!schedule.graph().is_chain()) result["stage_graph"] = schedule.graph().edges();
  if (!schedule.memory_limits().empty()) result["memory_limits"] = schedule.memory_limits();
  if (schedule.recompute()) result["recompute"] = true;
  result["durations"] =
      per_stage(schedule.stages(), [&](int s) { return durations_json(costs.duration(s)); });
  result["comm"] = number(costs.alpha);
  if (costs.beta != 0) result["comm_per_byte"] = costs.beta;
  if (!costs.prefetch) result["prefetch"] = false;
  if (has_sizes(costs)) {
    result["sizes"] = per_stage(schedule.stages(), [&](int s) {
      ordered_json sizes;
      for (const auto& [key, size] : size_kinds) sizes[key] = costs.size(s).*size;
      return sizes;
    });
  }
  result["makespan"] = number(timeline.makespan);
  result["bubble_fraction"] = number(timeline.bubble_fraction);
  result["device_span"] = number(timeline.device_span);
  result["device_bubble_fraction"] = number(timeline.device_bubble_fraction);
  result["peak_activations"] = timeline.peak_activations;
  result["received"] = received(timeline, &Received::count);
  if (has_sizes(costs)) {
    result["peak_activation_bytes"] = timeline.peak_activation_bytes;
    result["received_bytes"] = received(timeline, &Received::bytes);
  }
  result["ops"] = ops(schedule, timeline);
  return result;
}

ImportedSchedule schedule_from_json(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph) {
  const json parsed = detail::parse_json(text, source_name);
  if (!parsed.is_object()) {
    throw InputError(fmt::format("{}: expected an object with \"ops\"", source_name));
  }
  const JsonValue file(parsed, "", source_name);

  detail::Listing listing;
  listing.source_name = source_name;
  listing.where = where;
  const JsonValue rows = file.at("ops").array();
  for (std::size_t w = 0; w < rows.size(); ++w) listing.rows.push_back(read_row(rows.at(w), w));
  if (const auto value = file.find("workers")) {
    if (index(value->whole(1)) != rows.size()) {
      value->fail(fmt::format("{}, but \"ops\" has {} rows", value->whole(1), rows.size()));
    }
  }
  if (const auto value = file.find("schedule")) listing.name = value->word();
  if (const auto value = file.find("stages")) listing.stages = value->whole(1);
  if (const auto value = file.find("microbatches")) listing.microbatches = value->whole(1);
  listing.graph = graph;
  if (const auto value = file.find("stage_graph")) listing.graph = read_graph(*value);
  if (const auto value = file.find("recompute")) listing.recompute = value->truth();
  if (const auto value = file.find("memory_limits")) {
    if (value->array().size() != rows.size()) {
      value->fail(fmt::format("{} entries for {} workers", value->size(), rows.size()));
    }
    for (std::size_t w = 0; w < rows.size(); ++w) {
      listing.memory_limits.push_back(value->at(w).whole(1));
    }
  }
  Schedule schedule = detail::schedule_from_listing(listing);
  if (const auto value = file.find("split_backward")) {
    if (value->truth() != schedule.split_backward()) {
      value->fail(fmt::format("{}, but \"ops\" {} B and W apart", value->truth(),
                              schedule.split_backward() ? "has" : "never has"));
    }
  }
  Costs costs = read_costs(file, schedule.stages());
  return {std::move(schedule), std::move(costs)};
}

}  // namespace starpipe::plan
