// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/schedule_values.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "starpipe/base/error.hpp"

namespace starpipe::plan::detail {

Durations read_durations(const JsonValue& value) {
  std::vector<std::string_view> names;
  for (const PassTime& pass : pass_times) names.push_back(pass.name);
  value.only(names);
  Durations durations;
  for (const auto& [name, time] : pass_times) durations.*time = value.at(name).time();
  return durations;
}

Discipline read_discipline(const JsonValue& value) {
  try {
    return parse_discipline(value.word());
  } catch (const InputError&) {
    value.expected(fmt::format("{}", fmt::join(discipline_words, ", ")));
  }
}

std::string read_name(const JsonValue& value) {
  // In ASCII. Other characters may be part of a name.
  const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; };
  std::string name = value.word();
  if (std::ranges::any_of(name, is_control)) value.expected("a name without control characters");
  return name;
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

GraphOfStages with_shards(GraphOfStages graph, const JsonValue& value) {
  std::vector<std::vector<int>> shards;
  for (std::size_t i = 0; i < value.array().size(); ++i) {
    const JsonValue list = value.at(i);
    std::vector<int>& stages = shards.emplace_back();
    for (std::size_t k = 0; k < list.array().size(); ++k) stages.push_back(list.at(k).whole(0));
  }
  return [graph = std::move(graph), shards = std::move(shards), value](int stages) {
    const StageGraph without = graph(stages);
    try {
      return without.with_shards(shards);
    } catch (const InputError& error) {
      value.fail(error.what());
    }
  };
}

std::vector<int> read_memory_limits(const JsonValue& value, std::size_t workers) {
  if (value.array().size() != workers)
    value.fail(fmt::format("{} entries for {} workers", value.size(), workers));
  std::vector<int> limits;
  for (std::size_t w = 0; w < workers; ++w) limits.push_back(value.at(w).whole(1));
  return limits;
}

}  // namespace starpipe::plan::detail

namespace starpipe::plan {

nlohmann::ordered_json reordering_json(const Reordering& reordering) {
  return {{"worker", reordering.worker}, {"stashes", reordering.held}, {"limit", reordering.limit}};
}

}  // namespace starpipe::plan
