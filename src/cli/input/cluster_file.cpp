// SPDX-License-Identifier: Apache-2.0
#include "cli/input/cluster_file.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/input/config_file.hpp"
#include "cli/input/links_file.hpp"
#include "cli/input/yaml.hpp"

namespace starpipe::cli {
namespace {

using runtime::Cluster;

constexpr int max_gpus = 8;  // of a node: StarPU is built for as many

constexpr std::array host_link_keys = {
    MapKey<Cluster>{"latency",
                    [](const YamlValue& value, Cluster& cluster) { cluster.host_link.alpha = value.time(); }},
    MapKey<Cluster>{"bandwidth",
                    [](const YamlValue& value, Cluster& cluster) {
                      const Bandwidth bandwidth = value.bandwidth();
                      if (!bandwidth.has_unit) value.expected("a bandwidth such as 25GB/s");
                      cluster.host_link.beta = 1 / bandwidth.value;
                    }},
    MapKey<Cluster>{"workers", [](const YamlValue& value, Cluster& cluster) {
                      cluster.gpus_per_host_link = value.whole<int>(1, max_gpus);
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

// Whether the GPUs of a node are a group of some level. The last level has one group, of all workers. A
// single GPU is a member of the first one.
bool has_level_of_nodes(const Cluster& cluster) {
  const auto& levels = cluster.links.levels();
  return levels.size() == 1 || cluster.gpus_per_node == 1 ||
         std::ranges::any_of(
             levels, [&](const plan::LinkLevel& level) { return level.workers == cluster.gpus_per_node; });
}

std::vector<std::string> words_of(const YamlValue& value) {
  if (!value.node().IsSequence()) return {value.word()};
  if (value.node().size() == 0) value.expected("a word, or a list of words");
  std::vector<std::string> words;
  for (const YAML::Node& item : value.node()) words.push_back(YamlValue(item, value.label()).word());
  return words;
}

}  // namespace

Cluster read_cluster(const std::filesystem::path& file, std::optional<plan::Sharing> sharing) {
  const std::string name = file.string();
  const YamlValue root = YamlValue::in_file(load_yaml(file), name);
  constexpr std::array<std::string_view, 5> keys = {"gpus_per_node", "gpu_memory", "device", "host_link",
                                                    "levels"};
  Cluster cluster{.file = file};
  const auto seen = read_map(root, keys, [&](std::size_t key, const YamlValue& value) {
    switch (key) {
      case 0:
        cluster.gpus_per_node = value.whole<int>(1, max_gpus);
        break;
      case 1:
        cluster.gpu_memory = value.bytes();
        break;
      case 2:
        cluster.devices = words_of(value);
        break;
      case 3:
        require_keys(value, read_map<Cluster>(value, host_link_keys, cluster), {"latency", "bandwidth"});
        break;
      default:
        cluster.links = links_of(value, name);
    }
  });
  require_keys(root, seen, {"gpus_per_node", "gpu_memory", "host_link", "levels"});
  if (cluster.gpus_per_node % cluster.gpus_per_host_link != 0) {
    root.fail(fmt::format("host_link: workers: {} GPUs are not groups of {}", cluster.gpus_per_node,
                          cluster.gpus_per_host_link));
  }
  if (!has_level_of_nodes(cluster)) {
    root.fail(
        fmt::format("levels: none has groups of {} workers, the GPUs of a node", cluster.gpus_per_node));
  }
  if (sharing) {
    std::vector<plan::LinkLevel> levels = cluster.links.levels();
    for (plan::LinkLevel& level : levels) level.sharing = *sharing;
    cluster.links = plan::Links(std::move(levels));
  }
  return cluster;
}

nlohmann::json to_json(const SimulatedRequest& request) {
  nlohmann::json json = {{"config", request.config.string()},
                         {"cluster", request.cluster.string()},
                         {"steps", request.steps},
                         {"result", request.result.string()}};
  if (request.sharing) json["sharing"] = static_cast<int>(*request.sharing);
  return json;
}

SimulatedRequest simulated_request(const nlohmann::json& json) {
  SimulatedRequest request = {.config = json.at("config").get<std::string>(),
                              .cluster = json.at("cluster").get<std::string>(),
                              .sharing = std::nullopt,
                              .steps = json.at("steps"),
                              .result = json.at("result").get<std::string>()};
  if (json.contains("sharing")) request.sharing = static_cast<plan::Sharing>(json.at("sharing").get<int>());
  return request;
}

runtime::Config configuration_of(const SimulatedRequest& request) {
  runtime::Config config = load_config(request.config, {});
  runtime::EmulationConfig& emulate = config.runtime.emulate.value();
  emulate.links_file = request.cluster.string();
  emulate.links = read_cluster(request.cluster, request.sharing).links;
  emulate.prefetch = true;
  return config;
}

}  // namespace starpipe::cli
