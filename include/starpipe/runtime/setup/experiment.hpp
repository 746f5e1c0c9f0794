// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// Network, schedule and data, built and checked from a configuration.
struct Experiment {
  model::Network network;
  /// As it runs. Without `schedule.dynamic`, `simulate` decides a greedy or bounded schedule here, with the
  /// emulated times or the FLOPs, and it runs as an ordered schedule: so times and what workers hold do not
  /// depend on microseconds.
  plan::Schedule schedule;
  plan::Discipline discipline;  ///< of the schedule before it was decided
  std::unique_ptr<model::Dataset> data;
  /// Durations of emulated jobs (with recomputation, B includes F) and transfers; nothing when kernels run.
  std::optional<plan::Costs> emulated;
};

/// Builds model, data and schedule. Throws InputError naming the key for a configuration that cannot work,
/// also for a schedule that cannot finish or that needs more than `runtime.memory_limit`.
Experiment make_experiment(const Config& config);

}  // namespace starpipe::runtime
