// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/training_keys.hpp"

#include <limits>
#include <string>
#include <utility>

#include "runtime/config/key_parts.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime::keys {

void add_training_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  ValueType seed = whole(0);
  seed.most = std::numeric_limits<std::uint64_t>::max();
  add(or_from_file(key("training.microbatches", whole(), "Micro-batches of a step (B).",
                       at(&Config::training, &TrainingConfig::microbatches))));
  ValueType microbatch_size = whole();
  microbatch_size.most = model::most_samples;
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
      "After a step in which a pass computed infinity or NaN: stop ends the run with status 1 and names "
      "the first such pass; skip leaves weights and optimizer as they were before the step, and the "
      "report counts it; continue makes no check. With stop and skip, weights that are not finite after the "
      "last step end the run with status 1. skip undoes no update: once an update has left infinity or NaN "
      "in the weights, every later step is skipped.",
      at(&Config::training, &TrainingConfig::nonfinite))));
  const std::string kind = "training.optimizer.kind";
  add(key(kind, one_of(model::optimizer_kinds), "The optimizer, with PyTorch's formulas and defaults.",
          at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::kind)));
  add(not_emulated(
      key("training.optimizer.learning_rate", fp32_number(not_negative),
          "The learning rate. With 0 the weights do not change.",
          at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::learning_rate))));
  add(by_default(not_emulated(key("training.optimizer.weight_decay", fp32_number(not_negative),
                                  "The weight decay: decoupled under adamw, added to the gradient under sgd.",
                                  at(&Config::training, &TrainingConfig::optimizer,
                                     &model::OptimizerConfig::weight_decay))),
                 {kind, {"sgd"}}, 0.0));
  add(only_with(key("training.optimizer.momentum", fp32_number(not_negative), "The momentum.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::momentum)),
                kind, {"sgd"}));
  add(not_emulated(
      only_with(key("training.optimizer.beta1", fp32_number(fraction), "Decay of the first moment.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::beta1)),
                kind, {"adamw"})));
  add(not_emulated(
      only_with(key("training.optimizer.beta2", fp32_number(fraction), "Decay of the second moment.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::beta2)),
                kind, {"adamw"})));
  add(not_emulated(
      only_with(key("training.optimizer.epsilon", fp32_number(not_negative),
                    "Added to the root of the second moment, so that no update divides by 0.",
                    at(&Config::training, &TrainingConfig::optimizer, &model::OptimizerConfig::epsilon)),
                kind, {"adamw"})));
}

}  // namespace starpipe::runtime::keys
