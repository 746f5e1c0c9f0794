// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "cli/input/input_files.hpp"
#include "cli/input/yaml.hpp"
#include "cli/options/options.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/finer.hpp"
#include "starpipe/plan/simulate/home_ways.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::cli {
namespace {

constexpr int max_shards = 1 << 10;

}  // namespace

std::string read_schedule_option(const std::string& word, plan::ScheduleOptions& options) {
  const auto equals = word.find('=');
  std::errc error{};
  const auto value = parse_number<int>(equals == std::string::npos ? "" : word.substr(equals + 1), error);
  if (!value || error != std::errc{} || equals == 0)
    return fmt::format("expected NAME=NUMBER, such as waves=2, got '{}'", word);
  if (!options.emplace(word.substr(0, equals), *value).second)
    return fmt::format("{} is given twice", word.substr(0, equals));
  return "";
}

void add_schedule_option(CLI::App& command, plan::ScheduleOptions& options, const std::string& help) {
  const auto read = [&options](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      if (const std::string problem = read_schedule_option(word, options); !problem.empty())
        throw CLI::ValidationError("--option", problem);
    }
  };
  repeated(command.add_option_function<std::vector<std::string>>("--option", read, help))
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

namespace {

std::vector<std::string> home_way_names() {
  std::vector<std::string> names;
  for (const plan::HomeWay& way : plan::home_ways()) names.push_back(way.name);
  return names;
}

std::string home_way_help() {
  std::string help;
  for (const plan::HomeWay& way : plan::home_ways()) help += fmt::format(". {}: {}", way.name, way.summary);
  return help;
}

}  // namespace

void add_memory_options(CLI::App& command, std::vector<int>& memory_limits, HomeOptions& homes) {
  add_option(
      command, "--memory-limit M,...", memory_limits,
      "The largest number of stashes that a worker may hold, counted like the peaks in the output: one "
      "number for all, or one for each worker. A schedule whose order needs no more keeps its order. "
      "Otherwise it runs in another order, one that the schedule makes for this limit or the order of "
      "the bounded discipline, and the output says so. The discipline greedy keeps no limit and is "
      "refused",
      whole_number(1, std::numeric_limits<int>::max()));
  const auto read = [&homes](const std::vector<std::string>& words) {
    homes = {};
    if (words.size() == 1 && plan::is_home_way(words.front())) {
      homes.way = words.front();
      return;
    }
    for (const std::string& word : words) {
      if (plan::is_home_way(word)) throw InputError(fmt::format("--home: {} is for all stages", word));
      homes.homes.push_back(plan::parse_home(word));
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--home", read,
          "Where stashes wait from F to B: worker; none: F keeps only the stage's inputs, and the pass R, "
          "which takes as long as F, computes it again before B; host, disk or worker:N, another worker: the "
          "copy O takes it there, and the copy L brings it back (--copy). One word for all stages, or one "
          "for "
          "each. Or a way that chooses the homes of all stashes, in the schedule's own order" +
              home_way_help())
      ->type_name("HOME,...|WAY")
      ->delimiter(',')
      ->check([](const std::string& word) {
        if (plan::is_home_way(word)) return std::string();
        try {
          static_cast<void>(plan::parse_home(word));
          return std::string();
        } catch (const InputError& error) {
          return fmt::format("{}, or one of the ways {}", error.what(), fmt::join(home_way_names(), ", "));
        }
      });
}

void TensorOptions::add_to(CLI::App& command) {
  CLI::Option* const tensor = add_option(
      command, "--tensor T", shards_,
      "Shards (T) into which each stage is cut. Each of them adds the outputs of all shards of the stage "
      "before. Durations and bytes that are given are of a stage; a shard has 1/T of the times",
      whole_number(1, max_shards));
  add_option(
      command, "--tensor-workers D", workers_each_,
      "Workers (D) that each worker becomes with --tensor: where the schedule has worker v, shard k is "
      "on worker D v + k mod D (default: T)",
      whole_number(1, max_shards))
      ->needs(tensor);
}

void refuse_tensor(CLI::App& command, const std::string& reason) {
  command
      .add_option_function<std::string>(
          "--tensor", [reason](const std::string&) { throw InputError("--tensor: " + reason); })
      ->group("");  // not in the help
}

void TensorOptions::apply(plan::Schedule& schedule, plan::Costs& costs) const {
  const int workers_each = workers_each_.value_or(shards_);
  if (workers_each > shards_) {
    throw InputError(
        fmt::format("--tensor-workers: {} workers are more than the {} shards", workers_each, shards_));
  }
  plan::TensorFold fold =
      plan::tensor_fold(schedule, costs, {.shards = shards_, .workers_each = workers_each});
  schedule = std::move(fold.schedule);
  costs = std::move(fold.costs);
}

namespace {

/// Durations of one stage.
struct Reading {
  plan::Durations durations;
  UnitsSeen units;
};

template <std::size_t pass>
constexpr MapKey<Reading> time_key_of = {plan::pass_times[pass].name,
                                         [](const YamlValue& value, Reading& into) {
                                           const Quantity time = value.time_or_number();
                                           into.durations.*plan::pass_times[pass].time = time.value;
                                           into.units.note(time);
                                         }};
constexpr std::array keys = {time_key_of<0>, time_key_of<1>, time_key_of<2>};

/// Reads a map of F, B and W. All three must be there: a default would be a time that the user has not
/// chosen, such as W where the user takes B for the whole backward pass.
Reading read_durations(const YamlValue& value) {
  Reading reading;
  const auto seen = read_map<Reading>(value, keys, reading);
  for (const auto& key : keys) {
    if (seen.contains(std::string(key.name))) continue;
    value.fail(fmt::format(
        "{} is missing; give F, B and W, and W=0 where B is the time of the whole backward pass", key.name));
  }
  if (reading.units.mixed()) value.fail("give all times with units (s, ms, us), or none");
  return reading;
}

/// Reads F=1,B=2,W=1: durations of every stage.
Reading inline_durations(const std::string& argument) {
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
  return read_durations({map, position});
}

/// Reads one map for all stages, or a list with a map for each. `name`: the file.
std::vector<Reading> stage_durations(const YAML::Node& node, const std::string& name, int stages) {
  const YamlValue value(node, name);
  if (node.IsMap()) return {read_durations(value)};
  if (node.IsSequence() && node.size() != index(stages))
    value.fail(fmt::format("has durations of {} stages, but there are {} stages", node.size(), stages));
  std::vector<Reading> stage_times;
  UnitsSeen units;
  for (const YamlValue& stage :
       value.items_in(name, "a map of F, B and W, or a list with one such map for each stage")) {
    units.note(stage_times.emplace_back(read_durations(stage)).units);
    if (units.mixed()) stage.fail("give the times of all stages with units, or of none");
  }
  return stage_times;
}

/// True if the file has durations for each kind of device.
bool is_by_device(const YAML::Node& root) {
  return root.IsMap() && root.size() > 0 && std::ranges::all_of(root, [](const auto& pair) {
           return pair.second.IsMap() || pair.second.IsSequence();
         });
}

/// `device`: the kind of device, where the file has several.
std::vector<Reading> file_durations(const std::filesystem::path& file, int stages,
                                    const std::string& device) {
  const YAML::Node root = load_yaml(file);
  const std::string name = file.string();
  if (!is_by_device(root)) return stage_durations(root, name, stages);
  if (device.empty()) {
    throw InputError(fmt::format(
        "{}: has durations by kind of device, and no kind is known here; `sim` takes it from the cluster",
        name));
  }
  if (!root[device]) throw InputError(fmt::format("{}: has no durations of the device {}", name, device));
  return stage_durations(root[device], name, stages);
}

// Returns a time that an option gives, in the unit of the durations.
double time_in(const std::string& unit, std::string_view option, const std::string& text) {
  const Quantity time = YamlValue(YAML::Node(text), std::string(option)).time_or_number();
  if (time.value > 0 && time.has_unit != (unit == "s")) {
    throw InputError(
        time.has_unit
            ? fmt::format("{} {}: has a unit, but the durations have none", option, text)
            : fmt::format("{} {}: needs a unit (s, ms, us), as the durations have one", option, text));
  }
  return time.value;
}

/// Sets the times of copies. `text`: of --copy.
void apply_copy(plan::Costs& costs, const std::string& unit, const std::string& text) {
  if (text.find('=') == std::string::npos) return costs.set_copy(time_in(unit, "--copy", text));
  constexpr std::array<std::pair<std::string_view, std::optional<plan::HomeLink> plan::Costs::*>, 3> links = {
      {{"host", &plan::Costs::host}, {"disk", &plan::Costs::disk}, {"peer", &plan::Costs::peer}}};
  costs.host = costs.disk = costs.peer = std::nullopt;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto link = std::ranges::find_if(
        links, [&](const auto& of) { return item.starts_with(fmt::format("{}=", of.first)); });
    if (link == links.end())
      throw InputError(fmt::format("--copy {}: expected host=T, disk=T or peer=T, got '{}'", text, item));
    const auto& [name, member] = *link;
    if (costs.*member) throw InputError(fmt::format("--copy {}: {} is given twice", text, name));
    costs.*member = plan::HomeLink{.link = {.alpha = time_in(unit, "--copy", item.substr(name.size() + 1))}};
  }
}

plan::Overlap read_overlap(const std::string& unit, const std::string& text) {
  plan::Overlap overlap;
  if (text.find('=') == std::string::npos) {
    overlap.factor = YamlValue(YAML::Node(text), "--overlap").number(Interval{.min = 0, .max = 1});
    return overlap;
  }
  if (text.ends_with(',')) throw InputError(fmt::format("--overlap {}: ends with a comma", text));
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const bool is_split = item.starts_with("F+B=");
    if (!is_split && !item.starts_with("F+BW="))
      throw InputError(fmt::format("--overlap {}: expected a factor, F+B=T or F+BW=T, got '{}'", text, item));
    std::optional<double>& time = is_split ? overlap.F_B : overlap.F_BW;
    if (time)
      throw InputError(fmt::format("--overlap {}: {} is given twice", text, is_split ? "F+B" : "F+BW"));
    time = time_in(unit, "--overlap", item.substr(item.find('=') + 1));
  }
  return overlap;
}

}  // namespace

void CostOptions::add_to(CLI::App& command, const std::string& default_durations,
                         const std::string& default_comm) {
  add_durations_to(command, default_durations);
  add_option(command, "--comm T", comm_,
             "Time of a transfer between two workers, with a unit when the durations have one (default: " +
                 default_comm + ")");
  add_option(command, "--links FILE.yaml", links_,
             "YAML file with the links between workers, in place of --comm: the latency and the bandwidth of "
             "each level of a machine, and how transfers share it")
      ->excludes("--comm");
}

void CostOptions::add_durations_to(CLI::App& command, const std::string& default_durations) {
  add_option(
      command, "--durations F=T,B=T,W=T|FILE.yaml", durations_,
      "Time of each pass, all three: F=1,B=1,W=1 in a unit without a name, F=2ms,B=4ms,W=1ms in seconds, "
      "or a YAML file with a map of F, B and W, or with a list of such maps, one for each stage. A fused "
      "backward pass takes B + W. Default: " +
          default_durations);
}

void CostOptions::add_overlap_to(CLI::App& command) {
  add_option(
      command, "--overlap FACTOR|F+B=T,F+BW=T", overlap_,
      "Time of a pair of F and a backward pass that a worker runs at once: a part of the sum of both, such "
      "as 0.8, or the time of F with B, of F with BW, or both. Without it the jobs of a pair follow each "
      "other");
}

void CostOptions::add_copy_to(CLI::App& command) {
  add_option(
      command, "--copy T|host=T,disk=T,peer=T", copy_,
      "Time of a copy of a stash to its home, and back, with a unit when the durations have one: one for all "
      "homes, or of the host, a disk and another worker (peer), any of them. Without it, --links has "
      "host_link and disk_link");
}

void CostOptions::add_bytes_to(CLI::App& command) {
  needs_bytes_ = true;
  add_option(
      command, "--bytes BYTES", bytes_,
      "With --links: bytes of each activation, and of each gradient, that a stage sends another, such as "
      "16MiB",
      byte_count())
      ->needs("--links");
}

void CostOptions::add_no_prefetch_to(CLI::App& command) {
  command.add_flag(
      "--no-prefetch", no_prefetch_,
      "Transfers do not overlap compute: a worker fetches a job's inputs after it has picked the job");
}

bool CostOptions::is_inline() const {
  return durations_->find('=') != std::string::npos && !std::filesystem::exists(*durations_);
}

std::array<std::filesystem::path, 2> CostOptions::files() const {
  return {durations_ && !is_inline() ? *durations_ : "", links_.value_or("")};
}

std::vector<std::filesystem::path> CostOptions::inputs(std::vector<std::filesystem::path> others) const {
  std::ranges::copy(files(), std::back_inserter(others));
  return others;
}

void CostOptions::apply(plan::Costs& costs, std::string& unit, int stages, const std::string& device) const {
  const std::string former_unit = unit;
  if (durations_) {
    const std::vector<Reading> readings = is_inline() ? std::vector{inline_durations(*durations_)}
                                                      : file_durations(*durations_, stages, device);
    costs.durations.clear();
    for (const Reading& reading : readings) costs.durations.push_back(reading.durations);
    const bool in_seconds =
        std::ranges::any_of(readings, [](const Reading& reading) { return reading.units.with; });
    unit = in_seconds ? "s" : "";
  }
  if (overlap_) {
    costs.overlap = read_overlap(unit, *overlap_);
  } else if (unit != former_unit && costs.overlap && (costs.overlap->F_B || costs.overlap->F_BW)) {
    throw InputError(
        fmt::format("--durations: the times of pairs are {} a unit, unlike the durations; give --overlap too",
                    former_unit.empty() ? "without" : "with"));
  }
  if (copy_) {
    apply_copy(costs, unit, *copy_);
  } else if (unit != former_unit && links_) {
    costs.host = costs.disk = costs.peer = std::nullopt;  // the file of links may have them in the new unit
  } else if (unit != former_unit && (costs.host || costs.disk || costs.peer)) {
    throw InputError(
        fmt::format("--durations: the times of copies are {} a unit, unlike the durations; give "
                    "--copy too",
                    former_unit.empty() ? "without" : "with"));
  }
  if (links_) {
    apply_links(costs, unit);
  } else {
    apply_comm(costs, unit, former_unit);
  }
  if (!no_prefetch_) return;
  if (!costs.links.takes_time()) {
    throw InputError(
        "--no-prefetch: transfers take no time; give it with --links, or a --comm greater than 0");
  }
  costs.prefetch = false;
}

void CostOptions::divide_among_slices(plan::Costs& costs, const plan::Costs& before,
                                      const plan::Schedule& schedule) const {
  const int slices = schedule.slices();
  if (slices == 1) return;
  if (bytes_) {
    for (plan::StageSizes& sizes : costs.sizes)
      sizes.activation = sizes.gradient = (*bytes_ + index(slices) - 1) / index(slices);
  }
  if (!durations_) return;
  costs.durations = plan::durations_of_slices(costs.durations, before, schedule.stages(), slices);
  if (costs.slices == 1 && costs.sizes.size() > 1) {
    const std::vector<plan::StageSizes> sizes = std::exchange(costs.sizes, {});
    for (const plan::StageSizes& of_stage : sizes)
      costs.sizes.insert(costs.sizes.end(), index(slices), of_stage);
  }
  costs.slices = slices;
}

void CostOptions::require_pairs(const plan::Schedule& schedule) const {
  if (!overlap_ || schedule.has_pairs()) return;
  throw InputError(fmt::format(
      "--overlap: schedule {} has no pairs of F and a backward pass (nor has any order with shards, with "
      "slices or for a memory limit)",
      schedule.name()));
}

void CostOptions::note_missing_bytes(const std::string& name, const plan::Timeline& timeline) const {
  if (bytes_.value_or(0) == 0) return;
  std::vector<std::string_view> kinds;
  for (const plan::TransferKind& kind : plan::transfer_kinds) {
    const bool without = std::ranges::any_of(timeline.received, [&](const plan::Transfers& received) {
      const plan::Received& of_kind = received.*kind.member;
      return of_kind.count > 0 && of_kind.bytes == 0;
    });
    if (without) kinds.push_back(kind.label);
  }
  if (kinds.empty()) return;
  print_message(fmt::format(
      "starpipe: {}: transfers of {} take a latency only: --bytes is of activations and gradients\n", name,
      fmt::join(kinds, " and ")));
}

void CostOptions::apply_comm(plan::Costs& costs, const std::string& unit,
                             const std::string& former_unit) const {
  if (unit != former_unit && costs.links.has_bandwidths()) {
    throw InputError(fmt::format("--durations: {} in the file are {} a unit, unlike the durations",
                                 costs.links.uniform() ? "times of a byte (comm_per_byte)" : "links",
                                 former_unit.empty() ? "without" : "with"));
  }
  if (comm_) {
    const double time = time_in(unit, "--comm", *comm_);
    const double per_byte = costs.links.uniform() ? costs.link(0, 1).beta : 0;
    costs.links = plan::Link{.alpha = time, .beta = per_byte};
  } else if (unit != former_unit && costs.links.takes_time()) {
    throw InputError(
        fmt::format("--durations: the times of transfers are {} a unit, unlike the durations; give "
                    "--comm too",
                    former_unit.empty() ? "without" : "with"));
  }
}

void CostOptions::apply_links(plan::Costs& costs, const std::string& unit) const {
  LinksFile file = read_links(*links_);
  if (file.in_seconds != (unit == "s")) {
    throw InputError(fmt::format("--links {}: its times {}", *links_,
                                 file.in_seconds ? "have units, but the durations have none"
                                                 : "have no units, but the durations have"));
  }
  costs.links = std::move(file.links);
  if (file.host && !(copy_ && costs.host)) costs.host = file.host;
  if (file.disk && !(copy_ && costs.disk)) costs.disk = file.disk;
  if (bytes_) {
    for (plan::StageSizes& sizes : costs.sizes) sizes.activation = sizes.gradient = *bytes_;
    return;
  }
  const bool known = std::ranges::any_of(costs.sizes, [](const plan::StageSizes& sizes) {
    return sizes.activation > 0 || sizes.gradient > 0 || sizes.weights > 0;
  });
  if (needs_bytes_ && !known) {
    throw InputError(fmt::format(
        "--links {}: its bandwidths need the bytes that stages send each other; give --bytes", *links_));
  }
}

}  // namespace starpipe::cli
