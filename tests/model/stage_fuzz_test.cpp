// SPDX-License-Identifier: Apache-2.0
// Random stages against an evaluator that gives each array its own memory: results must be bitwise equal. A
// failure prints the seed of its stage. STARPIPE_TEST_SEED with that seed makes this stage the first of the
// run.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>

#include "model/checking_backend.hpp"
#include "model/random_stage.hpp"
#include "model/seed.hpp"
#include "starpipe/model/stage.hpp"
#include "support/rounds.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

constexpr std::uint64_t case_count = rounds(20'000);
constexpr float loss_scale = 0.75f;
constexpr std::size_t scratch_floats = 100'000;  // enough for every layer here

/// The results that the passes must have.
struct Expected {
  Floats output;                ///< the output activation, or the loss of a sink
  std::vector<Floats> stashes;  ///< [op]
  Floats loss_stash;
  std::vector<Floats> gradients;  ///< [op]: of the op's output, for layers
  Floats parameter_gradient;
  Floats input_gradient;  ///< of all inputs, joined
};

/// Runs the ops sequentially, with memory of its own for each array.
class Evaluator {
 public:
  explicit Evaluator(const StageCase& of) : case_(of), scratch_(scratch_floats) {
    std::size_t begin = 0;
    for (const StageOp& op : case_.ops) {
      weights_.push_back(begin);
      begin += op.layer ? op.layer->parameter_size() : 0;
    }
  }

  Expected run() {
    expected_.stashes.resize(case_.ops.size());
    expected_.gradients.resize(case_.ops.size());
    expected_.parameter_gradient = case_.gradient_before;
    forward();
    backward();
    return std::move(expected_);
  }

 private:
  [[nodiscard]] Floats joined() const {
    if (case_.inputs.size() == 1) return case_.inputs[0];
    Floats all(case_.matrix(case_.joined_columns));
    auto* to = reinterpret_cast<std::byte*>(all.data());
    for (std::size_t row = 0; row < case_.rows; ++row) {
      for (std::size_t i = 0; i < case_.inputs.size(); ++i) {
        const std::size_t bytes = case_.input_columns[i] * element_bytes(case_.precision);
        std::memcpy(to, reinterpret_cast<const std::byte*>(case_.inputs[i].data()) + row * bytes, bytes);
        to += bytes;
      }
    }
    return all;
  }

  [[nodiscard]] Floats sum(const Floats& a, const Floats& b) const {
    Floats result(a.size());
    cpu_.add(case_.precision, a, b, result);
    return result;
  }

  [[nodiscard]] ConstMemory weights(std::size_t op) const {
    return {reinterpret_cast<const std::byte*>(case_.parameters.data()) +
                weights_[op] * element_bytes(case_.precision),
            words(case_.precision, case_.ops[op].layer->parameter_size())};
  }

  void forward() {
    Floats x = joined();
    std::vector<Floats> kept;
    for (std::size_t i = 0; i < case_.ops.size(); ++i) {
      if (case_.ops[i].kind == StageOp::Kind::residual_begin) {
        kept.push_back(x);
      } else if (case_.ops[i].kind == StageOp::Kind::residual_end) {
        x = sum(x, kept.back());
        kept.pop_back();
      } else {
        const Layer& layer = *case_.ops[i].layer;
        Floats y(case_.matrix(layer.output_columns()));
        expected_.stashes[i].resize(layer.stash_words());
        cpu_.forward(layer, {weights(i), x, y, expected_.stashes[i], scratch_});
        x = std::move(y);
      }
    }
    expected_.output = x;
    if (case_.loss == nullptr) return;
    expected_.output.assign(1, 0.0f);
    expected_.loss_stash.resize(case_.loss->stash_words());
    cpu_.forward(*case_.loss, {x, case_.target, expected_.loss_stash, expected_.output, scratch_});
  }

  Floats output_gradient() {
    if (case_.loss != nullptr) {
      Floats gradient(case_.matrix(case_.columns));
      cpu_.backward_input(*case_.loss, {expected_.loss_stash, loss_scale, gradient, scratch_});
      return gradient;
    }
    Floats gradient = case_.output_gradients[0];
    for (std::size_t i = 1; i < case_.output_gradients.size(); ++i) {
      gradient = sum(gradient, case_.output_gradients[i]);
    }
    return gradient;
  }

  void backward() {
    Floats dy = output_gradient();
    std::vector<Floats> kept;
    for (std::size_t i = case_.ops.size(); i-- > 0;) {
      if (case_.ops[i].kind == StageOp::Kind::residual_end) {
        kept.push_back(dy);
      } else if (case_.ops[i].kind == StageOp::Kind::residual_begin) {
        dy = sum(dy, kept.back());
        kept.pop_back();
      } else {
        const Layer& layer = *case_.ops[i].layer;
        const std::span<float> gradient =
            std::span(expected_.parameter_gradient).subspan(weights_[i], layer.parameter_size());
        if (!gradient.empty()) {
          cpu_.backward_weights(layer, {expected_.stashes[i], dy, gradient, scratch_});
        }
        Floats dx(layer.reads_ids() ? case_.rows : case_.matrix(layer.input_columns()));
        cpu_.backward_input(layer, {weights(i), expected_.stashes[i], dy, dx, scratch_});
        expected_.gradients[i] = std::exchange(dy, std::move(dx));
      }
    }
    expected_.input_gradient = std::move(dy);
  }

  const StageCase& case_;
  const Backend& cpu_ = cpu_backend();
  std::vector<std::size_t> weights_;  ///< [op]: the number at which its parameters begin
  Floats scratch_;
  Expected expected_;
};

/// Runs the passes of a stage and compares their results with the expected ones.
class Comparison {
 public:
  Comparison(const StageCase& of, const Expected& expected)
      : case_(of),
        expected_(expected),
        stage_(of.ops, of.rows, of.input_columns, of.loss, of.precision),
        inputs_(of.inputs.begin(), of.inputs.end()),
        output_gradients_(of.output_gradients.begin(), of.output_gradients.end()) {}

  void run() {
    ASSERT_EQ(stage_.parameter_size(), case_.parameter_size);
    forward(true, false);
    forward(false, true);
    forward(true, true);
    forward(false, true, stage_.scratch_size_without_stash());  // F for the second time under recomputation
    backward("BW", false);
    backward("B and W", true);
  }

 private:
  static void expect_bits(const std::string& what, ConstMemory actual, ConstMemory expected,
                          std::size_t bytes) {
    const auto* a = actual.as<std::byte>();
    const auto* difference = std::mismatch(a, a + bytes, expected.as<std::byte>()).first;
    if (difference == a + bytes) return;
    ADD_FAILURE() << what << " differs from byte " << difference - a << " of " << bytes << " on";
  }

  /// Words rounded up to a multiple of 16 bytes, where the next array of a stash begins.
  static std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

  void forward(bool with_output, bool with_stash, std::size_t scratch_size = 0) {
    const std::string what = with_stash ? with_output ? "F" : "F of the stash" : "F without a stash";
    if (scratch_size == 0) {
      scratch_size = with_stash ? stage_.scratch_size() : stage_.scratch_size_without_stash();
    }
    Guarded output(!with_output ? 0 : stage_.is_sink() ? 1 : stage_.output_size());
    Guarded stash(with_stash ? stage_.stash_size() : 0);
    Guarded scratch(scratch_size);
    stage_.forward(case_.parameters, inputs_, case_.target, output, stash, scratch, backend_);
    output.expect_guards(what + ": output");
    stash.expect_guards(what + ": stash");
    scratch.expect_guards(what + ": scratch");
    if (with_output) {
      expect_bits(what + ": output", output, expected_.output,
                  stage_.is_sink() ? sizeof(float) : case_.bytes(case_.columns));
    }
    if (with_stash) expect_stash(what, stash.span());
    if (with_stash) stash_.assign(stash.span().begin(), stash.span().end());
  }

  void expect_stash(const std::string& what, ConstMemory stash) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < case_.ops.size(); ++i) {
      if (case_.ops[i].kind != StageOp::Kind::layer) continue;
      const Layer& layer = *case_.ops[i].layer;
      const std::string of = what + ": stash of op " + std::to_string(i);
      const ConstMemory expected = expected_.stashes[i];
      const std::size_t elements = layer.stash_size() - layer.statistics_size();
      const std::size_t statistics = words(case_.precision, elements);
      expect_bits(of, stash.subspan(begin), expected, elements * element_bytes(case_.precision));
      expect_bits(of + ", statistics", stash.subspan(begin + statistics), expected.subspan(statistics),
                  layer.statistics_size() * sizeof(float));
      begin += padded(layer.stash_words());
    }
    if (case_.loss != nullptr) {
      expect_bits(what + ": stash of the loss", stash.subspan(begin), expected_.loss_stash,
                  case_.loss->stash_size() * element_bytes(case_.precision));
    }
  }

  void backward(const std::string& what, bool split) {
    std::vector<Guarded> gradients;
    for (std::size_t i = 0; i < (case_.source ? 0 : inputs_.size()); ++i) {
      gradients.emplace_back(stage_.input_size(i));
    }
    std::vector<Memory> out;
    for (Guarded& gradient : gradients) out.emplace_back(gradient.span());
    Guarded sums(case_.parameter_size);
    std::ranges::copy(case_.gradient_before, sums.span().begin());
    Guarded stash(stash_.size());
    std::ranges::copy(stash_, stash.span().begin());
    if (split) {
      run_split(stash, out, sums);
    } else {
      Guarded scratch(stage_.scratch_size());
      stage_.backward({.parameters = case_.parameters,
                       .stash = stash,
                       .output_gradients = output_gradients_,
                       .loss_scale = loss_scale,
                       .input_gradients = out,
                       .parameter_gradient = sums,
                       .scratch = scratch},
                      backend_);
      scratch.expect_guards("scratch of BW");
    }
    expect_bits(what + ": stash, which it only reads", stash, stash_, stash_.size() * sizeof(float));
    stash.expect_guards(what + ": stash");
    sums.expect_guards(what + ": gradient of parameters");
    expect_bits(what + ": gradient of parameters", sums, expected_.parameter_gradient,
                case_.parameter_size * sizeof(float));
    expect_input_gradients(what, gradients);
  }

  void run_split(Guarded& stash, const std::vector<Memory>& out, Guarded& sums) {
    Guarded kept(stage_.gradient_stash_size());
    {
      Guarded scratch(stage_.scratch_size());
      stage_.backward({.parameters = case_.parameters,
                       .stash = stash,
                       .output_gradients = output_gradients_,
                       .loss_scale = loss_scale,
                       .input_gradients = out,
                       .gradient_stash = kept,
                       .scratch = scratch},
                      backend_);
      scratch.expect_guards("scratch of B");
    }
    kept.expect_guards("gradient stash");
    std::size_t begin = 0;
    for (std::size_t i = 0; i < case_.ops.size(); ++i) {
      if (!case_.ops[i].layer || case_.ops[i].layer->parameter_size() == 0) continue;
      const std::size_t columns = case_.ops[i].layer->output_columns();
      expect_bits(std::string("gradient stash of op ") + std::to_string(i), ConstMemory(kept).subspan(begin),
                  expected_.gradients[i], case_.bytes(columns));
      begin += padded(case_.matrix(columns));
    }
    Guarded scratch(stage_.scratch_size());  // new, as W must not rely on B's scratch
    stage_.backward_weights(stash, kept, sums, scratch, backend_);
    scratch.expect_guards("scratch of W");
  }

  void expect_input_gradients(const std::string& what, std::vector<Guarded>& gradients) {
    const std::size_t element = element_bytes(case_.precision);
    std::size_t begin = 0;  // in a row of the joined gradient
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::string of = what + ": gradient of input " + std::to_string(i);
      gradients[i].expect_guards(of);
      const auto* actual = ConstMemory(gradients[i]).as<std::byte>();
      const auto* expected = ConstMemory(expected_.input_gradient).as<std::byte>();
      const std::size_t bytes = case_.input_columns[i] * element;
      bool equal = true;
      for (std::size_t row = 0; row < case_.rows; ++row) {
        equal = equal && std::memcmp(actual + row * bytes,
                                     expected + row * case_.joined_columns * element + begin, bytes) == 0;
      }
      if (!equal) ADD_FAILURE() << of << " differs";
      begin += bytes;
    }
  }

  const StageCase& case_;
  const Expected& expected_;
  CheckingBackend backend_;
  Stage stage_;
  std::vector<ConstMemory> inputs_;
  std::vector<ConstMemory> output_gradients_;
  Floats stash_;
};

TEST(StageFuzz, PassesMatchTheirLayersOneByOne) {
  openblas_set_num_threads(1);
  const std::uint64_t first = seed();
  for (std::uint64_t i = 0; i < case_count; ++i) {
    const StageCase random = StageGenerator(first + i).make();
    Comparison(random, Evaluator(random).run()).run();
    ASSERT_FALSE(HasFailure()) << random;
  }
}

}  // namespace
}  // namespace starpipe::model
