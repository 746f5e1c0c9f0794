// SPDX-License-Identifier: Apache-2.0
#include "model/verification.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "model/random.hpp"
#include "model/reference.hpp"
#include "model/weights.hpp"

namespace starpipe::model {
namespace {

SetValues weights_of(const Network& network, const SetValues& parameters) {
  SetValues weights;
  for (const auto& of_set : parameters)
    weights.push_back(rounded_weights(network.stages.front().precision(), of_set));
  return weights;
}

double root_mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

void keep_differences(const SetValues& a, const SetValues& b, std::vector<std::vector<double>>& largest) {
  for (std::size_t s = 0; s < a.size(); ++s) {
    for (std::size_t i = 0; i < a[s].size(); ++i) {
      const double found = difference(static_cast<double>(a[s][i]), static_cast<double>(b[s][i]));
      largest[s][i] = std::max(largest[s][i], found);
    }
  }
}

void add(const SetValues& gradient, ExpectedGradient& expected) {
  for (std::size_t s = 0; s < gradient.size(); ++s) {
    for (std::size_t i = 0; i < gradient[s].size(); ++i) {
      const auto value = static_cast<double>(gradient[s][i]);
      expected.gradients[s][i] += value;
      expected.magnitudes[s][i] += std::abs(value);
    }
  }
}

double product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// Derivatives of the mean loss of some micro-batches. Passes run in fp32, so the weights are the parameters.
class Derivatives {
 public:
  Derivatives(const Network& network, const Dataset& data, SetValues weights, int microbatches)
      : data_(data), runner_(network), weights_(std::move(weights)), microbatches_(microbatches) {
    for (const auto& stage : weights_) gradients_.emplace_back(stage.size());
    for (int b = 0; b < microbatches_; ++b) {
      loss_ += runner_.forward(data_, 0, b, weights_) / microbatches_;
      runner_.backward(1.0F / static_cast<float>(microbatches_), weights_, gradients_);
    }
  }

  /// Checks the numbers [first, first + size) of a set (`stage`: its number), along its gradient and along a
  /// random direction.
  std::vector<DerivativeCheck> check(std::size_t stage, std::size_t first, std::size_t size) {
    const std::span<const float> gradient = std::span(gradients_[stage]).subspan(first, size);
    std::vector<DerivativeCheck> checks;
    const double own = root_mean_square(gradient);
    std::vector<float> direction(size);
    if (own > 0 && std::isfinite(own)) {
      std::ranges::transform(gradient, direction.begin(),
                             [own](float g) { return static_cast<float>(static_cast<double>(g) / own); });
      checks.push_back(check_along(stage, first, gradient, direction));
    }
    const std::array words = {static_cast<std::uint32_t>(stage), static_cast<std::uint32_t>(first)};
    std::mt19937_64 bits = generator(1, words);
    std::ranges::generate(direction, [&bits] { return (bits() >> 63) != 0 ? 1.0F : -1.0F; });
    checks.push_back(check_along(stage, first, gradient, direction));
    return checks;
  }

 private:
  // Central differences of some lengths: the derivatives, and how far rounding of the losses moves each.
  struct Differences {
    std::array<double, 5> derivatives = {};
    std::array<double, 5> noise = {};

    // Returns by how much length `i` may be wrong. It has two neighbours at least, because two inexact values
    // may agree by chance.
    [[nodiscard]] double error(std::size_t i) const {
      const auto apart = [this](std::size_t k) { return std::abs(derivatives[k] - derivatives[k - 1]); };
      return std::max(apart(i), apart(i == 1 ? 2 : i - 1)) + noise[i];
    }
  };

  // A difference may look exact by chance, so a check that fails is repeated with other lengths.
  DerivativeCheck check_along(std::size_t stage, std::size_t first, std::span<const float> gradient,
                              std::span<const float> direction) {
    constexpr std::array usual_lengths = {0.3, 0.1, 0.03, 0.01, 0.003};
    constexpr std::array other_lengths = {0.17, 0.055, 0.017, 0.0055, 0.0017};
    const DerivativeCheck check = check_at(usual_lengths, stage, first, gradient, direction);
    return check.agrees() ? check : check_at(other_lengths, stage, first, gradient, direction);
  }

  DerivativeCheck check_at(const std::array<double, 5>& lengths, std::size_t stage, std::size_t first,
                           std::span<const float> gradient, std::span<const float> direction) {
    const Differences found = differences(lengths, stage, first, direction);
    DerivativeCheck check;
    check.stage = static_cast<int>(stage);
    check.passes = product(gradient, direction);
    check.error = std::numeric_limits<double>::infinity();
    for (std::size_t i = 1; i < lengths.size(); ++i) {
      const double error = found.error(i);
      if (!(error < check.error)) continue;
      check.error = error;
      check.differences = found.derivatives[i];
    }
    // A gradient of zeros has the scale of what the differences find.
    check.scale = std::max(root_mean_square(gradient) * std::sqrt(static_cast<double>(direction.size())),
                           std::abs(check.differences));
    return check;
  }

  // `lengths`: descending, as shares of the parameter's usual size. The mean square of the direction is 1.
  Differences differences(const std::array<double, 5>& lengths, std::size_t stage, std::size_t first,
                          std::span<const float> direction) {
    const auto begin = weights_[stage].begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<float> kept(begin, begin + static_cast<std::ptrdiff_t>(direction.size()));
    const double usual = std::max(root_mean_square(kept), 1e-2);
    Differences found;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const double step = lengths[i] * usual;
      const double high = loss_at(stage, first, kept, direction, step);
      const double low = loss_at(stage, first, kept, direction, -step);
      found.derivatives[i] = (high - low) / (2 * step);
      constexpr double rounding = 8 * 0x1p-24;
      found.noise[i] = rounding * std::max({std::abs(high), std::abs(low), std::abs(loss_)}) / step;
    }
    std::ranges::copy(kept, begin);
    return found;
  }

  double loss_at(std::size_t stage, std::size_t first, std::span<const float> from,
                 std::span<const float> direction, double step) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      weights_[stage][first + i] =
          static_cast<float>(static_cast<double>(from[i]) + step * static_cast<double>(direction[i]));
    }
    double sum = 0;
    for (int b = 0; b < microbatches_; ++b) sum += runner_.forward(data_, 0, b, weights_);
    return sum / microbatches_;
  }

  const Dataset& data_;
  MicrobatchRunner runner_;
  SetValues weights_;
  int microbatches_;
  SetValues gradients_;
  double loss_ = 0;
};

/// Returns the evidence of a check against the gradient, which is wrong above 1. Undecided checks give less
/// than others.
double weight_of(const DerivativeCheck& check) {
  if (!check.is_decided()) return -1;
  return std::abs(check.passes - check.differences) / check.allowed();
}

/// Returns the values of a network's parameters in the sets of the same network without shards.
SetValues joined(const Network& network, const SetValues& pieces, const Network& whole) {
  const std::map<std::string, Tensor> tensors = joined_tensors(network, pieces);
  SetValues sets(whole.sets().size());
  for_each_parameter(whole.sets(), [&](const Parameter& parameter, std::size_t set, std::size_t) {
    const std::vector<float>& values = tensors.at(parameter.name).values;
    sets[set].insert(sets[set].end(), values.begin(), values.end());
  });
  return sets;
}

/// Does the reverse, for the values of one kind.
std::vector<std::vector<double>> cut(const Network& network, const std::vector<std::vector<double>>& of_whole,
                                     const Network& whole) {
  std::vector<std::vector<double>> pieces;
  if (of_whole.empty()) return pieces;
  std::map<std::string, std::span<const double>> tensors;
  for_each_parameter(whole.sets(), [&](const Parameter& parameter, std::size_t set, std::size_t first) {
    tensors[parameter.name] = std::span(of_whole[set]).subspan(first, parameter.size());
  });
  for (const ParameterSet& set : network.sets()) pieces.emplace_back(set.size);
  for_each_parameter(network.sets(), [&](const Parameter& parameter, std::size_t set, std::size_t first) {
    parameter.piece.take(tensors.at(parameter.name), std::span(pieces[set]).subspan(first, parameter.size()));
  });
  return pieces;
}

}  // namespace

double difference(double found, double expected) {
  if (!std::isfinite(found) && !std::isfinite(expected)) return 0;
  const double absolute = std::abs(found - expected);
  return std::isfinite(absolute) ? absolute : std::numeric_limits<double>::infinity();
}

bool DerivativeCheck::agrees() const { return !is_decided() || std::abs(passes - differences) <= allowed(); }

ExpectedGradient expected_gradient(const Network& network, const Dataset& data, const SetValues& parameters,
                                   int microbatches, int step) {
  if (const std::optional<Network> whole = whole_network(network)) {
    ExpectedGradient expected =
        expected_gradient(*whole, data, joined(network, parameters, *whole), microbatches, step);
    for (auto* values : {&expected.gradients, &expected.magnitudes, &expected.repeated_gradients})
      *values = cut(network, *values, *whole);
    return expected;
  }
  MicrobatchRunner runner(network);
  ExpectedGradient expected;
  SetValues one;
  for (const auto& stage : parameters) {
    one.emplace_back(stage.size());
    expected.gradients.emplace_back(stage.size());
    expected.magnitudes.emplace_back(stage.size());
    if (step == 0) expected.repeated_gradients.emplace_back(stage.size());
  }
  const SetValues weights = weights_of(network, parameters);
  const auto run = [&](int b) {
    const double loss = runner.forward(data, step, b, weights);
    for (auto& gradient : one) std::ranges::fill(gradient, 0.0F);
    runner.backward(1.0F / static_cast<float>(microbatches), weights, one);
    return loss;
  };
  run(0);
  for (int b = 0; b < microbatches; ++b) {
    expected.losses.push_back(run(b));
    add(one, expected);
    if (step > 0) continue;
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): run() changes `one`
    const SetValues first = one;
    expected.repeated_losses.push_back(difference(run(b), expected.losses.back()));
    keep_differences(first, one, expected.repeated_gradients);
  }
  return expected;
}

std::vector<DerivativeCheck> check_derivatives(const Network& network, const Dataset& data,
                                               const SetValues& parameters, int microbatches,
                                               const std::function<void(const std::string&)>& begin) {
  Derivatives derivatives(network, data, parameters, microbatches);
  std::vector<DerivativeCheck> checks;
  const std::vector<ParameterSet> sets = network.sets();
  for_each_parameter(sets, [&](const Parameter& parameter, std::size_t set, std::size_t first) {
    if (begin) begin(parameter.label());
    const auto found = derivatives.check(set, first, parameter.size());
    checks.push_back(*std::ranges::max_element(found, {}, weight_of));
    checks.back().parameter = parameter.label();
    checks.back().stage = sets[set].first_stage();
  });
  return checks;
}

}  // namespace starpipe::model
