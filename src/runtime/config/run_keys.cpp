// SPDX-License-Identifier: Apache-2.0
// The keys of `training`, `checkpoint`, `evaluate` and `runtime`.
#include <limits>

#include "runtime/config/key_parts.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime::keys {
namespace {

using model::LearningRateSchedule;
using model::OptimizerConfig;

/// Emulated jobs only wait: keys that affect values alone have no effect on them, and are refused.
const KeyRules of_values = {.not_with = {emulated}};

void add_optimizer_keys(Keys& keys) {
  constexpr const char* kind = "training.optimizer.kind";
  Section plain(keys, "training.optimizer", {}, &Config::training, &TrainingConfig::optimizer);
  plain.add("kind", one_of(model::optimizer_kinds), "The optimizer, with PyTorch's formulas and defaults.",
            &OptimizerConfig::kind);
  Section section(keys, "training.optimizer", of_values, &Config::training, &TrainingConfig::optimizer);
  section.add(
      "learning_rate", fp32_number(not_negative),
      "The learning rate; the highest one where `schedule` changes it. With 0 the weights do not change.",
      &OptimizerConfig::learning_rate);
  section.add("weight_decay", fp32_number(not_negative),
              "The weight decay: decoupled under adamw, added to the gradient under sgd.",
              &OptimizerConfig::weight_decay, {.defaults = {{{kind, {"sgd"}}, 0.0}}});
  section.add(
      "decay", one_of(model::decay_kinds),
      "Which parameters the weight decay applies to: all, or matrices, which have two or more dimensions; "
      "then biases and the weights of LayerNorms do not decay.",
      &OptimizerConfig::decay, {.not_with = {{"training.optimizer.weight_decay", {"0"}}}});
  plain.add("momentum", fp32_number(not_negative), "The momentum.", &OptimizerConfig::momentum,
            {.only_with = {{kind, {"sgd"}}}});
  const KeyRules of_adamw = {.only_with = {{kind, {"adamw"}}}};
  section.add("beta1", fp32_number(fraction), "Decay of the first moment.", &OptimizerConfig::beta1,
              of_adamw);
  section.add("beta2", fp32_number(fraction), "Decay of the second moment.", &OptimizerConfig::beta2,
              of_adamw);
  section.add("epsilon", fp32_number(not_negative),
              "Added to the root of the second moment, so that no update divides by 0.",
              &OptimizerConfig::epsilon, of_adamw);
}

void add_learning_rate_keys(Keys& keys) {
  constexpr const char* kind = "training.optimizer.schedule.kind";
  Section section(keys, "training.optimizer.schedule", of_values, &Config::training,
                  &TrainingConfig::optimizer, &OptimizerConfig::schedule);
  section.add("kind", one_of(model::learning_rate_kinds),
              "How the learning rate falls after its warm-up (docs/training.md has the formulas).",
              &LearningRateSchedule::kind);
  section.add(
      "warmup", whole(0),
      "Steps in which the learning rate rises in a line. Step t, from 0, has (t + 1) / (warmup + 1) of "
      "`learning_rate`.",
      &LearningRateSchedule::warmup);
  section.add("floor", fp32_number(not_negative),
              "The lowest learning rate after the warm-up; at most `learning_rate`.",
              &LearningRateSchedule::floor, {.only_with = {{kind, {"linear", "cosine", "inverse_sqrt"}}}});
  section.add("steps", whole(),
              "The step, from 0, at which the learning rate reaches the floor; more than `warmup`.",
              &LearningRateSchedule::steps,
              {.default_text = "`training.steps`", .only_with = {{kind, {"linear", "cosine"}}}});
}

}  // namespace

void add_training_keys(Keys& keys) {
  Section plain(keys, "training", {}, &Config::training);
  plain.add("microbatches", whole(), "Micro-batches of a step (B).", &TrainingConfig::microbatches,
            {.defaults = {value_in_file}});
  plain.add("microbatch_size", {.kind = Kind::whole, .min = 1, .max = model::max_samples},
            "Sequences (gpt, llama) or samples (mlp) of a micro-batch.", &TrainingConfig::microbatch_size);
  plain.add("steps", whole(), "Steps to train; the optimizer updates the weights once in each.",
            &TrainingConfig::steps, {.required = always});
  Section section(keys, "training", of_values, &Config::training);
  section.add("seed", {.kind = Kind::whole, .max = std::numeric_limits<std::uint64_t>::max()},
              "Start values of the weights and the choice of data depend on it.", &TrainingConfig::seed);
  section.add(
      "nonfinite", one_of(nonfinite_words),
      "After a step in which a pass or a gradient has infinity or NaN: stop ends the run with status 1 and "
      "names the first such pass, or the parameter; skip leaves weights and optimizer as they were before "
      "the step, and the report counts it; continue makes no check. With stop and skip, weights that are not "
      "finite after the last step end the run with status 1. skip undoes no update: once an update has left "
      "infinity or NaN in the weights, every later step is skipped.",
      &TrainingConfig::nonfinite);
  Section(keys, "training", of_values, &Config::training, &TrainingConfig::optimizer)
      .add("clip", fp32_number(positive),
           "The largest norm of the gradient, over all parameters. A gradient with a larger one is scaled by "
           "clip / (norm + 1e-6) before the update, as PyTorch's clip_grad_norm_ does. Without it nothing is "
           "clipped; the norm is computed all the same.",
           &OptimizerConfig::clip);
  add_optimizer_keys(keys);
  add_learning_rate_keys(keys);
}

void add_checkpoint_keys(Keys& keys) {
  Section(keys, "checkpoint", of_values, &Config::checkpoint)
      .add("folder", text(),
           "Where `train` keeps checkpoints, a folder that all ranks see; other commands write none. One is "
           "written after the last step in any case. Without this key there are no checkpoints.",
           &CheckpointConfig::folder);
  Section section(keys, "checkpoint", {.only_with = {{"checkpoint.folder"}}}, &Config::checkpoint);
  section.add("every", whole(), "A checkpoint is written after every so many steps.",
              &CheckpointConfig::every);
  section.add(
      "keep", whole(),
      "The largest number of checkpoints that are kept. When a new one is whole, older ones are removed.",
      &CheckpointConfig::keep);
  section.add(
      "on_signal", one_of(checkpoint_signals),
      "The signal after which a checkpoint is written at the end of the step. SIGTERM then writes one, "
      "too, and ends the run with status 75. none: no signal does so, and SIGTERM ends the run at once.",
      &CheckpointConfig::on_signal);
}

void add_evaluate_keys(Keys& keys) {
  Section section(keys, "evaluate", of_values, &Config::evaluate);
  section.add("every", whole(),
              "Steps between two evaluations of a training run; there is always one before the first step "
              "and one after the last.",
              &EvaluateConfig::every, {.default_text = "`training.steps`"});
  section.add(
      "microbatches", whole(),
      "Micro-batches of an evaluation: the first ones of the validation data. A shorter file is evaluated "
      "once.",
      &EvaluateConfig::microbatches, {.default_text = "as many as a step has"});
}

namespace {

/// Returns a key of `runtime.emulate`, which is there when any of its keys is given.
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
                               &EmulationConfig::comm,
                               {.not_with = {{"runtime.emulate.links"}, {"runtime.links"}}}));
  keys.back().get = [](const Config& config) {
    const auto& emulate = config.runtime.emulate;
    return emulate && emulate->links_file.empty() ? to_json_value(emulate->comm) : json();
  };
  keys.push_back(
      emulation_key("links", text(),
                    "A file with the links between workers, in place of `comm`: the latency and the "
                    "bandwidth of each level of a machine. The model gives the bytes.",
                    &EmulationConfig::links_file));
  keys.push_back(emulation_key("copy", {.kind = Kind::time},
                               "How long each copy of a stash to its home lasts, and each copy back, in "
                               "place of `host_link` and `disk_link` in the file of `links`.",
                               &EmulationConfig::copy));
  keys.push_back(emulation_key("peer_copy", {.kind = Kind::time},
                               "The same for copies to other workers, in place of `copy`.",
                               &EmulationConfig::peer_copy));
  keys.push_back(emulation_key("overlap", number({.min = 0, .max = 1}),
                               "A worker runs F and a backward pass of a pair at once. This is the time of "
                               "the pair, as a part of the sum "
                               "of both durations. Without it the jobs of a pair follow each other.",
                               &EmulationConfig::overlap,
                               {.only_with = {{"runtime.policy", {"starpipe"}}},
                                .not_with = {{"runtime.emulate.prefetch", {"false"}}}}));
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
  section.add("instructions", one_of(instruction_words),
              "The instructions of matrix products on cores: all that the processor has (native), or at most "
              "those of avx2, avx512, avx512_bf16 or amx. Processors with different instructions give "
              "different bits. Needs oneDNN.",
              &RuntimeConfig::instructions,
              {.only_with = {{"runtime.device", {cpu}}}, .not_with = {emulated}});
  section.add("workers_per_core", whole(),
              "The largest number of workers that share a core. Workers that share a core slow each other, "
              "so measured times are not a pipeline's.",
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
  section.add("links", text(),
              "A file with the real links between workers (docs/links.md), with which predictions count. It "
              "changes nothing in the run itself. Without it, the transfers of emulated jobs over real links "
              "count as taking no time, and those of real kernels as long as was measured.",
              &RuntimeConfig::links_file,
              {.not_with = {{"runtime.emulate.links"}, {"runtime.mapping", {"auto"}}}});
  section.add(
      "stash_folder", text(),
      "The folder on the disk to which stashes with the home disk are copied. Each rank has a file there "
      "without a name: it goes with the process.",
      &RuntimeConfig::stash_folder, {.not_with = {emulated}});
  add_emulation_keys(keys);
}

}  // namespace starpipe::runtime::keys
