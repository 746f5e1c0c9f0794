// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/hardware.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <stdexcept>

#include <cblas.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/numbers.hpp"
#include "starpipe/base/index.hpp"

// Not in OpenBLAS's headers. Weak: another library has others.
extern "C" void* blas_memory_alloc(int position) __attribute__((weak));
extern "C" void blas_memory_free(void* buffer) __attribute__((weak));

namespace starpipe::runtime {

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
  return hardware;
}

OneBlasThread::OneBlasThread() : before_(openblas_get_num_threads()) { openblas_set_num_threads(1); }

OneBlasThread::~OneBlasThread() { openblas_set_num_threads(before_); }

std::string memory_limit_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return fmt::format("; the process may have {} (ulimit -v)", bytes_text(limit.rlim_cur));
}

void require_memory(std::uint64_t bytes, std::string_view purpose) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error(
        fmt::format("out of memory: {} for {}{}", bytes_text(bytes), purpose, memory_limit_text()));
  munmap(memory, bytes);
}

// OpenBLAS takes the first buffer that is not in use, and a new one if there is none.
void take_product_buffers(int products) {
  constexpr std::uint64_t max_buffer_bytes = std::uint64_t{128} << 20U;  // on x86; less elsewhere
  static int taken = 0;
  if (blas_memory_alloc == nullptr || blas_memory_free == nullptr || products <= taken) return;
  std::vector<void*> buffers;
  for (int i = 0; i < products; ++i) {
    if (i >= taken) require_memory(max_buffer_bytes, "OpenBLAS, which needs as much for each worker");
    buffers.push_back(blas_memory_alloc(0));
  }
  for (void* const buffer : buffers) blas_memory_free(buffer);
  taken = products;
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
