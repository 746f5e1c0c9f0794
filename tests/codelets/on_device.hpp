// SPDX-License-Identifier: Apache-2.0
// What the tests of passes on each device share. Inputs are random and new in each run. A failure prints the
// run's seed, and the environment variable STARPIPE_TEST_SEED repeats the run.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>

#include "codelets/devices.hpp"
#include "codelets/exact.hpp"
#include "model/seed.hpp"

namespace starpipe::model::testing {

/// Random normal numbers. `stream`: different streams give different numbers.
inline Floats random(std::size_t count, std::uint64_t stream, double deviation = 1) {
  return random_floats(count, seed() * 100 + stream, deviation);
}

inline Floats random_ids(std::size_t count, std::size_t below, std::uint64_t stream) {
  std::mt19937_64 bits(seed() * 100 + stream);
  std::uniform_int_distribution<std::size_t> id(0, below - 1);
  Floats ids(count);
  for (float& value : ids) value = static_cast<float>(id(bits));
  return ids;
}

inline Doubles doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

/// All of the indices in [0, count), or 100 random ones when they are more.
inline std::vector<std::size_t> sample(std::size_t count) {
  std::vector<std::size_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = i;
  std::mt19937_64 bits(seed());
  std::shuffle(all.begin(), all.end(), bits);
  all.resize(std::min<std::size_t>(count, 40));
  return all;
}

/// Compares `gradient` with finite differences of f at x, for a sample of the coordinates in [first, first +
/// count). The largest of these numbers is the scale of the tolerance. A single number may be small because
/// the terms of its sum cancel each other: then the largest of all numbers and of `terms` is.
inline void expect_slopes(const std::function<double(const Doubles&)>& f, const Doubles& x,
                          const Floats& gradient, std::size_t first, std::size_t count,
                          const std::string& what, double tolerance, const Floats& terms = {}) {
  double largest = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    ASSERT_TRUE(std::isfinite(gradient[i])) << what << "[" << i << "] was not written";
    largest = std::max(largest, std::abs(static_cast<double>(gradient[i])));
  }
  if (count == 1) {
    for (const float term : terms) largest = std::max(largest, std::abs(static_cast<double>(term)));
    for (const float number : gradient) largest = std::max(largest, std::abs(static_cast<double>(number)));
  }
  for (const std::size_t offset : sample(count)) {
    const std::size_t i = first + offset;
    const double expected = slope(f, x, i);
    ASSERT_NEAR(gradient[i], expected, tolerance * largest + 1e-9) << what << "[" << i << "]";
  }
}

/// A kind of device, and a precision in which it computes.
struct Target {
  std::string device;
  Precision precision = Precision::fp32;
};

inline std::string label(const Target& target) {
  return target.device + "_" + std::string(to_string(target.precision));
}
inline void PrintTo(const Target& target, std::ostream* out) { *out << label(target); }

inline const auto targets = ::testing::Values(
    Target{"cpu", Precision::fp32}, Target{"cpu", Precision::bf16}, Target{"cuda", Precision::fp32},
    Target{"cuda", Precision::tf32}, Target{"cuda", Precision::bf16});

/// The error that a result may have, relative to the largest result.
inline double tolerance_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return 1e-5;
    case Precision::tf32:
      // Each factor of a product has a relative error of up to 2^-10, so the product of up to 2^-9. The bound
      // is twice that: a sum may cancel, and then be small compared with the errors of its terms.
      return std::ldexp(1, -8);
    case Precision::bf16:
      // Inputs are exact. Rounding gives a relative error of up to 2^-9, in the stash and again in the
      // result. The bound is twice their sum, for the reason above.
      return std::ldexp(1, -7);
  }
  return 0;
}

class OnDevice : public ::testing::Test {
 protected:
  void start(const Target& target) {
    openblas_set_num_threads(1);
    precision_ = target.precision;
    tolerance_ = tolerance_of(precision_);
    std::string reason;
    device_ = make_device(target.device, reason);
    if (device_ == nullptr) GTEST_SKIP() << "no CUDA device: " << reason;
  }
  const Backend& on() const { return device_->backend(); }
  /// Random normal numbers that are exact in the precision.
  Floats numbers(std::size_t count, std::uint64_t stream, double deviation = 1) const {
    return decoded(precision_, encoded(precision_, random(count, stream, deviation)), count);
  }
  DeviceFloats put(const Floats& values, std::size_t shift = 0) const { return {*device_, values, shift}; }
  DeviceFloats put_array(const Floats& values, std::size_t shift = 0) const {
    return put(encoded(precision_, values), shift);
  }
  DeviceFloats poisoned(std::size_t size, std::size_t shift = 0) const { return {*device_, size, shift}; }

  Precision precision_ = Precision::fp32;
  double tolerance_ = 0;
  std::unique_ptr<Device> device_;
};

}  // namespace starpipe::model::testing
