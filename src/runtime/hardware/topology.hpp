// SPDX-License-Identifier: Apache-2.0
// The cores of this host, and how the ranks on it share them. Sets of processing units (PUs: hardware
// threads) are hwloc's lists of the system's numbers, such as "0-3,8".
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/hardware/link.hpp"

struct hwloc_topology;

namespace starpipe::runtime {

/// A rank of a host, before cores are shared.
struct Tenant {
  std::string binding;  ///< the PUs that the launcher gave it
  int workers = 1;      ///< logical
};

/// The cores that a rank shares with those of its host whose binding meets its own.
struct CoreShare {
  std::string binding;  ///< the rank's own PUs
  int cores = 1;        ///< of all these ranks, itself included
  int ranks = 1;
  int workers = 1;  ///< logical, of these ranks
  /// By worker of this rank: the PU of its own, in hwloc's logical numbering; empty when there is not one for
  /// each.
  std::vector<unsigned> worker_pus;

  /// Whether workers and the ranks' MPI threads have no core each.
  [[nodiscard]] bool crowded() const { return workers + ranks > cores; }
};

/// A host as hwloc sees it.
class Topology {
 public:
  /// This process's. Throws std::runtime_error when hwloc sees nothing.
  static const Topology& host();
  /// The same with its PCI devices, which take longer to find.
  static const Topology& host_with_devices();
  /// One by hwloc's synthetic description ("package:2 core:4 pu:2"); by none, this process's.
  explicit Topology(const std::string& description);
  /// One that `lstopo FILE.xml` wrote, with its PCI devices. Throws InputError for what is none.
  static Topology from_file(const std::filesystem::path& file);

  /// Cores with at least one PU in the set.
  [[nodiscard]] int cores(const std::string& pus) const;
  /// The processor's name, when the host tells it.
  [[nodiscard]] std::string processor() const;

  /// What this process may use: its binding by the launcher (mpiexec, srun, taskset), else all that the
  /// system allows.
  [[nodiscard]] std::string binding() const;
  /// Binds all threads of this process, and those that they will start.
  void bind(const std::string& pus) const;

  /// What a rank gets. Ranks with one binding (several on an unbound host, or in one Slurm allocation) divide
  /// its cores into blocks of neighbours, in proportion to their workers and their MPI thread, unless it is
  /// crowded: then, and when bindings overlap otherwise, all float over what they were given.
  [[nodiscard]] CoreShare share(std::span<const Tenant> ranks, std::size_t rank) const;

  /// By place of the rank: the core that the share has for it, or one that floats over the share.
  [[nodiscard]] std::vector<Device> cores_of(const CoreShare& share, int workers) const;
  /// NVIDIA's, and any other that has a CUDA device; by PCI address. Their host is left empty. None where the
  /// topology has no PCI devices.
  [[nodiscard]] std::vector<Device> gpus() const;
  /// By GPU: the PU of a core of its own, where its PCI hierarchy begins if one is left, else of its NUMA
  /// nodes, else any; empty when there is not one for each. In hwloc's logical numbering.
  [[nodiscard]] std::vector<unsigned> near_cores(const std::string& pus, std::span<const Device> gpus) const;
  /// The share with other cores of it for its workers: a GPU's thread is near its GPU, a worker on a core is
  /// near the GPU of the nearest place. `gpus`: by place, nothing where a worker is a core.
  [[nodiscard]] CoreShare near_gpus(CoreShare share, std::span<const std::optional<Device>> gpus) const;

 private:
  Topology(const std::string& description, const std::filesystem::path& file, bool with_devices);
  std::shared_ptr<hwloc_topology> topology_;
};

/// Binds this process for its own lifetime.
class ProcessBinding {
 public:
  explicit ProcessBinding(const std::string& pus) : before_(Topology::host().binding()) {
    Topology::host().bind(pus);
  }
  ~ProcessBinding() { Topology::host().bind(before_); }
  ProcessBinding(const ProcessBinding&) = delete;
  ProcessBinding& operator=(const ProcessBinding&) = delete;

 private:
  std::string before_;
};

/// Where this process runs.
struct Hardware {
  std::string machine;  ///< the name that Slurm has for the node, else the host's
  std::string host;     ///< tells hosts apart, whatever they are called
  std::string cpu;      ///< the processor's name, when the host tells it
  int cores = 1;        ///< within the binding
  std::string binding;  ///< PUs
};

Hardware find_hardware();

}  // namespace starpipe::runtime
