// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// `data:` of the configuration.
struct DataConfig {
  std::string kind = "text";   ///< "text" (gpt) or "synthetic" (mlp)
  std::filesystem::path path;  ///< text: the file, its bytes are the tokens
};

/// Gives every rank the same micro-batches: what it returns depends on the configuration, the seed, the
/// step and the micro-batch alone. Thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Input of source number `leg` (0 unless the network has several sources) for one micro-batch:
  /// gpt: rows x 1 token ids; mlp: rows x (inputs / legs) features.
  virtual void input(int step, int microbatch, int leg, std::span<float> out) const = 0;
  /// Target of the sink: gpt: rows x 1, the next token; mlp: rows x outputs.
  virtual void target(int step, int microbatch, std::span<float> out) const = 0;
  /// Text: byte offset of each sequence of the micro-batch in the file. Others: empty.
  [[nodiscard]] virtual std::vector<std::uint64_t> offsets(int step, int microbatch) const = 0;
  /// What a sample counts for throughput: "tokens" or "samples", and how many a micro-batch has.
  [[nodiscard]] virtual std::string unit() const = 0;
  [[nodiscard]] virtual std::size_t units_per_microbatch() const = 0;
};

/// Dataset::input for a source as it reads it: token ids are floats, features are in its precision. `out`:
/// input_size(0) words.
void load_input(const Dataset& data, const Stage& source, int step, int microbatch, int leg,
                std::span<float> out);

/// Throws InputError naming the key or file: a kind that does not fit the model, a file that is missing,
/// unreadable or shorter than context + 1 bytes.
std::unique_ptr<Dataset> make_dataset(const DataConfig& data, const ModelConfig& model, int microbatch_size,
                                      std::uint64_t seed);

}  // namespace starpipe::model
