// SPDX-License-Identifier: Apache-2.0
#include "model/data/text.hpp"

#include <array>
#include <string>

#include "model/data/mapped_file.hpp"
#include "model/random.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

class TextDataset final : public Dataset {
 public:
  TextDataset(const std::filesystem::path& path, std::size_t context, int sequences, std::uint64_t seed)
      : file_(path), context_(context), sequences_(sequences), seed_(seed) {
    if (file_.bytes().size() < context + 1) {
      throw InputError("data.path: " + path.string() + " has " + std::to_string(file_.bytes().size()) +
                       " bytes, fewer than model.context + 1 = " + std::to_string(context + 1));
    }
  }

  void input(int step, int microbatch, int /*branch*/, std::span<float> out) const override {
    read(step, microbatch, 0, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    read(step, microbatch, 1, out);
  }
  std::vector<std::uint64_t> offsets(int step, int microbatch) const override {
    std::vector<std::uint64_t> result;
    for (int sequence = 0; sequence < sequences_; ++sequence) {
      result.push_back(offset(step, microbatch, sequence));
    }
    return result;
  }
  std::string sample_word() const override { return "tokens"; }
  std::size_t samples_per_microbatch() const override { return context_ * index(sequences_); }

 private:
  /// The byte at which a sequence starts: uniform in [0, size - context - 1], up to a bias below size / 2^64.
  std::uint64_t offset(int step, int microbatch, int sequence) const {
    const std::array words = {seed_word(step), seed_word(microbatch), seed_word(sequence)};
    return generator(seed_, words)() % (file_.bytes().size() - context_);
  }
  void read(int step, int microbatch, std::size_t shift, std::span<float> out) const {
    for (int sequence = 0; sequence < sequences_; ++sequence) {
      const std::size_t start = offset(step, microbatch, sequence) + shift;
      float* to = out.data() + index(sequence) * context_;
      for (std::size_t t = 0; t < context_; ++t) to[t] = static_cast<float>(file_.bytes()[start + t]);
    }
  }

  MappedFile file_;
  std::size_t context_;
  int sequences_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<Dataset> make_text_dataset(const std::filesystem::path& path, std::size_t context,
                                           int sequences, std::uint64_t seed) {
  return std::make_unique<TextDataset>(path, context, sequences, seed);
}

}  // namespace starpipe::model
