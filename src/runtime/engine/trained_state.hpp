// SPDX-License-Identifier: Apache-2.0
// Copies the parameters and the optimizer's state out of the engine and into it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/step_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Receives the trained numbers of a set of parameters: the parameters in fp32, whatever the precision of the
/// weights, and the optimizer's state as optimizer_step() has it, which may be empty. `set`: its number, as
/// in Network::sets(). The views are valid during the call only.
using StateReader =
    std::function<void(int set, std::span<const float> parameters, std::span<const float> optimizer)>;
/// Fills in the trained numbers of a set of parameters, in the same form.
using StateWriter = std::function<void(int set, std::span<float> parameters, std::span<float> optimizer)>;

/// The trained numbers on this rank. The thread that runs the steps calls the functions, between steps. They
/// are not collective.
class TrainedState {
 public:
  /// The references must outlive this.
  TrainedState(const plan::Schedule& schedule, const model::Network& network, const TaskGraph& graph,
               StepData& data)
      : schedule_(schedule), network_(network), graph_(graph), data_(data) {}

  /// Calls `read` for each set whose first holder is on this rank, ascending. All holders of a set have the
  /// same numbers, so the ranks together read each set once.
  void read(const StateReader& read) const;
  /// Calls `write` for each holder of each set on this rank, ascending by set. The holder's weights are then
  /// rounded from its new parameters.
  void write(const StateWriter& write) const;

 private:
  // The data of a holder of a set.
  struct Held {
    int set = 0;
    std::size_t weights;
    std::optional<std::size_t> master;
    std::optional<std::size_t> optimizer;
  };
  [[nodiscard]] std::vector<Held> held(bool first_only) const;

  const plan::Schedule& schedule_;
  const model::Network& network_;
  const TaskGraph& graph_;
  StepData& data_;
};

}  // namespace starpipe::runtime
