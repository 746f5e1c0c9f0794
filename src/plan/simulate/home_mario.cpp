// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/home_ways.hpp"

namespace starpipe::plan {
namespace {

// All stashes are made again, except where B follows F directly: R would only repeat it. R comes directly
// before its B in the worker's order and does not wait for the gradient, so it runs in the bubble before B.
Schedule with_overlapped_recomputation(const Schedule& ordered, const HomeWish& /*wish*/) {
  return ordered.with_homes([&](int stage, int microbatch) {
    const JobId forward = ordered.forward(stage, microbatch);
    const JobId backward = ordered.backward(stage, microbatch);
    const bool is_next = ordered.compute(forward) == ordered.compute(backward) &&
                         ordered.position(backward) == ordered.position(forward) + 1;
    return is_next ? Home::worker : Home::none;
  });
}

const bool registered_mario = register_home_way(
    {.name = "mario",
     .summary = "none, except where B follows F directly; R runs before the gradient arrives",
     .source = "Mario: Near Zero-cost Activation Checkpointing in Pipeline Parallelism, 2025",
     .choose = with_overlapped_recomputation});

}  // namespace
}  // namespace starpipe::plan
