// SPDX-License-Identifier: Apache-2.0
#include "cli/options/options.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/input/config.hpp"
#include "cli/input/yaml.hpp"
#include "starpipe/base/environment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/formats/schedule_text.hpp"
#include "starpipe/plan/formats/timeline_svg.hpp"
#include "starpipe/plan/formats/trace_json.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {
namespace {

/// Reads a map of F, B and W. A pass that the map leaves out keeps the duration 1.
plan::Durations read_durations(const YAML::Node& map, const std::string& place) {
  if (!map.IsMap()) YamlValue(map, place).expected("a map of F, B and W");
  plan::Durations durations;
  std::set<std::string> seen;
  for (const auto& pair : map) {
    const std::string pass = pair.first.IsScalar() ? pair.first.Scalar() : "";
    const auto* const known = std::ranges::find(plan::pass_times, pass, &plan::PassTime::name);
    if (known == plan::pass_times.end()) {
      throw InputError(fmt::format("{}: expected F, B or W, got {}", place, described(pair.first)));
    }
    if (!seen.insert(pass).second) throw InputError(fmt::format("{}: {} is given twice", place, pass));
    durations.*known->time = YamlValue(pair.second, fmt::format("{}: {}", place, pass)).not_negative();
  }
  return durations;
}

/// F=1,B=2,W=1, the same for all stages.
plan::Durations inline_durations(const std::string& argument) {
  const std::string place = "--durations " + argument;
  YAML::Node map(YAML::NodeType::Map);
  std::istringstream items(argument);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    if (equals == std::string::npos) {
      throw InputError(fmt::format("{}: expected F=TIME,B=TIME,W=TIME, got '{}'", place, item));
    }
    map.force_insert(item.substr(0, equals), item.substr(equals + 1));
  }
  return read_durations(map, place);
}

std::vector<plan::Durations> file_durations(const std::filesystem::path& file, int stages) {
  const YAML::Node root = load_yaml(file);
  const std::string name = file.string();
  if (root.IsMap()) return {read_durations(root, name)};
  if (!root.IsSequence()) {
    YamlValue(root, name).expected("a map of F, B and W, or a list of one such map a stage");
  }
  if (root.size() != static_cast<std::size_t>(stages)) {
    throw InputError(fmt::format("{}: durations of {} stages, but there are {}", name, root.size(), stages));
  }
  std::vector<plan::Durations> durations;
  for (const YAML::Node& stage : root) durations.push_back(read_durations(stage, place_of(name, stage)));
  return durations;
}

constexpr std::array formats = {"text", "json", "csv", "svg", "trace"};

/// Of the terminal; nothing when there is none.
std::optional<int> terminal_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  if (size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace

CLI::Option* ConfigOptions::add_to(CLI::App& command, bool required) {
  CLI::Option* const config =
      command.add_option("config", file_, "The configuration")->required(required)->type_name("CONFIG.yaml");
  command
      .add_option("--set", overrides_,
                  "Set a key of the configuration, such as training.steps=10; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->needs(config);
  add_plugin_option(command, plugins_);
  return config;
}

runtime::Config ConfigOptions::load() const {
  if (plugins_.empty()) return load_config(file_, overrides_);
  YAML::Emitter list;
  list << YAML::Flow << plugins_;
  std::vector<std::string> overrides = overrides_;
  overrides.push_back(fmt::format("schedule.plugin={}", list.c_str()));
  return load_config(file_, overrides);
}

void add_plugin_option(CLI::App& command, std::vector<std::string>& files) {
  command
      .add_option("--plugin", files,
                  "A shared object whose schedules are then known by name (STARPIPE_PLUGIN); may be repeated")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void load_plugins(const std::vector<std::string>& files) {
  for (const std::string& file : files) plan::load_plugin(file);
}

void add_size_options(CLI::App& command, int& workers, int most_workers, int& microbatches,
                      int most_microbatches) {
  command.add_option("--workers", workers, "Number of workers")
      ->required()
      ->type_name("W")
      ->check(CLI::Range(1, most_workers));
  command.add_option("--microbatches", microbatches, "Micro-batches of a step")
      ->required()
      ->type_name("B")
      ->check(CLI::Range(1, most_microbatches));
}

void CostOptions::add_to(CLI::App& command, const std::string& default_durations) {
  command
      .add_option("--durations", durations_,
                  "Time of each pass, as F=1,B=1,W=1 or a YAML file with a map of F, B and W, or a list of "
                  "such maps, one a stage; " +
                      default_durations)
      ->type_name("F=T,B=T,W=T|FILE.yaml");
  command.add_option("--comm", comm_, "Time of a transfer between two workers (default 0)")->type_name("T");
  command.add_flag("--no-prefetch", no_prefetch_,
                   "A worker waits for the transfers of a job instead of computing meanwhile");
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

void ResultOptions::add_to(CLI::App& command) {
  CLI::Option* const format =
      command
          .add_option("--format", format_,
                      "text, json, csv (of torch.distributed.pipelining), svg or trace (of Chrome and "
                      "Perfetto); the default follows from the name of the file, else text")
          ->type_name("FORMAT")
          ->check(CLI::IsMember(std::vector<std::string>(formats.begin(), formats.end())));
  command.add_flag("--json", json_, "The same as --format json")->excludes(format);
  command.add_option("-o,--output", file_, "Write to a file instead of standard output")->type_name("FILE");
}

std::string ResultOptions::format() const {
  if (json_) return "json";
  if (format_) return *format_;
  if (file_) {
    const std::string extension = std::filesystem::path(*file_).extension();
    for (const char* format : {"json", "csv", "svg"}) {
      if (extension == std::string(".") + format) return format;
    }
  }
  return "text";
}

void ResultOptions::check() const {
  if (file_) require_writable("-o", *file_);
}

void ResultOptions::show(const plan::Schedule& schedule, const plan::Costs& costs,
                         const plan::Timeline& timeline, const std::function<std::string()>& text) const {
  show(schedule, costs, timeline, text, nlohmann::ordered_json::object());
}

void ResultOptions::show(const plan::Schedule& schedule, const plan::Costs& costs,
                         const plan::Timeline& timeline, const std::function<std::string()>& text,
                         const nlohmann::ordered_json& more) const {
  const std::string chosen = format();
  std::string result;
  if (chosen == "json") {
    nlohmann::ordered_json json = plan::schedule_json(schedule, costs, timeline);
    nlohmann::ordered_json ops = std::move(json["ops"]);  // long, so it stays last
    json.erase("ops");
    json.update(more);
    json["ops"] = std::move(ops);
    result = plan::json_text(json);
  } else if (chosen == "csv") {
    result = plan::schedule_csv(schedule, timeline);
  } else if (chosen == "svg") {
    result = predicted_svg(schedule, timeline);
  } else if (chosen == "trace") {
    result = predicted_trace(schedule, timeline);
  } else {
    result = text();
  }
  if (file_) {
    write_file("-o", *file_, result);
  } else {
    print(result);
  }
}

std::string predicted_svg(const plan::Schedule& schedule, const plan::Timeline& timeline) {
  const std::array runs = {
      plan::SvgRun{.title = schedule.name(), .schedule = &schedule, .timeline = &timeline}};
  return plan::timeline_svg(runs);
}

std::string predicted_trace(const plan::Schedule& schedule, const plan::Timeline& timeline) {
  const std::array runs = {
      plan::TracedRun{.name = "predicted", .schedule = &schedule, .timeline = &timeline}};
  return plan::trace_json(runs).dump() + "\n";
}

std::string drawn(const plan::Schedule& schedule, const plan::Timeline& timeline) {
  plan::TextOptions options;
  if (const auto columns = terminal_columns()) {
    options.columns = *columns;
    options.colour = !environment("NO_COLOR");
  } else {
    options.columns = 200;  // a file, a pipe: nothing wraps
  }
  return plan::schedule_text(schedule, timeline, options);
}

}  // namespace starpipe::cli
