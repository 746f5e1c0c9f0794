// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/costs.hpp"

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

double Durations::of(Pass pass) const {
  switch (pass) {
    case Pass::F:
      return F;
    case Pass::B:
      return B;
    case Pass::W:
      return W;
    case Pass::BW:
      return B + W;
  }
  return 0;
}

Costs with_recomputation(Costs costs) {
  for (Durations& durations : costs.durations) durations = durations.with_recomputation();
  return costs;
}

const Durations& Costs::duration(int stage) const {
  return durations.size() == 1 ? durations.front() : durations[index(stage)];
}

const StageSizes& Costs::size(int stage) const {
  return sizes.size() == 1 ? sizes.front() : sizes[index(stage)];
}

}  // namespace starpipe::plan
