// SPDX-License-Identifier: Apache-2.0
// What training changes: the parameters and the optimizer's state, out of the engine and into it.
#pragma once

#include <functional>
#include <span>

#include "runtime/data/step_data.hpp"
#include "runtime/step/task_graph.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Reads the trained numbers of a stage: its parameters in fp32, whatever the precision of its weights, and
/// the optimizer's state as optimizer_step() has it, which may be empty.
using StateReader =
    std::function<void(int stage, std::span<const float> parameters, std::span<const float> optimizer)>;
/// Writes them.
using StateWriter = std::function<void(int stage, std::span<float> parameters, std::span<float> optimizer)>;

/// The trained numbers on this rank. The thread that runs the steps calls the functions, between steps. They
/// are not collective.
class TrainedState {
 public:
  /// The references must outlive this.
  TrainedState(const plan::Schedule& schedule, const model::Network& network, const TaskGraph& graph,
               StepData& data)
      : schedule_(schedule), network_(network), graph_(graph), data_(data) {}

  /// Calls `read` for each stage whose first holder is on this rank, ascending. All holders of a stage have
  /// the same numbers, so the ranks together read each stage once.
  void read(const StateReader& read) const;
  /// Calls `write` for each holder on this rank of each stage, ascending. The holder's weights follow from
  /// the parameters that it writes.
  void write(const StateWriter& write) const;

 private:
  // The data of a holder of a stage; `none` where the graph has no such datum.
  struct Held {
    int stage = 0;
    std::size_t weights;
    std::size_t master;
    std::size_t optimizer;
  };
  [[nodiscard]] std::vector<Held> held(bool first_only) const;

  const plan::Schedule& schedule_;
  const model::Network& network_;
  const TaskGraph& graph_;
  StepData& data_;
};

}  // namespace starpipe::runtime
