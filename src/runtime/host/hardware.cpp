// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/hardware.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/numbers.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

namespace {

// Returns the quota of one group in cores: version 2 has both numbers in one file.
std::optional<double> quota_of_group(const std::filesystem::path& folder) {
  std::ifstream both(folder / "cpu.max");
  std::ifstream only_quota(folder / "cpu.cfs_quota_us");
  std::ifstream only_period(folder / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  const bool limited = (both >> quota >> period) || (only_quota >> quota && only_period >> period);
  if (!limited || quota <= 0 || period <= 0) return std::nullopt;  // "max" is not a number, -1 is not a limit
  return quota / period;
}

// Calls f(folder, id) for the control groups of this process that have a controller, and their ancestors.
// `id`: identifies the group on its host.
template <class Function>
void for_each_group(const std::filesystem::path& root, const std::string& controller, Function&& f) {
  using Path = std::filesystem::path;
  std::ifstream groups(root / "proc/self/cgroup");
  // "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
      continue;
    // Version 2 is alone, or next to version 1. In a container the path may be one of the host: then only the
    // root is there.
    for (const std::string& mount : {std::string(), controllers, controller, std::string("unified")}) {
      const Path top = root / "sys/fs/cgroup" / mount;
      for (Path group = Path(line.substr(second + 1)).relative_path();; group = group.parent_path()) {
        struct stat found {};
        if (stat((top / group).c_str(), &found) == 0)
          f(top / group, fmt::format("{}:{}", found.st_dev, found.st_ino));
        if (group.empty()) break;
      }
    }
  }
}

// Returns the number of a line "NAME: 123 kB" of a file of the system, in bytes; 0 if it is not there.
std::uint64_t kilobytes(const std::filesystem::path& file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

std::string CpuQuota::text() const { return fmt::format("{:.4g} core{}", cores, cores == 1 ? "" : "s"); }

CpuQuota find_cpu_quota(const std::filesystem::path& root) {
  CpuQuota smallest;
  for_each_group(root, "cpu", [&](const std::filesystem::path& folder, const std::string& id) {
    const std::optional<double> cores = quota_of_group(folder);
    if (cores && *cores <= smallest.cores) smallest = {*cores, id};
  });
  return smallest;
}

std::vector<MemoryLimit> find_memory_limits(const std::filesystem::path& root) {
  std::vector<MemoryLimit> limits;
  std::string host;
  std::ifstream(root / "proc/sys/kernel/random/boot_id") >> host;
  if (const std::uint64_t bytes = kilobytes(root / "proc/meminfo", "MemTotal"); bytes > 0)
    limits.push_back({host, "its memory", bytes});
  for_each_group(root, "memory", [&](const std::filesystem::path& folder, const std::string& id) {
    std::uint64_t bytes = 0;
    const bool is_limited = std::ifstream(folder / "memory.max") >> bytes ||  // "max" is not a number
                            std::ifstream(folder / "memory.limit_in_bytes") >> bytes;
    constexpr std::uint64_t no_limit = std::uint64_t{1} << 62U;  // version 1 has a number for it
    const bool is_known = std::ranges::find(limits, host + id, &MemoryLimit::id) != limits.end();
    if (is_limited && bytes < no_limit && !is_known)
      limits.push_back({host + id, "the limit of its control group", bytes});
  });
  return limits;
}

std::uint64_t memory_of_process(std::string_view line) { return kilobytes("/proc/self/status", line); }

Hardware find_hardware() {
  const Topology& topology = Topology::host();
  Hardware hardware{
      .machine = {}, .host = {}, .cpu = topology.processor(), .cores = 1, .binding = topology.binding()};
  hardware.cores = std::max(1, topology.cores(hardware.binding));
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) hardware.host = name.data();
  hardware.machine = environment("SLURMD_NODENAME").value_or(hardware.host);
  // Ranks in containers of one host, or on virtual nodes, share its cores although their names differ.
  std::string boot;
  if (std::ifstream("/proc/sys/kernel/random/boot_id") >> boot) hardware.host = boot;
  hardware.quota = find_cpu_quota();
  return hardware;
}

std::string memory_limit_text() {
  rlimit limit{};
  for (const auto& [resource, option] : {std::pair(RLIMIT_AS, "-v"), std::pair(RLIMIT_DATA, "-d")}) {
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      return fmt::format("; the process may have {} (ulimit {})", bytes_text(limit.rlim_cur), option);
  }
  return "";
}

std::string problem_of_threads(int count) {
  std::mutex end;
  std::vector<std::jthread> threads;
  const std::scoped_lock lock(
      end);  // no thread ends before all have started; released before they are joined
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&end] { const std::scoped_lock wait(end); });
  } catch (const std::system_error&) {
    return fmt::format(
        "ulimit -u: the system starts only {} of {} threads; the user or the container (pids.max) "
        "may have no more{}",
        threads.size(), count, memory_limit_text());
  }
  return "";
}

namespace {

void require_mapping(std::uint64_t size, int protection, int flags, std::string_view purpose) {
  void* const memory = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error(
        fmt::format("out of memory: {} for {}{}", bytes_text(size), purpose, memory_limit_text()));
  munmap(memory, size);
}

}  // namespace

void require_free_memory(std::uint64_t bytes, std::string_view purpose) {
  require_mapping(bytes, PROT_READ | PROT_WRITE, 0, purpose);
}

void require_free_addresses(int threads, std::string_view purpose) {
  // The C library reserves 64 MiB for what a thread allocates, and for a moment twice as much. As much again
  // is for the libraries. No memory stands behind these addresses, so only a limit on addresses counts them.
  constexpr std::uint64_t bytes_of_thread = std::uint64_t{64} << 20U;
  require_mapping((index(threads) + 2) * bytes_of_thread, PROT_NONE, MAP_NORESERVE, purpose);
}

namespace {

struct KindOfLink {
  std::string_view name;
  double bandwidth;  // GB/s, typical of nodes of about 2024
};

// In the order of LinkKind. A mapping depends on the order of the bandwidths more than on their values.
constexpr std::array<KindOfLink, 8> kinds = {{{"same device", std::numeric_limits<double>::infinity()},
                                              {"NVLink", 100},
                                              {"shared cache", 40},
                                              {"PCIe switch", 25},
                                              {"PCIe host bridge", 20},
                                              {"NUMA node", 16},
                                              {"across NUMA nodes", 10},
                                              {"network", 5}}};
static_assert(kinds.size() == index(LinkKind::network) + 1);

double typical_bandwidth(LinkKind kind) { return kinds[index(kind)].bandwidth; }

bool is_same(const Device& a, const Device& b) {
  if (a.kind != b.kind) return false;
  return a.kind == DeviceKind::gpu ? a.pci == b.pci : a.number >= 0 && a.number == b.number;
}

std::size_t common_bridges(const Device& a, const Device& b) {
  const auto ends = std::ranges::mismatch(a.bridges, b.bridges);
  return static_cast<std::size_t>(ends.in1 - a.bridges.begin());
}

// hwloc may know the link from either side only.
double nvlink_between(const Device& a, const Device& b) {
  double bandwidth = 0;
  if (const auto there = a.nvlink.find(b.pci); there != a.nvlink.end()) bandwidth = there->second;
  if (const auto back = b.nvlink.find(a.pci); back != b.nvlink.end())
    bandwidth = std::max(bandwidth, back->second);
  return bandwidth;
}

// True if the GPU's PCI hierarchy begins in the part of the machine where the core is.
bool begins_at(const Device& gpu, const Device& core) {
  return gpu.kind == DeviceKind::gpu && core.kind == DeviceKind::core && !gpu.bridges.empty() &&
         std::ranges::find(core.bridges, gpu.bridges.front()) != core.bridges.end();
}

LinkKind kind_on_host(const Device& a, const Device& b, bool nvlink) {
  if (is_same(a, b)) return LinkKind::same;
  if (nvlink) return LinkKind::nvlink;
  if (a.kind == DeviceKind::gpu && b.kind == DeviceKind::gpu) {
    const std::size_t common = common_bridges(a, b);
    if (common > 1) return LinkKind::pcie_switch;
    if (common == 1) return LinkKind::host_bridge;
  }
  if (begins_at(a, b) || begins_at(b, a)) return LinkKind::host_bridge;
  if (!a.cache.empty() && a.cache == b.cache) return LinkKind::cache;
  return !a.numa.empty() && a.numa == b.numa ? LinkKind::numa : LinkKind::host;
}

}  // namespace

std::string_view to_string(LinkKind kind) { return kinds[index(kind)].name; }

DeviceLink link_between(const Device& a, const Device& b) {
  if (a.host != b.host) return {LinkKind::network, typical_bandwidth(LinkKind::network)};
  const double nvlink = nvlink_between(a, b);
  const LinkKind kind = kind_on_host(a, b, nvlink > 0);
  const double bandwidth = kind == LinkKind::nvlink ? nvlink : typical_bandwidth(kind);
  if (a.rank == b.rank) return {kind, bandwidth};
  // Messages are copied, even within one GPU.
  return {kind, (kind == LinkKind::same ? typical_bandwidth(LinkKind::nvlink) : bandwidth) / 2};
}

double link_seconds(std::span<const Device> devices, std::span<const plan::Traffic> traffic) {
  const bool sized =
      std::ranges::any_of(traffic, [](const plan::Traffic& pair) { return pair.sent.bytes > 0; });
  double seconds = 0;
  for (const plan::Traffic& pair : traffic) {
    const DeviceLink link = link_between(devices[index(pair.from)], devices[index(pair.to)]);
    seconds += static_cast<double>(sized ? pair.sent.bytes : pair.sent.count) / (link.bandwidth * 1e9);
  }
  return seconds;
}

}  // namespace starpipe::runtime
