// SPDX-License-Identifier: Apache-2.0
#include "cli/input/cluster_file.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cli/input/links_file.hpp"
#include "cli/input/yaml.hpp"

namespace starpipe::cli {
namespace {

using runtime::Cluster;

constexpr int most_gpus = 8;  // of a node: StarPU is built for as many

constexpr std::array link_keys = {
    MapKey<plan::Link>{"latency",
                       [](const YamlValue& value, plan::Link& link) { link.alpha = value.time(); }},
    MapKey<plan::Link>{"bandwidth", [](const YamlValue& value, plan::Link& link) {
                         const Bandwidth bandwidth = value.bandwidth();
                         if (!bandwidth.has_unit) value.expected("a bandwidth such as 25GB/s");
                         link.beta = 1 / bandwidth.value;
                       }}};

void require_keys(const YamlValue& value, const std::set<std::string>& seen,
                  std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!seen.contains(key)) value.fail(fmt::format("{} is missing", key));
  }
}

plan::Links links_of(const YamlValue& value, const std::string& file) {
  LinksFile read = read_levels(value, file);
  if (!read.in_seconds) value.fail("latencies and bandwidths need units");
  for (const plan::LinkLevel& level : read.links.levels()) {
    if (level.sharing == plan::Sharing::in_order)
      value.fail("sharing: in-order: SimGrid shares ports fairly or not at all");
  }
  return std::move(read.links);
}

// Whether the GPUs of a node are a group of some level. The last level has one group, of all workers.
bool has_level_of_nodes(const Cluster& cluster) {
  const auto& levels = cluster.links.levels();
  return levels.size() == 1 || std::ranges::any_of(levels, [&](const plan::LinkLevel& level) {
           return level.workers == cluster.gpus_per_node;
         });
}

}  // namespace

Cluster read_cluster(const std::filesystem::path& file) {
  const std::string name = file.string();
  const YamlValue root = YamlValue::in_file(load_yaml(file), name);
  constexpr std::array<std::string_view, 4> keys = {"gpus_per_node", "gpu_memory", "host_link", "levels"};
  Cluster cluster;
  const auto seen = read_map(root, keys, [&](std::size_t key, const YamlValue& value) {
    switch (key) {
      case 0:
        cluster.gpus_per_node = value.whole<int>(1, most_gpus);
        break;
      case 1:
        cluster.gpu_memory = value.bytes();
        break;
      case 2:
        require_keys(value, read_map<plan::Link>(value, link_keys, cluster.host_link),
                     {"latency", "bandwidth"});
        break;
      default:
        cluster.links = links_of(value, name);
    }
  });
  require_keys(root, seen, {"gpus_per_node", "gpu_memory", "host_link", "levels"});
  if (!has_level_of_nodes(cluster)) {
    root.fail(
        fmt::format("levels: none has groups of {} workers, the GPUs of a node", cluster.gpus_per_node));
  }
  return cluster;
}

}  // namespace starpipe::cli
