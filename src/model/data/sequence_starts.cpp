// SPDX-License-Identifier: Apache-2.0
#include "model/data/sequence_starts.hpp"

#include <array>
#include <optional>

#include "model/data/permutation.hpp"
#include "model/random.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {

SequenceStarts::SequenceStarts(SampleOrder order, std::uint64_t tokens, std::size_t context, BatchSize batch,
                               std::uint64_t seed)
    : order_(order), tokens_(tokens), context_(context), batch_(batch), seed_(seed) {}

std::vector<std::uint64_t> SequenceStarts::of(int step, int microbatch) const {
  return order_ == SampleOrder::random ? random(step, microbatch) : shuffled(step, microbatch);
}

// Uniform in [0, tokens - context), up to a bias below tokens / 2^64.
std::vector<std::uint64_t> SequenceStarts::random(int step, int microbatch) const {
  std::vector<std::uint64_t> starts;
  for (int sequence = 0; sequence < batch_.microbatch_size; ++sequence) {
    const std::array words = {seed_word(step), seed_word(microbatch), seed_word(sequence)};
    starts.push_back(generator(seed_, words)() % (tokens_ - context_));
  }
  return starts;
}

std::vector<std::uint64_t> SequenceStarts::shuffled(int step, int microbatch) const {
  const std::uint64_t sequences = (tokens_ - 1) / context_;  // of the file
  const auto size = std::uint64_t{index(batch_.microbatch_size)};
  const std::uint64_t first =
      (std::uint64_t{index(step)} * index(batch_.microbatches) + index(microbatch)) * size;
  std::vector<std::uint64_t> starts;
  std::optional<Permutation> of_epoch;
  for (std::uint64_t sample = first; sample < first + size; ++sample) {
    const std::uint64_t place = sample % sequences;
    if (!of_epoch || place == 0) {
      const std::uint64_t epoch = sample / sequences;
      std::mt19937_64 keys = generator(
          seed_, std::array{static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32U)});
      of_epoch.emplace(sequences, keys);
    }
    starts.push_back((*of_epoch)(place)*context_);
  }
  return starts;
}

}  // namespace starpipe::model
