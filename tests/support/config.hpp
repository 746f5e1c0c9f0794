// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe {

/// Returns the configuration of a run with made-up data.
inline runtime::Config config_of(model::ModelConfig network, std::string schedule, int workers,
                                 int microbatches, int microbatch_size = 1) {
  runtime::Config config;
  config.model = std::move(network);
  config.data.kind = "synthetic";
  config.training.microbatches = microbatches;
  config.training.microbatch_size = microbatch_size;
  config.schedule.name = std::move(schedule);
  config.schedule.workers = workers;
  return config;
}

}  // namespace starpipe
