// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>

#include "base/environment.hpp"

namespace starpipe::model::testing {

/// The seed of this run: the environment variable STARPIPE_TEST_SEED, or a new one, which the run prints.
inline std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const std::optional<std::string> given = environment("STARPIPE_TEST_SEED");
    const std::uint64_t chosen = given ? std::strtoull(given->c_str(), nullptr, 10) : std::random_device{}();
    std::cout << "STARPIPE_TEST_SEED=" << chosen << '\n';
    return chosen;
  }();
  return value;
}

}  // namespace starpipe::model::testing
