// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/key_parts.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::runtime::keys {
namespace {

/// A key of `runtime.emulate`, which is there when any of its keys is given.
template <class T>
ConfigKey emulation_key(const std::string& name, ValueType type, std::string meaning,
                        T EmulationConfig::*member, KeyRules rules = {}) {
  rules.replaces = true;
  ConfigKey made{std::move(rules), emulated.key + "." + name, std::move(type), std::move(meaning)};
  made.set = [member](Config& config, const json& value) {
    if (!config.runtime.emulate) config.runtime.emulate.emplace();
    from_json_value(value, (*config.runtime.emulate).*member);
  };
  made.get = [member](const Config& config) {
    return config.runtime.emulate ? to_json_value((*config.runtime.emulate).*member) : json();
  };
  if (!made.required) made.default_value = to_json_value(EmulationConfig().*member);
  return made;
}

void add_emulation_keys(Keys& keys) {
  const ValueType times = {.kind = Kind::time, .count = Count::one_or_list};
  // `schedule.partition` uses measured times; an emulated run has none.
  const KeyRules of_times = {.required = emulated, .not_with = {{"schedule.partition"}}};
  keys.push_back(emulation_key("F", times,
                               "How long F lasts: one time for all stages, or one for each. Jobs are then "
                               "timed waits, and nothing is computed.",
                               &EmulationConfig::F, of_times));
  keys.push_back(emulation_key("B", times, "How long B lasts.", &EmulationConfig::B, of_times));
  keys.push_back(emulation_key("W", times, "How long W lasts.", &EmulationConfig::W, of_times));
  keys.push_back(
      emulation_key("per_share", boolean(),
                    "True: F, B and W are the times of 1/W of the model, W being the number of "
                    "workers, and not of a stage. Schedules with several stages on a worker then do "
                    "the same work as others. A list has one time for each share. With model.tensor each "
                    "stage has a part of the model's times in proportion to its FLOPs.",
                    &EmulationConfig::per_share));
  keys.push_back(emulation_key("comm", {.kind = Kind::time}, "How long each transfer between workers lasts.",
                               &EmulationConfig::comm, {.not_with = {{"runtime.emulate.links"}}}));
  keys.back().get = [](const Config& config) {
    const auto& emulate = config.runtime.emulate;
    return emulate && emulate->links_file.empty() ? to_json_value(emulate->comm) : json();
  };
  keys.push_back(
      emulation_key("links", text(),
                    "A file with the links between workers, in place of `comm`: the latency and the "
                    "bandwidth of each level of a machine. The model gives the bytes.",
                    &EmulationConfig::links_file));
  keys.push_back(emulation_key("prefetch", boolean(),
                               "True: transfers overlap compute. False: a worker fetches the inputs of a job "
                               "after it has picked it.",
                               &EmulationConfig::prefetch, {.not_with = {{"runtime.emulate.comm", {"0"}}}}));
}

}  // namespace

void add_runtime_keys(Keys& keys) {
  const std::string cpu(cpu_device);
  // Other policies, and `schedule.dynamic`, choose the order or the workers at run time. The whole step is
  // then submitted at once, and what a worker needs is not known before the run.
  const KeyRules of_fixed_order = {.only_with = {ordered_policy}, .not_with = {{"schedule.dynamic"}}};
  Section section(keys, "runtime", {}, &Config::runtime);
  section.add(
      "policy", text(),
      "The policy that schedules tasks: starpipe, a policy of StarPU or of STARPU_SCHED_LIB, or StarPU's "
      "static controls on-worker and worker-order.",
      &RuntimeConfig::policy);
  ConfigKey& device = section.add(
      "device", one_of(device_kinds, Count::one_or_list),
      "What a worker is: a core (cpu), or a GPU or one of several streams of it (cuda). A list names the "
      "device of each worker.",
      &RuntimeConfig::device, {.refused_values = {{std::string(cuda_device), emulated}}});
  device.type.length = "schedule.workers";
  device.get = [](const Config& config) { return one_or_list(config.runtime.device); };
  device.default_value = cpu;
  Section(keys, "runtime", {}, &Config::model)
      .add("precision", one_of(model::precision_words),
           "How numbers are stored. tf32 is fp32 whose matrix products GPUs compute in TF32. bf16 stores "
           "weights, activations, their gradients and stashes in bf16; sums, losses and the optimizer stay "
           "in fp32.",
           &model::ModelConfig::precision, {.refused_values = {{"tf32", {"runtime.device", {cpu}}}}});
  section.add("workers_per_core", whole(),
              "The largest number of workers that share a core. Workers that share a core slow each other, "
              "so measured "
              "times are not a pipeline's.",
              &RuntimeConfig::workers_per_core,
              {.only_with = {{"runtime.device", {cpu}}}, .not_with = {emulated}});
  section.add("window", whole(),
              "The largest number of tasks that a rank has submitted and not finished. A small number leaves "
              "workers idle.",
              &RuntimeConfig::window, of_fixed_order);
  section.add(
      "timeout", number(positive),
      "Seconds without progress on any rank after which the run is ended. A task that ends is progress, and "
      "so is a task that runs, for at most ten times as long.",
      &RuntimeConfig::timeout);
  section.add("mapping", one_of(mapping_words),
              "Which worker gets which device of the ranks: linear takes them in order, auto puts workers "
              "that exchange much on near devices.",
              &RuntimeConfig::mapping);
  section
      .add("memory_limit",
           {.kind = Kind::bytes, .count = Count::one_or_list, .min = 1024, .length = "schedule.workers"},
           "Bytes that a worker may need in all: one number for all workers, or a list with one for each. A "
           "run in which a worker needs more is refused.",
           &RuntimeConfig::memory_limits, of_fixed_order)
      .get = [](const Config& config) { return one_or_list(config.runtime.memory_limits); };
  add_emulation_keys(keys);
}

}  // namespace starpipe::runtime::keys
