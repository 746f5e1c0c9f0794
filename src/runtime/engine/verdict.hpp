// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "starpipe/model/memory_view.hpp"

namespace starpipe::runtime {

/// A worker's verdict on a step, in the host's memory: the sum of squares of each parameter's gradient, in
/// the model's order, and whether a pass found infinity or NaN. 0 stands for what the worker does not know,
/// which a sum of 0 cannot change. Each entry has one author, so merging copies values and adds nothing: the
/// bits of a complete verdict do not depend on who merged with whom. Does not own the memory.
class Verdict {
 public:
  /// Words of 4 bytes of a verdict on so many parameters.
  static constexpr std::size_t words(std::size_t parameters) { return 2 * (parameters + 1); }
  /// `memory`: of words() words, aligned to 8 bytes.
  explicit Verdict(model::Memory memory) : entries_(memory.as<double>(), memory.size() / 2) {}

  /// Forgets the last step. `found`: whether a pass of the worker found infinity or NaN.
  void begin(bool found) const noexcept;
  /// Takes over what `other` knows.
  void merge(const Verdict& other) const noexcept;

  [[nodiscard]] std::span<double> sums() const noexcept { return entries_.first(entries_.size() - 1); }
  /// The norm of the gradient, if all sums are known.
  [[nodiscard]] double norm() const noexcept;
  /// Whether the step's update is skipped where it can be: a pass found infinity or NaN, or the gradient has
  /// such a value. The sum of the gradients of several workers may overflow though each of them is finite.
  [[nodiscard]] bool skips() const noexcept;

 private:
  std::span<double> entries_;  // the sums, then `found`
};

}  // namespace starpipe::runtime
