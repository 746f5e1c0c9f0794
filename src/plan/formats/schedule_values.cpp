// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/schedule_values.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;

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

/// Sizes of what slices read of each other. Other schedules have none, and files leave zeros out.
constexpr std::array<SizeKind, 2> slice_size_kinds = {
    {{"keys_values", &StageSizes::keys_values}, {"keys_values_gradient", &StageSizes::keys_values_gradient}}};

template <class Table, class Key>
std::vector<std::string_view> keys_of(const Table& table, Key key) {
  std::vector<std::string_view> keys;
  std::ranges::transform(table, std::back_inserter(keys), key);
  return keys;
}

StageSizes read_stage_sizes(const JsonValue& value) {
  std::vector<std::string_view> known = keys_of(size_kinds, &SizeKind::key);
  std::ranges::copy(keys_of(slice_size_kinds, &SizeKind::key), std::back_inserter(known));
  value.only(known);
  StageSizes sizes;
  const auto read = [&](const SizeKind& kind) {
    if (const auto bytes = value.find(kind.key)) sizes.*kind.size = bytes->bytes();
  };
  std::ranges::for_each(size_kinds, read);
  std::ranges::for_each(slice_size_kinds, read);
  return sizes;
}

ordered_json sizes_json(const StageSizes& sizes) {
  ordered_json all;
  for (const auto& [key, size] : size_kinds) all[key] = sizes.*size;
  for (const auto& [key, size] : slice_size_kinds) {
    if (sizes.*size > 0) all[key] = sizes.*size;
  }
  return all;
}

/// Returns the value of `of(stage, slice)` if it is always the same, else an array with one value per stage,
/// or per stage and slice where slices differ.
template <class Of>
ordered_json per_stage(int stages, int slices, Of of) {
  ordered_json all = ordered_json::array();
  for (int s = 0; s < stages; ++s) {
    for (int k = 0; k < slices; ++k) all.push_back(of(s, k));
  }
  const bool same = std::ranges::all_of(all, [&](const ordered_json& value) { return value == all[0]; });
  return same ? all[0] : all;
}
/// Reads what per_stage() returns: a list with one value for all stages, or one value per stage, or per stage
/// and slice.
template <class Read>
auto read_per_stage(const JsonValue& value, const Schedule& schedule, Read read) {
  const auto read_object = [&](const JsonValue& one) { return read(one.object()); };
  if (!value.raw().is_array()) return std::vector{read_object(value)};
  const std::size_t stages = index(schedule.stages());
  const std::size_t slices = index(schedule.slices());
  if (value.size() != stages && value.size() != stages * slices) {
    const std::string of_slices = slices > 1 ? fmt::format(" of {} slices", slices) : "";
    value.fail(fmt::format("{} entries for {} stages{}", value.size(), stages, of_slices));
  }
  return value.list(read_object);
}

/// Where slices have entries of their own, repeats the other entries for each slice.
void complete_slices(Costs& costs, const Schedule& schedule) {
  const std::size_t stages = index(schedule.stages());
  const std::size_t all = stages * index(schedule.slices());
  if (all == stages || (costs.durations.size() != all && costs.sizes.size() != all)) return;
  costs.slices = schedule.slices();
  const auto repeat = [&](auto& entries) {
    if (entries.size() != stages || stages == 1) return;
    auto of_slices = entries;
    of_slices.clear();
    for (const auto& entry : entries) of_slices.insert(of_slices.end(), index(costs.slices), entry);
    entries = std::move(of_slices);
  };
  repeat(costs.durations);
  repeat(costs.sizes);
}

/// Reads the edges [from, to] of a stage graph. The returned function throws InputError for a number of
/// stages that the edges do not fit.
GraphOfStages read_graph(const JsonValue& value) {
  const auto edges = value.list([](const JsonValue& edge) {
    if (!edge.raw().is_array() || edge.size() != 2) edge.expected("a pair of stages [from, to]");
    return std::pair(edge.at(std::size_t{0}).whole(0), edge.at(std::size_t{1}).whole(0));
  });
  return [edges, value](int stages) {
    try {
      return StageGraph(stages, edges);
    } catch (const InputError& error) {
      value.fail(error.what());
    }
  };
}

/// Returns `graph` with the shards that a file names (StageGraph::with_shards).
GraphOfStages with_shards(const GraphOfStages& graph, const JsonValue& value) {
  const auto shards = value.list(
      [](const JsonValue& list) { return list.list([](const JsonValue& stage) { return stage.whole(0); }); });
  return [graph, shards, value](int stages) {
    const StageGraph without = graph(stages);
    try {
      return without.with_shards(shards);
    } catch (const InputError& error) {
      value.fail(error.what());
    }
  };
}

/// True if the object gives the bytes of transfers: some transfer has bytes, or "sizes" gives zeros.
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

void add_link(ordered_json& object, const Link& link) {
  object["comm"] = number(link.alpha);
  object["comm_per_byte"] = number(link.beta);
  for (const auto& [bytes, time] : link.times) object["times"].push_back({bytes, number(time)});
}

struct HomeLinkKey {
  std::string_view key;
  std::optional<HomeLink> Costs::*link;
};
constexpr std::array<HomeLinkKey, 3> home_links = {
    {{"host_link", &Costs::host}, {"disk_link", &Costs::disk}, {"peer_link", &Costs::peer}}};

void add_links(ordered_json& object, const Costs& costs) {
  for (const auto& [key, home] : home_links) {
    const std::optional<HomeLink>& link = costs.*home;
    if (!link) continue;
    ordered_json& entry = object[key];
    add_link(entry, link->link);
    entry["workers"] = link->workers;
    if (link->memory) entry["memory"] = *link->memory;
  }
  if (const Link& link = costs.link(0, 1); costs.links.uniform() && link.times.empty()) {
    object["comm"] = number(link.alpha);
    if (link.beta != 0) object["comm_per_byte"] = link.beta;
  } else {
    const std::vector<LinkLevel>& levels = costs.links.levels();
    for (const LinkLevel& level : levels) {
      ordered_json& entry = object["links"].emplace_back();
      if (!level.name.empty()) entry["name"] = level.name;
      if (&level != &levels.back()) entry["workers"] = level.workers;
      add_link(entry, level.link);
      entry["sharing"] = to_string(level.sharing);
      for (const auto& [member, beta] : level.ports)
        entry["ports"].push_back({{"member", member}, {"comm_per_byte", number(beta)}});
    }
  }
  if (costs.workers_of_rank > 1 && (costs.links.takes_time() || costs.has_slow_hosts()))
    object["workers_of_rank"] = costs.workers_of_rank;
  if (costs.ordered_messages && costs.links.takes_time()) object["ordered_messages"] = true;
  if (costs.relays && costs.links.takes_time()) object["relays"] = true;
  if (costs.has_slow_hosts()) object["messages_pass_hosts"] = true;
}

struct PairTime {
  std::string_view key;
  std::optional<double> Overlap::*time;
};
constexpr std::array<PairTime, 2> pair_times = {{{"F+B", &Overlap::F_B}, {"F+BW", &Overlap::F_BW}}};

void add_overlap(ordered_json& object, const Costs& costs) {
  if (!costs.overlap) return;
  ordered_json& entry = object["overlap"] = {{"factor", number(costs.overlap->factor)}};
  for (const auto& [key, time] : pair_times) {
    if ((*costs.overlap).*time) entry[key] = number(*((*costs.overlap).*time));
  }
}

Overlap read_overlap(const JsonValue& value) {
  constexpr std::array<std::string_view, 3> keys = {"factor", "F+B", "F+BW"};
  value.object().only(keys);
  Overlap overlap;
  if (const auto factor = value.find("factor")) {
    overlap.factor = factor->number();
    if (overlap.factor < 0 || overlap.factor > 1) factor->fail("must be from 0 to 1");
  }
  for (const auto& [key, time] : pair_times) {
    if (const auto given = value.find(key)) overlap.*time = given->time();
  }
  return overlap;
}

Link read_link(const JsonValue& value) {
  Link link = {.alpha = value.at("comm").time(), .beta = value.at("comm_per_byte").time()};
  if (const auto times = value.find("times")) {
    link.times = times->list([](const JsonValue& pair) {
      if (!pair.raw().is_array() || pair.size() != 2) pair.expected("bytes and a time");
      return LinkTime{.bytes = pair.at(std::size_t{0}).bytes(), .time = pair.at(std::size_t{1}).time()};
    });
  }
  return link;
}

HomeLink read_home_link(const JsonValue& value) {
  constexpr std::array<std::string_view, 5> keys = {"comm", "comm_per_byte", "times", "workers", "memory"};
  value.object().only(keys);
  HomeLink home = {.link = read_link(value), .workers = value.at("workers").whole(1)};
  if (const auto memory = value.find("memory")) home.memory = memory->bytes();
  try {
    static_cast<void>(Links(home.link));
  } catch (const InputError& error) {
    value.fail(error.what());
  }
  return home;
}

LinkLevel read_level(const JsonValue& value, bool last) {
  constexpr std::array<std::string_view, 7> keys = {"name",  "workers", "comm", "comm_per_byte",
                                                    "times", "sharing", "ports"};
  value.object().only(keys);
  LinkLevel level;
  if (const auto name = value.find("name")) level.name = name->word();
  if (!last) level.workers = value.at("workers").whole(2);
  level.link = read_link(value);
  if (const auto ports = value.find("ports")) {
    constexpr std::array<std::string_view, 2> port_keys = {"member", "comm_per_byte"};
    level.ports = ports->list([&](const JsonValue& port) {
      port.object().only(port_keys);
      return LinkPort{.member = port.at("member").whole(0), .beta = port.at("comm_per_byte").time()};
    });
  }
  const JsonValue sharing = value.at("sharing");
  const auto word = std::ranges::find(sharing_words, sharing.word());
  if (word == sharing_words.end()) sharing.expected("none, in-order or fair");
  level.sharing = static_cast<Sharing>(word - sharing_words.begin());
  return level;
}

Links read_levels(const JsonValue& list) {
  std::vector<LinkLevel> levels = list.list(
      [&](const JsonValue& level) { return read_level(level, &level.raw() == &list.raw().back()); });
  try {
    return Links(std::move(levels));
  } catch (const InputError& error) {
    list.fail(error.what());
  }
}

/// Reads links, or one link for all. Call it after `costs.sizes` is read: times per byte are refused if the
/// bytes of transfers are unknown.
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
  for (const auto& [key, home] : home_links) {
    if (const auto link = object.find(key)) costs.*home = read_home_link(*link);
  }
  if (const auto workers = object.find("workers_of_rank")) costs.workers_of_rank = workers->whole(1);
  if (const auto ordered = object.find("ordered_messages")) costs.ordered_messages = ordered->truth();
  if (const auto relays = object.find("relays")) costs.relays = relays->truth();
  if (const auto pass = object.find("messages_pass_hosts")) costs.messages_pass_hosts = pass->truth();
}

void add_weights(ordered_json& object, const Costs& costs, int stages) {
  for (const SharedWeights& shared : costs.shared) {
    object["shared_weights"].push_back(
        {{"stages", shared.stages}, {"weights", shared.weights}, {"master", shared.master}});
  }
  for (int s = 0; s < stages; ++s) {
    if (!costs.size(s).has_weights) object["stages_without_weights"].push_back(s);
    if (costs.size(s).adds_inputs) object["stages_that_add"].push_back(s);
    if (!costs.size(s).has_keys_values) object["stages_without_keys_values"].push_back(s);
  }
}

/// Reads a list of stages in ascending order.
std::vector<int> read_stages(const JsonValue& list, int stages) {
  int next = 0;
  return list.list([&](const JsonValue& entry) {
    const int stage = entry.whole(0);
    if (stage >= stages) entry.fail(fmt::format("there are {} stages", stages));
    if (stage < next) entry.fail("stages must ascend");
    next = stage + 1;
    return stage;
  });
}

SharedWeights read_shared_weights(const JsonValue& value, int stages) {
  constexpr std::array<std::string_view, 3> keys = {"stages", "weights", "master"};
  value.object().only(keys);
  SharedWeights shared = {.stages = read_stages(value.at("stages"), stages),
                          .weights = value.at("weights").bytes(),
                          .master = value.at("master").bytes()};
  if (shared.stages.empty()) value.at("stages").fail("needs a stage");
  return shared;
}

void read_weights(const JsonValue& object, int stages, Costs& costs) {
  if (const auto list = object.find("shared_weights"))
    costs.shared = list->list([&](const JsonValue& entry) { return read_shared_weights(entry, stages); });
  const auto for_each_listed = [&](const char* key, const auto& f) {
    const auto list = object.find(key);
    if (!list) return;
    const StageSizes same = costs.sizes.front();
    if (costs.sizes.size() == 1) costs.sizes.assign(index(stages) * index(costs.slices), same);
    for (const int stage : read_stages(*list, stages)) {
      for (int k = 0; k < costs.slices; ++k)
        f(stage, costs.sizes[index(stage) * index(costs.slices) + index(k)], *list);
    }
  };
  for_each_listed("stages_without_weights", [](int stage, StageSizes& sizes, const JsonValue& list) {
    if (sizes.updated() > 0) list.fail(fmt::format("the sizes say that stage {} has weights", stage));
    sizes.has_weights = false;
  });
  for_each_listed("stages_that_add",
                  [](int, StageSizes& sizes, const JsonValue&) { sizes.adds_inputs = true; });
  for_each_listed("stages_without_keys_values",
                  [](int, StageSizes& sizes, const JsonValue&) { sizes.has_keys_values = false; });
}

}  // namespace

ordered_json durations_json(const Durations& durations) {
  ordered_json json;
  for (const auto& [name, time] : pass_times) json[name] = number(durations.*time);
  return json;
}

Durations read_durations(const JsonValue& value) {
  value.only(keys_of(pass_times, &PassTime::name));
  Durations durations;
  for (const auto& [name, time] : pass_times) durations.*time = value.at(name).time();
  return durations;
}

std::vector<Durations> read_list_of_durations(const JsonValue& value) {
  return value.list([](const JsonValue& of_stage) { return read_durations(of_stage.object()); });
}

Pass read_pass(const JsonValue& value) {
  return value.parsed(parse_pass, fmt::format("{}", fmt::join(pass_words, ", ")));
}

ordered_json reordering_json(const Reordering& reordering) {
  return {{"worker", reordering.worker}, {"stashes", reordering.held}, {"limit", reordering.limit}};
}

void read_schedule(const JsonValue& object, Listing& listing) {
  if (const auto value = object.find("stages")) listing.stages = value->whole(1);
  if (const auto value = object.find("microbatches")) listing.microbatches = value->whole(1);
  if (const auto value = object.find("slices")) {
    listing.slices = value->whole(1);
    if (listing.slices > size_limits::slices)
      value->fail(fmt::format("{} are more than {}", listing.slices, size_limits::slices));
  }
  if (const auto value = object.find("stage_graph")) listing.graph = read_graph(*value);
  if (const auto value = object.find("shards")) listing.graph = with_shards(listing.graph, *value);
  if (const auto value = object.find("recompute"); value && value->truth())
    value->fail("is of an earlier version, in which B computed F again; list a pass R before B instead");
  if (const auto value = object.find("late_recomputation")) listing.late_recomputation = value->truth();
  if (const auto value = object.find("discipline"))
    listing.discipline =
        value->parsed(parse_discipline, fmt::format("{}", fmt::join(discipline_words, ", ")));
  if (const auto value = object.find("memory_limits")) {
    listing.memory_limits = value->list([](const JsonValue& limit) { return limit.whole(1); });
    const std::size_t count = listing.memory_limits.size();
    if (count > 0 && count != listing.rows.size())
      value->fail(fmt::format("{} entries for {} workers", count, listing.rows.size()));
  }
}

std::string read_name(const JsonValue& value) {
  // Control characters of ASCII; all other characters may be part of a name.
  const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; };
  std::string name = value.word();
  if (std::ranges::any_of(name, is_control)) value.expected("a name without control characters");
  return name;
}

void add_costs(ordered_json& object, const Costs& costs, const Schedule& schedule, CostsForm form) {
  const bool of_record = form == CostsForm::record;
  const int stages = schedule.stages();
  object["durations"] = of_record ? array_of(costs.durations, durations_json)
                                  : per_stage(stages, costs.slices, [&](int s, int k) {
                                      return durations_json(costs.duration(s, k));
                                    });
  add_links(object, costs);
  add_overlap(object, costs);
  if (of_record || (!costs.prefetch && costs.links.takes_time())) object["prefetch"] = costs.prefetch;
  if (costs.has_sizes() || costs.links.has_bandwidths())
    object["sizes"] =
        per_stage(stages, costs.slices, [&](int s, int k) { return sizes_json(costs.size(s, k)); });
  add_weights(object, costs, stages);
}

Costs read_costs(const JsonValue& object, const Schedule& schedule, CostsForm form) {
  const bool of_record = form == CostsForm::record;
  Costs costs;
  if (of_record) {
    for (const char* const key : {"durations", "prefetch"}) static_cast<void>(object.at(key));
    if (!object.find("links")) static_cast<void>(object.at("comm"));
  }
  if (const auto value = object.find("durations"))
    costs.durations =
        of_record ? read_list_of_durations(*value) : read_per_stage(*value, schedule, read_durations);
  if (const auto value = object.find("sizes"))
    costs.sizes = read_per_stage(*value, schedule, read_stage_sizes);
  complete_slices(costs, schedule);
  read_links(object, costs);
  if (const auto overlap = object.find("overlap")) costs.overlap = read_overlap(*overlap);
  if (const auto value = object.find("prefetch")) {
    costs.prefetch = value->truth();
    if (!of_record && !costs.prefetch && !costs.links.takes_time())
      value->fail("false needs transfers that take time");
  }
  read_weights(object, schedule.stages(), costs);
  return costs;
}

}  // namespace starpipe::plan
