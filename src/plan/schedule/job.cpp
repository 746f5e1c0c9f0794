// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/job.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"

namespace starpipe::plan {

Pass parse_pass(std::string_view word) {
  const auto found = std::ranges::find(pass_words, word);
  if (found == pass_words.end())
    throw InputError(fmt::format("unknown pass '{}' ({})", word, fmt::join(pass_words, ", ")));
  return static_cast<Pass>(found - pass_words.begin());
}

std::string to_string(const Job& job) {
  return fmt::format("{}({},{})", to_string(job.pass), job.stage, job.microbatch);
}

}  // namespace starpipe::plan
