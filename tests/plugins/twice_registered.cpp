// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry/registry.hpp"

namespace {

const bool registered = starpipe::plan::register_schedule({"1f1b", "", "", {}});

}  // namespace
