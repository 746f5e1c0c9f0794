// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/data/make_dataset.hpp"

namespace starpipe::model {

/// Where in a file of tokens the sequences of each micro-batch start, as SampleOrder says. Depends only on
/// the constructor's arguments and on (step, micro-batch, sequence). Thread-safe.
class SequenceStarts {
 public:
  /// `tokens`: of the file, more than `context`, the tokens of a sequence.
  SequenceStarts(SampleOrder order, std::uint64_t tokens, std::size_t context, BatchSize batch,
                 std::uint64_t seed);

  /// [sequence]: the position of its first token, in [0, tokens - context).
  [[nodiscard]] std::vector<std::uint64_t> of(int step, int microbatch) const;

 private:
  [[nodiscard]] std::vector<std::uint64_t> random(int step, int microbatch) const;
  [[nodiscard]] std::vector<std::uint64_t> shuffled(int step, int microbatch) const;
  [[nodiscard]] std::vector<std::uint64_t> sequential(int step, int microbatch) const;
  // Of a file in sequences one after the other: how many it has, and the first sample of a micro-batch.
  [[nodiscard]] std::uint64_t sequences() const { return (tokens_ - 1) / context_; }
  [[nodiscard]] std::uint64_t first_sample(int step, int microbatch) const;

  SampleOrder order_;
  std::uint64_t tokens_;
  std::uint64_t context_;
  BatchSize batch_;
  std::uint64_t seed_;
};

}  // namespace starpipe::model
