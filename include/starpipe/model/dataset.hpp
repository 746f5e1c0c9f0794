// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::model {

/// The kinds of data: the bytes of a file as tokens, a file of token ids, and a regression task.
inline constexpr std::string_view text_data = "text";
inline constexpr std::string_view tokens_data = "tokens";
inline constexpr std::string_view synthetic_data = "synthetic";
inline constexpr std::array data_kinds = {text_data, tokens_data, synthetic_data};

/// The order in which the sequences of a file are read. `random`: each starts at a random token. `shuffled`:
/// the file is cut into sequences of `context` tokens; fewer tokens than that, at its end, are left out. An
/// epoch reads each sequence once, in an order that depends on the seed and the epoch only. The next epoch
/// may begin within a micro-batch. `sequential`: the same sequences in the file's order. Each counts once, so
/// the last micro-batches may have fewer (EvaluatedSamples). Evaluations use it; users cannot choose it.
enum class SampleOrder : std::uint8_t { random, shuffled, sequential };

/// The words of `DataConfig::order`, in the order of the enum.
inline constexpr std::array<std::string_view, 2> sample_order_words = {"random", "shuffled"};

/// The type of the numbers in a flat file of token ids. int32 has the bytes of uint32, uint64 of int64.
enum class TokenType : std::uint8_t { uint16, uint32, int64 };

/// The words of `DataConfig::token_type`, in the order of the enum.
inline constexpr std::array<std::string_view, 3> token_type_words = {"uint16", "uint32", "int64"};

/// `data:` of the configuration.
struct DataConfig {
  std::string kind = std::string(text_data);  ///< one of data_kinds that the network reads
  std::filesystem::path path = {};            ///< of text and tokens
  SampleOrder order = SampleOrder::random;    ///< of text and tokens
  std::filesystem::path validation = {};      ///< of text and tokens: the file that evaluations read
  std::optional<TokenType> token_type = {};   ///< of tokens; unset: uint16
};

/// The number of tokens of text.
inline constexpr int byte_values = 256;

/// The samples of an evaluation, in Dataset::sample_word() of its data set.
struct EvaluatedSamples {
  /// [micro-batch]: samples that count. If this is fewer than a micro-batch has, each of them is there
  /// equally often, so the mean over the micro-batch is the mean over them.
  std::vector<std::uint64_t> counts;
  std::uint64_t all = 0;  ///< samples of the whole file; 0 for data that are not a file

  [[nodiscard]] std::uint64_t total() const {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
};

/// Gives every rank the same micro-batches: data depends only on the configuration, the seed, the step and
/// the micro-batch. Thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Writes the input of a source for one micro-batch. `branch`: the number of the source, in [0, sources).
  /// gpt and llama: rows x 1 token ids; mlp: rows x (inputs / sources) features. This and target() throw
  /// InputError with the file when the micro-batch cannot be read or has a token outside the vocabulary.
  virtual void input(int step, int microbatch, int branch, FloatView out) const = 0;
  /// Writes the target of one micro-batch. The sink reads it; if the head is in shards, they read it. gpt and
  /// llama: rows x 1, the next token; mlp: rows x outputs.
  virtual void target(int step, int microbatch, FloatView out) const = 0;
  /// Returns the number of tokens before each of the micro-batch's sequences in the file; empty for data that
  /// is not a file.
  [[nodiscard]] virtual std::vector<std::uint64_t> offsets(int step, int microbatch) const = 0;
  /// Returns the unit of throughput, "tokens" or "samples", and its number per micro-batch.
  [[nodiscard]] virtual std::string sample_word() const = 0;
  [[nodiscard]] virtual std::size_t samples_per_microbatch() const = 0;
  /// Returns the samples that an evaluation counts when it is asked for so many micro-batches. A file counts
  /// once, so a short one has fewer micro-batches.
  [[nodiscard]] virtual EvaluatedSamples evaluated(int microbatches) const {
    return {.counts = std::vector<std::uint64_t>(index(microbatches), samples_per_microbatch())};
  }
  /// Returns a number that is equal on all ranks if they read the same data, and almost certainly differs if
  /// not.
  [[nodiscard]] virtual std::uint64_t digest() const { return 0; }
};

/// Writes Dataset::input() in the form that the source reads: token ids are floats, features are in the
/// source's precision. `out`: input_size(0) words.
inline void load_input(const Dataset& data, const Stage& source, int step, int microbatch, int branch,
                       FloatView out) {
  if (source.reads_ids() || source.precision() != Precision::bf16)
    return data.input(step, microbatch, branch, out);
  std::vector<float> features(source.rows() * source.input_columns()[0]);
  data.input(step, microbatch, branch, features);
  round_to_bf16(features, out);
}

}  // namespace starpipe::model
