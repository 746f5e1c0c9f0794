// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/verdict.hpp"

#include <algorithm>
#include <cmath>

#include "starpipe/model/gradient_norm.hpp"

namespace starpipe::runtime {

void Verdict::begin(bool found) const noexcept {
  std::ranges::fill(entries_, 0.0);
  entries_.back() = found ? 1 : 0;
}

void Verdict::merge(const Verdict& other) const noexcept {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i] == 0) entries_[i] = other.entries_[i];
  }
}

bool Verdict::skips() const noexcept { return entries_.back() != 0 || !std::isfinite(norm()); }

double Verdict::norm() const noexcept { return model::gradient_norm(sums()); }

}  // namespace starpipe::runtime
