// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/other_policy.hpp"

#include <fmt/format.h>

#include "runtime/session/policy_choice.hpp"

namespace starpipe::runtime {

std::string describe_other_policy(const Config& config) {
  const PolicyChoice choice = configured_policy(config);
  if (follows_schedule(choice)) return "";
  return fmt::format("predicted for the policy starpipe; {} chooses {} at run time, so its run may differ\n",
                     choice.name,
                     choice.control == StarpuControl::on_worker ? "the order" : "workers and order");
}

}  // namespace starpipe::runtime
