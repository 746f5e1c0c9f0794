// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/key_parts.hpp"

namespace starpipe::runtime::keys {

void add_evaluate_keys(Keys& keys) {
  keys.push_back(not_emulated(described_default(key("evaluate.every", whole(),
                                                    "Steps between two evaluations of a training run; there "
                                                    "is always one before the first step and one "
                                                    "after the last.",
                                                    at(&Config::evaluate, &EvaluateConfig::every)),
                                                "`training.steps`")));
  keys.push_back(not_emulated(
      described_default(key("evaluate.microbatches", whole(),
                            "Micro-batches of an evaluation: the first ones of the validation data.",
                            at(&Config::evaluate, &EvaluateConfig::microbatches)),
                        "as many as a step has")));
}

}  // namespace starpipe::runtime::keys
