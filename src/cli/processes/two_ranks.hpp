// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "plan/registry/conformance.hpp"

namespace starpipe::cli {

/// The last step of the conformance test. Trains a tiny network for three steps on the engine, as two MPI
/// ranks, under schedule `name` of the plug-in, and compares the losses with those of a sequential run. Does
/// not apply, and says why, if two ranks cannot be started. Loads the plug-in only in other processes; each
/// is killed after `most`.
plan::Finding train_on_two_ranks(const std::string& plugin, const std::string& name,
                                 std::chrono::seconds most);

}  // namespace starpipe::cli
