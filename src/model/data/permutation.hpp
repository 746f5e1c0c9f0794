// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <random>

namespace starpipe::model {

/// A random permutation of [0, size) that computes each element by itself, without a table: a Feistel network
/// on the numbers of as many bits as size - 1 has, applied again while its result is not below `size` ("cycle
/// walking": J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). That takes less
/// than two applications on average. In turns, the network adds a keyed hash of one half of the bits to the
/// other half, as FF1 does (NIST SP 800-38G), but 24 times instead of ten: after ten, some orders of a small
/// set are more frequent than others. The hash is not one for secrets.
class Permutation {
 public:
  /// `size` is at least 1. The permutation depends on the next numbers of `keys` only.
  Permutation(std::uint64_t size, std::mt19937_64& keys);

  /// The element at a place in [0, size). No two places have the same. Thread-safe.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t place) const;

 private:
  std::uint64_t size_;
  int low_bits_;
  std::uint64_t low_mask_;
  std::uint64_t high_mask_;
  std::array<std::uint64_t, 24> keys_{};
};

}  // namespace starpipe::model
