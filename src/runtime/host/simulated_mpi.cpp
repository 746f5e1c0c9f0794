// SPDX-License-Identifier: Apache-2.0
// Takes the place of mpi.cpp on SimGrid, where MPI belongs to StarPU-MPI's thread alone.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "runtime/host/mpi.hpp"
#include "runtime/host/simulated_exchange.hpp"
#include "base/messages.hpp"

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

void Mpi::gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) const {
  for (const std::string& text : gather({reinterpret_cast<const char*>(mine.data()), mine.size()})) {
    std::ranges::copy(std::as_bytes(std::span(text)), all.begin());
    all = all.subspan(text.size());
  }
}

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

void Mpi::abort(const std::string& message) const {
  print_message(fmt::format("starpipe: rank {}: {}\n", rank_, message));
  std::_Exit(1);
}

}  // namespace starpipe::runtime
