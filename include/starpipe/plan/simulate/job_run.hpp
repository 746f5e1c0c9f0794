// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// One job of a measured step. Times in seconds on one clock.
struct JobRun {
  JobId job = 0;
  int worker = 0;        ///< that ran it; differs from w under policies that ignore w
  double submitted = 0;  ///< its task was inserted on the rank that ran it
  double ready = 0;      ///< all its inputs were on this rank
  double start = 0;
  double end = 0;
};

}  // namespace starpipe::plan
