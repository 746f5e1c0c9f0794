// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <utility>

#include "runtime/config/key_parts.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime::keys {
namespace {

constexpr const char* optimizer_kind = "training.optimizer.kind";
constexpr const char* rate_kind = "training.optimizer.schedule.kind";

template <class Member>
auto at_optimizer(Member member) {
  return at(&Config::training, &TrainingConfig::optimizer, member);
}
template <class Member>
auto at_rates(Member member) {
  return at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::schedule, member);
}

void add_optimizer_keys(Keys& keys) {
  using model::OptimizerConfig;
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  add(key(optimizer_kind, one_of(model::optimizer_kinds),
          "The optimizer, with PyTorch's formulas and defaults.", at_optimizer(&OptimizerConfig::kind)));
  add(not_emulated(
      key("training.optimizer.learning_rate", fp32_number(not_negative),
          "The learning rate; the highest one where `schedule` changes it. With 0 the weights do not change.",
          at_optimizer(&OptimizerConfig::learning_rate))));
  add(by_default(not_emulated(key("training.optimizer.weight_decay", fp32_number(not_negative),
                                  "The weight decay: decoupled under adamw, added to the gradient under sgd.",
                                  at_optimizer(&OptimizerConfig::weight_decay))),
                 {optimizer_kind, {"sgd"}}, 0.0));
  add(not_with(
      not_emulated(key(
          "training.optimizer.decay", one_of(model::decay_kinds),
          "Which parameters the weight decay applies to: all, or matrices, those of two or more dimensions; "
          "then biases and the weights of LayerNorms do not decay.",
          at_optimizer(&OptimizerConfig::decay))),
      "training.optimizer.weight_decay", {"0"}));
  add(only_with(key("training.optimizer.momentum", fp32_number(not_negative), "The momentum.",
                    at_optimizer(&OptimizerConfig::momentum)),
                optimizer_kind, {"sgd"}));
  add(not_emulated(only_with(key("training.optimizer.beta1", fp32_number(fraction),
                                 "Decay of the first moment.", at_optimizer(&OptimizerConfig::beta1)),
                             optimizer_kind, {"adamw"})));
  add(not_emulated(only_with(key("training.optimizer.beta2", fp32_number(fraction),
                                 "Decay of the second moment.", at_optimizer(&OptimizerConfig::beta2)),
                             optimizer_kind, {"adamw"})));
  add(not_emulated(only_with(key("training.optimizer.epsilon", fp32_number(not_negative),
                                 "Added to the root of the second moment, so that no update divides by 0.",
                                 at_optimizer(&OptimizerConfig::epsilon)),
                             optimizer_kind, {"adamw"})));
}

void add_learning_rate_keys(Keys& keys) {
  using model::LearningRateSchedule;
  const auto add = [&keys](ConfigKey made) { keys.push_back(not_emulated(std::move(made))); };
  add(key(rate_kind, one_of(model::learning_rate_kinds),
          "How the learning rate falls after its warm-up (docs/training.md has the formulas).",
          at_rates(&LearningRateSchedule::kind)));
  add(key("training.optimizer.schedule.warmup", whole(0),
          "Steps in which the learning rate rises in a line. Step t, from 0, has (t + 1) / (warmup + 1) of "
          "`learning_rate`.",
          at_rates(&LearningRateSchedule::warmup)));
  add(only_with(key("training.optimizer.schedule.floor", fp32_number(not_negative),
                    "The lowest learning rate after the warm-up; at most `learning_rate`.",
                    at_rates(&LearningRateSchedule::floor)),
                rate_kind, {"linear", "cosine", "inverse_sqrt"}));
  add(described_default(
      only_with(key("training.optimizer.schedule.steps", whole(),
                    "The step, from 0, at which the learning rate reaches the floor; more than `warmup`.",
                    at_rates(&LearningRateSchedule::steps)),
                rate_kind, {"linear", "cosine"}),
      "`training.steps`"));
}

}  // namespace

void add_training_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  ValueType seed = whole(0);
  seed.max = std::numeric_limits<std::uint64_t>::max();
  add(or_from_file(key("training.microbatches", whole(), "Micro-batches of a step (B).",
                       at(&Config::training, &TrainingConfig::microbatches))));
  ValueType microbatch_size = whole();
  microbatch_size.max = model::max_samples;
  add(key("training.microbatch_size", microbatch_size,
          "Sequences (gpt, llama) or samples (mlp) of a micro-batch.",
          at(&Config::training, &TrainingConfig::microbatch_size)));
  add(required(key("training.steps", whole(),
                   "Steps to train; the optimizer updates the weights once in each.",
                   at(&Config::training, &TrainingConfig::steps))));
  add(not_emulated(key("training.seed", seed,
                       "Start values of the weights and the choice of data depend on it.",
                       at(&Config::training, &TrainingConfig::seed))));
  add(not_emulated(key(
      "training.nonfinite", one_of(nonfinite_words),
      "After a step in which a pass or a sum of gradients has infinity or NaN: stop ends the run with status "
      "1 and names the first such pass; skip leaves weights and optimizer as they were before the step, and "
      "the report counts it; continue makes no check. With stop and skip, weights that are not finite after "
      "the last step end the run with status 1. skip undoes no update: once an update has left infinity or "
      "NaN in the weights, every later step is skipped.",
      at(&Config::training, &TrainingConfig::nonfinite))));
  add(not_emulated(
      key("training.clip", fp32_number(positive),
          "The largest norm of the gradient, over all parameters. A gradient with a larger one is scaled by "
          "clip / (norm + 1e-6) before the update, as PyTorch's clip_grad_norm_ does. Without it nothing is "
          "clipped; the norm is computed all the same.",
          at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::clip))));
  add_optimizer_keys(keys);
  add_learning_rate_keys(keys);
}

}  // namespace starpipe::runtime::keys
