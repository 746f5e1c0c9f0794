// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/stage_graph.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::plan {

StageGraph StageGraph::chain(int stages) {
  std::vector<std::pair<int, int>> edges;
  for (int s = 0; s + 1 < stages; ++s) edges.emplace_back(s, s + 1);
  return {stages, std::move(edges)};
}

StageGraph::StageGraph(int stages, std::vector<std::pair<int, int>> edges) : edges_(std::move(edges)) {
  if (stages < 1) throw InputError(fmt::format("a stage graph needs at least one stage, not {}", stages));
  std::ranges::sort(edges_);
  for (const auto& [from, to] : edges_) {
    if (from < 0 || from >= stages || to < 0 || to >= stages || from == to) {
      throw InputError(fmt::format("stage graph: edge {} -> {} is not between two of the stages 0..{}", from,
                                   to, stages - 1));
    }
  }
  if (const auto twice = std::ranges::adjacent_find(edges_); twice != edges_.end()) {
    throw InputError(fmt::format("stage graph: edge {} -> {} is given twice", twice->first, twice->second));
  }
  const auto count = index(stages);
  pred_.resize(count);
  succ_.resize(count);
  for (const auto& [from, to] : edges_) {
    pred_[index(to)].push_back(from);
    succ_[index(from)].push_back(to);
  }

  depth_.assign(count, 0);
  std::vector<std::size_t> waiting(count);
  std::vector<int> free;
  int sinks = 0;
  for (int s = 0; s < stages; ++s) {
    waiting[index(s)] = pred(s).size();
    if (pred(s).empty()) free.push_back(s);
    if (succ(s).empty()) {
      sink_ = s;
      ++sinks;
    }
  }
  if (sinks > 1) {
    throw InputError(fmt::format(
        "stage graph: {} stages feed no other; the stage with the loss must be the only one", sinks));
  }
  int seen = 0;
  while (!free.empty()) {
    const int s = free.back();
    free.pop_back();
    ++seen;
    for (const int t : succ(s)) {
      auto& depth = depth_[index(t)];
      depth = std::max(depth, depth_[index(s)] + 1);
      if (--waiting[index(t)] == 0) free.push_back(t);
    }
  }
  if (seen != stages) throw InputError("stage graph: the edges have a cycle");
}

bool StageGraph::is_chain() const {
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    if (edges_[i].first != static_cast<int>(i) || edges_[i].second != static_cast<int>(i) + 1) return false;
  }
  return static_cast<int>(edges_.size()) == size() - 1;
}

StageGraph StageGraph::with_shards(std::vector<std::vector<int>> shards) const {
  StageGraph named = *this;
  named.shard_.assign(shards.empty() ? 0 : index(size()), -1);
  for (const std::vector<int>& list : shards) {
    if (list.size() < 2) throw InputError("a list of shards has fewer than 2 stages");
    for (std::size_t k = 0; k < list.size(); ++k) {
      const int stage = list[k];
      if (stage < 0 || stage >= size())
        throw InputError(fmt::format("there is no stage {} to be a shard, only {} stages", stage, size()));
      if (named.shard_[index(stage)] >= 0) throw InputError(fmt::format("stage {} is a shard twice", stage));
      named.shard_[index(stage)] = static_cast<int>(k);
    }
  }
  named.shards_ = std::move(shards);
  return named;
}

std::optional<int> StageGraph::shard(int stage) const {
  if (shard_.empty() || shard_[index(stage)] < 0) return std::nullopt;
  return shard_[index(stage)];
}

std::string StageGraph::label(int stage) const {
  const std::optional<int> shard_number = shard(stage);
  if (!shard_number) return std::to_string(stage);
  std::string letters;  // a to z, aa, ab, ...
  for (int rest = *shard_number + 1; rest > 0; rest = (rest - 1) / 26)
    letters.insert(letters.begin(), static_cast<char>('a' + (rest - 1) % 26));
  return std::to_string(stage) + letters;
}

}  // namespace starpipe::plan
