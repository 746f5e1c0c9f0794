// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/gradient_norm.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "starpipe/base/ceil_div.hpp"

namespace starpipe::model {
namespace {

using Lanes = std::array<double, norm_lanes>;

double sum_of(Lanes lanes) {
  for (std::size_t distance = norm_lanes / 2; distance > 0; distance /= 2) {
    for (std::size_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return lanes[0];
}

double chunk_sum(const float* values, std::size_t count) {
  Lanes lanes{};
  const std::size_t whole = count - count % norm_lanes;
  const auto add = [&](std::size_t lane, std::size_t i) {
    const auto value = static_cast<double>(values[i]);
    lanes[lane] += value * value;
  };
  for (std::size_t i = 0; i < whole; i += norm_lanes) {
    for (std::size_t lane = 0; lane < norm_lanes; ++lane) add(lane, i + lane);
  }
  for (std::size_t i = whole; i < count; ++i) add(i - whole, i);
  return sum_of(lanes);
}

}  // namespace

double sum_of_squares(std::span<const float> values) noexcept {
  Lanes lanes{};
  for (std::size_t chunk = 0; chunk * norm_chunk < values.size(); ++chunk) {
    const std::size_t first = chunk * norm_chunk;
    lanes[chunk % norm_lanes] += chunk_sum(&values[first], std::min(norm_chunk, values.size() - first));
  }
  return sum_of(lanes);
}

std::size_t norm_scratch_words(std::span<const std::size_t> sizes) {
  std::size_t doubles = sizes.size();
  for (const std::size_t size : sizes) doubles += ceil_div(size, norm_chunk);
  return doubles * (sizeof(double) / sizeof(float));
}

double gradient_norm(std::span<const double> sums) noexcept {
  double all = 0;
  for (const double sum : sums) all += sum;
  return std::sqrt(all);
}

float clip_scale(std::optional<double> clip, double norm) noexcept {
  if (!clip) return 1;
  const double scale = *clip / (norm + 1e-6);
  return scale >= 1 ? 1.0F : static_cast<float>(scale);  // a NaN stays
}

}  // namespace starpipe::model
