// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/search/search_problem.hpp"

namespace starpipe::plan {

/// The smallest memory limit that any schedule of the problem can keep: before the last stage of a
/// micro-batch has run forward none of its stashes can end, so a worker needs room for one stash of each
/// of its stages; one micro-batch after the other needs no more.
double least_memory_limit(const SearchProblem& problem);

/// A makespan that no schedule of the problem can beat. docs/search.md has the proof. O(S^2).
/// Throws InputError as `search` does.
double lower_bound(const SearchProblem& problem);

}  // namespace starpipe::plan
