// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/search/instance.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan::detail {

/// Orders without a pattern: again and again the job that can start first, give or take a random delay.
///
/// They always finish within a limit that some schedule keeps: F of a stage leaves room for the later stages
/// of its worker, and the micro-batches of a stage run in order. So the memory that the oldest unfinished
/// micro-batch needs next is never held by younger ones. O(jobs S).
Orders random_orders(const Instance& instance, Random& random);

}  // namespace starpipe::plan::detail
