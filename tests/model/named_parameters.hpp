// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/model/network.hpp"
#include "support/floats.hpp"

namespace starpipe::model::testing {

using Shape = std::vector<std::size_t>;

/// Returns the shape of each parameter. No two stages may have a parameter of the same name.
inline std::map<std::string, Shape> shapes(const Network& network) {
  std::map<std::string, Shape> result;
  for (const Stage& stage : network.stages) {
    for (const Parameter& parameter : stage.parameters()) {
      EXPECT_TRUE(result.emplace(parameter.name, parameter.shape).second) << parameter.name << " twice";
    }
  }
  return result;
}

/// Returns the values of each parameter. `values`: by stage.
inline std::map<std::string, Floats> by_name(const Network& network, const std::vector<Floats>& values) {
  std::map<std::string, Floats> result;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    auto from = values[s].begin();
    for (const Parameter& parameter : network.stages[s].parameters()) {
      const auto to = from + static_cast<std::ptrdiff_t>(parameter.size());
      result[parameter.name] = Floats(from, to);
      from = to;
    }
  }
  return result;
}

}  // namespace starpipe::model::testing
