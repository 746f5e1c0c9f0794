// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/input/input_files.hpp"

namespace starpipe::cli {
namespace {

using runtime::Cluster;
using Value = const YamlValue&;
using ClusterKey = MapKey<Cluster>;

constexpr int max_gpus = 8;  // of a node: StarPU is built for as many

constexpr std::array host_link_keys = {
    ClusterKey{"latency", [](Value value, Cluster& cluster) { cluster.host_link.alpha = value.time(); },
               /*required=*/true},
    ClusterKey{"bandwidth",
               [](Value value, Cluster& cluster) {
                 const Quantity bandwidth = value.bandwidth();
                 if (!bandwidth.has_unit) value.expected("a bandwidth such as 25GB/s");
                 cluster.host_link.beta = 1 / bandwidth.value;
               },
               /*required=*/true},
    ClusterKey{
        "workers",
        [](Value value, Cluster& cluster) { cluster.gpus_per_host_link = value.whole<int>(1, max_gpus); }},
    ClusterKey{"memory", [](Value value, Cluster& cluster) { cluster.host_memory = value.bytes(); }}};

void read_devices(Value value, Cluster& cluster) {
  if (!value.node().IsSequence()) {
    cluster.devices = {value.word()};
    return;
  }
  if (value.node().size() == 0) value.expected("a word, or a list of words");
  cluster.devices.clear();
  for (const YamlValue& item : value.items("a list of words")) cluster.devices.push_back(item.word());
}

void read_cluster_links(Value value, Cluster& cluster) {
  LinksFile read = read_levels(value, cluster.file.string());
  if (!read.in_seconds) value.fail("latencies and bandwidths need units");
  for (const plan::LinkLevel& level : read.links.levels()) {
    if (level.sharing == plan::Sharing::in_order)
      value.fail("sharing: in-order: SimGrid shares ports fairly or not at all");
  }
  cluster.links = std::move(read.links);
}

constexpr std::array cluster_keys = {
    ClusterKey{"gpus_per_node",
               [](Value value, Cluster& cluster) { cluster.gpus_per_node = value.whole<int>(1, max_gpus); },
               /*required=*/true},
    ClusterKey{"gpu_memory", [](Value value, Cluster& cluster) { cluster.gpu_memory = value.bytes(); },
               /*required=*/true},
    ClusterKey{"device", read_devices},
    ClusterKey{"host_link",
               [](Value value, Cluster& cluster) { read_map<Cluster>(value, host_link_keys, cluster); },
               /*required=*/true},
    ClusterKey{"levels", read_cluster_links, /*required=*/true}};

/// True if the GPUs of a node are a group of some level. The last level has one group, of all workers. A
/// single GPU is a member of the first one.
bool has_level_of_nodes(const Cluster& cluster) {
  const auto& levels = cluster.links.levels();
  return levels.size() == 1 || cluster.gpus_per_node == 1 ||
         std::ranges::any_of(
             levels, [&](const plan::LinkLevel& level) { return level.workers == cluster.gpus_per_node; });
}

}  // namespace

Cluster read_cluster(const std::filesystem::path& file, const std::string& sharing) {
  const YamlValue root = YamlValue::in_file(load_yaml(file), file.string());
  Cluster cluster{.file = file};
  read_map<Cluster>(root, cluster_keys, cluster);
  if (cluster.gpus_per_node % cluster.gpus_per_host_link != 0) {
    root.fail(fmt::format("host_link: workers: {} GPUs are not groups of {}", cluster.gpus_per_node,
                          cluster.gpus_per_host_link));
  }
  if (!has_level_of_nodes(cluster)) {
    root.fail(
        fmt::format("levels: none has groups of {} workers, the GPUs of a node", cluster.gpus_per_node));
  }
  if (!sharing.empty()) {
    std::vector<plan::LinkLevel> levels = cluster.links.levels();
    const auto word = std::ranges::find(plan::sharing_words, sharing) - plan::sharing_words.begin();
    for (plan::LinkLevel& level : levels) level.sharing = static_cast<plan::Sharing>(word);
    cluster.links = plan::Links(std::move(levels));
  }
  return cluster;
}

runtime::Config configuration_of(const SimulatedRequest& request) {
  runtime::Config config = load_config(request.config, {});
  runtime::EmulationConfig& emulate = config.runtime.emulate.value();
  emulate.links_file = request.cluster;
  const Cluster cluster = read_cluster(request.cluster, request.sharing);
  emulate.links = cluster.links;
  emulate.host = {
      .link = cluster.host_link, .workers = cluster.gpus_per_host_link, .memory = cluster.host_memory};
  emulate.disk.reset();
  emulate.copy.reset();
  emulate.peer_copy.reset();
  emulate.prefetch = true;
  config.runtime.links_file.clear();  // the cluster has the links
  return config;
}

}  // namespace starpipe::cli
