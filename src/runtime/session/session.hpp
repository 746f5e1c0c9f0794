// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/hardware/topology.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/gpu_share.hpp"
#include "runtime/session/mpi.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/worker_backend.hpp"
#include "runtime/session/worker_map.hpp"
#include "starpipe/sched/policy_core.hpp"

namespace starpipe::runtime {

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
