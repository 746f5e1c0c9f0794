// SPDX-License-Identifier: Apache-2.0
#include "model/data/sequences.hpp"

#include <fmt/format.h>

#include "model/data/sequence_starts.hpp"
#include "model/data/token_file.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

class SequenceDataset final : public Dataset {
 public:
  SequenceDataset(const DataConfig& data, std::size_t vocabulary, std::size_t context, BatchSize batch,
                  std::uint64_t seed)
      : file_(data.path, data.kind, vocabulary),
        context_(context),
        sequences_(index(batch.microbatch_size)),
        starts_(data.order, file_.size(), context, batch, seed) {
    if (file_.size() > context) return;
    throw InputError(fmt::format("data.{}: {} has {} tokens, fewer than model.context + 1 = {}",
                                 data.order == SampleOrder::sequential ? "validation" : "path",
                                 data.path.string(), file_.size(), context + 1));
  }

  void input(int step, int microbatch, int /*branch*/, std::span<float> out) const override {
    read(step, microbatch, 0, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    read(step, microbatch, 1, out);
  }
  std::vector<std::uint64_t> offsets(int step, int microbatch) const override {
    return starts_.of(step, microbatch);
  }
  std::string sample_word() const override { return "tokens"; }
  std::size_t samples_per_microbatch() const override { return context_ * sequences_; }
  std::uint64_t digest() const override { return file_.digest(); }

 private:
  void read(int step, int microbatch, std::uint64_t shift, std::span<float> out) const {
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

}  // namespace

std::unique_ptr<Dataset> make_sequence_dataset(const DataConfig& data, std::size_t vocabulary,
                                               std::size_t context, BatchSize batch, std::uint64_t seed) {
  return std::make_unique<SequenceDataset>(data, vocabulary, context, batch, seed);
}

}  // namespace starpipe::model
