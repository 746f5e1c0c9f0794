// SPDX-License-Identifier: Apache-2.0
// Collectives that are made of other collectives, and so are the same on MPI and on SimGrid.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

bool Mpi::all_equal(std::uint64_t mine) const {
  return std::ranges::count(gather_values(mine), mine) == ranks_;
}

std::uint64_t Mpi::sum_on_root(std::uint64_t mine) const {
  const std::vector<std::uint64_t> all = gather_values(mine);
  return rank_ == 0 ? std::accumulate(all.begin(), all.end(), std::uint64_t{0}) : 0;
}

unsigned Mpi::bits_of_any(unsigned mine) const {
  const std::vector<unsigned> all = gather_values(mine);
  return std::accumulate(all.begin(), all.end(), 0U, std::bit_or<>());
}

double Mpi::largest(double mine) const { return std::ranges::max(gather_values(mine)); }

std::string Mpi::first_problem(const std::string& mine, int place) const {
  constexpr int none = std::numeric_limits<int>::max();
  const std::vector<int> places = gather_values(mine.empty() ? none : place);
  const auto first = std::ranges::min_element(places);
  return *first == none ? std::string() : gather(mine)[static_cast<std::size_t>(first - places.begin())];
}

}  // namespace starpipe::runtime
