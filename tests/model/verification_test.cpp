// SPDX-License-Identifier: Apache-2.0
#include "model/verification.hpp"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "model/data/make_dataset.hpp"
#include "model/gradients.hpp"
#include "support/folder.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

/// Weights of `deviation`: of 0.3, the loss is far from a straight line along most directions.
std::vector<Floats> normal_weights(const Network& network, double deviation, std::uint64_t seed) {
  std::vector<Floats> parameters;
  for (const ParameterSet& set : network.sets())
    parameters.push_back(random_floats(set.size, 100 * seed + parameters.size(), deviation));
  return parameters;
}

std::string random_text(std::size_t size) {
  std::mt19937_64 bits(1);
  std::string text(size, ' ');
  std::ranges::generate(text, [&bits] { return static_cast<char>('a' + bits() % 26); });
  return text;
}

/// Checks right passes from many start weights.
void expect_agreement(const std::string& kind) {
  const Folder folder;
  const auto text = folder.write("text", random_text(1000));
  const ModelConfig config = small(kind, {{"context", 7}, {"tied", true}});
  const Network network = build_network(config, 2, 2);
  int all = 0;
  int decided = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto data = make_dataset({.path = text}, config, {3, 2}, seed);
    for (const DerivativeCheck& check :
         check_derivatives(network, *data, normal_weights(network, 0.3, seed), 1)) {
      EXPECT_TRUE(check.agrees()) << "seed " << seed << ", " << check.parameter << ": passes " << check.passes
                                  << ", differences " << check.differences << ", error " << check.error
                                  << ", scale " << check.scale;
      ++all;
      if (check.is_decided()) ++decided;
    }
  }
  EXPECT_GT(decided, all * 9 / 10);
}

TEST(Derivatives, OfRightPassesAgreeInGpt) { expect_agreement("gpt"); }
TEST(Derivatives, OfRightPassesAgreeInLlama) { expect_agreement("llama"); }

}  // namespace
}  // namespace starpipe::model
