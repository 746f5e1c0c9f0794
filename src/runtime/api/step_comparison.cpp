// SPDX-License-Identifier: Apache-2.0
// StepComparison of verify.hpp.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "runtime/api/verify.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::array<std::string_view, 8> compared_words = {
    "repeat", "loss", "gradient", "norm", "update", "derivative", "file's gradient", "file's weight"};
std::string_view word_of(Compared what) { return compared_words[static_cast<std::size_t>(what)]; }

constexpr double fp32_unit = 0x1p-24;  // relative error of one rounding
constexpr double infinity = std::numeric_limits<double>::infinity();

// Returns the largest finite size of some values.
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

// Returns the root of the mean square over the numbers with `counts(i)`.
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

// Returns, by set, the amount that rounding may change in addition to a share of the gradient itself: 1/64 of
// the largest magnitude in the set.
std::vector<double> base_of_sets(const std::vector<std::vector<double>>& magnitudes) {
  std::vector<double> bases;
  for (const std::vector<double>& set : magnitudes) bases.push_back(largest(std::span(set)) / 64);
  return bases;
}

double norm_of_all(const std::vector<std::vector<double>>& sets) {
  double sum = 0;
  for (const auto& set : sets) {
    for (const double value : set) sum += value * value;
  }
  return std::sqrt(sum);
}

double finite_or_zero(double value) { return std::isfinite(value) ? value : 0; }

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
  return scale > 0 ? absolute / scale : infinity;
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
                               const model::OptimizerConfig& optimizer, model::SetValues parameters,
                               double tolerance)
    : network_(network),
      sets_(network.sets()),
      data_(data),
      microbatches_(microbatches),
      optimizer_(optimizer),
      parameters_(std::move(parameters)),
      tolerance_(tolerance) {
  for (std::size_t s = 0; s < parameters_.size(); ++s) {
    states_.emplace_back(model::optimizer_state_size(optimizer_, parameters_[s].size()));
    smallest_gradients_.emplace_back(parameters_[s].size(), infinity);
    std::size_t first = 0;
    for (const model::Parameter& parameter : sets_[s].parameters) {
      parts_.push_back({s, first, parameter.size(), sets_[s].first_stage(), parameter.label()});
      first += parameter.size();
    }
  }
}

void StepComparison::add_parameter(Compared what, int step, const Part& part, double absolute, double scale,
                                   double allowed) {
  all_.push_back({.what = what,
                  .step = step,
                  .stage = part.stage,
                  .name = part.name,
                  .absolute = absolute,
                  .scale = scale,
                  .allowed = allowed});
}

void StepComparison::add_number(Compared what, int step, std::string name, double absolute, double scale) {
  all_.push_back({.what = what,
                  .step = step,
                  .name = std::move(name),
                  .absolute = absolute,
                  .scale = scale,
                  .allowed = what == Compared::repeat ? 0 : tolerance_ * finite_or_zero(scale)});
}

void StepComparison::add(const Step& result, const model::SetValues& gradients, model::SetValues parameters) {
  const int step = result.number;
  const model::ExpectedGradient expected =
      model::expected_gradient(network_, data_, parameters_, microbatches_, step);
  add_repeats(step, expected);
  for (std::size_t b = 0; b < expected.losses.size(); ++b) {
    add_number(Compared::loss, step, fmt::format("loss of micro-batch {}", b),
               model::difference(static_cast<double>(result.losses.at(b)), expected.losses[b]),
               std::abs(expected.losses[b]));
  }
  add_gradients(Compared::gradient, step, expected.magnitudes, expected.gradients, gradients, tolerance_);
  const double norm = norm_of_all(expected.gradients);
  add_number(Compared::norm, step, "gradient norm",
             model::difference(result.gradient_norm.value_or(infinity), norm),
             norm_of_all(expected.magnitudes));
  add_updates(result, gradients, parameters);
  const bool finite = std::isfinite(norm) &&
                      std::ranges::all_of(expected.losses, [](double loss) { return std::isfinite(loss); });
  if (result.skipped && finite) add_number(Compared::update, step, "update, which was skipped,", infinity, 0);
  keep_smallest_gradients(expected.magnitudes, gradients);
  parameters_ = std::move(parameters);
  if (step == 0) first_magnitudes_ = expected.magnitudes;
  last_step_ = step;
}

void StepComparison::add_repeats(int step, const model::ExpectedGradient& expected) {
  for (std::size_t b = 0; b < expected.repeated_losses.size(); ++b) {
    add_number(Compared::repeat, step, fmt::format("loss of micro-batch {}", b), expected.repeated_losses[b],
               std::abs(expected.losses[b]));
  }
  if (expected.repeated_gradients.empty()) return;
  for (const Part& part : parts_) {
    double max = 0;  // may be infinity
    for (const double one : part.of(expected.repeated_gradients)) max = std::max(max, one);
    add_parameter(Compared::repeat, step, part, max, largest(part.of(expected.magnitudes)), 0);
  }
}

template <class Value>
void StepComparison::add_gradients(Compared what, int step,
                                   const std::vector<std::vector<double>>& magnitudes,
                                   const std::vector<std::vector<Value>>& expected,
                                   const model::SetValues& found, double tolerance) {
  const std::vector<double> bases = base_of_sets(magnitudes);
  for (const Part& part : parts_) {
    const double scale = largest(part.of(magnitudes));
    add_parameter(what, step, part, largest_difference(part.of(found), part.of(expected)), scale,
                  tolerance * (scale + bases[part.set]));
  }
}

void StepComparison::add_file_gradients(const model::SetValues& found, const model::SetValues& expected,
                                        double tolerance) {
  add_gradients(Compared::file_gradient, 0, first_magnitudes_, expected, found, tolerance);
}

void StepComparison::add_file_weights(const model::SetValues& start, const model::SetValues& expected,
                                      double tolerance, double rounding) {
  for (const Part& part : parts_) {
    const std::span<const double> smallest = part.of(smallest_gradients_);
    const auto is_decided = [&](std::size_t i) {
      return optimizer_.kind != "adamw" || smallest[i] > rounding;
    };
    for (std::size_t i = 0; i < part.size; ++i) undecided_weights_ += is_decided(i) ? 0U : 1U;
    const double scale = finite_or_zero(mean_difference(part.of(start), part.of(expected), is_decided));
    add_parameter(Compared::file_weights, last_step_, part,
                  mean_difference(part.of(parameters_), part.of(expected), is_decided), scale,
                  tolerance * scale + 8 * fp32_unit * largest(part.of(expected)));
  }
}

void StepComparison::keep_smallest_gradients(const std::vector<std::vector<double>>& magnitudes,
                                             const model::SetValues& gradients) {
  const std::vector<double> bases = base_of_sets(magnitudes);
  for (const Part& part : parts_) {
    const double scale = largest(part.of(magnitudes)) + bases[part.set];
    for (std::size_t i = part.first; i < part.first + part.size; ++i) {
      if (magnitudes[part.set][i] == 0) continue;  // nothing was rounded: of a token that no micro-batch has
      double& smallest = smallest_gradients_[part.set][i];
      smallest = std::min(smallest, std::abs(static_cast<double>(gradients[part.set][i])) / scale);
    }
  }
}

double StepComparison::norm_of(const model::SetValues& gradients) const {
  std::vector<double> sums;
  for (const Part& part : parts_) sums.push_back(model::sum_of_squares(part.of(gradients)));
  return model::gradient_norm(sums);
}

void StepComparison::add_updates(const Step& result, const model::SetValues& gradients,
                                 const model::SetValues& found) {
  model::SetValues expected = parameters_;
  if (!result.skipped) {
    model::Update update{
        .number = ++updates_,
        .learning_rate = model::learning_rate(optimizer_.schedule, optimizer_.learning_rate, result.number),
        .scale = model::clip_scale(optimizer_.clip, norm_of(gradients)),
        .ranges = {}};
    for (std::size_t s = 0; s < expected.size(); ++s) {
      const auto ranges = model::decay_ranges(optimizer_, sets_[s].parameters);
      update.ranges = ranges;
      model::optimizer_step(optimizer_, update, gradients[s], expected[s], states_[s]);
    }
  }
  for (const Part& part : parts_) {
    const double scale = finite_or_zero(largest_difference(part.of(expected), part.of(parameters_)));
    add_parameter(Compared::update, result.number, part,
                  largest_difference(part.of(found), part.of(expected)), scale,
                  8 * fp32_unit * largest(part.of(expected)) + 1e-5 * scale);
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
// parameter. Where only the passes are wrong, every parameter before the wrong layer differs: the last one is
// nearest to it.
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
    std::vector<Difference> of_kind;
    std::ranges::copy_if(all_, std::back_inserter(of_kind),
                         [&](const Difference& d) { return d.what == what; });
    if (of_kind.empty()) continue;
    const Difference& worst = *std::ranges::max_element(
        of_kind, {}, [](const Difference& d) { return d.allowed > 0 ? d.absolute / d.allowed : d.absolute; });
    const auto wrong = std::ranges::count_if(of_kind, [](const Difference& d) { return !d.agrees(); });
    std::string where = fmt::format("step {}", worst.step + 1);
    if (worst.stage >= 0) where += fmt::format(", stage {}", worst.stage);
    if (what != Compared::norm) where += fmt::format(", {}", worst.name);
    rows.push_back({std::string(word_of(what)), std::to_string(of_kind.size()), std::to_string(wrong),
                    fmt::format("{:.2e}", worst.absolute), fmt::format("{:.2e}", worst.relative()),
                    fmt::format("{:.2e}", worst.allowed), where});
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
