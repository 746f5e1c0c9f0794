// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/product_library.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/gpu_buffers.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/memory_guard.hpp"
#include "runtime/session/policy_choice.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/sched/policy_core.hpp"

namespace starpipe::runtime {

/// Ends the job with one line of ours when MPI fails, and not with MPI's own lines on the first rank that
/// notices. Over TCP a rank that dies closes its connections, so MPI fails on its neighbours before the dead
/// rank's parent process has named it. The line comes after a pause, in which the parent does so and ends the
/// job. There is one object at a time.
class MpiErrors {
 public:
  explicit MpiErrors(const Mpi& mpi);
  ~MpiErrors();
  MpiErrors(const MpiErrors&) = delete;
  MpiErrors& operator=(const MpiErrors&) = delete;

  /// Begins to act for the communicators of `mpi`, and for duplicates that are made of them from now on. Call
  /// it once StarPU-MPI runs, which asks MPI to return errors and then aborts on them.
  void watch();

 private:
  const Mpi& mpi_;
  MPI_Errhandler handler_ = MPI_ERRHANDLER_NULL;
};

/// StarPU and StarPU-MPI in this process, started and shut down. There is one CPU worker for each logical
/// worker of this rank that is a core, and one CUDA worker (a stream) for each that is on a GPU, neighbours
/// on the same GPU. Where stashes are copied (`copies`), there are two more CPU workers for each logical
/// worker, which only copy: out, and back. All threads of the process are bound to its share of the host's
/// cores. When the share has a core for each worker, workers are bound to their cores.
///
/// Settings for which StarPU has no function are environment variables (StarpuSettings, which `mpi` owns). A
/// session overwrites the values of STARPU_SCHED, STARPU_NWORKER_PER_CUDA, STARPU_WORKERS_NOBIND and
/// STARPU_MINIMUM_CLEAN_BUFFERS in place before StarPU has threads, and restores them when StarPU has none
/// any more: it calls neither `setenv` nor `unsetenv`. (On SimGrid `starpipe sim` has set them.) For the same
/// time OpenBLAS computes each call with one thread.
class Session {
 public:
  /// Collective. Throws InputError when StarPU runs another policy than was asked for (it falls back to `lws`
  /// in silence); std::runtime_error when StarPU does not start.
  Session(const Mpi& mpi, const WorkerMap& map, const CoreShare& share, PolicyChoice policy,
          const GpuShare& gpus = {}, bool copies = false);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Mpi& mpi() const { return mpi_; }
  [[nodiscard]] const WorkerMap& map() const { return map_; }
  [[nodiscard]] bool is_local(int worker) const { return map_.rank_of(worker) == mpi_.rank(); }
  /// Returns, by logical worker, true if it belongs to this rank.
  [[nodiscard]] std::vector<bool> local_workers() const;
  /// Returns StarPU's number of a logical worker of this rank.
  [[nodiscard]] int starpu_worker(int logical) const {
    return starpu_ids_[index(map_.slot(logical) - map_.first(mpi_.rank()))];
  }
  /// Returns StarPU's number of the worker that runs the copies of stashes out of a logical worker of this
  /// rank, or back into it.
  [[nodiscard]] int copy_worker(int logical, bool in) const {
    const std::size_t slot = index(map_.slot(logical) - map_.first(mpi_.rank()));
    return copy_ids_[2 * slot + (in ? 1 : 0)];
  }
  /// True if there are workers that copy stashes.
  [[nodiscard]] bool copies() const { return copies_; }
  /// True if StarPU moves stashes between the memory of GPUs and the host's.
  [[nodiscard]] bool moves_stashes() const { return copies_ && on_gpus(); }
  /// Returns the logical worker of one of StarPU's; -1 for a worker that carries none.
  [[nodiscard]] int logical_worker(int starpu_worker) const { return logical_[index(starpu_worker)]; }
  /// Returns, by StarPU worker, its logical worker or -1.
  [[nodiscard]] const std::vector<int>& logical_workers() const { return logical_; }

  /// True if some of this rank's workers are on GPUs.
  [[nodiscard]] bool on_gpus() const { return cublas_.has_value(); }
  /// Returns StarPU's memory node of a logical worker of this rank: 0 is main memory.
  [[nodiscard]] int memory_node(int logical) const;
  /// Returns StarPU's memory node of each logical worker: 0 is main memory, -1 for workers of other ranks.
  [[nodiscard]] std::vector<int> memory_nodes() const;
  /// Returns the meters of the memory of this rank's GPUs.
  [[nodiscard]] GpuMemoryMeters& gpu_meters() const { return *gpu_meters_; }
  /// Returns the memory of this rank's GPUs, with the peaks that the meters have found so far.
  [[nodiscard]] std::vector<GpuMemory> gpu_memory() const;

  /// Returns the seconds to add to this rank's clock to get rank 0's, as measured at the session's start.
  /// Clocks that drift apart later are not measured again.
  [[nodiscard]] double clock_offset() const { return clock_offset_; }

  /// Returns the next number for STARPU_WORKER_ORDER of a StarPU worker. StarPU counts the tasks of a worker
  /// from its start. For the thread that inserts tasks.
  [[nodiscard]] unsigned next_order(int starpu_worker) const { return ++orders_[index(starpu_worker)]; }

  /// Returns the policy that was asked for.
  [[nodiscard]] const PolicyChoice& choice() const { return choice_; }
  /// Returns the policy that really runs, as StarPU tells it.
  [[nodiscard]] const std::string& policy() const { return policy_; }
  /// Returns our policy, not a core of the CPU; null when another policy runs.
  [[nodiscard]] sched::PolicyCore* core() const { return core_; }
  /// True if the worker of each job is known before the job runs: our policy and StarPU's static controls
  /// follow the schedule, other policies choose among the workers of the rank.
  [[nodiscard]] bool knows_workers() const {
    return core_ != nullptr || choice_.control != StarpuControl::none;
  }

 private:
  void write_values(const CoreShare& share, const GpuShare& gpus);
  void start(const CoreShare& share, const GpuShare& gpus);
  /// Returns the number of StarPU's workers of this rank that only copy stashes.
  [[nodiscard]] int copy_workers() const { return copies_ ? 2 * map_.count(mpi_.rank()) : 0; }
  void shut_down();
  /// Collective. Notes the policy and the workers that StarPU has started. If some rank has others than the
  /// run asked for, shuts StarPU down and throws InputError.
  void check_start(const GpuShare& gpus);

  const Mpi& mpi_;
  MpiErrors mpi_errors_{mpi_};
  WorkerMap map_;
  std::list<ScopedValue> values_;  // of environment variables
  bool hides_statistics_ = false;  // StarPU-MPI's statistics are dropped: the user has not asked for them
  OneProductThread one_product_thread_;
  ProcessBinding binding_;
  double clock_offset_ = 0;
  PolicyChoice choice_;
  std::string policy_;
  std::optional<CublasHandles> cublas_;
  std::optional<GpuBuffers> gpu_buffers_;
  std::optional<MemoryGuard> memory_guard_;
  std::vector<GpuMemory> gpu_memory_;  // by GPU, without the peaks
  std::unique_ptr<GpuMemoryMeters> gpu_meters_;
  sched::PolicyCore* core_ = nullptr;  // StarPU's policy owns it
  bool copies_;
  std::vector<int> starpu_ids_;           // by slot of this rank
  std::vector<int> copy_ids_;             // two for each slot, where stashes are copied: out, back
  std::vector<int> logical_;              // by StarPU worker
  mutable std::vector<unsigned> orders_;  // by StarPU worker: the numbers given so far
};

}  // namespace starpipe::runtime
