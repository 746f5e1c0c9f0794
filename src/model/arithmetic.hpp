// SPDX-License-Identifier: Apache-2.0
// Formulas that are the same on CPUs and GPUs: rows of token ids, and the updates of optimizers.
#pragma once

#include <cmath>
#include <cstddef>

#include "starpipe/model/layer.hpp"
#include "starpipe/model/optimizer.hpp"

#ifdef __CUDACC__
#define STARPIPE_HOST_DEVICE __host__ __device__
#else
#define STARPIPE_HOST_DEVICE
#endif

namespace starpipe::model {

/// The largest vocabulary: token ids travel as floats, which are exact up to this number.
inline constexpr std::size_t max_ids = std::size_t{1} << 24U;

/// Returns a token id as an index below `count`. An id out of range is a bug elsewhere, but passes cannot
/// throw: so the id is clamped, and never becomes an access outside the table.
STARPIPE_HOST_DEVICE inline std::size_t index_of(float id, std::size_t count) {
  if (!(id >= 0)) return 0;
  return id < static_cast<float>(count) ? static_cast<std::size_t>(id) : count - 1;
}

/// The tokens [first, first + count), of the whole vocabulary or of one of its shards.
struct TokenRange {
  std::size_t first = 0;
  std::size_t count = 0;
  bool is_shard = false;

  [[nodiscard]] std::size_t end() const { return first + count; }
  /// Returns the index of a token in the range; `count` if a shard does not have the token.
  STARPIPE_HOST_DEVICE std::size_t row_of(float id) const {
    if (!is_shard) return index_of(id, count);
    const bool has = id >= static_cast<float>(first) && id < static_cast<float>(first + count);
    return has ? static_cast<std::size_t>(id) - first : count;
  }
};

/// Returns the range of `count` tokens that begins at a layer's option `first`, which only shards have.
inline TokenRange token_range(const LayerSpec& spec, std::size_t count) {
  const bool is_shard = spec.options.contains("first");
  return {option(spec, "first", 0) > 0 ? size_option(spec, "first") : 0, count, is_shard};
}

// The updates of a parameter w with gradient g. Their factors are computed in double and rounded once, as
// torch does.

struct AdamW {
  float scale, keep, new1, beta2, new2, rate, root, epsilon;

  AdamW(const OptimizerConfig& config, const Update& update, bool decays)
      : scale(update.scale),
        keep(static_cast<float>(decays ? 1 - update.learning_rate * config.weight_decay : 1)),
        new1(static_cast<float>(1 - config.beta1)),
        beta2(static_cast<float>(config.beta2)),
        new2(static_cast<float>(1 - config.beta2)),
        rate(static_cast<float>(update.learning_rate / (1 - std::pow(config.beta1, update.number)))),
        root(static_cast<float>(std::sqrt(1 - std::pow(config.beta2, update.number)))),
        epsilon(static_cast<float>(config.epsilon)) {}

  STARPIPE_HOST_DEVICE void operator()(float g, float& w, float& first_moment, float& second_moment) const {
    const float slope = scale * g;
    first_moment += new1 * (slope - first_moment);
    second_moment = beta2 * second_moment + new2 * slope * slope;
    w = keep * w - rate * (first_moment / (std::sqrt(second_moment) / root + epsilon));
  }
};

struct Sgd {
  float scale, decay, momentum, rate;

  Sgd(const OptimizerConfig& config, const Update& update, bool decays)
      : scale(update.scale),
        decay(static_cast<float>(decays ? config.weight_decay : 0)),
        momentum(static_cast<float>(config.momentum)),
        rate(static_cast<float>(update.learning_rate)) {}

  STARPIPE_HOST_DEVICE void operator()(float g, float& w) const { w -= rate * (scale * g + decay * w); }
  STARPIPE_HOST_DEVICE void operator()(float g, float& w, float& velocity) const {
    velocity = momentum * velocity + (scale * g + decay * w);
    w -= rate * velocity;
  }
};

/// Calls run(formula, count, gradient, parameters, states...) for each range of the update, with pointers to
/// the range's numbers.
template <class Run>
void for_each_range(const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
                    FloatView parameters, FloatView state, Run run) {
  for (const auto& [first, count, decays] : update.ranges) {
    const float* g = gradient.data() + first;
    float* w = parameters.data() + first;
    if (config.kind == "adamw") {
      float* moments = state.data() + first;
      run(AdamW(config, update, decays), count, g, w, moments, moments + parameters.size());
    } else if (config.momentum == 0) {
      run(Sgd(config, update, decays), count, g, w);
    } else {
      run(Sgd(config, update, decays), count, g, w, state.data() + first);
    }
  }
}

}  // namespace starpipe::model
