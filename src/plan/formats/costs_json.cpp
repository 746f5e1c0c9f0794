// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/costs_json.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
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

/// Whether the object says how many bytes transfers have: some have bytes, or "sizes" has zeros for them.
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

bool has_sizes(const Costs& costs) {
  return std::ranges::any_of(costs.sizes, [](const StageSizes& sizes) {
    return std::ranges::any_of(size_kinds, [&](const SizeKind& kind) { return sizes.*kind.size != 0; });
  });
}

void add_sizes(nlohmann::ordered_json& object, const Costs& costs, int stages) {
  if (!has_sizes(costs) && !costs.links.has_bandwidths()) return;
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

}  // namespace starpipe::plan::detail
