// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/size_limits.hpp"

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::plan {

void require_few_jobs(std::string_view key, std::int64_t stages, std::int64_t microbatches,
                      std::int64_t most) {
  if (stages <= most / microbatches) return;
  throw InputError(
      fmt::format("{}: {} micro-batches of {} stages are too many jobs", key, microbatches, stages));
}

}  // namespace starpipe::plan
