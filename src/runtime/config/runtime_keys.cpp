// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/config/key_parts.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::runtime::keys {
namespace {

/// A key of `runtime.emulate`, which is there when any of its keys is given.
template <class T>
ConfigKey emulation_key(std::string name, ValueType type, std::string meaning, T EmulationConfig::*member) {
  ConfigKey made;
  made.name = fmt::format("{}.{}", emulation_section, name);
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

void add_emulation_keys(Keys& keys) {
  // `schedule.partition` uses measured times; an emulated run has none.
  const auto time_key = [](ConfigKey made) {
    return not_with(required(std::move(made), {emulation_section}), "schedule.partition");
  };
  const ValueType times = {.kind = Kind::time, .count = Count::one_or_list};
  keys.push_back(time_key(emulation_key("F", times,
                                        "How long F lasts: one time for all stages, or one for each. Jobs "
                                        "are then timed waits, and nothing is computed.",
                                        &EmulationConfig::F)));
  keys.push_back(time_key(emulation_key("B", times, "How long B lasts.", &EmulationConfig::B)));
  keys.push_back(time_key(emulation_key("W", times, "How long W lasts.", &EmulationConfig::W)));
  keys.push_back(
      emulation_key("per_share", boolean(),
                    "Whether F, B and W are the times of 1/W of the model, W being the number of "
                    "workers, and not of a stage. Schedules with several stages on a worker then do "
                    "the same work as others. A list has one time for each share. With model.tensor each "
                    "stage has a part of the model's times in proportion to its FLOPs.",
                    &EmulationConfig::per_share));
  constexpr const char* links_key = "runtime.emulate.links";
  ConfigKey comm =
      not_with(emulation_key("comm", {.kind = Kind::time}, "How long each transfer between workers lasts.",
                             &EmulationConfig::comm),
               links_key);
  comm.get = [](const Config& config) {
    const auto& emulate = config.runtime.emulate;
    return emulate && emulate->links_file.empty() ? to_json_value(emulate->comm) : json();
  };
  keys.push_back(std::move(comm));
  keys.push_back(
      emulation_key("links", text(),
                    "A file with the links between workers, in place of `comm`: the latency and the "
                    "bandwidth of each level of a machine. The model gives the bytes.",
                    &EmulationConfig::links_file));
  keys.push_back(not_with(
      emulation_key("prefetch", boolean(),
                    "Whether transfers overlap compute. Otherwise a worker fetches the inputs of a job "
                    "after it has picked it.",
                    &EmulationConfig::prefetch),
      "runtime.emulate.comm", {"0"}));
}

}  // namespace

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
  device.refused_values = {{std::string(cuda_device), {emulation_section}}};
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
  precision.refused_values = {{"tf32", {"runtime.device", {std::string(cpu_device)}}}};
  add(std::move(precision));
  add(not_emulated(
      only_with(key("runtime.workers_per_core", whole(),
                    "The most workers that share a core. Workers that share a core slow each other, "
                    "so measured times are not a pipeline's.",
                    at(&Config::runtime, &RuntimeConfig::workers_per_core)),
                "runtime.device", {std::string(cpu_device)})));
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
  add(key("runtime.mapping", one_of(mapping_words),
          "Which worker gets which device of the ranks: linear takes them in order, auto puts workers that "
          "exchange much on near devices.",
          at(&Config::runtime, &RuntimeConfig::mapping)));
  // Other policies, and `schedule.dynamic`, choose the order or the workers at run time, so what a worker
  // needs is not known before.
  ConfigKey memory_limit = not_with(
      only_with(
          key("runtime.memory_limit",
              {.kind = Kind::bytes, .count = Count::one_or_list, .min = 1024, .length = "schedule.workers"},
              "Bytes that a worker may need in all: one number for all workers, or a list with one for "
              "each. A run in which a worker needs more is refused.",
              at(&Config::runtime, &RuntimeConfig::memory_limits)),
          "runtime.policy", {"starpipe", "worker-order"}),
      "schedule.dynamic");
  memory_limit.get = [](const Config& config) { return one_or_list(config.runtime.memory_limits); };
  add(std::move(memory_limit));
  add_emulation_keys(keys);
}

}  // namespace starpipe::runtime::keys
