// SPDX-License-Identifier: Apache-2.0
// A sequential run of the task graph without StarPU and MPI, and comparisons of its results.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/data/slice_rows.hpp"
#include "plan/simulate/reductions.hpp"
#include "runtime/engine/kernels.hpp"
#include "runtime/engine/task_graph.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "support/floats.hpp"

namespace starpipe::runtime::testing {

inline double norm(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

/// Compares stage by stage: the norm of the difference relative to the norm, and the difference of each
/// element relative to the largest element.
inline void expect_close(const std::vector<Floats>& actual, const std::vector<Floats>& expected,
                         double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t s = 0; s < expected.size(); ++s) {
    ASSERT_EQ(actual[s].size(), expected[s].size()) << what << " of stage " << s;
    double sum = 0;
    double largest = 0;
    for (std::size_t i = 0; i < expected[s].size(); ++i) {
      const double difference = static_cast<double>(actual[s][i]) - static_cast<double>(expected[s][i]);
      sum += difference * difference;
      largest = std::max(largest, std::abs(static_cast<double>(expected[s][i])));
    }
    EXPECT_LE(std::sqrt(sum), tolerance * norm(expected[s])) << what << " of stage " << s;
    for (std::size_t i = 0; i < expected[s].size(); ++i) {
      ASSERT_NEAR(actual[s][i], expected[s][i], tolerance * largest)
          << what << " of stage " << s << ", element " << i;
    }
  }
}

/// Runs a step's tasks sequentially in plain memory. Under the ordered discipline w and n fix the
/// order of each sum, so the engine must give the same bits on any number of ranks. Temporaries and
/// accumulators start as NaN, so that no task can rely on values of an earlier step.
class SequentialRun {
 public:
  SequentialRun(const plan::Schedule& schedule, const model::Network& network,
                const model::OptimizerConfig& optimizer, const std::vector<Floats>& parameters)
      : schedule_(schedule),
        network_(network),
        graph_(schedule, network, optimizer),
        context_{.graph = &graph_,
                 .network = &network,
                 .optimizer = &optimizer,
                 .loss_scale = 1.0F / static_cast<float>(schedule.whole_microbatches())} {
    for (const Datum& datum : graph_.data()) {
      memory_.emplace_back(datum.size, 0.0F);
      const auto s = index(datum.stage);
      if (datum.kind == DataKind::master) memory_.back() = parameters[s];
      if (datum.kind == DataKind::weights)
        memory_.back() = model::rounded_weights(network.config.precision, parameters[s]);
    }
  }

  /// The losses by whole micro-batch.
  Floats step(int step, const model::Dataset& data) {
    context_.updates = step;
    context_.learning_rate =
        model::learning_rate(context_.optimizer->schedule, context_.optimizer->learning_rate, step);
    for (std::size_t d = 0; d < memory_.size(); ++d) {
      const Datum& datum = graph_.data()[d];
      if (is_temporary(datum.kind) || datum.kind == DataKind::weight_gradient ||
          datum.kind == DataKind::loss || datum.kind == DataKind::verdict) {
        std::ranges::fill(memory_[d], std::numeric_limits<float>::quiet_NaN());
      }
      if (datum.kind == DataKind::input)
        model::load_input_rows(data, network_, datum.stage, step, datum.microbatch, memory_[d]);
      if (datum.kind == DataKind::target)
        model::load_target_rows(data, network_, datum.stage, step, datum.microbatch, memory_[d]);
    }
    for (const Task& task : graph_.tasks()) {
      std::vector<model::Memory> memory;
      for (const DataAccess& access : task.data) memory.emplace_back(memory_[access.datum]);
      Floats scratch(task.job ? scratch_size(schedule_, network_, task.stage, false) : 0);
      run_kernel(context_, task, memory, scratch);
      if (is_stash_copy(task.kind)) copy(task);
    }
    Floats losses(index(schedule_.microbatches()));
    for (std::size_t d = 0; d < memory_.size(); ++d) {
      const Datum& datum = graph_.data()[d];
      if (datum.kind == DataKind::loss) losses[index(datum.microbatch)] = memory_[d][0];
    }
    return model::losses_of_whole(network_, losses);
  }

  /// The norm of the gradient of the last step.
  [[nodiscard]] double gradient_norm() {
    const auto verdict = graph_.complete_verdict();
    return verdict ? Verdict(memory_[*verdict]).norm() : 0;
  }

  /// By set of parameters, from its first holder.
  [[nodiscard]] std::vector<Floats> parameters() const {
    const bool master = network_.config.precision == model::Precision::bf16;
    return of_first_holder(master ? DataKind::master : DataKind::weights);
  }
  [[nodiscard]] std::vector<Floats> gradients() const { return of_first_holder(DataKind::weight_gradient); }

  /// All copies of a stage's weights are equal, bit by bit.
  void expect_equal_replicas() const {
    for (int s = 0; std::cmp_less(s, graph_.parameters().size()); ++s) {
      const Floats* first = nullptr;
      for (std::size_t d = 0; d < memory_.size(); ++d) {
        if (graph_.data()[d].kind != DataKind::weights || graph_.data()[d].stage != s) continue;
        if (first == nullptr) first = &memory_[d];
        EXPECT_EQ(memory_[d], *first) << "stage " << s << " on worker " << graph_.data()[d].worker;
      }
    }
  }

  [[nodiscard]] const TaskGraph& graph() const { return graph_; }

 private:
  // A copied stash waits in `homes_`, or in the memory of another worker, and nowhere else.
  void copy(const Task& task) {
    std::vector<Floats*> stashes;
    for (const DataAccess& access : task.data) {
      if (graph_.data()[access.datum].kind == DataKind::stash) stashes.push_back(&memory_[access.datum]);
    }
    if (stashes.size() == 2) {
      *stashes[1] = *stashes[0];
      std::ranges::fill(*stashes[0], std::numeric_limits<float>::quiet_NaN());
      return;
    }
    for (const DataAccess& access : task.data) {
      if (graph_.data()[access.datum].kind != DataKind::stash) continue;
      Floats& stash = memory_[access.datum];
      const plan::Job job = schedule_.job(*task.job);
      const plan::JobId offload = schedule_.offload(job.stage, job.microbatch);
      if (task.kind == TaskKind::O) {
        homes_[offload] = stash;
        std::ranges::fill(stash, std::numeric_limits<float>::quiet_NaN());
      } else {
        stash = std::move(homes_.extract(offload).mapped());
      }
    }
  }

  [[nodiscard]] std::vector<Floats> of_first_holder(DataKind kind) const {
    std::vector<Floats> all(graph_.parameters().size());
    for (int s = 0; std::cmp_less(s, all.size()); ++s) {
      const int holder = plan::weight_holders(schedule_, graph_.parameters()[index(s)].first_stage()).front();
      for (std::size_t d = 0; d < memory_.size(); ++d) {
        const Datum& datum = graph_.data()[d];
        if (datum.kind == kind && datum.stage == s && datum.worker == holder) all[index(s)] = memory_[d];
      }
    }
    return all;
  }

  const plan::Schedule& schedule_;
  const model::Network& network_;
  TaskGraph graph_;
  std::map<plan::JobId, Floats> homes_;
  KernelContext context_;
  std::vector<Floats> memory_;
};

}  // namespace starpipe::runtime::testing
