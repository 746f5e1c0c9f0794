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

/// The parts that `plan` and the engine need, built and checked from a configuration.
struct Experiment {
  model::Network network;
  /// As it runs. Unless it is to be dynamic, a greedy or bounded schedule is decided here, by `simulate` with
  /// the emulated times or the FLOPs, and runs as an ordered one, so that times and what workers hold do not
  /// depend on microseconds.
  plan::Schedule schedule;
  plan::Discipline discipline;  ///< that was asked for
  std::unique_ptr<model::Dataset> data;
  /// What emulated jobs (with recomputation, F is in B) and transfers take; nothing when kernels run.
  std::optional<plan::Costs> emulated;
};

/// Builds model, data and schedule. Throws InputError naming the key for all that cannot work, a schedule
/// that cannot finish, or not within `runtime.memory_limit`, included.
Experiment make_experiment(const Config& config);

}  // namespace starpipe::runtime
