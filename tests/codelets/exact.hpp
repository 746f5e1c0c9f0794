// SPDX-License-Identifier: Apache-2.0
// The definitions of layers and losses, computed in double as one would write them down, and their
// derivatives by finite differences.
#pragma once

#include <cmath>
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

inline Doubles exact_gelu(const Doubles& x) {
  Doubles y;
  for (const double v : x) {
    y.push_back(0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v))));
  }
  return y;
}

inline Doubles exact_embedding(const LayerSpec& spec, const Doubles& parameters, const Doubles& ids) {
  const std::size_t columns = size_option(spec, "outputs");
  const std::size_t context = size_option(spec, "context");
  const std::size_t positions = size_option(spec, "vocabulary") * columns;
  Doubles y;
  for (std::size_t r = 0; r < spec.rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      y.push_back(parameters[static_cast<std::size_t>(ids[r]) * columns + c] +
                  parameters[positions + r % context * columns + c]);
    }
  }
  return y;
}

inline Doubles exact_attention(const LayerSpec& spec, const Doubles& qkv) {
  const std::size_t hidden = spec.columns / 3;
  const std::size_t heads = size_option(spec, "heads");
  const std::size_t context = size_option(spec, "context");
  const std::size_t size = hidden / heads;
  const auto at = [&](std::size_t row, std::size_t which, std::size_t column) {
    return qkv[row * 3 * hidden + which * hidden + column];
  };
  Doubles y(spec.rows * hidden, 0);
  for (std::size_t row = 0; row < spec.rows; ++row) {
    const std::size_t start = row / context * context;
    for (std::size_t first = 0; first < hidden; first += size) {
      Doubles p;
      double sum = 0;
      for (std::size_t key = start; key <= row; ++key) {
        double score = 0;
        for (std::size_t c = first; c < first + size; ++c) score += at(row, 0, c) * at(key, 1, c);
        sum += p.emplace_back(std::exp(score / std::sqrt(static_cast<double>(size))));
      }
      for (std::size_t key = start; key <= row; ++key) {
        for (std::size_t c = first; c < first + size; ++c) {
          y[row * hidden + c] += p[key - start] / sum * at(key, 2, c);
        }
      }
    }
  }
  return y;
}

/// The output of a layer's F.
inline Doubles exact(const LayerSpec& spec, const Doubles& parameters, const Doubles& input) {
  if (spec.kind == "linear") return exact_linear(spec, parameters, input);
  if (spec.kind == "layernorm") return exact_layernorm(spec, parameters, input);
  if (spec.kind == "gelu") return exact_gelu(input);
  if (spec.kind == "embedding") return exact_embedding(spec, parameters, input);
  if (spec.kind == "attention") return exact_attention(spec, input);
  throw std::logic_error("layer " + spec.kind +
                         ": add its exact result to exact() in tests/codelets/exact.hpp");
}

/// The mean loss over the rows.
inline double exact_loss(const std::string& kind, std::size_t rows, std::size_t columns, const Doubles& x,
                         const Doubles& target) {
  double total = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
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
