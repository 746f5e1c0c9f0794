// SPDX-License-Identifier: Apache-2.0
#include "cli/options/cost_options.hpp"

#include <array>
#include <filesystem>
#include <limits>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "cli/input/yaml.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::cli {
namespace {

plan::Durations& itself(plan::Durations& durations) { return durations; }
constexpr std::array keys = {time_key<0, plan::Durations, itself>, time_key<1, plan::Durations, itself>,
                             time_key<2, plan::Durations, itself>};

/// Reads a map of F, B and W. A pass that the map leaves out keeps the duration 1.
plan::Durations read_durations(const YAML::Node& map, const std::string& position) {
  plan::Durations durations;
  read_map<plan::Durations>(YamlValue(map, position), keys, durations);
  return durations;
}

/// Reads F=1,B=2,W=1: durations of every stage.
plan::Durations inline_durations(const std::string& argument) {
  const std::string position = "--durations " + argument;
  YAML::Node map(YAML::NodeType::Map);
  std::istringstream items(argument);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    if (equals == std::string::npos) {
      throw InputError(fmt::format("{}: expected F=TIME,B=TIME,W=TIME, got '{}'", position, item));
    }
    map.force_insert(item.substr(0, equals), item.substr(equals + 1));
  }
  return read_durations(map, position);
}

std::vector<plan::Durations> file_durations(const std::filesystem::path& file, int stages) {
  const YAML::Node root = load_yaml(file);
  const std::string name = file.string();
  if (root.IsMap()) return {read_durations(root, name)};
  if (!root.IsSequence()) {
    YamlValue(root, name).expected("a map of F, B and W, or a list of one such map a stage");
  }
  if (root.size() != index(stages)) {
    throw InputError(
        fmt::format("{}: has durations of {} stages, but there are {} stages", name, root.size(), stages));
  }
  std::vector<plan::Durations> durations;
  for (const YAML::Node& stage : root) durations.push_back(read_durations(stage, position_of(name, stage)));
  return durations;
}

}  // namespace

void CostOptions::add_to(CLI::App& command, const std::string& default_durations,
                         const std::string& default_comm) {
  command
      .add_option("--durations", durations_,
                  "Time of each pass: F=1,B=1,W=1, or a YAML file with a map of F, B and W, or with a list "
                  "of such maps, one for each stage. Default: " +
                      default_durations)
      ->type_name("F=T,B=T,W=T|FILE.yaml");
  command
      .add_option("--comm", comm_, "Time of a transfer between two workers (default: " + default_comm + ")")
      ->type_name("T");
  command.add_flag(
      "--no-prefetch", no_prefetch_,
      "Transfers do not overlap compute: a worker fetches a job's inputs after it has picked the job");
}

void CostOptions::apply(plan::Costs& costs, int stages) const {
  if (durations_) {
    if (durations_->find('=') != std::string::npos && !std::filesystem::exists(*durations_)) {
      costs.durations = {inline_durations(*durations_)};
    } else {
      costs.durations = file_durations(*durations_, stages);
    }
  }
  if (comm_) {
    if (!(*comm_ >= 0 && *comm_ < std::numeric_limits<double>::infinity())) {
      throw InputError(fmt::format("--comm: must be a finite number of at least 0, got {}", *comm_));
    }
    costs.alpha = *comm_;
  }
  if (no_prefetch_) costs.prefetch = false;
}

}  // namespace starpipe::cli
