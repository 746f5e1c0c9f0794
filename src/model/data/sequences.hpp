// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "model/data/make_dataset.hpp"

namespace starpipe::model {

/// Makes a data set of sequences of `context` tokens of a file; the target of a token is the next token.
/// Throws InputError with the file if it has fewer than context + 1 tokens, and as TokenFile does.
std::unique_ptr<Dataset> make_sequence_dataset(const DataConfig& data, std::size_t vocabulary,
                                               std::size_t context, BatchSize batch, std::uint64_t seed);

/// A random permutation of [0, size) that computes each element by itself, without a table: a Feistel network
/// on the numbers of as many bits as size - 1 has, applied again while its result is not below `size` ("cycle
/// walking": J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). That takes less
/// than two applications on average. In turns, the network adds a keyed hash of one half of the bits to the
/// other half, as FF1 does (NIST SP 800-38G), but 24 times instead of ten: after ten, some orders of a small
/// set are more frequent than others. The hash is not cryptographic.
class Permutation {
 public:
  /// `size` is at least 1. The permutation depends on the next numbers of `keys` only.
  Permutation(std::uint64_t size, std::mt19937_64& keys);

  /// Returns the element at a place in [0, size). No two places have the same. Thread-safe.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t place) const;

 private:
  std::uint64_t size_;
  int low_bits_;
  std::uint64_t low_mask_;
  std::uint64_t high_mask_;
  std::array<std::uint64_t, 24> keys_{};
};

/// The places in a file of tokens where the sequences of each micro-batch start, as SampleOrder says. Depends
/// only on the constructor's arguments and on (step, micro-batch, sequence). Thread-safe.
class SequenceStarts {
 public:
  /// `tokens`: of the file, more than `context`, the tokens of a sequence.
  SequenceStarts(SampleOrder order, std::uint64_t tokens, std::size_t context, BatchSize batch,
                 std::uint64_t seed);

  /// Returns, by sequence, the position of its first token, in [0, tokens - context).
  [[nodiscard]] std::vector<std::uint64_t> of(int step, int microbatch) const;

  /// Returns how many different sequences each micro-batch of an evaluation has: of `microbatches`
  /// micro-batches, or of as many as read the whole file once if `microbatches` would read more. Sequences
  /// that do not fill a micro-batch are divided into micro-batches that hold each of theirs equally often: 3
  /// sequences in micro-batches of 4 become 2 twice, and 1 four times.
  [[nodiscard]] std::vector<std::uint64_t> evaluated(int microbatches) const;

  /// Returns the number of sequences into which the file is cut.
  [[nodiscard]] std::uint64_t sequences() const { return (tokens_ - 1) / context_; }

 private:
  struct Share {
    std::uint64_t first;  ///< of the file's sequences
    std::uint64_t count;
  };
  [[nodiscard]] Share share_of(std::uint64_t microbatch) const;

  SampleOrder order_;
  std::uint64_t tokens_;
  std::uint64_t context_;
  BatchSize batch_;
  std::uint64_t seed_;
};

}  // namespace starpipe::model
