// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/host/hardware.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/topology.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// The places of the logical workers. Slots are numbered over all ranks; each rank has a run of
/// consecutive slots, and runs differ in length by one at most. A slot carries one worker, on a core or a GPU
/// of its rank. By default worker w is in slot w.
class WorkerMap {
 public:
  /// Throws InputError when some ranks would have no worker.
  WorkerMap(int workers, int ranks);
  /// `slots`: by worker. Throws std::logic_error unless each slot has one worker.
  WorkerMap(int ranks, std::vector<int> slots);

  [[nodiscard]] int workers() const { return static_cast<int>(slots_.size()); }
  /// Returns the first slot of a rank.
  [[nodiscard]] int first(int rank) const {
    return static_cast<int>(std::int64_t{workers()} * rank / ranks_);
  }
  /// Returns the number of slots of a rank.
  [[nodiscard]] int count(int rank) const { return first(rank + 1) - first(rank); }
  [[nodiscard]] int slot(int worker) const { return slots_[index(worker)]; }
  [[nodiscard]] int worker(int slot) const { return workers_[index(slot)]; }
  /// Returns the workers of a rank, by slot.
  [[nodiscard]] std::vector<int> workers_of(int rank) const;
  [[nodiscard]] int rank_of(int worker) const {
    // The inverse of `first`: the last rank whose slots start at or before this slot.
    return static_cast<int>((std::int64_t{slot(worker) + 1} * ranks_ - 1) / workers());
  }

 private:
  int ranks_;
  std::vector<int> slots_;    // by worker
  std::vector<int> workers_;  // by slot
};

/// Where a rank runs, for the report.
struct RankLocation {
  std::string machine;
  std::string binding;               ///< PUs
  std::string bound_by;              ///< "launcher", "starpipe", or "" when the rank may use the whole host
  int cores = 1;                     ///< within the binding
  int workers = 1;                   ///< logical
  bool bound = false;                ///< each worker has a core to itself
  std::string mpi_thread;            ///< where MPI's thread runs, in words
  std::vector<int> logical_workers;  ///< by slot
  std::vector<std::string> devices;  ///< by slot
  std::string transport;             ///< what carries its messages, see `transports`
  std::string products;  ///< the library of matrix products on cores, and its kernels; "" where none runs
};

/// Returns the location of a rank with this share on `host`, but for `logical_workers`, `transport`
/// and `products`. `binding`: its PUs before it took the share. `ranks`: all of the run. `devices`: [slot].
RankLocation location_of(const std::string& machine, const Topology& host, const std::string& binding,
                         const CoreShare& share, int workers, int ranks, std::span<const Device> devices);

/// Returns the location of this rank, but for `products`. `devices`: of this rank, [slot].
RankLocation own_location(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                          std::span<const Device> devices);

/// Collective. Returns the locations of all ranks, [rank], on rank 0; empty on the others.
std::vector<RankLocation> locations_on_root(const Mpi& mpi, const RankLocation& mine);

/// Chooses the device of each worker, so that workers that send each other much are near: minimises
/// `link_seconds`. Returns, by worker, an index into `devices`; each device carries one worker. Worker w gets
/// a device of the kind of device w, core or GPU, and device w itself unless another mapping is better: the
/// result is never worse than the order given. Deterministic. Up to `exact_mapping` workers the mapping is
/// optimal (branch and bound); beyond, exchanges improve it from several starts within a fixed number of
/// tries.
std::vector<int> map_workers(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

inline constexpr std::size_t exact_mapping = 9;

/// Collective, for `runtime.mapping: auto`. Gives each worker a slot of some rank, near the workers with
/// which it exchanges much (`map_workers`). `devices`: by slot of this rank; their host and rank are set
/// here.
WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic);

}  // namespace starpipe::runtime
