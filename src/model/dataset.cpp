// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/dataset.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/random.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {
namespace {

/// A whole file, read only. It is mapped, so that the ranks of a node share one copy.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const auto fail = [&](const std::string& problem) { return InputError(path.string() + ": " + problem); };
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw fail(std::string("cannot be read: ") + std::strerror(errno));
    struct stat status {};
    const bool known = fstat(file, &status) == 0;
    const bool regular = known && S_ISREG(status.st_mode);
    size_ = regular ? static_cast<std::size_t>(status.st_size) : 0;
    void* const address = size_ > 0 ? mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0) : nullptr;
    const int error = errno;
    close(file);
    if (!regular) throw fail("is not a file");
    if (address == MAP_FAILED) throw fail(std::string("cannot be read: ") + std::strerror(error));
    bytes_ = static_cast<const unsigned char*>(address);
  }
  ~MappedFile() {
    if (size_ > 0) munmap(const_cast<unsigned char*>(bytes_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] unsigned char operator[](std::size_t i) const { return bytes_[i]; }

 private:
  const unsigned char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

std::uint32_t word(int value) { return static_cast<std::uint32_t>(value); }

/// Sequences at random offsets of a file; each byte is a token and the next one its target.
class TextDataset final : public Dataset {
 public:
  TextDataset(const std::filesystem::path& path, std::size_t context, int sequences, std::uint64_t seed)
      : file_(path), context_(context), sequences_(sequences), seed_(seed) {
    if (file_.size() < context + 1) {
      throw InputError("data.path: " + path.string() + " has " + std::to_string(file_.size()) +
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
    const std::array words = {word(step), word(microbatch), word(sequence)};
    return generator(seed_, words)() % (file_.size() - context_);
  }
  void read(int step, int microbatch, std::size_t shift, std::span<float> out) const {
    for (int sequence = 0; sequence < sequences_; ++sequence) {
      const std::size_t start = offset(step, microbatch, sequence) + shift;
      float* to = out.data() + index(sequence) * context_;
      for (std::size_t t = 0; t < context_; ++t) to[t] = static_cast<float>(file_[start + t]);
    }
  }

  MappedFile file_;
  std::size_t context_;
  int sequences_;
  std::uint64_t seed_;
};

/// 1 for a network without the key.
std::size_t branch_count(const ModelConfig& model) {
  const std::vector<NetworkKey>& keys = find_network(model.kind).keys;
  const bool has_branches = std::ranges::find(keys, "branches", &NetworkKey::name) != keys.end();
  return has_branches ? index(option(model, "branches")) : 1;
}

/// A regression task. Features are standard normal; targets are the outputs of a fixed random network, the
/// teacher, with one hidden layer of tanh.
class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(const ModelConfig& model, int samples, std::uint64_t seed)
      : inputs_(index(option(model, "inputs"))),
        outputs_(index(option(model, "outputs"))),
        branches_(branch_count(model)),
        samples_(index(samples)),
        seed_(seed) {
    Normal normal(generator(seed, std::array{teacher_stream}));
    first_ = weights(normal, inputs_, hidden_size);
    second_ = weights(normal, hidden_size, outputs_);
  }

  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    const std::vector<float> x = features(step, microbatch);
    const std::size_t columns = inputs_ / branches_;
    for (std::size_t r = 0; r < samples_; ++r) {
      const float* from = x.data() + r * inputs_ + index(branch) * columns;
      std::copy_n(from, columns, out.data() + r * columns);
    }
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    const std::vector<float> x = features(step, microbatch);
    std::array<double, hidden_size> hidden;
    for (std::size_t r = 0; r < samples_; ++r) {
      for (std::size_t h = 0; h < hidden_size; ++h) {
        double sum = 0;
        for (std::size_t i = 0; i < inputs_; ++i) {
          sum += first_[h * inputs_ + i] * static_cast<double>(x[r * inputs_ + i]);
        }
        hidden[h] = std::tanh(sum);
      }
      for (std::size_t o = 0; o < outputs_; ++o) {
        double sum = 0;
        for (std::size_t h = 0; h < hidden_size; ++h) sum += second_[o * hidden_size + h] * hidden[h];
        out[r * outputs_ + o] = static_cast<float>(sum);
      }
    }
  }
  std::vector<std::uint64_t> offsets(int /*step*/, int /*microbatch*/) const override { return {}; }
  std::string sample_word() const override { return "samples"; }
  std::size_t samples_per_microbatch() const override { return samples_; }

 private:
  static constexpr std::size_t hidden_size = 32;
  // The first word that seeds a generator, after the seed: so weights and features have generators of their
  // own.
  static constexpr std::uint32_t teacher_stream = 0;
  static constexpr std::uint32_t sample_stream = 1;

  /// Random weights [outputs, inputs], scaled so that outputs have the variance of the inputs.
  static std::vector<double> weights(Normal& normal, std::size_t inputs, std::size_t outputs) {
    std::vector<double> result(inputs * outputs);
    for (double& value : result) value = normal() / std::sqrt(static_cast<double>(inputs));
    return result;
  }
  std::vector<float> features(int step, int microbatch) const {
    Normal normal(generator(seed_, std::array{sample_stream, word(step), word(microbatch)}));
    std::vector<float> x(samples_ * inputs_);
    for (float& value : x) value = static_cast<float>(normal());
    return x;
  }

  std::size_t inputs_;
  std::size_t outputs_;
  std::size_t branches_;
  std::size_t samples_;
  std::uint64_t seed_;
  std::vector<double> first_;
  std::vector<double> second_;
};

}  // namespace

std::unique_ptr<Dataset> make_dataset(const DataConfig& data, const ModelConfig& model, int microbatch_size,
                                      std::uint64_t seed) {
  const std::string& needed = find_network(model.kind).data;
  if (data.kind != needed) {
    throw InputError("data.kind: " + data.kind + " does not fit model.kind " + model.kind + ", which needs " +
                     needed);
  }
  const bool text = data.kind == text_data;
  if (!text) return std::make_unique<SyntheticDataset>(model, microbatch_size, seed);
  if (data.path.empty()) throw InputError("data.path: is needed for data.kind text");
  return std::make_unique<TextDataset>(data.path, index(option(model, "context")), microbatch_size, seed);
}

void load_input(const Dataset& data, const Stage& source, int step, int microbatch, int branch,
                std::span<float> out) {
  if (source.reads_ids() || source.precision() != Precision::bf16) {
    data.input(step, microbatch, branch, out);
    return;
  }
  std::vector<float> features(source.rows() * source.input_columns()[0]);
  data.input(step, microbatch, branch, features);
  round_to_bf16(features, out);
}

}  // namespace starpipe::model
