// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/search/instance.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan::detail {

/// Random orders: repeatedly takes the job that can start first, after a random delay for each job.
///
/// Orders are always found if some schedule keeps the memory limit. F of a stage leaves room for one stash of
/// each later stage of its worker, and a stage runs its micro-batches in order. So younger micro-batches
/// never hold the memory that the oldest unfinished micro-batch needs next. O(jobs S).
Orders random_orders(const Instance& instance, Random& random);

}  // namespace starpipe::plan::detail
