// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// The forward passes of `schedule` alone, on any number of micro-batches: the evaluation of a network that
/// `schedule` trains. The micro-batches are divided into rounds of `schedule.microbatches()`; the last round
/// may be shorter. Within a round, each pass has the placement w that it has in `schedule`, and the passes
/// keep their order n. Every pass comes before those of later rounds. An ordered schedule stays ordered. The
/// others become greedy: nothing is stashed, so there is nothing to limit. The result can finish if
/// `schedule` can. Throws InputError with `check`'s message when `schedule` cannot finish, and for fewer than
/// one micro-batch or too many jobs.
Schedule forward_passes(const Schedule& schedule, int microbatches);

}  // namespace starpipe::plan
