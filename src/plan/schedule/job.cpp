// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/job.hpp"

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::plan {

std::string_view to_string(Pass pass) {
  switch (pass) {
    case Pass::F:
      return "F";
    case Pass::B:
      return "B";
    case Pass::W:
      return "W";
    case Pass::BW:
      return "BW";
  }
  return "?";
}

Pass parse_pass(std::string_view word) {
  for (const Pass pass : {Pass::F, Pass::B, Pass::W, Pass::BW}) {
    if (word == to_string(pass)) return pass;
  }
  throw InputError(fmt::format("unknown pass '{}' (F, B, W or BW)", word));
}

std::string to_string(const Job& job) {
  return fmt::format("{}({},{})", to_string(job.pass), job.stage, job.microbatch);
}

}  // namespace starpipe::plan
