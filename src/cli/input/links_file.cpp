// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/input/input_files.hpp"

namespace starpipe::cli {
namespace {

struct ReadLevel {
  plan::LinkLevel level;
  UnitsSeen units;
  plan::Link& link() { return level.link; }
};

struct ReadHomeLink {
  plan::HomeLink home;
  UnitsSeen units;
  plan::Link& link() { return home.link; }
};

using Value = const YamlValue&;

template <class Read>
constexpr MapKey<Read> latency_key{"latency",
                                   [](Value value, Read& into) {
                                     const Quantity latency = value.time_or_number();
                                     into.link().alpha = latency.value;
                                     into.units.note(latency);
                                   },
                                   /*required=*/true};
template <class Read>
constexpr MapKey<Read> bandwidth_key{"bandwidth",
                                     [](Value value, Read& into) {
                                       const Quantity bandwidth = value.bandwidth();
                                       into.link().beta = 1 / bandwidth.value;
                                       into.units.note(bandwidth);
                                     },
                                     /*required=*/true};

// Reads the table: pairs of bytes and a time.
void read_times(Value value, ReadLevel& into) {
  for (const YamlValue& pair : value.items("a list of pairs [bytes, time]")) {
    const std::vector<YamlValue> parts = pair.items("a pair [bytes, time]");
    if (parts.size() != 2) pair.expected("a pair [bytes, time]");
    const Quantity time = parts[1].time_or_number();
    into.units.note(time);
    into.level.link.times.push_back({.bytes = parts[0].bytes(), .time = time.value});
  }
}

using PortKey = MapKey<std::optional<Quantity>>;
constexpr std::array port_keys = {
    PortKey{"bandwidth", [](Value value, std::optional<Quantity>& into) { into = value.bandwidth(); },
            /*required=*/true}};

// Reads a map from members to maps with their bandwidth.
void read_ports(Value value, ReadLevel& into) {
  if (!value.node().IsMap()) value.expected("a map from members to their ports");
  for (const auto& entry : value.node()) {
    const YamlValue port = value.member(entry.first.Scalar(), entry.second);
    const int member = YamlValue(entry.first, value.label() + ": the number of a member").whole<int>(0);
    std::optional<Quantity> bandwidth;
    read_map<std::optional<Quantity>>(port, port_keys, bandwidth);
    into.units.note(*bandwidth);
    into.level.ports.push_back({.member = member, .beta = 1 / bandwidth->value});
  }
  std::ranges::sort(into.level.ports, {}, &plan::LinkPort::member);
}

using LevelKey = MapKey<ReadLevel>;
constexpr std::array level_keys = {
    LevelKey{"name", [](Value value, ReadLevel& into) { into.level.name = value.word(); }},
    LevelKey{"workers", [](Value value, ReadLevel& into) { into.level.workers = value.whole(2); }},
    latency_key<ReadLevel>,
    bandwidth_key<ReadLevel>,
    LevelKey{"times", read_times},
    LevelKey{"ports", read_ports},
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
  try {
    return {.links = plan::Links(std::move(levels)), .in_seconds = units.with};
  } catch (const InputError& error) {
    list.fail(error.what());
  }
}

namespace {

using HomeKey = MapKey<ReadHomeLink>;
constexpr std::array home_keys = {
    latency_key<ReadHomeLink>, bandwidth_key<ReadHomeLink>,
    HomeKey{"workers", [](Value value, ReadHomeLink& into) { into.home.workers = value.whole(1); }},
    HomeKey{"memory", [](Value value, ReadHomeLink& into) { into.home.memory = value.bytes(); }}};

plan::HomeLink read_home_link(Value value, UnitsSeen& units) {
  ReadHomeLink read;
  read_map<ReadHomeLink>(value, home_keys, read);
  units.note(read.units);
  if (units.mixed()) value.fail("give all latencies and bandwidths with units, or none");
  return read.home;
}

}  // namespace

LinksFile read_links(const std::filesystem::path& file) {
  const std::string name = file.string();
  const YamlValue root = YamlValue::in_file(load_yaml(file), name);
  std::optional<LinksFile> links;
  // The other keys describe a cluster, and say nothing about links between workers.
  constexpr std::array<std::string_view, 6> root_keys = {"levels",        "host_link",  "disk_link",
                                                         "gpus_per_node", "gpu_memory", "device"};
  std::optional<plan::HomeLink> host;
  std::optional<plan::HomeLink> disk;
  UnitsSeen units;
  read_map(root, root_keys, [&](std::size_t key, const YamlValue& value) {
    if (key == 0) {
      links = read_levels(value, name);
      units.note({.with = links->in_seconds, .without = !links->in_seconds});
      if (units.mixed()) value.fail("give all latencies and bandwidths with units, or none");
    }
    if (key == 1) host = read_home_link(value, units);
    if (key == 2) disk = read_home_link(value, units);
  });
  if (!links) root.fail("levels is missing");
  links->host = host;
  links->disk = disk;
  return *std::move(links);
}

namespace {

std::string bandwidth_text(double beta) { return fmt::format("{:.4g}GB/s", 1e-9 / beta); }

}  // namespace

std::string links_yaml(const plan::Links& links, std::span<const std::string> comments) {
  std::string text;
  for (const std::string& line : comments) text += fmt::format("# {}\n", line);
  text += "levels:\n";
  const std::vector<plan::LinkLevel>& levels = links.levels();
  for (const plan::LinkLevel& level : levels) {
    const std::string name = level.name.empty() ? "" : fmt::format("name: {}, ", level.name);
    const std::string workers = &level == &levels.back() ? "" : fmt::format("workers: {}, ", level.workers);
    std::vector<std::string> times;
    for (const auto& [bytes, time] : level.link.times)
      times.push_back(fmt::format("[{}, {:.3f}us]", bytes, time * 1e6));
    std::vector<std::string> ports;
    for (const auto& [member, beta] : level.ports)
      ports.push_back(fmt::format("{}: {{bandwidth: {}}}", member, bandwidth_text(beta)));
    text +=
        fmt::format("  - {{{}{}latency: {:.3f}us, bandwidth: {}, sharing: {}{}{}}}\n", name, workers,
                    level.link.alpha * 1e6, bandwidth_text(level.link.beta), plan::to_string(level.sharing),
                    times.empty() ? "" : fmt::format(",\n     times: [{}]", fmt::join(times, ", ")),
                    ports.empty() ? "" : fmt::format(",\n     ports: {{{}}}", fmt::join(ports, ", ")));
  }
  return text;
}

}  // namespace starpipe::cli
