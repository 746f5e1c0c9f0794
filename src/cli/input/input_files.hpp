// SPDX-License-Identifier: Apache-2.0
// The files that users write. Readers throw InputError that names file and line, key and value, for a key
// that is unknown, missing or there twice, and for an impossible value.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/input/yaml.hpp"
#include "plan/search/partition.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "runtime/simulation/cluster.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/links.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// Reads a configuration file and then the overrides, each "a.b=VALUE" with a YAML value, as given to --set.
/// Throws InputError also for a key that is of no use with the others. runtime::make_experiment refuses what
/// only shows when model and schedule are built.
runtime::Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides);

/// Returns the keys that these arguments of --set give. Throws InputError as `load_config` does.
std::set<std::string> overridden_keys(const std::vector<std::string>& overrides);

/// The links between the workers of a machine, as a file says.
struct LinksFile {
  plan::Links links = {};
  std::optional<plan::HomeLink> host = {};  ///< `host_link`
  std::optional<plan::HomeLink> disk = {};  ///< `disk_link`
  /// Times are in seconds; otherwise they are in a unit without a name.
  bool in_seconds = false;
};

/// Reads a map whose key `levels` has a list of maps, innermost level first, each with `latency` and
/// `bandwidth`, all with units or all without; `workers`, the workers of a group, in all but the last;
/// perhaps `name`, and `sharing`: none, in-order or fair. The keys `host_link` and `disk_link` may have the
/// links to homes of stashes, maps with `latency`, `bandwidth` and perhaps `workers`. docs/links.md describes
/// the file. The file of a cluster (read_cluster) is one, too; its other keys are not read.
LinksFile read_links(const std::filesystem::path& file);

/// Reads the value of the key `levels` of a map in `file`, as `read_links` does.
LinksFile read_levels(const YamlValue& levels, const std::string& file);

/// Returns a file's text from which `read_links` reads these links. Their times are in seconds. `comments`:
/// the lines at the top of the file.
std::string links_yaml(const plan::Links& links, std::span<const std::string> comments);

/// Reads a profile: a map whose key `layers` has a list of units. A unit is a map with: the times F, B and W
/// (any one time unit); the sizes weights, activation, gradient, stash and gradient_stash (bytes); `name`;
/// `count`, the number of such units in a row; and `spread`, which is ignored. Missing times and sizes are 0,
/// but a missing gradient is as large as the activation. Instead of F, B, W and spread, every unit may have a
/// map of these keys for each of the devices `cpu` and `cuda`. The key `shared` may have a list of weights
/// that units share: maps with `name`, `units` (their numbers, ascending), `weights` and `master`.
plan::Profile read_profile(const std::filesystem::path& file);

/// Returns a measured profile, which read_profile reads again.
nlohmann::ordered_json profile_json(const runtime::MeasuredUnits& measured);
std::string profile_yaml(const runtime::MeasuredUnits& measured);

/// Reads the description of a cluster (docs/simulated-clusters.md has the format). `sharing`, one of
/// plan::sharing_words, is of all levels and replaces the file's; empty: the file's.
runtime::Cluster read_cluster(const std::filesystem::path& file, const std::string& sharing = "");

/// A simulated run, as `starpipe sim` hands it to the engine on SimGrid. Each rank reads it from a file of
/// JSON and so runs the same configuration.
struct SimulatedRequest {
  std::string config;   ///< the file of a whole configuration, with `runtime.emulate`
  std::string cluster;  ///< the file of --cluster
  std::string sharing;  ///< as `read_cluster` takes it
  int steps = 1;
  std::string result;  ///< the file that rank 0 writes
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SimulatedRequest, config, cluster, sharing, steps, result)

/// Returns the configuration of the request on its cluster: transfers take the cluster's links, also where
/// schedules are made for times. Its plug-ins must have been loaded; the configuration of ranks names none.
runtime::Config configuration_of(const SimulatedRequest& request);

}  // namespace starpipe::cli
