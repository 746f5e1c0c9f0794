// SPDX-License-Identifier: Apache-2.0
// Takes the place of mpi.cpp on SimGrid, where MPI belongs to StarPU-MPI's thread alone.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "base/messages.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/simulated_exchange.hpp"

namespace starpipe::runtime {

// StarPU's own `main` has started MPI before it called ours, and MPI ends when StarPU-MPI shuts down.
Mpi::Mpi(MPI_Comm comm, RunListener listener)
    : listener_(std::move(listener)),
      comm_(comm),
      starpu_comm_(comm),
      rank_(starpu_mpi_world_rank()),
      ranks_(starpu_mpi_world_size()) {
  leave_out_data();
}
Mpi::~Mpi() = default;

std::uint64_t Mpi::combine(std::uint64_t mine, Combine how) const {
  std::uint64_t all = how == Combine::sum ? 0 : mine;
  for (const std::string& text : gather(std::to_string(mine))) {
    const std::uint64_t other = std::stoull(text);
    switch (how) {
      case Combine::min:
        all = std::min(all, other);
        break;
      case Combine::max:
        all = std::max(all, other);
        break;
      case Combine::sum:
        all += other;
        break;
      case Combine::bits:
        all |= other;
        break;
    }
  }
  return all;
}

bool Mpi::all_equal(std::uint64_t mine) const {
  return combine(mine, Combine::min) == combine(mine, Combine::max);
}

void Mpi::share_bytes(std::span<std::byte> bytes, int from) const {
  const std::string text = share({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, from);
  std::ranges::copy(std::as_bytes(std::span(text)), bytes.begin());
}

std::string Mpi::share(const std::string& mine, int from) const { return gather(mine)[index(from)]; }

std::vector<std::string> Mpi::gather(const std::string& mine) const {
  return exchange_texts(rank_, ranks_, mine);
}

void Mpi::gather_on_root(std::span<const std::byte> mine, std::size_t record,
                         const RoomForRecords& room) const {
  std::string all;
  std::vector<std::uint64_t> counts;
  for (const std::string& text : gather({reinterpret_cast<const char*>(mine.data()), mine.size()})) {
    all += text;
    counts.push_back(text.size() / record);
  }
  if (rank_ == 0) std::ranges::copy(std::as_bytes(std::span(all)), room(counts).begin());
}

void Mpi::barrier() const { exchange_texts(rank_, ranks_, {}); }

void Mpi::abort(const std::string& message) const {
  print_message(fmt::format("starpipe: rank {}: {}\n", rank_, message));
  std::_Exit(1);
}

}  // namespace starpipe::runtime
