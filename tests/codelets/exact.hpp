// SPDX-License-Identifier: Apache-2.0
// The definitions of layers and losses, computed in double as one would write them down, and their
// derivatives by finite differences.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <vector>

#include "starpipe/model/layer.hpp"

namespace starpipe::model::testing {

using Doubles = std::vector<double>;

inline Doubles exact_linear(const LayerSpec& spec, const Doubles& parameters, const Doubles& x) {
  const std::size_t inputs = spec.columns;
  const std::size_t outputs = size_option(spec, "outputs");
  const bool conv1d = option(spec, "conv1d", 0) != 0;
  const bool bias = option(spec, "bias", 1) != 0;
  Doubles y(spec.rows * outputs);
  for (std::size_t r = 0; r < spec.rows; ++r) {
    for (std::size_t o = 0; o < outputs; ++o) {
      double sum = bias ? parameters[inputs * outputs + o] : 0;
      for (std::size_t i = 0; i < inputs; ++i) {
        sum += x[r * inputs + i] * parameters[conv1d ? i * outputs + o : o * inputs + i];
      }
      y[r * outputs + o] = sum;
    }
  }
  return y;
}

inline Doubles exact_layernorm(const LayerSpec& spec, const Doubles& parameters, const Doubles& x) {
  const std::size_t n = spec.columns;
  Doubles y(x.size());
  for (std::size_t r = 0; r < spec.rows; ++r) {
    double mean = 0;
    double variance = 0;
    for (std::size_t c = 0; c < n; ++c) mean += x[r * n + c] / static_cast<double>(n);
    for (std::size_t c = 0; c < n; ++c) variance += std::pow(x[r * n + c] - mean, 2) / static_cast<double>(n);
    for (std::size_t c = 0; c < n; ++c) {
      y[r * n + c] = (x[r * n + c] - mean) / std::sqrt(variance + 1e-5) * parameters[c] + parameters[n + c];
    }
  }
  return y;
}

inline Doubles exact_rmsnorm(const LayerSpec& spec, const Doubles& weight, const Doubles& x) {
  const std::size_t n = spec.columns;
  Doubles y(x.size());
  for (std::size_t r = 0; r < spec.rows; ++r) {
    double square = 0;
    for (std::size_t c = 0; c < n; ++c) square += x[r * n + c] * x[r * n + c] / static_cast<double>(n);
    for (std::size_t c = 0; c < n; ++c) {
      y[r * n + c] = x[r * n + c] / std::sqrt(square + option(spec, "epsilon", 0)) * weight[c];
    }
  }
  return y;
}

inline Doubles exact_swiglu(const LayerSpec& spec, const Doubles& x) {
  const std::size_t n = spec.columns / 2;
  Doubles y(spec.rows * n);
  for (std::size_t r = 0; r < spec.rows; ++r) {
    for (std::size_t c = 0; c < n; ++c) {
      const double gate = x[r * 2 * n + c];
      y[r * n + c] = gate / (1 + std::exp(-gate)) * x[r * 2 * n + n + c];
    }
  }
  return y;
}

inline Doubles exact_rotary(const LayerSpec& spec, const Doubles& x) {
  const std::size_t size = size_option(spec, "size");
  const std::size_t turned = size_option(spec, "heads") * size;
  Doubles y = x;
  for (std::size_t r = 0; r < spec.rows; ++r) {
    for (std::size_t c = 0; c < turned; ++c) {
      // The pair of columns as a complex number, times e^(i angle).
      const std::size_t pair = c % size % (size / 2);
      const std::size_t first = r * spec.columns + c / size * size + pair;
      const double angle = static_cast<double>(r % size_option(spec, "context")) *
                           std::pow(option(spec, "theta", 0), -2.0 * static_cast<double>(pair) / size);
      const auto z = std::polar(1.0, angle) * std::complex<double>(x[first], x[first + size / 2]);
      y[r * spec.columns + c] = c % size < size / 2 ? z.real() : z.imag();
    }
  }
  return y;
}

inline Doubles exact_gelu(const Doubles& x) {
  Doubles y;
  for (const double v : x) {
    y.push_back(0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v))));
  }
  return y;
}

inline Doubles exact_embedding(const LayerSpec& spec, const Doubles& parameters, const Doubles& ids) {
  const std::size_t columns = size_option(spec, "outputs");
  const std::size_t context = size_option(spec, "context", spec.rows);
  const std::size_t positions = size_option(spec, "vocabulary") * columns;
  const double first = option(spec, "first", 0);
  Doubles y;
  for (std::size_t r = 0; r < spec.rows; ++r) {
    const bool has = ids[r] >= first && ids[r] < first + option(spec, "vocabulary", 0);
    for (std::size_t c = 0; c < columns; ++c) {
      y.push_back(has ? parameters[static_cast<std::size_t>(ids[r] - first) * columns + c] : 0);
      if (spec.options.contains("context")) y.back() += parameters[positions + r % context * columns + c];
    }
  }
  return y;
}

inline Doubles exact_positions(const LayerSpec& spec, const Doubles& parameters, const Doubles& x) {
  Doubles y = x;
  const std::size_t count = size_option(spec, "context") * spec.columns;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += parameters[i % count];
  return y;
}

inline Doubles exact_attention(const LayerSpec& spec, const Doubles& qkv) {
  const std::size_t heads = size_option(spec, "heads");
  const std::size_t kv_heads = size_option(spec, "kv_heads", heads);
  const std::size_t context = size_option(spec, "context");
  const std::size_t size = spec.columns / (heads + 2 * kv_heads);
  Doubles y(spec.rows * heads * size, 0);
  for (std::size_t row = 0; row < spec.rows; ++row) {
    const std::size_t start = row / context * context;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t k = heads + head * kv_heads / heads;  // heads of the input
      const std::size_t v = k + kv_heads;
      const auto at = [&](std::size_t of_row, std::size_t of_head, std::size_t c) {
        return qkv[of_row * spec.columns + of_head * size + c];
      };
      Doubles p;
      double sum = 0;
      for (std::size_t key = start; key <= row; ++key) {
        double score = 0;
        for (std::size_t c = 0; c < size; ++c) score += at(row, head, c) * at(key, k, c);
        sum += p.emplace_back(std::exp(score / std::sqrt(static_cast<double>(size))));
      }
      for (std::size_t key = start; key <= row; ++key) {
        for (std::size_t c = 0; c < size; ++c) {
          y[(row * heads + head) * size + c] += p[key - start] / sum * at(key, v, c);
        }
      }
    }
  }
  return y;
}

/// The target of a row for tests of layers that read it: token ids before, in and behind the layer's shard.
inline float target_of_row(const LayerSpec& spec, std::size_t row) {
  const std::size_t first = static_cast<std::size_t>(option(spec, "first", 0));
  return static_cast<float>(row * 5 % (first + spec.columns + 3));
}

inline Doubles exact_partial_cross_entropy(const LayerSpec& spec, const Doubles& x) {
  const double first = option(spec, "first", 0);
  Doubles y;
  for (std::size_t r = 0; r < spec.rows; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < spec.columns; ++c) sum += std::exp(x[r * spec.columns + c]);
    y.push_back(std::log(sum));
    const double column = static_cast<double>(target_of_row(spec, r)) - first;
    const bool has = column >= 0 && column < static_cast<double>(spec.columns);
    y.push_back(has ? x[r * spec.columns + static_cast<std::size_t>(column)] : 0);
  }
  return y;
}

/// The output of a layer's F.
inline Doubles exact(const LayerSpec& spec, const Doubles& parameters, const Doubles& input) {
  if (spec.kind == "linear") return exact_linear(spec, parameters, input);
  if (spec.kind == "layernorm") return exact_layernorm(spec, parameters, input);
  if (spec.kind == "rmsnorm") return exact_rmsnorm(spec, parameters, input);
  if (spec.kind == "rotary") return exact_rotary(spec, input);
  if (spec.kind == "swiglu") return exact_swiglu(spec, input);
  if (spec.kind == "gelu") return exact_gelu(input);
  if (spec.kind == "embedding") return exact_embedding(spec, parameters, input);
  if (spec.kind == "positions") return exact_positions(spec, parameters, input);
  if (spec.kind == "attention") return exact_attention(spec, input);
  if (spec.kind == "partial_cross_entropy") return exact_partial_cross_entropy(spec, input);
  throw std::logic_error("layer " + spec.kind +
                         ": add its exact result to exact() in tests/codelets/exact.hpp");
}

/// The mean loss over the rows.
inline double exact_loss(const std::string& kind, std::size_t rows, std::size_t columns, const Doubles& x,
                         const Doubles& target) {
  double total = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
    if (kind == "joined_cross_entropy") {
      for (std::size_t c = 0; c < columns; c += 2) {
        sum += std::exp(x[r * columns + c]);
        total -= x[r * columns + c + 1];
      }
      total += std::log(sum);
      continue;
    }
    for (std::size_t c = 0; c < columns; ++c) {
      const std::size_t i = r * columns + c;
      sum += kind == "mse" ? std::pow(x[i] - target[i], 2) / static_cast<double>(columns) : std::exp(x[i]);
    }
    total += kind == "mse" ? sum : std::log(sum) - x[r * columns + static_cast<std::size_t>(target[r])];
  }
  return total / static_cast<double>(rows);
}

/// The derivative of f(x) with respect to x[i]: a central difference of fourth order, exact to about 1e-10.
inline double slope(const std::function<double(const Doubles&)>& f, Doubles x, std::size_t i) {
  const double step = 1e-3;
  const double start = x[i];
  const auto at = [&](double distance) {
    x[i] = start + distance;
    return f(x);
  };
  return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
}

}  // namespace starpipe::model::testing
