// SPDX-License-Identifier: Apache-2.0
// MPI and StarPU as this process uses them: started, checked, mapped to logical workers, and shut down.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "runtime/hardware/hardware.hpp"
#include "runtime/session/device_meter.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/worker_backend.hpp"
#include "starpipe/runtime/setup/config.hpp"
#include "starpipe/sched/policy_core.hpp"

namespace starpipe::runtime {

/// MPI_Init_thread and MPI_Finalize around a process's life, and a communicator of our own, so that our
/// messages never meet StarPU-MPI's.
class Mpi {
 public:
  /// Throws std::runtime_error when MPI gives no MPI_THREAD_MULTIPLE: StarPU-MPI's thread and ours both call
  /// it.
  Mpi();
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  [[nodiscard]] MPI_Comm comm() const { return comm_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  /// Collective. A barrier that sleeps while it waits: MPI's own spins, and would take a core from a rank
  /// that still works.
  void barrier() const;

  /// Collective. What every rank says, by rank.
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine) const;

  /// Ends the job on all ranks, after one line on standard error.
  [[noreturn]] void abort(const std::string& message) const;

  /// Collective. The message of the lowest rank that has one, or an empty string: so that all ranks stop
  /// together when one finds a mistake.
  [[nodiscard]] std::string first_problem(const std::string& mine) const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 1;
};

/// Where the logical workers are. Each rank has a block of places, in order, sizes equal within one; a worker
/// has a place, that of its own number unless told otherwise.
class WorkerMap {
 public:
  WorkerMap(int workers, int ranks);
  /// `places`: by worker. Throws std::logic_error unless each place is some worker's.
  WorkerMap(int ranks, std::vector<int> places);
  [[nodiscard]] int workers() const { return static_cast<int>(places_.size()); }
  /// A rank's first place, and how many it has.
  [[nodiscard]] int first(int rank) const {
    return static_cast<int>(std::int64_t{workers()} * rank / ranks_);
  }
  [[nodiscard]] int count(int rank) const { return first(rank + 1) - first(rank); }
  [[nodiscard]] int place(int worker) const { return places_[static_cast<std::size_t>(worker)]; }
  [[nodiscard]] int worker(int place) const { return workers_[static_cast<std::size_t>(place)]; }
  [[nodiscard]] int rank_of(int worker) const {
    // The inverse of `first`: the last rank whose block starts at or before the place.
    return static_cast<int>((std::int64_t{place(worker) + 1} * ranks_ - 1) / workers());
  }

 private:
  int ranks_;
  std::vector<int> places_;   // by worker
  std::vector<int> workers_;  // by place
};

/// Collective, before StarPU starts. What Topology::share gives, or no cores of their own to the workers when
/// the user binds them by StarPU's variables. Throws InputError on every rank when the cores of some host
/// cannot carry their logical workers, or there are more ranks than workers.
CoreShare share_cores(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config);

/// Where a rank runs, for the report.
struct RankPlace {
  std::string machine;
  std::string binding;               ///< PUs
  int cores = 1;                     ///< within the binding
  int workers = 1;                   ///< logical
  bool bound = false;                ///< whether each worker has a core to itself
  std::vector<int> logical_workers;  ///< by place
  std::vector<std::string> devices;  ///< by place
};

/// Collective. By rank. `devices`: by place of this rank.
std::vector<RankPlace> gather_places(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                                     std::span<const Device> devices);

/// The GPUs that carry logical workers of a rank; none: all its workers are CPU cores.
struct GpuShare {
  std::vector<int> gpus;  ///< CUDA's numbers in this process, ascending
  int workers_each = 1;   ///< logical workers of each: streams of one GPU
  /// By place, nothing where the worker is a core; empty without GPUs.
  std::vector<std::optional<Device>> devices;

  [[nodiscard]] bool has(int place) const {
    return !devices.empty() && devices[static_cast<std::size_t>(place)].has_value();
  }
};

/// The PUs of a rank's places as StarPU gives them to its threads: first one for each GPU, which drives all
/// its streams, then those of the workers on cores.
std::vector<unsigned> cores_in_order(std::span<const unsigned> pus, const GpuShare& gpus);

/// StarPU and StarPU-MPI with one CPU worker for each logical worker of this rank that is a core, bound to
/// its core when the share has one for each; the process's other threads are then bound to the share. And
/// with one CUDA worker (a stream) for each that is on a GPU, neighbours on the same one.
class Session {
 public:
  /// Collective. Throws InputError when StarPU runs another policy than was asked for (it falls back to `lws`
  /// in silence); std::runtime_error when StarPU does not start.
  Session(const Mpi& mpi, const WorkerMap& map, const CoreShare& share, PolicyChoice policy,
          const GpuShare& gpus = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Mpi& mpi() const { return mpi_; }
  [[nodiscard]] const WorkerMap& map() const { return map_; }
  [[nodiscard]] bool is_local(int worker) const { return map_.rank_of(worker) == mpi_.rank(); }
  /// StarPU's number of a logical worker of this rank, and back.
  [[nodiscard]] int starpu_worker(int logical) const {
    return starpu_ids_[static_cast<std::size_t>(map_.place(logical) - map_.first(mpi_.rank()))];
  }
  [[nodiscard]] int logical_worker(int starpu_worker) const {
    return logical_[static_cast<std::size_t>(starpu_worker)];
  }
  /// By StarPU worker: its logical worker, or -1.
  [[nodiscard]] const std::vector<int>& logical_workers() const { return logical_; }

  /// Whether some of this rank's workers are on GPUs.
  [[nodiscard]] bool on_gpus() const { return cublas_.has_value(); }
  /// StarPU's memory node of each logical worker: 0 is main memory, -1 for workers of other ranks.
  [[nodiscard]] std::vector<int> memory_nodes() const;
  /// What was in use on this rank's GPUs before the first step.
  [[nodiscard]] const std::vector<DeviceMemory>& device_memory() const { return device_memory_; }

  /// What was asked for.
  [[nodiscard]] const PolicyChoice& choice() const { return choice_; }
  /// The policy that really runs: StarPU's word, not ours.
  [[nodiscard]] const std::string& policy() const { return policy_; }
  /// Our policy's core; null when another policy runs.
  [[nodiscard]] sched::PolicyCore* core() const { return core_; }

 private:
  const Mpi& mpi_;
  WorkerMap map_;
  std::optional<ProcessBinding> binding_;
  PolicyChoice choice_;
  std::string policy_;
  std::optional<CublasHandles> cublas_;
  std::vector<DeviceMemory> device_memory_;  // by GPU
  sched::PolicyCore* core_ = nullptr;        // StarPU's policy owns it
  std::vector<int> starpu_ids_;
  std::vector<int> logical_;
};

}  // namespace starpipe::runtime
