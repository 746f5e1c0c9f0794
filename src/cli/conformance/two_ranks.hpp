// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "starpipe/plan/registry/conformance.hpp"

namespace starpipe::cli {

/// The last conformance stage: trains a tiny network for three steps on the engine, as two MPI ranks, under
/// schedule `name` of the plug-in, and compares the losses with those of a sequential run. Does not apply,
/// and says why, where no two ranks can be started. Loads the plug-in in other processes only, none of which
/// may take longer than `most`.
plan::Finding train_on_two_ranks(const std::string& plugin, const std::string& name,
                                 std::chrono::seconds most);

}  // namespace starpipe::cli
