// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/input/input_files.hpp"

namespace starpipe::cli {
namespace {

struct ReadLevel {
  plan::LinkLevel level;
  UnitsSeen units;
};

using Value = const YamlValue&;
using LevelKey = MapKey<ReadLevel>;
constexpr std::array level_keys = {
    LevelKey{"name", [](Value value, ReadLevel& into) { into.level.name = value.word(); }},
    LevelKey{"workers", [](Value value, ReadLevel& into) { into.level.workers = value.whole(2); }},
    LevelKey{"latency",
             [](Value value, ReadLevel& into) {
               const Quantity latency = value.time_or_number();
               into.level.link.alpha = latency.value;
               into.units.note(latency);
             },
             /*required=*/true},
    LevelKey{"bandwidth",
             [](Value value, ReadLevel& into) {
               const Quantity bandwidth = value.bandwidth();
               into.level.link.beta = 1 / bandwidth.value;
               into.units.note(bandwidth);
             },
             /*required=*/true},
    LevelKey{"sharing", [](Value value, ReadLevel& into) {
               const auto& words = plan::sharing_words;
               const std::string word = value.one_of({words.begin(), words.end()});
               into.level.sharing =
                   static_cast<plan::Sharing>(std::ranges::find(words, word) - words.begin());
             }}};

/// `inner`: workers of a group of the level before, 1 for the first.
ReadLevel read_level(const YamlValue& value, int inner, bool last) {
  ReadLevel read;
  const bool has_workers = read_map<ReadLevel>(value, level_keys, read).contains("workers");
  if (read.units.mixed()) value.fail("give latency and bandwidth with units, or none");
  if (last && has_workers) value.fail("workers: the last level has all workers; leave this key out");
  if (last) return read;
  if (!has_workers) value.fail("workers is missing; only the last level has none");
  const int workers = read.level.workers;
  if (workers % inner != 0 || workers == inner) {
    value.fail(
        fmt::format("workers: {} are not two or more groups of {}, as the level before has", workers, inner));
  }
  return read;
}

}  // namespace

LinksFile read_levels(const YamlValue& list, const std::string& file) {
  const std::vector<YamlValue> items = list.items_in(file, "a list of levels");
  std::vector<plan::LinkLevel> levels;
  UnitsSeen units;
  for (const YamlValue& item : items) {
    const int inner = levels.empty() ? 1 : levels.back().workers;
    const ReadLevel read = read_level(item, inner, levels.size() + 1 == items.size());
    units.note(read.units);
    if (units.mixed()) item.fail("give all levels with units, or none");
    levels.push_back(read.level);
  }
  return {plan::Links(std::move(levels)), units.with};
}

LinksFile read_links(const std::filesystem::path& file) {
  const std::string name = file.string();
  const YamlValue root = YamlValue::in_file(load_yaml(file), name);
  std::optional<LinksFile> links;
  // The other keys describe a cluster, and say nothing about links between workers.
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
