// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace starpipe::model::testing {

/// The seed of this run: the environment variable STARPIPE_TEST_SEED, or a new one, which the run prints.
inline std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* given = std::getenv("STARPIPE_TEST_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::cout << "STARPIPE_TEST_SEED=" << chosen << '\n';
    return chosen;
  }();
  return value;
}

}  // namespace starpipe::model::testing
