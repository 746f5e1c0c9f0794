// SPDX-License-Identifier: Apache-2.0
#include "cli/input/links_file.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/input/yaml.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::cli {
namespace {

struct ReadLevel {
  plan::LinkLevel level;
  bool with_unit = false;
  bool without_unit = false;

  void note(bool has_unit) { (has_unit ? with_unit : without_unit) = true; }
};

constexpr std::array level_keys = {
    MapKey<ReadLevel>{"name",
                      [](const YamlValue& value, ReadLevel& into) { into.level.name = value.word(); }},
    MapKey<ReadLevel>{"workers",
                      [](const YamlValue& value, ReadLevel& into) { into.level.workers = value.whole(2); }},
    MapKey<ReadLevel>{"latency",
                      [](const YamlValue& value, ReadLevel& into) {
                        const Time time = value.time_or_number();
                        into.level.link.alpha = time.value;
                        if (time.value > 0) into.note(time.has_unit);
                      }},
    MapKey<ReadLevel>{"bandwidth",
                      [](const YamlValue& value, ReadLevel& into) {
                        const Bandwidth bandwidth = value.bandwidth();
                        into.level.link.beta = 1 / bandwidth.value;
                        into.note(bandwidth.has_unit);
                      }},
    MapKey<ReadLevel>{"sharing", [](const YamlValue& value, ReadLevel& into) {
                        const std::vector<std::string> words(plan::sharing_words.begin(),
                                                             plan::sharing_words.end());
                        const auto at = std::ranges::find(words, value.one_of(words));
                        into.level.sharing = static_cast<plan::Sharing>(at - words.begin());
                      }}};

/// `inner`: workers of a group of the level before, 1 for the first.
ReadLevel read_level(const YamlValue& value, int inner, bool last) {
  ReadLevel read;
  const std::set<std::string> seen = read_map<ReadLevel>(value, level_keys, read);
  for (const char* key : {"latency", "bandwidth"}) {
    if (!seen.contains(key)) value.fail(fmt::format("{} is missing", key));
  }
  if (read.with_unit && read.without_unit) value.fail("give latency and bandwidth with units, or none");
  const bool has_workers = seen.contains("workers");
  if (last && has_workers) value.fail("workers: the last level has all workers; leave this key out");
  if (last) return read;
  if (!has_workers) value.fail("workers is missing; only the last level has none");
  const int workers = read.level.workers;
  if (workers % inner != 0 || workers == inner) {
    value.fail(fmt::format("workers: {} are not two or more groups of {}, those of the level before", workers,
                           inner));
  }
  return read;
}

}  // namespace

LinksFile read_levels(const YamlValue& list_value, const std::string& name) {
  const YAML::Node& list = list_value.node();
  if (!list.IsSequence() || list.size() == 0) list_value.expected("a list of levels");
  std::vector<plan::LinkLevel> levels;
  bool in_seconds = false;
  bool without_unit = false;
  for (std::size_t l = 0; l < list.size(); ++l) {
    const YamlValue value(list[l], position_of(name, list[l]), fmt::format("levels[{}]", l));
    const int inner = levels.empty() ? 1 : levels.back().workers;
    const ReadLevel read = read_level(value, inner, l + 1 == list.size());
    in_seconds |= read.with_unit;
    without_unit |= read.without_unit;
    if (in_seconds && without_unit) value.fail("give all levels with units, or none");
    levels.push_back(read.level);
  }
  return {plan::Links(std::move(levels)), in_seconds};
}

LinksFile read_links(const std::filesystem::path& file) {
  const std::string name = file.string();
  const YamlValue root = YamlValue::in_file(load_yaml(file), name);
  std::optional<LinksFile> links;
  // The others are those of a cluster, and say nothing about links between workers.
  constexpr std::array<std::string_view, 5> root_keys = {"levels", "gpus_per_node", "gpu_memory", "device",
                                                         "host_link"};
  read_map(root, root_keys, [&](std::size_t key, const YamlValue& value) {
    if (key == 0) links = read_levels(value, name);
  });
  if (!links) root.fail("levels is missing");
  return *std::move(links);
}

std::string links_yaml(const plan::Links& links, std::span<const std::string> comments) {
  std::string text;
  for (const std::string& line : comments) text += fmt::format("# {}\n", line);
  text += "levels:\n";
  const std::vector<plan::LinkLevel>& levels = links.levels();
  for (const plan::LinkLevel& level : levels) {
    const std::string name = level.name.empty() ? "" : fmt::format("name: {}, ", level.name);
    const std::string workers = &level == &levels.back() ? "" : fmt::format("workers: {}, ", level.workers);
    text += fmt::format("  - {{{}{}latency: {:.3f}us, bandwidth: {:.4g}GB/s, sharing: {}}}\n", name, workers,
                        level.link.alpha * 1e6, 1e-9 / level.link.beta, plan::to_string(level.sharing));
  }
  return text;
}

}  // namespace starpipe::cli
