// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

#include <gtest/gtest.h>

#include "starpipe/model/backend.hpp"

namespace starpipe::model::testing {

/// The CPU's backend with checks: a view that overlaps another, has a wrong size or does not begin at a
/// multiple of 16 bytes is a failure of the test. Fills the views that a pass must write with NaN before the
/// pass.
class CheckingBackend final : public Backend {
 public:
  void zero(Memory) const noexcept override { ADD_FAILURE() << "zero"; }
  void round(std::span<const float>, Memory) const noexcept override { ADD_FAILURE() << "round"; }
  void find_nonfinite(Precision, ConstMemory, std::size_t, float&) const noexcept override {
    ADD_FAILURE() << "find_nonfinite";
  }
  void update(const OptimizerConfig&, const Update&, std::span<const float>, std::span<float>,
              std::span<float>) const noexcept override {
    ADD_FAILURE() << "update";
  }
  void sum_squares(std::span<const float>, std::span<const std::size_t>, std::span<double>,
                   Memory) const noexcept override {
    ADD_FAILURE() << "sum_squares";
  }

  void copy(ConstMemory from, Memory to) const noexcept override {
    if (!fits("copy", from, to.size()) || !disjoint("copy", {from, to})) return;
    cpu_.copy(from, to);
  }
  void add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept override {
    if (!fits("add", a, sum.size()) || !fits("add", b, sum.size())) return;
    if (a.data() != sum.data() && !disjoint("add", {a, sum})) return;
    if (b.data() != sum.data() && !disjoint("add", {b, sum})) return;
    cpu_.add(precision, a, b, sum);
  }
  void copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride,
                    std::size_t columns, std::size_t rows) const noexcept override {
    if (overlap(from, (rows - 1) * from_stride + columns, to, (rows - 1) * to_stride + columns)) {
      ADD_FAILURE() << "copy_columns: views overlap";
      return;
    }
    cpu_.copy_columns(from, from_stride, to, to_stride, columns, rows);
  }

  void forward(const Layer& layer, const Forward& pass) const noexcept override {
    if (!fits("input", pass.input, input_words(layer)) || !fits("output", pass.output, output_words(layer)) ||
        !fits("stash", pass.stash, layer.stash_words()) || !holds(pass.scratch, layer)) {
      return;
    }
    const bool in_stash = layer.keeps_input() && pass.input.data() == pass.stash.data();
    if (!disjoint("F", {pass.output, pass.stash, pass.scratch, in_stash ? ConstMemory() : pass.input}))
      return;
    poison(pass.output);
    const Memory before_target = layer.target_size() > 0 ? pass.stash.first(layer.target_offset())
                                                         : pass.stash;  // the target is there already
    poison(in_stash ? before_target.subspan(pass.input.size()) : before_target);
    poison(pass.scratch);
    cpu_.forward(layer, pass);
  }
  void backward_input(const Layer& layer, const Backward& pass) const noexcept override {
    if (!fits("dy", pass.output_gradient, output_words(layer)) ||
        !fits("dx", pass.input_gradient, input_words(layer)) ||
        !fits("stash", pass.stash, layer.stash_words()) || !holds(pass.scratch, layer) ||
        !disjoint("B", {pass.stash, pass.output_gradient, pass.input_gradient, pass.scratch})) {
      return;
    }
    poison(pass.input_gradient);
    poison(pass.scratch);
    cpu_.backward_input(layer, pass);
  }
  void backward_weights(const Layer& layer, const Weights& pass) const noexcept override {
    if (!fits("dy", pass.output_gradient, output_words(layer)) ||
        !fits("stash", pass.stash, layer.stash_words()) ||
        !fits("gradient of parameters", pass.parameter_gradient, layer.parameter_size()) ||
        !holds(pass.scratch, layer) || !disjoint("W", {pass.stash, pass.output_gradient, pass.scratch})) {
      return;
    }
    poison(pass.scratch);
    cpu_.backward_weights(layer, pass);
  }
  void forward(const Loss& loss, const LossForward& pass) const noexcept override {
    if (!fits("input of the loss", pass.input, input_words(loss)) ||
        !fits("target", pass.target, loss.rows() * loss.target_columns()) ||
        !fits("stash of the loss", pass.stash, loss.stash_words()) || !holds(pass.scratch, loss) ||
        !disjoint("F of the loss", {pass.input, pass.stash, pass.scratch})) {
      return;
    }
    poison(pass.stash);
    poison(pass.scratch);
    cpu_.forward(loss, pass);
  }
  void backward_input(const Loss& loss, const LossBackward& pass) const noexcept override {
    if (!fits("gradient of the loss", pass.input_gradient, input_words(loss)) ||
        !fits("stash of the loss", pass.stash, loss.stash_words()) || !holds(pass.scratch, loss) ||
        !disjoint("B of the loss", {pass.stash, pass.input_gradient, pass.scratch})) {
      return;
    }
    poison(pass.input_gradient);
    poison(pass.scratch);
    cpu_.backward_input(loss, pass);
  }

 private:
  static std::size_t input_words(const Layer& layer) {
    return words(layer.reads_ids() ? Precision::fp32 : layer.precision(),
                 layer.rows() * layer.input_columns());
  }
  static std::size_t output_words(const Layer& layer) {
    return words(layer.writes_floats() ? Precision::fp32 : layer.precision(),
                 layer.rows() * layer.output_columns());
  }
  static std::size_t input_words(const Loss& loss) {
    return words(loss.precision(), loss.rows() * loss.input_columns());
  }

  static void poison(Memory memory) {
    if (!memory.empty()) std::memset(memory.data(), 0xff, memory.floats().size_bytes());
  }
  static bool fits(const char* what, ConstMemory memory, std::size_t size) {
    EXPECT_EQ(memory.size(), size) << what;
    return memory.size() == size;
  }
  template <class LayerOrLoss>
  static bool holds(ConstMemory scratch, const LayerOrLoss& pass) {
    EXPECT_GE(scratch.size(), pass.scratch_words(false)) << "scratch";
    return scratch.size() >= pass.scratch_words(false);
  }
  static bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
    const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
    const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
    return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
  }
  static bool disjoint(const char* what, std::initializer_list<ConstMemory> views) {
    for (const ConstMemory* a = views.begin(); a != views.end(); ++a) {
      if (a->empty()) continue;
      if (reinterpret_cast<std::uintptr_t>(a->data()) % 16 != 0) {
        ADD_FAILURE() << what << ": a view begins at no multiple of 16 bytes";
        return false;
      }
      for (const ConstMemory* b = views.begin(); b != a; ++b) {
        if (!overlap(a->data(), a->floats().size_bytes(), b->data(), b->floats().size_bytes())) continue;
        ADD_FAILURE() << what << ": views overlap";
        return false;
      }
    }
    return true;
  }

  const Backend& cpu_ = cpu_backend();
};

}  // namespace starpipe::model::testing
