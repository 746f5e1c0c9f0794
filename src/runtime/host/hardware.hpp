// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/host/topology.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// The CPU time that the control groups of a process allow it (containers, batch systems).
struct CpuQuota {
  double cores = std::numeric_limits<double>::infinity();  ///< seconds of CPU time per second
  std::string group;  ///< identifies the group on its host: processes of one group share its quota

  /// Returns the quota as text: "1.5 cores".
  [[nodiscard]] std::string text() const;
};

/// Returns the smallest quota of this process's control groups, version 1 or 2, and their ancestors; of equal
/// ones the outermost. Without a quota `cores` is infinite. `root`: the folder that has `proc/self/cgroup`
/// and `sys/fs/cgroup`.
CpuQuota find_cpu_quota(const std::filesystem::path& root = "/");

/// A limit of the main memory that processes of a host have together.
struct MemoryLimit {
  std::string id;    ///< equal for processes that share the limit
  std::string name;  ///< for people: "its memory"
  std::uint64_t bytes = 0;
};

/// Returns the memory of the host, and the limits of this process's control groups and their ancestors.
/// `root`: the folder that has `proc` and `sys/fs/cgroup`.
std::vector<MemoryLimit> find_memory_limits(const std::filesystem::path& root = "/");

/// Returns a line of /proc/self/status in bytes: "VmRSS" is the memory that the process has now, "VmHWM" its
/// peak. 0 if the line is not there.
std::uint64_t memory_of_process(std::string_view line);

/// Where this process runs.
struct Hardware {
  std::string machine;  ///< Slurm's name of the node, else the host's name
  std::string host;     ///< identifies the host, whatever its name: equal on one host, different on two
  std::string cpu;      ///< the processor's name, when the host tells it
  int cores = 1;        ///< within the binding
  std::string binding;  ///< PUs
  CpuQuota quota = {};
};

Hardware find_hardware();

/// Binds this process to PUs for its own lifetime.
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

enum class DeviceKind : std::uint8_t { core, gpu };

/// A core or a GPU that a worker runs on, and where it is in the machine. The distance between two devices
/// follows from these members alone, so any rank can compute it.
struct Device {
  DeviceKind kind = DeviceKind::core;
  std::string host;  ///< identifies the host: equal on one host, different on two
  int rank = 0;      ///< the rank that uses it
  std::string name;  ///< for people: "core 3", "cuda0"
  /// A core has its first PU in hwloc's logical numbering. A GPU has CUDA's number, or without CUDA its
  /// position by PCI address. -1: the worker may use all cores of its rank.
  int number = -1;
  std::string numa;   ///< the nearest NUMA nodes, as a list of the system's numbers; empty: unknown
  std::string cache;  ///< of a core: the PUs below the largest cache above it; empty: no shared cache
  std::string pci;    ///< of a GPU: its address ("0000:3b:00.0")
  /// A GPU has the PCI bridges above it, the host bridge first. A core has the host bridges of its part of
  /// the machine.
  std::vector<std::string> bridges;
  std::map<std::string, double> nvlink;  ///< of a GPU: GB/s to others, by their PCI address

  friend bool operator==(const Device&, const Device&) = default;
};

/// Returns "; the process may have 1.9 GiB (ulimit -v)", for messages about memory; "" without this limit.
std::string memory_limit_text();

/// Returns one line if the process cannot start so many threads more; "" if it can. MPI and StarPU stop at an
/// assertion then.
std::string problem_of_threads(int count);

/// Throws std::runtime_error, which names the purpose, if the process cannot get `bytes` of memory.
void require_free_memory(std::uint64_t bytes, std::string_view purpose);

/// Throws like `require_free_memory` if `ulimit -v` leaves too few addresses for so many threads more.
/// Libraries end the process with messages of their own, or crash, where an allocation fails.
void require_free_addresses(int threads, std::string_view purpose);

/// The connection between two devices, nearest first.
enum class LinkKind : std::uint8_t {
  same,         // one device: no data move
  nvlink,       // GPU to GPU
  cache,        // cores that share one
  pcie_switch,  // two GPUs below one bridge of a PCI hierarchy, other than the host bridge
  host_bridge,  // two GPUs below one host bridge, or a GPU and a core near the GPU's host bridge
  numa,         // devices in, or nearest to, the same NUMA node
  host,         // across NUMA nodes
  network,
};

/// Returns "NVLink", "PCIe switch", "across NUMA nodes", ...
std::string_view to_string(LinkKind kind);

struct DeviceLink {
  LinkKind kind = LinkKind::network;
  /// GB/s. hwloc tells NVLink's; the others are typical of their kind, and only their order matters. Between
  /// two ranks of a host it is half of that: messages are copied on their way from process to process.
  double bandwidth = 0;
};

DeviceLink link_between(const Device& a, const Device& b);

/// Returns the seconds that all messages of a step take sequentially on their links. `devices`: by worker. If
/// no message has bytes, each counts as one byte.
double link_seconds(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

}  // namespace starpipe::runtime
