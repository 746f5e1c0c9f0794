// SPDX-License-Identifier: Apache-2.0
// Small checkpoints for tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_files.hpp"

namespace starpipe::runtime::testing {

/// The tensors of one rank at a step: values that tell both.
class RankTensors {
 public:
  RankTensors(std::int64_t step, int rank, std::size_t count = 6)
      : prefix_("rank" + std::to_string(rank) + "."), weight_(count), moment_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      weight_[i] = static_cast<float>(step) + 0.25F * static_cast<float>(i) - static_cast<float>(rank);
      moment_[i] = -weight_[i] / 3.0F;
    }
  }

  [[nodiscard]] std::string weight_name() const { return prefix_ + "weight"; }
  [[nodiscard]] std::string moment_name() const { return state_name("first_moment", weight_name()); }
  [[nodiscard]] std::vector<TensorView> views() const {
    return {{weight_name(), {2, weight_.size() / 2}, weight_}, {moment_name(), {moment_.size()}, moment_}};
  }
  [[nodiscard]] const std::vector<float>& weight() const { return weight_; }
  [[nodiscard]] const std::vector<float>& moment() const { return moment_; }

 private:
  std::string prefix_;
  std::vector<float> weight_;
  std::vector<float> moment_;
};

inline Manifest write_parts(const std::filesystem::path& folder, std::int64_t step, int ranks = 2,
                            std::size_t count = 6) {
  Manifest manifest{step, {{"seed", 7}, {"samples", 32 * step}, {"rate", 0.1}}, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    manifest.parts.push_back(write_part(folder, step, rank, RankTensors(step, rank, count).views()));
  }
  return manifest;
}

inline Committed write_checkpoint(const std::filesystem::path& folder, std::int64_t step, int keep = 100,
                                  int ranks = 2, std::size_t count = 6) {
  return commit(folder, write_parts(folder, step, ranks, count), keep);
}

/// True if the checkpoint holds the tensors of its step, bit by bit.
inline bool has_own_values(const Found& found, int ranks = 2, std::size_t count = 6) {
  CheckpointReader reader(found.directory, *found.manifest);
  for (int rank = 0; rank < ranks; ++rank) {
    const RankTensors tensors(found.manifest->step, rank, count);
    std::vector<float> values(count);
    reader.read(tensors.weight_name(), values);
    if (values != tensors.weight()) return false;
    reader.read(tensors.moment_name(), values);
    if (values != tensors.moment()) return false;
  }
  return reader.names().size() == 2 * static_cast<std::size_t>(ranks);
}

}  // namespace starpipe::runtime::testing
