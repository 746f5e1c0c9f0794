// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

#include <starpu.h>

#include "starpipe/sched/starpu_policy.hpp"

namespace starpipe::sched::testing {

/// StarPU with the policy `starpipe` on `workers` CPU workers.
class StarPU {
 public:
  explicit StarPU(int cpus) {
    starpu_conf conf;
    starpu_conf_init(&conf);
    conf.precedence_over_environment_variables = 1;
    conf.ncpus = cpus;
    conf.ncuda = 0;
    conf.nopencl = 0;
    starpu_sched_policy policy = starpipe_policy();
    conf.sched_policy = &policy;
    if (starpu_init(&conf) != 0 || active_policy_core() == nullptr) throw std::runtime_error("no StarPU");
  }
  ~StarPU() { starpu_shutdown(); }
  StarPU(const StarPU&) = delete;
  StarPU& operator=(const StarPU&) = delete;
};

}  // namespace starpipe::sched::testing
