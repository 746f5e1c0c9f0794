// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "model/data/sequences.hpp"

namespace starpipe::model {
namespace {

std::vector<std::uint64_t> all(std::uint64_t size, std::mt19937_64& keys) {
  const Permutation permutation(size, keys);
  std::vector<std::uint64_t> elements(size);
  for (std::uint64_t place = 0; place < size; ++place) elements[place] = permutation(place);
  return elements;
}

TEST(Permutation, HasEachElementOnce) {
  std::mt19937_64 keys(1);
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 1000, 65536, 65537}) {
    std::vector<std::uint64_t> elements = all(size, keys);
    std::ranges::sort(elements);
    std::vector<std::uint64_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(elements, expected) << size;
  }
}

TEST(Permutation, OfHugeSetsStaysInThem) {
  std::mt19937_64 keys(1);
  for (const std::uint64_t size :
       {(std::uint64_t{1} << 40U) + 1, std::uint64_t{1} << 63U, std::numeric_limits<std::uint64_t>::max()}) {
    const Permutation permutation(size, keys);
    std::set<std::uint64_t> seen;
    for (std::uint64_t place = 0; place < 1000; ++place) seen.insert(permutation(size - 1 - place));
    EXPECT_EQ(seen.size(), 1000U);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

// All orders of a small set are about equally frequent: 120 orders of 5 elements, 100 draws of each expected.
TEST(Permutation, AllOrdersOccurAlike) {
  std::mt19937_64 keys(7);
  std::map<std::vector<std::uint64_t>, int> count;
  for (int draw = 0; draw < 12000; ++draw) ++count[all(5, keys)];
  ASSERT_EQ(count.size(), 120U);
  double chi_square = 0;
  for (const auto& [order, times] : count) chi_square += (times - 100.0) * (times - 100.0) / 100.0;
  EXPECT_LT(chi_square, 119 + 5 * 15.4);  // mean and deviation with 119 degrees of freedom
}

// Neighbours end up anywhere: the mean distance of two random places is a third of the size.
TEST(Permutation, SeparatesNeighbours) {
  std::mt19937_64 keys(3);
  constexpr std::uint64_t size = 30000;
  const std::vector<std::uint64_t> elements = all(size, keys);
  double distance = 0;
  for (std::size_t i = 0; i + 1 < size; ++i) {
    distance += std::max(elements[i], elements[i + 1]) - std::min(elements[i], elements[i + 1]);
  }
  EXPECT_NEAR(distance / (size - 1), size / 3.0, size / 60.0);
}

}  // namespace
}  // namespace starpipe::model
