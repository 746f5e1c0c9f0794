// SPDX-License-Identifier: Apache-2.0
// In the place of mpi.cpp on SimGrid. There MPI belongs to StarPU-MPI's thread alone.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "runtime/host/mpi.hpp"
#include "runtime/host/simulated_exchange.hpp"
#include "starpipe/base/index.hpp"
#include "base/messages.hpp"

namespace starpipe::runtime {
namespace {

template <class Value>
std::vector<Value> exchange(const Mpi& mpi, const Value& mine) {
  std::vector<Value> all;
  for (const std::string& text : mpi.gather({reinterpret_cast<const char*>(&mine), sizeof mine}))
    std::memcpy(&all.emplace_back(), text.data(), sizeof(Value));
  return all;
}

}  // namespace

// StarPU's own `main` has started MPI before it called ours, and MPI ends when StarPU-MPI shuts down.
Mpi::Mpi() : comm_(MPI_COMM_WORLD), rank_(starpu_mpi_world_rank()), ranks_(starpu_mpi_world_size()) {
  leave_out_data();
}
Mpi::~Mpi() = default;

std::vector<std::string> Mpi::gather(const std::string& mine) const {
  return exchange_texts(rank_, ranks_, mine);
}

void Mpi::gather_on_root(std::span<const std::byte> mine, std::size_t record,
                         const std::function<std::span<std::byte>(std::size_t)>& room) const {
  std::string all;
  for (const std::string& text : gather({reinterpret_cast<const char*>(mine.data()), mine.size()}))
    all += text;
  if (rank_ == 0) std::ranges::copy(std::as_bytes(std::span(all)), room(all.size() / record).begin());
}

void Mpi::barrier() const { exchange_texts(rank_, ranks_, {}); }

bool Mpi::all_equal(std::uint64_t mine) const {
  const auto all = exchange(*this, mine);
  return std::ranges::count(all, mine) == std::ssize(all);
}

std::uint64_t Mpi::sum_on_root(std::uint64_t mine) const {
  const auto all = exchange(*this, mine);
  return rank_ == 0 ? std::accumulate(all.begin(), all.end(), std::uint64_t{0}) : 0;
}

unsigned Mpi::bits_of_any(unsigned mine) const {
  unsigned any = 0;
  for (const unsigned bits : exchange(*this, mine)) any |= bits;
  return any;
}

double Mpi::largest(double mine) const { return std::ranges::max(exchange(*this, mine)); }

void Mpi::abort(const std::string& message) const {
  print_message(fmt::format("starpipe: rank {}: {}\n", rank_, message));
  std::_Exit(1);
}

std::string Mpi::first_problem(const std::string& mine, int place) const {
  const std::vector<std::string> all = gather(mine);
  const std::vector<int> places = exchange(*this, place);
  std::string first;
  int smallest = std::numeric_limits<int>::max();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty() || places[rank] >= smallest) continue;
    smallest = places[rank];
    first = all[rank];
  }
  return first;
}

}  // namespace starpipe::runtime
