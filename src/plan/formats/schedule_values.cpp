// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/schedule_values.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"

namespace starpipe::plan {

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

nlohmann::ordered_json reordering_json(const Reordering& reordering) {
  return {{"worker", reordering.worker}, {"stashes", reordering.held}, {"limit", reordering.limit}};
}

namespace {

struct SizeKind {
  std::string_view key;
  std::uint64_t StageSizes::*size;
};
constexpr std::array<SizeKind, 6> size_kinds = {{{"activation", &StageSizes::activation},
                                                 {"gradient", &StageSizes::gradient},
                                                 {"stash", &StageSizes::stash},
                                                 {"gradient_stash", &StageSizes::gradient_stash},
                                                 {"weights", &StageSizes::weights},
                                                 {"master", &StageSizes::master}}};

StageSizes read_stage_sizes(const JsonValue& value) {
  std::vector<std::string_view> names;
  std::ranges::transform(size_kinds, std::back_inserter(names), &SizeKind::key);
  value.only(names);
  StageSizes sizes;
  for (const auto& [key, size] : size_kinds) {
    if (const auto bytes = value.find(key)) sizes.*size = bytes->bytes();
  }
  return sizes;
}

/// True if the object says how many bytes transfers have: some have bytes, or "sizes" has zeros for them.
bool says_bytes(const JsonValue& object, const Costs& costs) {
  if (const auto sizes = object.find("sizes")) {
    const bool is_list = sizes->raw().is_array() && sizes->size() > 0;
    const JsonValue of_stage = is_list ? sizes->at(std::size_t{0}) : *sizes;
    if (of_stage.find("activation") && of_stage.find("gradient")) return true;
  }
  return std::ranges::any_of(costs.sizes, [](const StageSizes& sizes) {
    return sizes.activation > 0 || sizes.gradient > 0 || sizes.updated() > 0;
  });
}

LinkLevel read_level(const JsonValue& value, bool last) {
  constexpr std::array<std::string_view, 5> keys = {"name", "workers", "comm", "comm_per_byte", "sharing"};
  value.object().only(keys);
  LinkLevel level;
  if (const auto name = value.find("name")) level.name = name->word();
  if (!last) level.workers = value.at("workers").whole(2);
  level.link = {.alpha = value.at("comm").time(), .beta = value.at("comm_per_byte").time()};
  const JsonValue sharing = value.at("sharing");
  const auto word = std::ranges::find(sharing_words, sharing.word());
  if (word == sharing_words.end()) sharing.expected("none, in-order or fair");
  level.sharing = static_cast<Sharing>(word - sharing_words.begin());
  return level;
}

Links read_levels(const JsonValue& list) {
  std::vector<LinkLevel> levels;
  for (std::size_t l = 0; l < list.array().size(); ++l) {
    levels.push_back(read_level(list.at(l), l + 1 == list.size()));
  }
  try {
    return Links(std::move(levels));
  } catch (const InputError& error) {
    list.fail(error.what());
  }
}

}  // namespace

void add_sizes(nlohmann::ordered_json& object, const Costs& costs, int stages) {
  if (!costs.has_sizes() && !costs.links.has_bandwidths()) return;
  object["sizes"] = per_stage(stages, [&](int s) {
    nlohmann::ordered_json sizes;
    for (const auto& [key, size] : size_kinds) sizes[key] = costs.size(s).*size;
    return sizes;
  });
}

void read_sizes(const JsonValue& object, int stages, Costs& costs) {
  if (const auto value = object.find("sizes"))
    costs.sizes = read_per_stage<StageSizes>(*value, stages, read_stage_sizes);
}

void add_links(nlohmann::ordered_json& object, const Costs& costs) {
  if (costs.links.uniform()) {
    const Link link = costs.link(0, 1);
    object["comm"] = number(link.alpha);
    if (link.beta != 0) object["comm_per_byte"] = link.beta;
  } else {
    const std::vector<LinkLevel>& levels = costs.links.levels();
    for (const LinkLevel& level : levels) {
      nlohmann::ordered_json& entry = object["links"].emplace_back();
      if (!level.name.empty()) entry["name"] = level.name;
      if (&level != &levels.back()) entry["workers"] = level.workers;
      entry["comm"] = number(level.link.alpha);
      entry["comm_per_byte"] = number(level.link.beta);
      entry["sharing"] = to_string(level.sharing);
    }
  }
  if (costs.workers_of_rank > 1 && costs.links.takes_time())
    object["workers_of_rank"] = costs.workers_of_rank;
}

void read_links(const JsonValue& object, Costs& costs) {
  const auto require_bytes = [&](const JsonValue& value) {
    if (!costs.links.has_bandwidths() || says_bytes(object, costs)) return;
    value.fail("needs the bytes of transfers, but the file has no sizes (activation, gradient or weights)");
  };
  const auto links = object.find("links");
  const auto latency = object.find("comm");
  const auto per_byte = object.find("comm_per_byte");
  if (links && (latency || per_byte)) links->fail("cannot be given together with comm and comm_per_byte");
  if (links) {
    costs.links = read_levels(*links);
    require_bytes(*links);
  } else {
    costs.links = Link{.alpha = latency ? latency->time() : 0, .beta = per_byte ? per_byte->time() : 0};
    if (per_byte) require_bytes(*per_byte);
  }
  if (const auto workers = object.find("workers_of_rank")) costs.workers_of_rank = workers->whole(1);
}

nlohmann::ordered_json durations_json(const Durations& durations) {
  nlohmann::ordered_json json;
  for (const auto& [name, time] : pass_times) json[name] = number(durations.*time);
  return json;
}

namespace {

std::vector<int> read_stages(const JsonValue& list, int stages) {
  std::vector<int> read;
  for (std::size_t i = 0; i < list.array().size(); ++i) {
    const JsonValue entry = list.at(i);
    const int stage = entry.whole(0);
    if (stage >= stages) entry.fail(fmt::format("there are {} stages", stages));
    if (!read.empty() && stage <= read.back()) entry.fail("stages must ascend");
    read.push_back(stage);
  }
  return read;
}

}  // namespace

void add_weights(nlohmann::ordered_json& object, const Costs& costs, int stages) {
  for (const SharedWeights& shared : costs.shared) {
    object["shared_weights"].push_back(
        {{"stages", shared.stages}, {"weights", shared.weights}, {"master", shared.master}});
  }
  for (int s = 0; s < stages; ++s) {
    if (!costs.size(s).has_weights) object["stages_without_weights"].push_back(s);
    if (costs.size(s).adds_inputs) object["stages_that_add"].push_back(s);
  }
}

void read_weights(const JsonValue& object, int stages, Costs& costs) {
  if (const auto list = object.find("shared_weights")) {
    constexpr std::array<std::string_view, 3> keys = {"stages", "weights", "master"};
    for (std::size_t i = 0; i < list->array().size(); ++i) {
      const JsonValue entry = list->at(i).object();
      entry.only(keys);
      SharedWeights& shared = costs.shared.emplace_back();
      shared.stages = read_stages(entry.at("stages"), stages);
      if (shared.stages.empty()) entry.at("stages").fail("needs a stage");
      shared.weights = entry.at("weights").bytes();
      shared.master = entry.at("master").bytes();
    }
  }
  const auto for_each_listed = [&](const char* key, const auto& f) {
    const auto list = object.find(key);
    if (!list) return;
    const StageSizes same = costs.sizes.front();
    if (costs.sizes.size() == 1) costs.sizes.assign(index(stages), same);
    for (const int stage : read_stages(*list, stages)) f(stage, costs.sizes[index(stage)], *list);
  };
  for_each_listed("stages_without_weights", [](int stage, StageSizes& sizes, const JsonValue& list) {
    if (sizes.updated() > 0) list.fail(fmt::format("the sizes say that stage {} has weights", stage));
    sizes.has_weights = false;
  });
  for_each_listed("stages_that_add",
                  [](int, StageSizes& sizes, const JsonValue&) { sizes.adds_inputs = true; });
}

}  // namespace starpipe::plan
