// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/setup/config_keys.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/precision.hpp"
#include "starpipe/runtime/setup/config_rules.hpp"

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
ValueType number(Interval interval) { return {.kind = Kind::number, .interval = interval}; }
ValueType boolean() { return {.kind = Kind::boolean}; }
ValueType text(Count count = Count::one) { return {.count = count}; }
ValueType one_of(std::vector<std::string> words, Count count = Count::one) {
  return {.count = count, .words = std::move(words)};
}
template <std::size_t size>
ValueType one_of(const std::array<std::string_view, size>& words, Count count = Count::one) {
  return one_of(std::vector<std::string>(words.begin(), words.end()), count);
}

// Values as JSON. An empty value means unset, and becomes null.

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
  value.reset();
  if (!from.is_null()) from_json_value(from, value.emplace());
}

/// A function that returns a member of the configuration, given the members that lead to it.
template <class... Members>
auto at(Members... members) {
  return [members...](auto& config) -> auto& { return (config.*....*members); };
}

/// A key that is one member of the configuration; `member` returns a reference to it. Its default is the
/// member's own.
template <class Member>
ConfigKey key(std::string name, ValueType type, std::string meaning, Member member) {
  ConfigKey made;
  made.name = std::move(name);
  made.type = std::move(type);
  made.meaning = std::move(meaning);
  made.set = [member](Config& config, const json& value) { from_json_value(value, member(config)); };
  made.get = [member](const Config& config) { return to_json_value(member(config)); };
  made.default_value = made.get(Config());
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

// The functions below add defaults and conditions to a key.

ConfigKey by_default(ConfigKey made, std::string text) {
  made.default_text = std::move(text);
  return made;
}
ConfigKey by_default(ConfigKey made, Condition condition, json value, std::string text = {}) {
  made.defaults.push_back({std::move(condition), std::move(value), std::move(text)});
  return made;
}
ConfigKey required(ConfigKey made, Condition condition = {}) {
  made.default_value = {};
  made.required = std::move(condition);
  return made;
}
ConfigKey only_with(ConfigKey made, std::string other, std::vector<std::string> values = {}) {
  made.only_with.push_back({std::move(other), std::move(values)});
  return made;
}
ConfigKey not_with(ConfigKey made, std::string other, std::vector<std::string> values = {}) {
  made.not_with.push_back({std::move(other), std::move(values)});
  return made;
}

constexpr const char* from_file = "schedule.file";
ConfigKey only_named(ConfigKey made) { return not_with(std::move(made), from_file); }
/// A key whose default is the value in the schedule's file, if `schedule.file` is given.
ConfigKey or_from_file(ConfigKey made) { return by_default(std::move(made), {from_file}, {}, "the file's"); }

constexpr const char* emulation = "runtime.emulate";
/// A key of the numbers that kernels compute: emulated jobs are waits.
ConfigKey computed(ConfigKey made) { return not_with(std::move(made), emulation); }

/// A key of `runtime.emulate`, which is there when any of its keys is given.
template <class T>
ConfigKey emulation_key(std::string name, ValueType type, std::string meaning, T EmulationConfig::*member) {
  ConfigKey made;
  made.name = fmt::format("{}.{}", emulation, name);
  made.type = std::move(type);
  made.meaning = std::move(meaning);
  made.replaces = true;
  made.set = [member](Config& config, const json& value) {
    if (!config.runtime.emulate) config.runtime.emulate.emplace();
    from_json_value(value, (*config.runtime.emulate).*member);
  };
  made.get = [member](const Config& config) {
    return config.runtime.emulate ? to_json_value((*config.runtime.emulate).*member) : json();
  };
  made.default_value = to_json_value(EmulationConfig().*member);
  return made;
}

// The values of a network's key. Text that is empty is unset.
json json_of(const model::OptionValue& value) {
  return std::visit([](const auto& one) { return to_json_value(one); }, value);
}
model::OptionValue option_of(const json& value, model::OptionValue of_type) {
  std::visit([&]<class T>(T& one) { one = value.is_null() ? T() : value.get<T>(); }, of_type);
  return of_type;
}

ValueType type_of(const model::NetworkKey& key) {
  if (std::holds_alternative<double>(key.default_value)) return number(key.interval);
  if (std::holds_alternative<bool>(key.default_value)) return boolean();
  if (std::holds_alternative<std::string>(key.default_value)) return one_of(key.words);
  ValueType type = whole(static_cast<std::uint64_t>(std::max(key.interval.least, 0.0)));
  if (key.interval.most < static_cast<double>(type.most)) {
    type.most = static_cast<std::uint64_t>(key.interval.most);
  }
  return type;
}

/// The key of a kind of network, by itself.
ConfigKey network_key(const model::NetworkKind& kind, const model::NetworkKey& own) {
  ConfigKey made;
  made.name = "model." + own.name;
  made.type = type_of(own);
  made.meaning = own.meaning;
  made.default_value = json_of(own.default_value);
  made.defaults = {{.condition = {"model.kind", {kind.name}}, .value = made.default_value}};
  made.only_with = {{"model.kind", {kind.name}}};
  if (!own.former_name.empty()) made.former_name = "model." + own.former_name;
  made.set = [option = own.name, type = own.default_value](Config& config, const json& value) {
    config.model.options[option] = option_of(value, type);
  };
  made.get = [option = own.name](const Config& config) {
    return json_of(model::option_value(config.model, option));
  };
  return made;
}

/// Adds the values of `other`, a type of the same kind, to `type`. A type without words allows any text.
void widen(ValueType& type, const ValueType& other) {
  type.least = std::min(type.least, other.least);
  type.most = std::max(type.most, other.most);
  if (other.interval.least < type.interval.least) {
    type.interval.least = other.interval.least;
    type.interval.above = other.interval.above;
  }
  if (other.interval.most > type.interval.most) {
    type.interval.most = other.interval.most;
    type.interval.below = other.interval.below;
  }
  if (other.words.empty()) type.words.clear();
  if (type.words.empty()) return;
  for (const std::string& word : other.words) {
    if (std::ranges::find(type.words, word) == type.words.end()) type.words.push_back(word);
  }
}

/// Keys of all kinds of networks. Where several kinds have a key of one name, it is one key, and its meaning
/// joins theirs.
void add_network_keys(Keys& keys) {
  Keys found;
  for (const model::NetworkKind& kind : model::registered_networks()) {
    for (const model::NetworkKey& own : kind.keys) {
      ConfigKey made = network_key(kind, own);
      const auto known = std::ranges::find(found, made.name, &ConfigKey::name);
      if (known == found.end()) {
        found.push_back(std::move(made));
        continue;
      }
      known->only_with.front().values.push_back(kind.name);
      known->defaults.push_back(std::move(made.defaults.front()));
      widen(known->type, made.type);
      if (known->meaning != own.meaning) known->meaning += fmt::format(" For {}: {}", kind.name, own.meaning);
    }
  }
  for (ConfigKey& made : found) {
    // A default that all kinds share, and a key that all have, need no condition.
    const auto is_shared = [&](const DefaultUnder& other) { return other.value == made.default_value; };
    if (std::ranges::all_of(made.defaults, is_shared)) {
      made.defaults.clear();
    } else {
      made.default_value = {};
    }
    if (made.only_with.front().values.size() == model::network_kinds().size()) made.only_with.clear();
    keys.push_back(std::move(made));
  }
}

void add_model_keys(Keys& keys) {
  std::string kinds = "The network.";
  for (const model::NetworkKind& kind : model::registered_networks()) {
    kinds += fmt::format(" {}: {}", kind.name, kind.meaning);
  }
  keys.push_back(required(key("model.kind", one_of(model::network_kinds()), kinds,
                              at(&Config::model, &model::ModelConfig::kind))));
  add_network_keys(keys);
  keys.push_back(computed(key("model.init", text(), "A safetensors file with the parameters to start from.",
                              at(&Config::model, &model::ModelConfig::init))));
  ConfigKey data =
      key("data.kind", one_of(model::data_kinds), "The data; it must be the kind that the network reads.",
          at(&Config::data, &model::DataConfig::kind));
  data.default_value = {};
  for (const model::NetworkKind& kind : model::registered_networks()) {
    data = by_default(std::move(data), {"model.kind", {kind.name}}, kind.data);
  }
  keys.push_back(std::move(data));
  keys.push_back(required(only_with(key("data.path", text(), "The file whose bytes are the tokens.",
                                        at(&Config::data, &model::DataConfig::path)),
                                    "data.kind", {"text"})));
}

void add_training_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  ValueType seed = whole(0);
  seed.most = std::numeric_limits<std::uint64_t>::max();
  add(or_from_file(key("training.microbatches", whole(), "Micro-batches of a step (B).",
                       at(&Config::training, &TrainingConfig::microbatches))));
  ValueType microbatch_size = whole();
  microbatch_size.most = model::most_samples;
  add(key("training.microbatch_size", microbatch_size, "Sequences (gpt) or samples (mlp) of a micro-batch.",
          at(&Config::training, &TrainingConfig::microbatch_size)));
  add(required(key("training.steps", whole(),
                   "Steps to train; the optimizer updates the weights once in each.",
                   at(&Config::training, &TrainingConfig::steps))));
  add(computed(key("training.seed", seed, "Start values of the weights and the choice of data depend on it.",
                   at(&Config::training, &TrainingConfig::seed))));
  add(computed(
      key("training.nonfinite", one_of(nonfinite_words),
          "After a step in which a pass computed infinity or NaN: stop ends the run with status 1 and names "
          "the first such pass; skip leaves weights and optimizer as they were before the step, and the "
          "report counts it; continue does not look.",
          at(&Config::training, &TrainingConfig::nonfinite))));
  const std::string kind = "training.optimizer.kind";
  add(key(kind, one_of(model::optimizer_kinds), "The optimizer, with PyTorch's formulas and defaults.",
          at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::kind)));
  add(computed(key(
      "training.optimizer.learning_rate", number(not_negative), "The learning rate. With 0, weights stay.",
      at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::learning_rate))));
  add(by_default(
      computed(key("training.optimizer.weight_decay", number(not_negative),
                   "The weight decay: decoupled under adamw, added to the gradient under sgd.",
                   at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::weight_decay))),
      {kind, {"sgd"}}, 0.0));
  add(only_with(key("training.optimizer.momentum", number(not_negative), "The momentum.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::momentum)),
                kind, {"sgd"}));
  add(computed(
      only_with(key("training.optimizer.beta1", number(fraction), "Decay of the first moment.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::beta1)),
                kind, {"adamw"})));
  add(computed(
      only_with(key("training.optimizer.beta2", number(fraction), "Decay of the second moment.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::beta2)),
                kind, {"adamw"})));
  add(computed(
      only_with(key("training.optimizer.epsilon", number(not_negative),
                    "Added to the root of the second moment, so that no update divides by 0.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::epsilon)),
                kind, {"adamw"})));
}

/// Which schedule, of how many workers and stages.
void add_schedule_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  add(key("schedule.plugin", text(Count::one_or_list),
          "Shared objects that add schedules, as the option `--plugin` names them.",
          at(&Config::schedule, &ScheduleConfig::plugins)));
  ConfigKey name =
      required(only_named(key("schedule.name", text(), "A schedule that `starpipe schedule list` shows.",
                              at(&Config::schedule, &ScheduleConfig::name))));
  name.replaces = true;
  add(std::move(name));
  ConfigKey file =
      key(from_file, text(),
          "A CSV or JSON file with the order of the jobs, instead of a named schedule. Workers, stages and "
          "micro-batches follow from it. Its path is relative to the folder in which starpipe runs.",
          at(&Config::schedule, &ScheduleConfig::file));
  file.replaces = true;
  add(std::move(file));
  add(or_from_file(required(
      key("schedule.workers", whole(), "Workers (W).", at(&Config::schedule, &ScheduleConfig::workers)))));
  add(or_from_file(by_default(key("schedule.stages", whole(), "Stages (S) into which the network is cut.",
                                  at(&Config::schedule, &ScheduleConfig::stages)),
                              "W times as many as the schedule has on each worker")));
  add(only_named(key("schedule.groups", whole(), "Groups (G) of lpp and fslpp; G divides W.",
                     at(&Config::schedule, &ScheduleConfig::groups))));
  add(by_default(only_named(key("schedule.placement", wholes(0), "The worker of each stage.",
                                at(&Config::schedule, &ScheduleConfig::placement))),
                 "the schedule's own"));
  add(by_default(not_with(key("schedule.cuts", wholes(1),
                              "The first unit of each stage but the first. Units of gpt: 0 is the embedding, "
                              "then the blocks, then "
                              "the head.",
                              at(&Config::schedule, &ScheduleConfig::cuts)),
                          "schedule.partition"),
                 "balanced by FLOPs"));
  ConfigKey partition =
      key("schedule.partition", one_of({"auto"}),
          "Chooses `cuts`, and `placement` where the schedule leaves it open, by the units' times.",
          at(&Config::schedule, &ScheduleConfig::partition));
  partition.default_value = {};
  partition.set = [](Config& config, const json& value) {
    config.schedule.partition = value.get<std::string>() == "auto";
  };
  partition.get = [](const Config& config) { return config.schedule.partition ? json("auto") : json(); };
  add(only_named(std::move(partition)));
  add(by_default(
      only_with(key("schedule.profile", text(), "A file of `starpipe profile` with the units' times.",
                    at(&Config::schedule, &ScheduleConfig::profile_file)),
                "schedule.partition"),
      "times are measured when the run starts"));
  add(by_default(key("schedule.discipline", one_of(plan::discipline_words),
                     "How a worker uses the priorities: greedy takes the ready job that comes first, bounded "
                     "does so within "
                     "`memory_limit`, ordered runs exactly in order.",
                     at(&Config::schedule, &ScheduleConfig::discipline)),
                 "the schedule's own; bounded where its order exceeds a `memory_limit`"));
  add(key(
      "schedule.memory_limit", whole(),
      "Stashes that a worker may hold; where the schedule has a smaller limit, that one holds. An order that "
      "fits is kept. Otherwise another order is made, and the output says so.",
      at(&Config::schedule, &ScheduleConfig::memory_limit)));
  add(unset_when_false(
      key("schedule.dynamic", boolean(),
          "Whether greedy and bounded schedules pick jobs at run time. Otherwise `simulate` fixes the "
          "order before the run, and every run follows it.",
          at(&Config::schedule, &ScheduleConfig::dynamic))));
  add(unset_when_false(key("schedule.recompute", boolean(),
                           "Whether F keeps only the stage's inputs, and B computes F again.",
                           at(&Config::schedule, &ScheduleConfig::recompute))));
}

void add_runtime_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  add(key("runtime.policy", text(),
          "The policy that schedules tasks: starpipe, a policy of StarPU or of STARPU_SCHED_LIB, or StarPU's "
          "static controls on-worker and worker-order.",
          at(&Config::runtime, &RuntimeConfig::policy)));
  ConfigKey device =
      key("runtime.device", one_of(device_kinds, Count::one_or_list),
          "What a worker is: a core (cpu), or a GPU or one of several streams of it (cuda). A list names the "
          "device of each worker.",
          at(&Config::runtime, &RuntimeConfig::device));
  device.type.length = "schedule.workers";
  device.refused_values = {{"cuda", {emulation}}};
  device.get = [](const Config& config) {
    const std::vector<std::string>& devices = config.runtime.device;
    return devices.size() == 1 ? json(devices.front()) : json(devices);
  };
  add(std::move(device));
  ConfigKey precision = key(
      "runtime.precision", one_of(model::precision_words),
      "How numbers are stored. tf32 is fp32 whose matrix products GPUs compute in TF32. bf16 stores weights, "
      "activations, their gradients and stashes in bf16; sums, losses and the optimizer stay in fp32.",
      at(&Config::model, &model::ModelConfig::precision));
  precision.refused_values = {{"tf32", {"runtime.device", {"cpu"}}}};
  add(std::move(precision));
  add(computed(only_with(key("runtime.workers_per_core", whole(),
                             "The most workers that share a core. Workers that share a core slow each other, "
                             "so measured times are "
                             "not a pipeline's.",
                             at(&Config::runtime, &RuntimeConfig::workers_per_core)),
                         "runtime.device", {"cpu"})));
  // With other policies, and with `schedule.dynamic`, the whole step is submitted, since the policy chooses
  // among ready jobs.
  add(not_with(only_with(key("runtime.window", whole(),
                             "The most tasks that a rank has submitted and not finished. A small number "
                             "leaves workers idle.",
                             at(&Config::runtime, &RuntimeConfig::window)),
                         "runtime.policy", {"starpipe", "worker-order"}),
               "schedule.dynamic"));
  add(key(
      "runtime.timeout", number(positive),
      "Seconds without progress on any rank after which the run is ended. A task that ends is progress, and "
      "so is a task that runs, for at most ten times as long.",
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
  // `schedule.partition` uses measured times; an emulated run has none.
  const auto time_key = [](ConfigKey made) {
    return not_with(required(std::move(made), {emulation}), "schedule.partition");
  };
  const ValueType times = {.kind = Kind::time, .count = Count::one_or_list};
  keys.push_back(time_key(emulation_key("F", times,
                                        "How long F lasts: one time for all stages, or one for each. Jobs "
                                        "are then timed waits, and nothing is computed.",
                                        &EmulationConfig::F)));
  keys.push_back(time_key(emulation_key("B", times, "How long B lasts.", &EmulationConfig::B)));
  keys.push_back(time_key(emulation_key("W", times, "How long W lasts.", &EmulationConfig::W)));
  keys.push_back(emulation_key("comm", {.kind = Kind::time}, "How long each transfer between workers lasts.",
                               &EmulationConfig::comm));
  keys.push_back(
      emulation_key("prefetch", boolean(),
                    "Whether transfers overlap compute. Otherwise a worker fetches the inputs of a job "
                    "after it has picked it.",
                    &EmulationConfig::prefetch));
}

/// The value as a configuration has it: a time with its unit.
json readable(const ValueType& type, const json& value) {
  if (type.kind != Kind::time) return value;
  if (value.is_number()) return fmt::format("{}s", value.get<double>());
  json list = json::array();
  for (const json& item : value) list.push_back(readable(type, item));
  return list;
}

}  // namespace

std::vector<ConfigKey> config_keys() {
  Keys keys;
  add_model_keys(keys);
  add_training_keys(keys);
  add_schedule_keys(keys);
  add_runtime_keys(keys);
  add_emulation_keys(keys);
  return keys;
}

const ConfigKey* find_key(const Keys& keys, std::string_view name) {
  const auto found = std::ranges::find_if(keys, [name](const ConfigKey& key) {
    return key.name == name || (!key.former_name.empty() && key.former_name == name);
  });
  return found == keys.end() ? nullptr : &*found;
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

std::string describe_keys(const Keys& keys) {
  std::string text;
  for (const ConfigKey& key : keys) {
    const std::string by_default = key.default_for_people();
    text +=
        fmt::format("{}: {}{}\n    {}\n", key.name, key.type.text(),
                    by_default.empty() ? "" : fmt::format(" (default: {})", by_default), key.full_meaning());
  }
  return text;
}

ordered_json keys_json(const Keys& keys) {
  ordered_json list = ordered_json::array();
  for (const ConfigKey& key : keys) {
    list.push_back({{"name", key.name},
                    {"values", key.type.text()},
                    {"default", key.default_for_people()},
                    {"meaning", key.full_meaning()}});
  }
  return list;
}

}  // namespace starpipe::runtime
