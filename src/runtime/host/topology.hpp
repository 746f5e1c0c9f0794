// SPDX-License-Identifier: Apache-2.0
// The cores of this host, and how its ranks share them. Sets of processing units (PUs: hardware threads) are
// hwloc's lists of the system's numbers, such as "0-3,8".
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct hwloc_topology;

namespace starpipe::runtime {

/// A rank of a host, before the host's cores are shared.
struct RankOnHost {
  std::string binding;  ///< the PUs that the launcher gave it
  int workers = 1;      ///< number of logical workers, at least 1
};

/// Returns the neighbours of rank `rank`: the ranks of its host whose bindings overlap its own, itself
/// included. As indices into `ranks`, in ascending order.
std::vector<std::size_t> neighbours(std::span<const RankOnHost> ranks, std::size_t rank);

/// The cores of a rank.
struct CoreShare {
  /// The PUs on which the rank runs: its part of the divided binding, or the launcher's binding when the
  /// ranks do not divide it.
  std::string binding;
  int cores = 1;           ///< cores of all neighbours together
  int ranks = 1;           ///< number of neighbours
  int workers = 1;         ///< logical workers of all neighbours
  bool exclusive = false;  ///< no other rank runs on the PUs of `binding`
  /// By slot of this rank: one PU of the slot's core, in hwloc's logical numbering. Empty when the workers
  /// are not bound to cores of their own: the rank has fewer cores than workers, more ranks than cores share
  /// one binding, bindings overlap in part, the user binds workers, or another run has claimed one of the
  /// cores.
  std::vector<unsigned> worker_pus;

  /// True if there are fewer cores than workers and MPI threads, one thread per rank.
  [[nodiscard]] bool oversubscribed() const { return workers + ranks > cores; }
};

/// A host as hwloc sees it.
class Topology {
 public:
  /// Returns this process's host. Throws std::runtime_error when hwloc sees nothing.
  static const Topology& host();
  /// Returns the same with its PCI devices, which take longer to find.
  static const Topology& host_with_devices();
  /// A host by hwloc's synthetic description ("package:2 core:4 pu:2"); an empty one is this process's host.
  explicit Topology(const std::string& description);
  /// Returns a host that `lstopo FILE.xml` wrote, with its PCI devices. Throws InputError for other files.
  static Topology from_file(const std::filesystem::path& file);

  /// Returns hwloc's object, which this owns.
  [[nodiscard]] hwloc_topology* get() const { return topology_.get(); }

  /// Returns the number of cores with at least one PU in the set.
  [[nodiscard]] int cores(const std::string& pus) const;
  /// Returns the number of PUs.
  [[nodiscard]] int pus() const;
  /// Returns the system's number of a PU in hwloc's logical numbering.
  [[nodiscard]] unsigned system_number(unsigned pu) const;
  /// Returns the processor's name; empty if the host does not tell it.
  [[nodiscard]] std::string processor() const;

  /// Returns all PUs that the system lets processes use.
  [[nodiscard]] std::string allowed() const;
  /// Returns the PUs that this process may use: its binding by the launcher (mpiexec, srun, taskset), else
  /// all that the system allows.
  [[nodiscard]] std::string binding() const;
  /// Binds all threads of this process, and the threads that they will start. Ignores an error: the threads
  /// then keep their binding.
  void bind(const std::string& pus) const;
  /// Does the same for the calling thread alone.
  void bind_thread(const std::string& pus) const;

  /// Returns the share of rank `rank` of `ranks`, all on this host. Ranks with the same binding (several on
  /// an unbound host, or in one Slurm allocation) divide its cores into runs of adjacent cores:
  /// - Each rank has a core for each worker and one for its MPI thread, where there are enough cores.
  /// - Otherwise each has a core for each worker, where there are enough.
  /// - Otherwise each has at least one core. A rank with fewer cores than workers does not bind its workers.
  /// - With more ranks than cores, several ranks have the same core, and no worker is bound.
  /// Each core that is left goes to the rank with the most threads per core: its workers, and in the first
  /// case its MPI thread. Where bindings overlap in part, each rank keeps its binding and does not bind its
  /// workers.
  [[nodiscard]] CoreShare share(std::span<const RankOnHost> ranks, std::size_t rank) const;
  /// Returns the PUs of the share's cores that have no worker. Empty when every core has one, and when
  /// workers are not bound to cores.
  [[nodiscard]] std::string free_pus(const CoreShare& share) const;

 private:
  Topology(const std::string& description, const std::filesystem::path& file, bool with_devices);
  std::shared_ptr<hwloc_topology> topology_;
};

}  // namespace starpipe::runtime
