// SPDX-License-Identifier: Apache-2.0
#include "model/data/sequences.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include <fmt/format.h>

#include "model/data/token_file.hpp"
#include "model/random.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

class SequenceDataset final : public Dataset {
 public:
  SequenceDataset(const DataConfig& data, std::size_t vocabulary, std::size_t context, BatchSize batch,
                  std::uint64_t seed)
      : file_(data.path, data.kind, vocabulary, data.token_type),
        context_(context),
        sequences_(index(batch.microbatch_size)),
        starts_(data.order, file_.size(), context, batch, seed) {
    if (file_.size() > context) return;
    throw InputError(fmt::format("data.{}: {} has {} tokens, fewer than model.context + 1 = {}",
                                 data.order == SampleOrder::sequential ? "validation" : "path",
                                 data.path.string(), file_.size(), context + 1));
  }

  void input(int step, int microbatch, int /*branch*/, FloatView out) const override {
    read(step, microbatch, 0, out);
  }
  void target(int step, int microbatch, FloatView out) const override { read(step, microbatch, 1, out); }
  std::vector<std::uint64_t> offsets(int step, int microbatch) const override {
    return starts_.of(step, microbatch);
  }
  std::string sample_word() const override { return "tokens"; }
  std::size_t samples_per_microbatch() const override { return context_ * sequences_; }
  EvaluatedSamples evaluated(int microbatches) const override {
    EvaluatedSamples samples{starts_.evaluated(microbatches), starts_.sequences() * context_};
    for (std::uint64_t& count : samples.counts) count *= context_;
    return samples;
  }
  std::uint64_t digest() const override { return file_.digest(); }

 private:
  void read(int step, int microbatch, std::uint64_t shift, FloatView out) const {
    for (const std::uint64_t start : starts_.of(step, microbatch)) {
      file_.read(start + shift, out.first(context_));
      out = out.subspan(context_);
    }
  }

  TokenFile file_;
  std::size_t context_;
  std::size_t sequences_;
  SequenceStarts starts_;
};

/// Mixes all bits of a number: the output function of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast
/// Splittable Pseudorandom Number Generators", OOPSLA 2014).
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

}  // namespace

std::unique_ptr<Dataset> make_sequence_dataset(const DataConfig& data, std::size_t vocabulary,
                                               std::size_t context, BatchSize batch, std::uint64_t seed) {
  return std::make_unique<SequenceDataset>(data, vocabulary, context, batch, seed);
}

Permutation::Permutation(std::uint64_t size, std::mt19937_64& keys) : size_(size) {
  const auto bits = static_cast<int>(std::bit_width(size - 1));
  low_bits_ = bits - bits / 2;
  low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
  high_mask_ = (std::uint64_t{1} << (bits / 2)) - 1;
  for (std::uint64_t& key : keys_) key = keys();
}

std::uint64_t Permutation::operator()(std::uint64_t place) const {
  do {
    std::uint64_t low = place & low_mask_;
    std::uint64_t high = place >> low_bits_;
    for (std::size_t round = 0; round < keys_.size(); round += 2) {
      low = (low + mixed(high + keys_[round])) & low_mask_;
      high = (high + mixed(low + keys_[round + 1])) & high_mask_;
    }
    place = high << low_bits_ | low;
  } while (place >= size_);
  return place;
}

SequenceStarts::SequenceStarts(SampleOrder order, std::uint64_t tokens, std::size_t context, BatchSize batch,
                               std::uint64_t seed)
    : order_(order), tokens_(tokens), context_(context), batch_(batch), seed_(seed) {}

// Returns the sequences of a micro-batch of an evaluation; a count of 0 behind the whole file.
SequenceStarts::Share SequenceStarts::share_of(std::uint64_t microbatch) const {
  const std::uint64_t size = index(batch_.microbatch_size);
  const std::uint64_t full = sequences() / size;
  if (microbatch < full) return {microbatch * size, size};
  std::uint64_t first = full * size;
  for (std::uint64_t place = full;; ++place) {
    std::uint64_t count = sequences() - first;
    while (count > 0 && size % count != 0) --count;  // the largest part that fills a micro-batch evenly
    if (place == microbatch || count == 0) return {first, count};
    first += count;
  }
}

std::vector<std::uint64_t> SequenceStarts::evaluated(int microbatches) const {
  const std::uint64_t size = index(batch_.microbatch_size);
  if (index(microbatches) * size < sequences()) return std::vector<std::uint64_t>(index(microbatches), size);
  std::vector<std::uint64_t> counts;
  for (Share share = share_of(0); share.count > 0; share = share_of(counts.size()))
    counts.push_back(share.count);
  return counts;
}

std::vector<std::uint64_t> SequenceStarts::of(int step, int microbatch) const {
  const std::uint64_t first_sample =
      (std::uint64_t{index(step)} * index(batch_.microbatches) + index(microbatch)) *
      index(batch_.microbatch_size);
  std::vector<std::uint64_t> starts;
  std::optional<Permutation> of_epoch;
  for (int sequence = 0; sequence < batch_.microbatch_size; ++sequence) {
    if (order_ == SampleOrder::random) {
      // Uniform in [0, tokens - context), up to a bias below tokens / 2^64.
      const std::array words = {seed_word(step), seed_word(microbatch), seed_word(sequence)};
      starts.push_back(generator(seed_, words)() % (tokens_ - context_));
      continue;
    }
    if (order_ == SampleOrder::sequential) {
      const Share share = share_of(index(microbatch));
      const std::uint64_t place = share.first + index(sequence) % std::max(share.count, std::uint64_t{1});
      starts.push_back(place % sequences() * context_);
      continue;
    }
    const std::uint64_t sample = first_sample + index(sequence);
    const std::uint64_t place = sample % sequences();
    if (!of_epoch || place == 0) {
      const std::uint64_t epoch = sample / sequences();
      std::mt19937_64 keys = generator(
          seed_, std::array{static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32U)});
      of_epoch.emplace(sequences(), keys);
    }
    starts.push_back((*of_epoch)(place)*context_);
  }
  return starts;
}

}  // namespace starpipe::model
