// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/step_comparison.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::array<std::string_view, 8> compared_words = {
    "repeat", "loss", "gradient", "norm", "update", "derivative", "file's gradient", "file's weight"};
std::string_view word_of(Compared what) { return compared_words[static_cast<std::size_t>(what)]; }

constexpr double fp32_unit = 0x1p-24;  // relative error of one rounding

// The largest finite size of some values.
template <class Value>
double largest(std::span<const Value> values) {
  double max = 0;
  for (const Value value : values) {
    const double size = std::abs(static_cast<double>(value));
    if (std::isfinite(size)) max = std::max(max, size);
  }
  return max;
}

template <class Expected>
double largest_difference(std::span<const float> found, std::span<const Expected> expected) {
  double max = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    max = std::max(max, model::difference(static_cast<double>(found[i]), static_cast<double>(expected[i])));
  }
  return max;
}

// The root of the mean square over the numbers with `counts(i)`.
template <class Counts>
double mean_difference(std::span<const float> found, std::span<const float> expected, Counts&& counts) {
  double squares = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!counts(i)) continue;
    const double one = model::difference(static_cast<double>(found[i]), static_cast<double>(expected[i]));
    squares += one * one;
    ++count;
  }
  return std::sqrt(squares / static_cast<double>(std::max<std::size_t>(1, count)));
}

// Calls `f` with each parameter of a set and the place of its first number.
template <class Function>
void for_each_parameter(const model::ParameterSet& set, Function&& f) {
  std::size_t first = 0;
  for (const model::Parameter& parameter : set.parameters) {
    f(parameter, first);
    first += parameter.size();
  }
}

double norm_of(const std::vector<std::vector<double>>& stages) {
  double sum = 0;
  for (const auto& stage : stages) {
    for (const double value : stage) sum += value * value;
  }
  return std::sqrt(sum);
}

// The norm of the engine's own gradient, as its tasks compute it.
double norm_of(const model::Network& network, const std::vector<std::vector<float>>& gradients) {
  std::vector<double> sums;
  const std::vector<model::ParameterSet> sets = network.sets();
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    for_each_parameter(sets[s], [&](const model::Parameter& parameter, std::size_t first) {
      sums.push_back(model::sum_of_squares(std::span(gradients[s]).subspan(first, parameter.size())));
    });
  }
  return model::gradient_norm(sums);
}

std::string describe(const Difference& d) {
  const bool repeat = d.what == Compared::repeat;
  const std::string_view word = repeat ? "gradient" : word_of(d.what);
  const std::string what =
      fmt::format("the {}{}", d.stage < 0 ? d.name : fmt::format("{} of {}", word, d.name),
                  repeat ? ", from two runs of the same passes," : "");
  const std::string where = d.stage < 0 ? "" : fmt::format(", stage {}", d.stage);
  return fmt::format("step {}{}: {} differs by {:.3g} (relative {:.3g}, allowed {:.3g})", d.step + 1, where,
                     what, d.absolute, d.relative(), d.scale > 0 ? d.allowed / d.scale : d.allowed);
}

nlohmann::ordered_json json_of(const Difference& d) {
  nlohmann::ordered_json entry{{"what", word_of(d.what)}, {"step", d.step + 1}};
  if (d.stage >= 0) entry["stage"] = d.stage;
  entry["name"] = d.name;
  entry["absolute"] = d.absolute;  // null for infinity
  entry["relative"] = d.relative();
  entry["allowed"] = d.allowed;
  entry["agrees"] = d.agrees();
  return entry;
}

}  // namespace

double Difference::relative() const {
  if (absolute == 0) return 0;
  return scale > 0 ? absolute / scale : std::numeric_limits<double>::infinity();
}

double rounding_tolerance(model::Precision precision, bool other_kernels, double additions) {
  const double sums = 8 * std::sqrt(std::max(additions, 1.0)) * fp32_unit;
  if (!other_kernels) return sums;  // a core runs the same passes, so only the order of the additions differs
  switch (precision) {
    case model::Precision::fp32:
      break;
    case model::Precision::tf32:
      return 4 * sums + 16 * 0x1p-11;
    case model::Precision::bf16:
      return 4 * sums + 16 * 0x1p-9;
  }
  return 4 * sums;
}

StepComparison::StepComparison(const model::Network& network, const model::Dataset& data, int microbatches,
                               const model::OptimizerConfig& optimizer,
                               std::vector<std::vector<float>> parameters, double tolerance)
    : network_(network),
      sets_(network.sets()),
      data_(data),
      microbatches_(microbatches),
      optimizer_(optimizer),
      parameters_(std::move(parameters)),
      tolerance_(tolerance) {
  for (const auto& stage : parameters_) {
    states_.emplace_back(model::optimizer_state_size(optimizer_, stage.size()));
    smallest_gradients_.emplace_back(stage.size(), std::numeric_limits<double>::infinity());
  }
}

void StepComparison::add(int step, const StepResult& result, const std::vector<std::vector<float>>& gradients,
                         std::vector<std::vector<float>> parameters) {
  const model::ExpectedGradient expected =
      model::expected_gradient(network_, data_, parameters_, microbatches_, step);
  add_repeats(step, expected);
  add_losses(step, expected.losses, result.losses);
  add_gradients({.what = Compared::gradient, .step = step}, expected.magnitudes, expected.gradients,
                gradients, tolerance_);
  add_norm(step, expected, result.gradient_norm);
  add_updates(step, result, gradients, parameters);
  const bool finite = std::isfinite(norm_of(expected.gradients)) &&
                      std::ranges::all_of(expected.losses, [](double loss) { return std::isfinite(loss); });
  if (result.skipped_for && finite) {
    constexpr double infinite = std::numeric_limits<double>::infinity();
    all_.push_back(
        {.what = Compared::update, .step = step, .name = "update, which was skipped,", .absolute = infinite});
  }
  keep_smallest_gradients(expected.magnitudes, gradients);
  parameters_ = std::move(parameters);
  if (step == 0) first_magnitudes_ = expected.magnitudes;
  last_step_ = step;
}

void StepComparison::add_repeats(int step, const model::ExpectedGradient& expected) {
  for (std::size_t b = 0; b < expected.repeated_losses.size(); ++b) {
    all_.push_back({.what = Compared::repeat,
                    .step = step,
                    .name = fmt::format("loss of micro-batch {}", b),
                    .absolute = expected.repeated_losses[b],
                    .scale = std::abs(expected.losses[b])});
  }
  for (std::size_t s = 0; s < expected.repeated_gradients.size(); ++s) {
    for_each_parameter(sets_[s], [&](const model::Parameter& parameter, std::size_t first) {
      const auto part = [&](const std::vector<double>& values) {
        return std::span(values).subspan(first, parameter.size());
      };
      double max = 0;  // may be infinity
      for (const double one : part(expected.repeated_gradients[s])) max = std::max(max, one);
      all_.push_back({.what = Compared::repeat,
                      .step = step,
                      .stage = sets_[s].first_stage(),
                      .name = parameter.label(),
                      .absolute = max,
                      .scale = largest(part(expected.magnitudes[s]))});
    });
  }
}

void StepComparison::add_losses(int step, const std::vector<double>& expected,
                                const std::vector<float>& found) {
  for (std::size_t b = 0; b < expected.size(); ++b) {
    Difference d{.what = Compared::loss, .step = step, .name = fmt::format("loss of micro-batch {}", b)};
    d.absolute = model::difference(static_cast<double>(found.at(b)), expected[b]);
    d.scale = std::abs(expected[b]);
    d.allowed = std::isfinite(d.scale) ? tolerance_ * d.scale : 0;
    all_.push_back(std::move(d));
  }
}

template <class Value>
void StepComparison::add_gradients(const Difference& kind, const std::vector<std::vector<double>>& magnitudes,
                                   const std::vector<std::vector<Value>>& expected,
                                   const std::vector<std::vector<float>>& found, double tolerance) {
  for (std::size_t s = 0; s < found.size(); ++s) {
    const double of_stage = largest(std::span<const double>(magnitudes[s]));
    for_each_parameter(sets_[s], [&](const model::Parameter& parameter, std::size_t first) {
      const auto part = [&](const auto& values) {
        return std::span(values).subspan(first, parameter.size());
      };
      Difference d = kind;
      d.stage = sets_[s].first_stage();
      d.name = parameter.label();
      d.absolute = largest_difference(part(found[s]), part(expected[s]));
      d.scale = largest(part(magnitudes[s]));
      d.allowed = tolerance * (d.scale + of_stage / 64);
      all_.push_back(std::move(d));
    });
  }
}

void StepComparison::add_file_gradients(const std::vector<std::vector<float>>& found,
                                        const std::vector<std::vector<float>>& expected, double tolerance) {
  add_gradients({.what = Compared::file_gradient, .step = 0}, first_magnitudes_, expected, found, tolerance);
}

void StepComparison::add_file_weights(const std::vector<std::vector<float>>& start,
                                      const std::vector<std::vector<float>>& expected, double tolerance,
                                      double rounding) {
  for (std::size_t s = 0; s < expected.size(); ++s) {
    for_each_parameter(sets_[s], [&](const model::Parameter& parameter, std::size_t first) {
      const auto part = [&](const std::vector<float>& values) {
        return std::span(values).subspan(first, parameter.size());
      };
      const auto is_decided = [&](std::size_t i) {
        return optimizer_.kind != "adamw" || smallest_gradients_[s][first + i] > rounding;
      };
      for (std::size_t i = 0; i < parameter.size(); ++i) undecided_weights_ += is_decided(i) ? 0U : 1U;
      Difference d{.what = Compared::file_weights,
                   .step = last_step_,
                   .stage = sets_[s].first_stage(),
                   .name = parameter.label()};
      d.absolute = mean_difference(part(parameters_[s]), part(expected[s]), is_decided);
      d.scale = mean_difference(part(start[s]), part(expected[s]), is_decided);
      if (!std::isfinite(d.scale)) d.scale = 0;
      d.allowed = tolerance * d.scale + 8 * fp32_unit * largest(part(expected[s]));
      all_.push_back(std::move(d));
    });
  }
}

void StepComparison::keep_smallest_gradients(const std::vector<std::vector<double>>& magnitudes,
                                             const std::vector<std::vector<float>>& gradients) {
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    const double of_stage = largest(std::span<const double>(magnitudes[s]));
    for_each_parameter(sets_[s], [&](const model::Parameter& parameter, std::size_t first) {
      const double scale = largest(std::span(magnitudes[s]).subspan(first, parameter.size())) + of_stage / 64;
      for (std::size_t i = first; i < first + parameter.size(); ++i) {
        if (magnitudes[s][i] == 0) continue;  // nothing was rounded: of a token that no micro-batch has
        smallest_gradients_[s][i] =
            std::min(smallest_gradients_[s][i], std::abs(static_cast<double>(gradients[s][i])) / scale);
      }
    });
  }
}

void StepComparison::add_norm(int step, const model::ExpectedGradient& expected,
                              std::optional<double> found) {
  Difference d{.what = Compared::norm, .step = step, .name = "gradient norm"};
  d.absolute =
      model::difference(found.value_or(std::numeric_limits<double>::infinity()), norm_of(expected.gradients));
  d.scale = norm_of(expected.magnitudes);
  d.allowed = std::isfinite(d.scale) ? tolerance_ * d.scale : 0;
  all_.push_back(std::move(d));
}

void StepComparison::add_updates(int step, const StepResult& result,
                                 const std::vector<std::vector<float>>& gradients,
                                 const std::vector<std::vector<float>>& found) {
  std::vector<std::vector<float>> expected = parameters_;
  if (!result.skipped_for) {
    model::Update update{
        .number = ++updates_,
        .learning_rate = model::learning_rate(optimizer_.schedule, optimizer_.learning_rate, step),
        .scale = model::clip_scale(optimizer_.clip, norm_of(network_, gradients)),
        .ranges = {}};
    for (std::size_t s = 0; s < expected.size(); ++s) {
      const auto ranges = model::decay_ranges(optimizer_, sets_[s].parameters);
      update.ranges = ranges;
      model::optimizer_step(optimizer_, update, gradients[s], expected[s], states_[s]);
    }
  }
  for (std::size_t s = 0; s < expected.size(); ++s) {
    for_each_parameter(sets_[s], [&](const model::Parameter& parameter, std::size_t first) {
      const auto part = [&](const std::vector<float>& values) {
        return std::span(values).subspan(first, parameter.size());
      };
      Difference d{
          .what = Compared::update, .step = step, .stage = sets_[s].first_stage(), .name = parameter.label()};
      d.absolute = largest_difference(part(found[s]), part(expected[s]));
      d.scale = largest_difference(part(expected[s]), part(parameters_[s]));
      if (!std::isfinite(d.scale)) d.scale = 0;
      d.allowed = 8 * fp32_unit * largest(part(expected[s])) + 1e-5 * d.scale;
      all_.push_back(std::move(d));
    });
  }
}

void StepComparison::add(const std::vector<model::DerivativeCheck>& checks, int microbatches) {
  derivative_microbatches_ = microbatches;
  for (const model::DerivativeCheck& check : checks) {
    if (!check.is_decided()) {
      ++undecided_;
      continue;
    }
    all_.push_back({.what = Compared::derivative,
                    .step = 0,
                    .stage = check.stage,
                    .name = check.parameter,
                    .absolute = model::difference(check.passes, check.differences),
                    .scale = check.scale,
                    .allowed = check.allowed()});
  }
}

// Returns the first gradient or update that differs in the first step that differs: it has a stage and a
// parameter. Where only
// the passes are wrong, every parameter before the wrong layer differs: the last one is nearest to it.
const Difference* StepComparison::first_wrong() const {
  const Difference* first = nullptr;
  const Difference* derivative = nullptr;
  for (const Difference& d : all_) {
    if (d.agrees()) continue;
    if (d.what == Compared::derivative) {
      derivative = &d;
    } else if (first == nullptr || (d.step == first->step && first->stage < 0 && d.stage >= 0)) {
      first = &d;
    }
  }
  return first != nullptr ? first : derivative;
}

std::string StepComparison::problem() const {
  const Difference* const first = first_wrong();
  if (first == nullptr) return "";
  const auto wrong = std::ranges::count_if(all_, [](const Difference& d) { return !d.agrees(); });
  std::string_view passes;
  if (first->what == Compared::repeat) passes = "; a layer keeps state between passes";
  if (first->what == Compared::derivative)
    passes = "; passes B and W of this layer, or B of the next, are not the derivative of F";
  return fmt::format("verify: {}{}; {} of {} comparisons differ", describe(*first), passes, wrong,
                     all_.size());
}

std::string StepComparison::table() const {
  constexpr std::array columns = {
      TableColumn{Align::left, 10}, TableColumn{}, TableColumn{}, TableColumn{}, TableColumn{}, TableColumn{},
      TableColumn{Align::left}};
  std::vector<TableRow> rows = {
      {"", "compared", "differ", "largest difference", "relative", "allowed", "where it is largest"}};
  for (std::size_t k = 0; k < compared_words.size(); ++k) {
    const auto what = static_cast<Compared>(k);
    const Difference* worst = nullptr;
    int count = 0;
    int wrong = 0;
    const auto share = [](const Difference& d) {
      return d.allowed > 0 ? d.absolute / d.allowed : d.absolute;
    };
    for (const Difference& d : all_) {
      if (d.what != what) continue;
      ++count;
      if (!d.agrees()) ++wrong;
      if (worst == nullptr || share(d) > share(*worst)) worst = &d;
    }
    if (worst == nullptr) continue;
    std::string where = fmt::format("step {}", worst->step + 1);
    if (worst->stage >= 0) where += fmt::format(", stage {}", worst->stage);
    if (what != Compared::norm) where += fmt::format(", {}", worst->name);
    rows.push_back({std::string(word_of(what)), std::to_string(count), std::to_string(wrong),
                    fmt::format("{:.2e}", worst->absolute), fmt::format("{:.2e}", worst->relative()),
                    fmt::format("{:.2e}", worst->allowed), where});
  }
  std::string text = table_text(rows, columns);
  if (undecided_ > 0) {
    text += fmt::format("derivatives by {} parameters are too small for differences of the loss to say\n",
                        undecided_);
  }
  if (undecided_weights_ > 0) {
    text +=
        fmt::format("{} numbers of the file's weights have gradients that may be rounding errors: left out\n",
                    undecided_weights_);
  }
  if (derivative_microbatches_ > 0 && derivative_microbatches_ < microbatches_) {
    text += fmt::format("derivatives are from the first {} of {} micro-batches of step 1\n",
                        derivative_microbatches_, microbatches_);
  }
  return text;
}

nlohmann::ordered_json StepComparison::json() const {
  nlohmann::ordered_json result{
      {"agrees", first_wrong() == nullptr},         {"tolerance", tolerance_},
      {"undecided_derivatives", undecided_},        {"derivative_microbatches", derivative_microbatches_},
      {"undecided_weights", undecided_weights_},    {"first_difference", nullptr},
      {"compared", nlohmann::ordered_json::array()}};
  if (const Difference* first = first_wrong()) result["first_difference"] = json_of(*first);
  for (const Difference& d : all_) result["compared"].push_back(json_of(d));
  return result;
}

}  // namespace starpipe::runtime
