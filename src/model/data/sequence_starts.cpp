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
  switch (order_) {
    case SampleOrder::random:
      return random(step, microbatch);
    case SampleOrder::shuffled:
      return shuffled(step, microbatch);
    case SampleOrder::sequential:
      break;
  }
  return sequential(step, microbatch);
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

std::uint64_t SequenceStarts::first_sample(int step, int microbatch) const {
  return (std::uint64_t{index(step)} * index(batch_.microbatches) + index(microbatch)) *
         index(batch_.microbatch_size);
}

std::vector<std::uint64_t> SequenceStarts::sequential(int step, int microbatch) const {
  std::vector<std::uint64_t> starts;
  const std::uint64_t first = first_sample(step, microbatch);
  for (std::uint64_t sample = first; sample < first + index(batch_.microbatch_size); ++sample)
    starts.push_back(sample % sequences() * context_);
  return starts;
}

std::vector<std::uint64_t> SequenceStarts::shuffled(int step, int microbatch) const {
  const std::uint64_t sequences = this->sequences();
  const std::uint64_t first = first_sample(step, microbatch);
  std::vector<std::uint64_t> starts;
  std::optional<Permutation> of_epoch;
  for (std::uint64_t sample = first; sample < first + index(batch_.microbatch_size); ++sample) {
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
