// SPDX-License-Identifier: Apache-2.0
// CMake compiles this file without contraction of products and sums, whatever the other files' flags are.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "model/random.hpp"

namespace starpipe::model {
namespace {

// Functions that compute a single number have no branches: compilers then turn a loop over numbers into
// vector instructions. They are inlined, so that each loop is compiled for several kinds of these
// instructions.
#define STARPIPE_INLINE [[gnu::always_inline]] inline

constexpr std::size_t pairs_of_block = 128;
constexpr std::size_t block_size = 2 * pairs_of_block;
using Block = std::array<float, block_size>;

// SplitMix64, whose state is a counter (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014): state i is key + (i + 1) * gamma.
constexpr std::uint64_t gamma = 0x9E3779B97F4A7C15U;

STARPIPE_INLINE std::uint64_t bits_of(double number) { return std::bit_cast<std::uint64_t>(number); }
STARPIPE_INLINE double number_of(std::uint64_t bits) { return std::bit_cast<double>(bits); }

/// Converts a number below 2^32. Few processors convert whole numbers of 64 bits in vectors.
STARPIPE_INLINE double converted(std::uint64_t number) {
  return number_of(number | bits_of(0x1p52)) - 0x1p52;
}

/// Returns the uniform number of a state of the generator, in [0, 1).
STARPIPE_INLINE double uniform(std::uint64_t state) {
  state = (state ^ state >> 30U) * 0xBF58476D1CE4E5B9U;
  state = (state ^ state >> 27U) * 0x94D049BB133111EBU;
  const std::uint64_t bits = (state ^ state >> 31U) >> 11U;
  return (converted(bits >> 32U) * 0x1p32 + converted(bits & 0xffffffffU)) * 0x1p-53;
}

/// Returns the polynomial of x with these coefficients, highest first.
template <std::size_t N>
STARPIPE_INLINE double polynomial(const double (&coefficients)[N], double x) {
  double sum = coefficients[0];
#pragma GCC unroll 16
  for (std::size_t i = 1; i < N; ++i) sum = sum * x + coefficients[i];
  return sum;
}

/// Returns the natural logarithm of a normal positive number, with an error below one unit in the last place.
STARPIPE_INLINE double logarithm(double number) {
  // number = 2^k (1 + f), with 1 + f from the root of 1/2 to the root of 2.
  constexpr std::uint64_t root_of_half = 0x3fe6a09e00000000U;
  const std::uint64_t shifted = bits_of(number) + (bits_of(1) - root_of_half);
  const double k = converted(shifted >> 52U) - 1023;
  const double f = number_of((shifted & 0xfffffffffffffU) + root_of_half) - 1;
  // log(1 + f) = 2 artanh(s) = f - f^2 / 2 + s (f^2 / 2 + 2 s^2 / 3 + 2 s^4 / 5 + ...), s = f / (2 + f).
  constexpr double series[] = {2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11,
                               2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3,  0};
  const double s = f / (2 + f);
  const double half_square = 0.5 * f * f;
  constexpr double ln2_high = 0x1.62e42feep-1;  // k times it is exact
  constexpr double ln2_low = 0x1.a39ef35793c76p-33;
  return k * ln2_high - ((half_square - (s * (half_square + polynomial(series, s * s)) + k * ln2_low)) - f);
}

/// Sine and cosine of an angle from 0 to 2 pi, with errors below one unit in the last place.
struct SineCosine {
  double sine, cosine;
};
STARPIPE_INLINE SineCosine sine_cosine(double angle) {
  // x: the angle less q quarters of a turn, from -pi/4 to pi/4. Adding 1.5 * 2^52 rounds to a whole number.
  const double rounded = angle * (2 / std::numbers::pi) + 0x1.8p52;
  const std::uint64_t q = bits_of(rounded);
  const double quarters = rounded - 0x1.8p52;
  constexpr double quarter_high = 0x1.921fb544p+0;  // quarters times it is exact
  constexpr double quarter_low = 0x1.0b4611a626331p-34;
  const double x = angle - quarters * quarter_high - quarters * quarter_low;
  const double z = x * x;
  // The series' coefficients 1 / n!.
  constexpr double sines[] = {1 / 355687428096000.0, -1 / 1307674368000.0, 1 / 6227020800.0, -1 / 39916800.0,
                              1 / 362880.0,          -1 / 5040.0,          1 / 120.0,        -1 / 6.0};
  constexpr double cosines[] = {1 / 20922789888000.0, -1 / 87178291200.0, 1 / 479001600.0, -1 / 3628800.0,
                                1 / 40320.0,          -1 / 720.0,         1 / 24.0};
  const double sine = x + x * (z * polynomial(sines, z));
  const double half_square = 0.5 * z;
  const double most = 1 - half_square;
  const double cosine = most + ((1 - most) - half_square + z * z * polynomial(cosines, z));
  // In odd quarters they change places; the signs are the signs of the quarter.
  const std::uint64_t exchange = (bits_of(sine) ^ bits_of(cosine)) & (0 - (q & 1U));
  return {number_of(bits_of(sine) ^ exchange ^ (q & 2U) << 62U),
          number_of(bits_of(cosine) ^ exchange ^ ((q + 1) & 2U) << 62U)};
}

/// Makes a block from the generator's state of its first number on, by Box and Muller's method: two normal
/// numbers of two uniform ones.
STARPIPE_INLINE void make_block(std::uint64_t state, double mean, double deviation, float* out) {
  std::array<double, pairs_of_block> first;
  std::array<double, pairs_of_block> second;
  for (std::size_t pair = 0; pair < pairs_of_block; ++pair) {
    const std::uint64_t of_pair = state + 2 * pair * gamma;
    const double radius = std::sqrt(-2 * logarithm(1 - uniform(of_pair)));
    const auto [sine, cosine] = sine_cosine(2 * std::numbers::pi * uniform(of_pair + gamma));
    first[pair] = radius * cosine;
    second[pair] = radius * sine;
  }
  for (std::size_t pair = 0; pair < pairs_of_block; ++pair) {
    out[2 * pair] = static_cast<float>(mean + deviation * first[pair]);
    out[2 * pair + 1] = static_cast<float>(mean + deviation * second[pair]);
  }
}

STARPIPE_INLINE void make_numbers(std::uint64_t key, std::size_t first, double mean, double deviation,
                                  std::span<float> out) {
  if (out.empty()) return;
  const std::size_t end = first + out.size();
  for (std::size_t at = first / block_size * block_size; at < end; at += block_size) {
    const std::uint64_t state = key + (at + 1) * gamma;
    if (at >= first && at + block_size <= end) {
      make_block(state, mean, deviation, &out[at - first]);
      continue;
    }
    Block part;
    make_block(state, mean, deviation, part.data());
    const std::size_t from = std::max(at, first);
    const std::size_t count = std::min(at + block_size, end) - from;
    std::ranges::copy(std::span(part).subspan(from - at, count), &out[from - first]);
  }
}

void numbers_of_any(std::uint64_t key, std::size_t first, double mean, double deviation,
                    std::span<float> out) {
  make_numbers(key, first, mean, deviation, out);
}

#ifdef __x86_64__
[[gnu::target("avx2")]] void numbers_of_avx2(std::uint64_t key, std::size_t first, double mean,
                                             double deviation, std::span<float> out) {
  make_numbers(key, first, mean, deviation, out);
}
[[gnu::target("avx512f,avx512dq,avx512vl")]] void numbers_of_avx512(std::uint64_t key, std::size_t first,
                                                                    double mean, double deviation,
                                                                    std::span<float> out) {
  make_numbers(key, first, mean, deviation, out);
}
#endif

std::vector<NormalNumbers> find_codes() {
  std::vector<NormalNumbers> codes = {numbers_of_any};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) codes.push_back(numbers_of_avx2);
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    codes.push_back(numbers_of_avx512);
#endif
  return codes;
}

}  // namespace

std::span<const NormalNumbers> normal_numbers_codes() {
  static const std::vector<NormalNumbers> codes = find_codes();
  return codes;
}

void normal_numbers(std::uint64_t key, std::size_t first, double mean, double deviation,
                    std::span<float> out) {
  normal_numbers_codes().back()(key, first, mean, deviation, out);
}

}  // namespace starpipe::model
