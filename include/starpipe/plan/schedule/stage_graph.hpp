// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

/// The stages of a network and the edges along which they pass data: a chain for most networks, a tree or DAG
/// for networks with several encoder branches.
///
/// Acyclic, with exactly one sink: the stage that ends in the loss. Sources read the data. A value, immutable
/// after construction.
class StageGraph {
 public:
  /// Returns the chain of stages 0 -> 1 -> ... -> stages-1. Throws InputError when stages < 1.
  static StageGraph chain(int stages);

  /// Edges (from, to). Throws InputError for a stage out of [0, stages), a repeated edge, a cycle, or
  /// when there is not exactly one sink.
  StageGraph(int stages, std::vector<std::pair<int, int>> edges);

  [[nodiscard]] int size() const { return static_cast<int>(depth_.size()); }
  /// Returns the stages whose output `stage` reads, ascending.
  [[nodiscard]] std::span<const int> pred(int stage) const { return pred_[index(stage)]; }
  /// Returns the stages that read the output of `stage`, ascending.
  [[nodiscard]] std::span<const int> succ(int stage) const { return succ_[index(stage)]; }
  [[nodiscard]] int sink() const { return sink_; }
  /// Returns the number of edges of the longest path from a source to `stage`; in a chain the stage's number.
  [[nodiscard]] int depth(int stage) const { return depth_[index(stage)]; }
  /// Returns the number of stages on the longest path; in a chain the number of stages.
  [[nodiscard]] int length() const { return depth(sink_) + 1; }
  [[nodiscard]] bool is_chain() const;
  /// Returns the edges (from, to), sorted.
  [[nodiscard]] const std::vector<std::pair<int, int>>& edges() const { return edges_; }

  /// Returns the same graph with shards: each list has the stages into which one stage was cut, in order.
  /// They are what drawings call them, and nothing else depends on them. Throws InputError for a stage out of
  /// range or in two lists, and for a list of fewer than two stages.
  [[nodiscard]] StageGraph with_shards(std::vector<std::vector<int>> shards) const;
  [[nodiscard]] const std::vector<std::vector<int>>& shards() const { return shards_; }
  /// Returns which shard the stage is, from 0, or nullopt for a whole stage.
  [[nodiscard]] std::optional<int> shard(int stage) const;
  /// Returns the stage's number, with a letter when it is a shard: "5b" is stage 5, the second shard of its
  /// list.
  [[nodiscard]] std::string label(int stage) const;

  /// Compares stages and edges; shards are names only.
  friend bool operator==(const StageGraph& a, const StageGraph& b) {
    return a.size() == b.size() && a.edges_ == b.edges_;
  }

 private:
  std::vector<std::pair<int, int>> edges_;
  std::vector<std::vector<int>> pred_;  // by stage
  std::vector<std::vector<int>> succ_;
  std::vector<int> depth_;
  int sink_ = 0;
  std::vector<std::vector<int>> shards_;
  std::vector<int> shard_;  // by stage, -1 for a whole one; empty without shards
};

}  // namespace starpipe::plan
