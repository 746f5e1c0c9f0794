// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/gradients.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::model::testing {

/// A random stage, and the data that its passes read.
struct StageCase {
  std::uint64_t seed = 0;
  Precision precision = Precision::fp32;
  std::size_t rows = 0;
  std::vector<std::size_t> input_columns;
  std::size_t joined_columns = 0;
  bool source = false;
  bool ids = false;
  std::vector<StageOp> ops;
  std::size_t columns = 0;  ///< of the activation behind the last op
  std::shared_ptr<const Loss> loss;
  std::string text;  ///< ops and loss in words, for failures

  std::size_t parameter_size = 0;
  Floats parameters;
  std::vector<Floats> inputs;
  Floats target;
  std::vector<Floats> output_gradients;  ///< empty for a sink
  Floats gradient_before;                ///< of the parameters: the passes add to it

  [[nodiscard]] std::size_t bytes(std::size_t of_columns) const {
    return rows * of_columns * element_bytes(precision);
  }
  [[nodiscard]] std::size_t matrix(std::size_t of_columns) const {
    return words(precision, rows * of_columns);
  }
  [[nodiscard]] std::size_t input_words(std::size_t of_columns) const {
    return ids ? rows : matrix(of_columns);
  }
};

inline std::ostream& operator<<(std::ostream& out, const StageCase& of) {
  out << "STARPIPE_TEST_SEED=" << of.seed << ": " << to_string(of.precision) << ", " << of.rows << " rows, "
      << (of.source ? "source, " : "") << (of.ids ? "ids" : "input") << " of columns";
  for (const std::size_t columns : of.input_columns) out << ' ' << columns;
  return out << ", " << of.output_gradients.size() << " successors: " << of.text;
}

/// Makes a case from a seed: the same seed makes the same case.
class StageGenerator {
 public:
  explicit StageGenerator(std::uint64_t seed) : bits_(seed) { case_.seed = seed; }

  StageCase make() {
    case_.precision = chance(2) ? Precision::fp32 : Precision::bf16;
    case_.rows = chance(2) ? context_length * (1 + below(4)) : 1 + below(9);
    choose_input();
    const std::size_t length = below(14);
    for (std::size_t i = 0; i < length; ++i) add_any();
    while (!open_.empty()) {
      end_residual();
      if (chance(4)) add_layer("gelu");
    }
    case_.columns = columns_;
    if (chance(3)) add_loss();
    choose_data();
    return std::move(case_);
  }

 private:
  static constexpr std::size_t context_length = 3;
  static constexpr std::size_t vocabulary_size = 5;

  std::size_t below(std::size_t end) { return bits_() % end; }
  bool chance(std::size_t of) { return below(of) == 0; }
  [[nodiscard]] bool has_sequences() const { return case_.rows % context_length == 0; }

  void choose_input() {
    case_.source = chance(4);
    case_.ids = case_.source && has_sequences() && chance(2);
    const std::size_t inputs = case_.source || !chance(3) ? 1 : 1 + below(3);
    for (std::size_t i = 0; i < inputs; ++i) {
      case_.input_columns.push_back(case_.ids ? 1 : 1 + below(4));
      columns_ += case_.input_columns.back();
    }
    case_.joined_columns = columns_;
    if (case_.ids) {
      add_layer("embedding", {{"vocabulary", double{vocabulary_size}},
                              {"context", double{context_length}},
                              {"outputs", static_cast<double>(1 + below(5))}});
    }
  }

  void add_layer(const std::string& kind, const std::map<std::string, double>& options = {}) {
    const LayerSpec spec{kind, kind + std::to_string(case_.ops.size()), case_.rows, columns_, options};
    case_.ops.push_back({StageOp::Kind::layer, make_layer(spec, case_.precision)});
    columns_ = case_.ops.back().layer->output_columns();
    case_.text += kind + "(" + std::to_string(columns_) + ") ";
  }

  void add_linear(std::size_t outputs) {
    add_layer("linear", {{"outputs", static_cast<double>(outputs)}, {"bias", static_cast<double>(below(2))}});
  }

  void add_attention() {
    if (columns_ % 3 != 0) add_linear(3 * (1 + below(3)));
    add_layer("attention", {{"heads", columns_ % 2 == 0 ? 2.0 : 1.0}, {"context", double{context_length}}});
  }

  // Two query heads share a head of keys and of values.
  void add_rotary_attention() {
    const std::size_t size = 2 * (1 + below(2));
    add_linear(4 * size);
    add_layer("rotary", {{"heads", 3},
                         {"size", static_cast<double>(size)},
                         {"context", double{context_length}},
                         {"theta", 100}});
    add_layer("attention", {{"heads", 2}, {"kv_heads", 1}, {"context", double{context_length}}});
  }

  void begin_residual() {
    case_.ops.push_back({StageOp::Kind::residual_begin, nullptr});
    open_.push_back(columns_);
    case_.text += "[ ";
  }

  void end_residual() {
    if (open_.back() != columns_) add_linear(open_.back());
    case_.ops.push_back({StageOp::Kind::residual_end, nullptr});
    open_.pop_back();
    case_.text += "] ";
  }

  void add_any() {
    switch (below(12)) {
      case 0:
      case 1:
        return begin_residual();
      case 2:
      case 3:
      case 4:
        if (!open_.empty()) end_residual();
        return;
      case 5:
        return add_linear(1 + below(6));
      case 6:
        return add_layer("gelu");
      case 7:
        return add_layer("layernorm");
      case 8:
        return add_layer("rmsnorm", {{"epsilon", 1e-6}});
      case 9:
        return columns_ % 2 == 0 ? add_layer("swiglu") : add_linear(2 * (1 + below(3)));
      case 10:
        if (has_sequences()) add_rotary_attention();
        return;
      default:
        if (has_sequences()) add_attention();
    }
  }

  void add_loss() {
    const std::string kind = chance(2) ? "mse" : "cross_entropy";
    case_.loss = make_loss(kind, case_.rows, columns_, case_.precision);
    case_.text += kind;
  }

  Floats floats(std::size_t count) { return random_floats(count, bits_()); }
  Floats ids(std::size_t vocabulary) {
    Floats values(case_.rows);
    for (float& value : values) value = static_cast<float>(below(vocabulary));
    return values;
  }
  Floats numbers(std::size_t count) {
    Floats values = floats(count);
    if (case_.precision != Precision::bf16) return values;
    Floats rounded(words(case_.precision, count));
    round_to_bf16(values, rounded);
    return rounded;
  }

  void choose_data() {
    for (const StageOp& op : case_.ops) case_.parameter_size += op.layer ? op.layer->parameter_size() : 0;
    case_.parameters = numbers(case_.parameter_size);
    case_.gradient_before = floats(case_.parameter_size);
    for (const std::size_t columns : case_.input_columns) {
      case_.inputs.push_back(case_.ids ? ids(vocabulary_size) : numbers(case_.rows * columns));
    }
    if (case_.loss != nullptr) {
      const bool classes = case_.text.ends_with("cross_entropy");
      case_.target = classes ? ids(columns_) : floats(case_.rows * case_.loss->target_columns());
      return;
    }
    const std::size_t successors = 1 + below(3);
    for (std::size_t i = 0; i < successors; ++i) {
      case_.output_gradients.push_back(numbers(case_.rows * columns_));
    }
  }

  std::mt19937_64 bits_;
  StageCase case_;
  std::size_t columns_ = 0;
  std::vector<std::size_t> open_;  ///< columns at the beginning of each open residual connection
};

}  // namespace starpipe::model::testing
