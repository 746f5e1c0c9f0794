// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/setup/config_keys.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/precision.hpp"

namespace starpipe::runtime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Kind = ValueType::Kind;
using Count = ValueType::Count;
using Keys = std::vector<ConfigKey>;

// Types of values.

ValueType whole(std::uint64_t least = 1) { return {.kind = Kind::whole, .least = least}; }
ValueType wholes(std::uint64_t least) { return {.kind = Kind::whole, .count = Count::list, .least = least}; }
ValueType number(Kind kind) { return {.kind = kind}; }
ValueType boolean() { return {.kind = Kind::boolean}; }
ValueType text(Count count = Count::one) { return {.count = count}; }
ValueType one_of(std::vector<std::string> words, Count count = Count::one) {
  return {.count = count, .words = std::move(words)};
}
template <std::size_t size>
ValueType one_of(const std::array<std::string_view, size>& words, Count count = Count::one) {
  return one_of(std::vector<std::string>(words.begin(), words.end()), count);
}

// Values as JSON. What is empty is unset: null.

template <class T>
json to_json_value(const T& value) {
  return json(value);
}
json to_json_value(const std::string& value) { return value.empty() ? json() : json(value); }
json to_json_value(const std::filesystem::path& value) { return to_json_value(value.string()); }
json to_json_value(model::Precision value) { return std::string(model::to_string(value)); }
json to_json_value(plan::Discipline value) { return std::string(plan::to_string(value)); }
json to_json_value(NonFinitePolicy value) { return nonfinite_words[index(value)]; }
json to_json_value(MappingKind value) { return value == MappingKind::linear ? "linear" : "auto"; }
template <class T>
json to_json_value(const std::vector<T>& value) {
  return value.empty() ? json() : json(value);
}
template <class T>
json to_json_value(const std::optional<T>& value) {
  return value ? to_json_value(*value) : json();
}

template <class T>
void from_json_value(const json& from, T& value) {
  from.get_to(value);
}
void from_json_value(const json& from, std::filesystem::path& value) { value = from.get<std::string>(); }
void from_json_value(const json& from, model::Precision& value) {
  const auto& words = model::precision_words;
  value = static_cast<model::Precision>(std::ranges::find(words, from.get<std::string>()) - words.begin());
}
void from_json_value(const json& from, NonFinitePolicy& value) {
  const auto& words = nonfinite_words;
  value = static_cast<NonFinitePolicy>(std::ranges::find(words, from.get<std::string>()) - words.begin());
}
void from_json_value(const json& from, plan::Discipline& value) {
  value = plan::parse_discipline(from.get<std::string>());
}
void from_json_value(const json& from, MappingKind& value) {
  value = from.get<std::string>() == "linear" ? MappingKind::linear : MappingKind::automatic;
}
template <class T>
void from_json_value(const json& from, std::optional<T>& value) {
  from_json_value(from, value.emplace());
}

/// A default for people.
std::string default_of(const json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::to_string(value.get<double>());  // 300, not 300.0
  if (value.is_array() && value.size() == 1) return default_of(value.front());
  return value.dump();
}

/// A function that returns a member of the configuration, given the members that lead to it.
template <class... Members>
auto at(Members... members) {
  return [members...](auto& config) -> auto& { return (config.*....*members); };
}

/// A key that is one member of the configuration; `member` returns a reference to it. Its default is the
/// member's own unless `default_text` says another.
template <class Member>
ConfigKey key(std::string name, ValueType type, std::string meaning, Member member,
              std::optional<std::string> default_text = {}) {
  ConfigKey made;
  made.name = std::move(name);
  made.type = std::move(type);
  made.meaning = std::move(meaning);
  made.set = [member](Config& config, const json& value) { from_json_value(value, member(config)); };
  made.get = [member](const Config& config) { return to_json_value(member(config)); };
  const Config defaults;
  made.default_text = default_text.value_or(default_of(made.get(defaults)));
  return made;
}

/// `schedule.dynamic` and its like are unset when they are false.
ConfigKey unset_when_false(ConfigKey made) {
  made.get = [get = std::move(made.get)](const Config& config) {
    json value = get(config);
    return value.get<bool>() ? value : json();
  };
  return made;
}

ConfigKey only_for(ConfigKey made, std::string needs, std::string needed) {
  made.needs = std::move(needs);
  made.needed = {std::move(needed)};
  return made;
}

ConfigKey only_named(ConfigKey made) {
  made.not_with = "schedule.file";
  return made;
}

/// A key of `runtime.emulate`, which is there when any of its keys is given.
template <class T>
ConfigKey emulation_key(std::string name, ValueType type, std::string meaning, T EmulationConfig::*member,
                        std::string default_text) {
  ConfigKey made;
  made.name = "runtime.emulate." + std::move(name);
  made.type = std::move(type);
  made.meaning = std::move(meaning);
  made.default_text = std::move(default_text);
  made.set = [member](Config& config, const json& value) {
    if (!config.runtime.emulate) config.runtime.emulate.emplace();
    from_json_value(value, (*config.runtime.emulate).*member);
  };
  made.get = [member](const Config& config) {
    return config.runtime.emulate ? to_json_value((*config.runtime.emulate).*member) : json();
  };
  return made;
}

/// Keys of all kinds of networks. A name that several kinds have is one key, with what each kind says of it.
void add_network_keys(Keys& keys) {
  const std::size_t first = keys.size();
  for (const model::NetworkKind& kind : model::registered_networks()) {
    for (const model::NetworkKey& own : kind.keys) {
      const std::string name = "model." + own.name;
      const std::string default_text = fmt::to_string(own.default_value);
      const auto known = std::find_if(keys.begin() + static_cast<std::ptrdiff_t>(first), keys.end(),
                                      [&](const ConfigKey& other) { return other.name == name; });
      if (known != keys.end()) {
        known->needed.push_back(kind.name);
        known->type.most = std::max(known->type.most, static_cast<std::uint64_t>(own.most));
        if (known->meaning != own.meaning) {
          known->meaning += fmt::format(" For {}: {}", kind.name, own.meaning);
        }
        if (known->default_text != default_text) {
          known->default_text += fmt::format(", {} for {}", default_text, kind.name);
        }
        continue;
      }
      ConfigKey& made = keys.emplace_back();
      made.name = name;
      made.type = whole();
      made.type.most = static_cast<std::uint64_t>(own.most);
      made.default_text = default_text;
      made.meaning = own.meaning;
      made.needs = "model.kind";
      made.needed = {kind.name};
      if (!own.former_name.empty()) made.former_name = "model." + own.former_name;
      made.set = [option = own.name](Config& config, const json& value) {
        config.model.options[option] = value.get<int>();
      };
      made.get = [option = own.name](const Config& config) {
        return json(model::option(config.model, option));
      };
    }
  }
}

void add_model_keys(Keys& keys) {
  std::string kinds = "The network.";
  std::string data = "The data; it must be the kind that the network reads.";
  std::string default_data;
  for (const model::NetworkKind& kind : model::registered_networks()) {
    kinds += fmt::format(" {}: {}", kind.name, kind.meaning);
    default_data += fmt::format("{}{} for {}", default_data.empty() ? "" : ", ", kind.data, kind.name);
  }
  keys.push_back(key("model.kind", one_of(model::network_kinds()), kinds,
                     at(&Config::model, &model::ModelConfig::kind), "required"));
  add_network_keys(keys);
  keys.push_back(key("model.init", text(), "A safetensors file with the parameters to start from.",
                     at(&Config::model, &model::ModelConfig::init)));
  keys.push_back(key("data.kind", one_of({"text", "synthetic"}), data,
                     at(&Config::data, &model::DataConfig::kind), default_data));
  keys.push_back(only_for(key("data.path", text(), "The file whose bytes are the tokens.",
                              at(&Config::data, &model::DataConfig::path), "required"),
                          "data.kind", "text"));
}

void add_training_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  ValueType seed = whole(0);
  seed.most = std::numeric_limits<std::uint64_t>::max();
  add(key("training.microbatches", whole(), "Micro-batches of a step (B).",
          at(&Config::training, &TrainingConfig::microbatches), "8, or as `schedule.file` has"));
  add(key("training.microbatch_size", whole(), "Sequences (gpt) or samples (mlp) of a micro-batch.",
          at(&Config::training, &TrainingConfig::microbatch_size)));
  add(key("training.steps", whole(), "Steps to train; the optimizer updates the weights once in each.",
          at(&Config::training, &TrainingConfig::steps), "required"));
  add(key("training.seed", seed, "Start values of the weights and the choice of data depend on it.",
          at(&Config::training, &TrainingConfig::seed)));
  add(key("training.nonfinite", one_of(nonfinite_words),
          "After a step in which a pass computed infinity or NaN: stop ends the run with status 1 and names "
          "the first such pass; skip leaves weights and optimizer as they were before the step, and the "
          "report counts it; continue does not look.",
          at(&Config::training, &TrainingConfig::nonfinite)));
  const std::string kind = "training.optimizer.kind";
  add(key(kind, one_of({"adamw", "sgd"}), "The optimizer, with PyTorch's formulas and defaults.",
          at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::kind)));
  add(key("training.optimizer.learning_rate", number(Kind::positive), "The learning rate.",
          at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::learning_rate)));
  add(key("training.optimizer.weight_decay", number(Kind::not_negative), "The weight decay.",
          at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::weight_decay),
          "0.01 for adamw, 0 for sgd"));
  add(only_for(key("training.optimizer.momentum", number(Kind::not_negative), "The momentum.",
                   at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::momentum), "0"),
               kind, "sgd"));
  add(only_for(key("training.optimizer.beta1", number(Kind::fraction), "Decay of the first moment.",
                   at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::beta1)),
               kind, "adamw"));
  add(only_for(key("training.optimizer.beta2", number(Kind::fraction), "Decay of the second moment.",
                   at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::beta2)),
               kind, "adamw"));
  add(only_for(key("training.optimizer.epsilon", number(Kind::not_negative),
                   "Added to the root of the second moment, so that no update divides by 0.",
                   at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::epsilon)),
               kind, "adamw"));
}

/// Which schedule, of how many workers and stages.
void add_schedule_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  add(key("schedule.plugin", text(Count::one_or_list),
          "Shared objects that add schedules, as the option `--plugin` names them.",
          at(&Config::schedule, &ScheduleConfig::plugins)));
  add(only_named(key("schedule.name", text(), "A schedule that `starpipe schedule list` shows.",
                     at(&Config::schedule, &ScheduleConfig::name), "required")));
  add(key("schedule.file", text(),
          "A CSV or JSON file with the order of the jobs, instead of a named schedule. Workers, stages and "
          "micro-batches follow from it. Its path is relative to the folder in which starpipe runs.",
          at(&Config::schedule, &ScheduleConfig::file)));
  add(key("schedule.workers", whole(), "Workers (W).", at(&Config::schedule, &ScheduleConfig::workers),
          "required, or as `schedule.file` has"));
  add(key("schedule.stages", whole(), "Stages (S) into which the network is cut.",
          at(&Config::schedule, &ScheduleConfig::stages),
          "W times as many as the schedule has on each worker"));
  add(only_named(key("schedule.groups", whole(), "Groups (G) of lpp and fslpp; G divides W.",
                     at(&Config::schedule, &ScheduleConfig::groups))));
  add(only_named(key("schedule.placement", wholes(0), "The worker of each stage.",
                     at(&Config::schedule, &ScheduleConfig::placement), "the schedule's own")));
  add(key(
      "schedule.cuts", wholes(1),
      "The first unit of each stage but the first. Units of gpt: 0 is the embedding, then the blocks, then "
      "the head.",
      at(&Config::schedule, &ScheduleConfig::cuts), "balanced by FLOPs"));
  ConfigKey partition =
      key("schedule.partition", one_of({"auto"}),
          "Chooses `cuts`, and `placement` where the schedule leaves it open, by the units' times.",
          at(&Config::schedule, &ScheduleConfig::partition), "");
  partition.set = [](Config& config, const json& value) {
    config.schedule.partition = value.get<std::string>() == "auto";
  };
  partition.get = [](const Config& config) { return config.schedule.partition ? json("auto") : json(); };
  add(only_named(std::move(partition)));
  add(only_named(
      key("schedule.profile", text(),
          "A file of `starpipe profile` with the units' times. Only with `schedule.partition: auto`.",
          at(&Config::schedule, &ScheduleConfig::profile_file), "times are measured when the run starts")));
  add(key(
      "schedule.discipline", one_of(plan::discipline_words),
      "How a worker uses the priorities: greedy takes the ready job that comes first, bounded does so within "
      "`memory_limit`, ordered runs exactly in order.",
      at(&Config::schedule, &ScheduleConfig::discipline),
      "the schedule's own; bounded with a `memory_limit`"));
  add(key("schedule.memory_limit", whole(),
          "Stashes that a worker may hold; the bounded discipline keeps to it.",
          at(&Config::schedule, &ScheduleConfig::memory_limit)));
  add(unset_when_false(
      key("schedule.dynamic", boolean(),
          "Whether greedy and bounded schedules pick jobs at run time. Otherwise `simulate` picks once, and "
          "every "
          "run follows.",
          at(&Config::schedule, &ScheduleConfig::dynamic))));
  add(unset_when_false(key("schedule.recompute", boolean(),
                           "Whether F keeps only the stage's inputs, and B computes F again.",
                           at(&Config::schedule, &ScheduleConfig::recompute))));
}

void add_runtime_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  add(key(
      "runtime.policy", text(),
      "Who schedules tasks: starpipe, a policy of StarPU or of STARPU_SCHED_LIB, or StarPU's static controls "
      "on-worker and worker-order.",
      at(&Config::runtime, &RuntimeConfig::policy)));
  ConfigKey device =
      key("runtime.device", one_of(device_kinds, Count::one_or_list),
          "What a worker is: a core (cpu), or a GPU or one of several streams of it (cuda). A list names the "
          "device of each worker.",
          at(&Config::runtime, &RuntimeConfig::device));
  device.get = [](const Config& config) {
    const std::vector<std::string>& devices = config.runtime.device;
    return devices.size() == 1 ? json(devices.front()) : json(devices);
  };
  add(std::move(device));
  add(key(
      "runtime.precision", one_of(model::precision_words),
      "How numbers are stored. tf32 is fp32 whose matrix products GPUs compute in TF32. bf16 stores weights, "
      "activations, their gradients and stashes in bf16; sums, losses and the optimizer stay in fp32.",
      at(&Config::model, &model::ModelConfig::precision)));
  add(key(
      "runtime.workers_per_core", whole(),
      "The most workers that share a core. Workers that share a core slow each other, so measured times are "
      "not a pipeline's.",
      at(&Config::runtime, &RuntimeConfig::workers_per_core)));
  add(key("runtime.window", whole(),
          "The most tasks that a rank has submitted and not finished. A few leave workers idle. No effect "
          "where a policy chooses among jobs at run time: the whole step is submitted then.",
          at(&Config::runtime, &RuntimeConfig::window)));
  add(key("runtime.timeout", number(Kind::positive), "Seconds without a finished task that end a run.",
          at(&Config::runtime, &RuntimeConfig::timeout)));
  add(key("runtime.mapping", one_of({"linear", "auto"}),
          "Which worker gets which device of the ranks: linear takes them in order, auto puts workers that "
          "exchange much on near devices.",
          at(&Config::runtime, &RuntimeConfig::mapping)));
  add(key("runtime.memory_limit", {.kind = Kind::bytes, .least = 1024},
          "Bytes that a worker may need in all. A run in which a worker needs more is refused.",
          at(&Config::runtime, &RuntimeConfig::memory_limit)));
}

void add_emulation_keys(Keys& keys) {
  const ValueType times = {.kind = Kind::time, .count = Count::one_or_list};
  keys.push_back(emulation_key("F", times, "How long F lasts, of all stages or of each; jobs are then waits.",
                               &EmulationConfig::F, "no emulation"));
  keys.push_back(emulation_key("B", times, "How long B lasts.", &EmulationConfig::B, "required with F"));
  keys.push_back(emulation_key("W", times, "How long W lasts.", &EmulationConfig::W, "required with F"));
  keys.push_back(emulation_key("comm", {.kind = Kind::time}, "How long each transfer between workers lasts.",
                               &EmulationConfig::comm, "0s"));
  keys.push_back(
      emulation_key("prefetch", boolean(),
                    "Whether transfers overlap compute. Otherwise a worker fetches the inputs of a job "
                    "after it has picked it.",
                    &EmulationConfig::prefetch, "true"));
}

bool applies(const ConfigKey& key, const Config& config, const Keys& keys) {
  const auto value_of = [&](const std::string& name) {
    return std::ranges::find(keys, name, &ConfigKey::name)->get(config);
  };
  if (!key.not_with.empty() && !value_of(key.not_with).is_null()) return false;
  return key.needs.empty() ||
         std::ranges::find(key.needed, value_of(key.needs).get<std::string>()) != key.needed.end();
}

/// As it is read: a time gets its unit.
json readable(const ValueType& type, const json& value) {
  if (type.kind != Kind::time) return value;
  if (value.is_number()) return fmt::format("{}s", value.get<double>());
  json list = json::array();
  for (const json& item : value) list.push_back(readable(type, item));
  return list;
}

/// The meaning, and where the key applies.
std::string full_meaning(const ConfigKey& key) {
  std::string meaning = key.meaning;
  const bool some_networks = key.needs == "model.kind" && key.needed.size() < model::network_kinds().size();
  if (some_networks || (!key.needs.empty() && key.needs != "model.kind")) {
    meaning += fmt::format(" Only with `{}: {}`.", key.needs, fmt::join(key.needed, ", "));
  }
  if (!key.not_with.empty()) meaning += fmt::format(" Not with `{}`.", key.not_with);
  if (!key.former_name.empty()) meaning += fmt::format(" `{}` is read as well.", key.former_name);
  return meaning;
}

}  // namespace

std::string ValueType::text() const {
  const auto one = [this]() -> std::string {
    switch (kind) {
      case Kind::whole:
        if (most < std::numeric_limits<int>::max())
          return fmt::format("a whole number from {} to {}", least, most);
        return fmt::format("a whole number of at least {}", least);
      case Kind::positive:
        return "a number above 0";
      case Kind::not_negative:
        return "a number of at least 0";
      case Kind::fraction:
        return "a number of at least 0 and below 1";
      case Kind::boolean:
        return "true or false";
      case Kind::bytes:
        return "bytes, such as 16MiB";
      case Kind::time:
        return "a time, such as 2ms";
      case Kind::word:
        break;
    }
    return words.empty() ? "text" : fmt::format("{}", fmt::join(words, ", "));
  };
  switch (count) {
    case Count::one:
      break;
    case Count::one_or_list:
      return one() + "; or a list";
    case Count::list:
      return "a list, each " + one();
  }
  return one();
}

std::vector<ConfigKey> config_keys() {
  Keys keys;
  add_model_keys(keys);
  add_training_keys(keys);
  add_schedule_keys(keys);
  add_runtime_keys(keys);
  add_emulation_keys(keys);
  return keys;
}

ordered_json config_json(const Config& config) {
  const Keys keys = config_keys();
  ordered_json result;
  for (const ConfigKey& key : keys) {
    if (!applies(key, config, keys)) continue;
    const json value = key.get(config);
    if (value.is_null()) continue;
    std::string path = "/" + key.name;
    std::ranges::replace(path, '.', '/');
    result[ordered_json::json_pointer(path)] = readable(key.type, value);
  }
  return result;
}

std::string describe_keys(const std::vector<ConfigKey>& keys) {
  std::string text;
  for (const ConfigKey& key : keys) {
    text += fmt::format("{}: {}{}\n    {}\n", key.name, key.type.text(),
                        key.default_text.empty() ? "" : fmt::format(" (default: {})", key.default_text),
                        full_meaning(key));
  }
  return text;
}

ordered_json keys_json(const std::vector<ConfigKey>& keys) {
  ordered_json list = ordered_json::array();
  for (const ConfigKey& key : keys) {
    list.push_back({{"name", key.name},
                    {"values", key.type.text()},
                    {"default", key.default_text},
                    {"meaning", full_meaning(key)}});
  }
  return list;
}

}  // namespace starpipe::runtime
