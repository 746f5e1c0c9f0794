// SPDX-License-Identifier: Apache-2.0
#include "model/data/permutation.hpp"

#include <bit>

namespace starpipe::model {
namespace {

/// Mixes all bits of a number: the output function of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast
/// Splittable Pseudorandom Number Generators", OOPSLA 2014).
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

}  // namespace

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

}  // namespace starpipe::model
