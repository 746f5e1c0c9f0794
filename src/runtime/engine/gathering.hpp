// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/meter.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// The norm of a step's gradient.
struct GradientNorm {
  double norm = 0;
  /// The first parameter with infinity or NaN in its gradient; empty if the norm is finite.
  std::string first_nonfinite = {};
};

/// Receives the trained numbers of a set of parameters: the parameters in fp32, whatever the precision of the
/// weights, and the optimizer's state as optimizer_step() has it, which may be empty. `set`: its number, as
/// in Network::sets(). The views are valid during the call only.
using StateReader =
    std::function<void(int set, std::span<const float> parameters, std::span<const float> optimizer)>;
/// Fills in the trained numbers of a set of parameters, in the same form.
using StateWriter = std::function<void(int set, std::span<float> parameters, std::span<float> optimizer)>;

/// Receives the numbers of a parameter, in fp32, and the set that the parameter is in.
using ParameterReader =
    std::function<void(const model::Parameter& parameter, int set, std::span<const float> values)>;

/// Brings the results of a step from the ranks that have them to rank 0, and owns the offset between their
/// clocks. Reads and writes the trained numbers of this rank. All member functions but the last three
/// are collective; the thread that runs the steps calls them, between steps.
class Gathering {
 public:
  /// Collective: compares the clocks. `data` must outlive this.
  Gathering(const StepContext& step, StepData& data);

  /// Returns, on every rank, the norm of the step's gradient before it is clipped; nullopt in a graph without
  /// norms.
  [[nodiscard]] std::optional<GradientNorm> gradient_norm() const;
  /// Returns the losses of the step, [whole micro-batch], on every rank.
  [[nodiscard]] std::vector<float> losses() const;
  /// Returns the jobs of all ranks, on rank 0's clock; on rank 0 only. `mine`: this rank's, on its own clock.
  [[nodiscard]] std::vector<JobRecord> jobs(std::vector<JobRecord> mine) const;
  /// Returns the records of all workers, [logical worker], on rank 0's clock; on rank 0 only. `mine`:
  /// [logical worker], on this rank's clock, empty for workers of other ranks.
  [[nodiscard]] std::vector<WorkerRecord> workers(std::span<const WorkerRecord> mine) const;
  /// Calls `use` on rank 0 with each parameter, in the order of the sets. Rank 0 needs memory for one
  /// parameter at a time. `use` does not throw.
  void read_parameters(const ParameterReader& use) const;
  /// Returns the parameters of each stage, in fp32 whatever the precision of its weights, from the first
  /// worker that holds them; on rank 0 only.
  [[nodiscard]] std::vector<std::vector<float>> parameters() const;
  /// Returns the weight gradient of each stage, from the first worker that holds its weights; on rank 0 only.
  [[nodiscard]] std::vector<std::vector<float>> gradients() const;
  /// Returns, on every rank, the first stage whose weights hold infinity or NaN, on any of the workers that
  /// hold them; nullopt if there is none. Each rank looks through its own weights.
  [[nodiscard]] std::optional<int> first_nonfinite_stage() const;

  /// Not collective. Calls `read` for each set whose first holder is on this rank, ascending. All holders of
  /// a set have the same numbers, so the ranks together read each set once.
  void read_state(const StateReader& read) const;
  /// Not collective. Calls `read` with each parameter of these sets.
  void read_own_parameters(const ParameterReader& read) const;
  /// Not collective. Calls `write` for each holder of each set on this rank, ascending by set. The holder's
  /// weights are then rounded from its new parameters.
  void write_state(const StateWriter& write) const;

 private:
  // The data of a holder of a set.
  struct Held {
    int set = 0;
    std::size_t weights;
    std::optional<std::size_t> master;
    std::optional<std::size_t> optimizer;
  };
  [[nodiscard]] std::vector<Held> held(bool first_only) const;
  void for_each_on_root(DataKind wanted, const ParameterReader& use) const;
  [[nodiscard]] std::vector<std::vector<float>> by_stage(DataKind wanted) const;
  /// `number`: among all parameters of the network.
  [[nodiscard]] std::string parameter_name(std::int64_t number) const;

  StepContext step_;
  StepData& data_;
  double clock_offset_;  // seconds to add to this rank's clock to get rank 0's
};

}  // namespace starpipe::runtime
