// SPDX-License-Identifier: Apache-2.0
// Machines with GPUs for the tests, as hwloc's XML: its synthetic descriptions have no GPUs.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <hwloc.h>

#include "runtime/host/locality.hpp"
#include "support/folder.hpp"

namespace starpipe::runtime::testing {

/// A machine with GPUs: two below each PCIe switch, and all switches of a package below one host bridge.
struct Machine {
  std::string cpus = "package:2 [numa] core:8 pu:1";
  /// By package: the CUDA number of each of its GPUs; -1 where hwloc has no CUDA device for the GPU.
  std::vector<std::vector<int>> gpus;
  /// CUDA numbers of two GPUs, and MB/s.
  std::vector<std::tuple<int, int, int>> nvlinks = {};
};

/// "0000:10:00.0", ...: the address of GPU `index` of a package.
inline std::string gpu_address(std::size_t package, std::size_t index) {
  return "0000:" + std::to_string(10 * (package + 1) + index) + ":00.0";
}

inline std::string cpus_xml(const std::string& synthetic) {
  hwloc_topology_t topology = nullptr;
  hwloc_topology_init(&topology);
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(topology,
                                                                                 hwloc_topology_destroy);
  hwloc_topology_set_synthetic(topology, synthetic.c_str());
  hwloc_topology_load(topology);
  char* text = nullptr;
  int size = 0;
  hwloc_topology_export_xmlbuffer(topology, &text, &size, 0);
  std::string xml = text;
  hwloc_free_xmlbuffer(topology, text);
  return xml;
}

/// The PCI devices of one package; `id` numbers hwloc's objects.
inline std::string devices_xml(const std::vector<int>& gpus, std::size_t package, int& id) {
  const auto object = [&id](const std::string& rest) {
    return "<object type=\"" + rest + " gp_index=\"" + std::to_string(id++) + "\"";
  };
  const std::string first = std::to_string(10 * (package + 1));
  const std::string last = std::to_string(10 * (package + 1) + 9);
  std::string xml =
      object("Bridge\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" + first + "-" + last + "]\"") +
      ">\n";
  for (std::size_t g = 0; g < gpus.size(); ++g) {
    const std::string bus = std::to_string(10 * (package + 1) + g);
    if (g % 2 == 0) {
      xml += object("Bridge\" bridge_type=\"1-1\" depth=\"1\" pci_busid=\"0000:0" + std::to_string(package) +
                    ":0" + std::to_string(g) +
                    ".0\" pci_type=\"0604 [10b5:8796] [0000:0000] ca\" bridge_pci=\"0000:[" + bus + "-" +
                    bus + "]\"") +
             ">\n";
    }
    xml += object("PCIDev\" pci_busid=\"" + gpu_address(package, g) +
                  "\" pci_type=\"0302 [10de:1db5] [10de:1249] a1\" pci_link_speed=\"15.75\"") +
           ">\n";
    if (gpus[g] >= 0) {
      xml +=
          object("OSDev\" name=\"cuda" + std::to_string(gpus[g]) + "\" subtype=\"CUDA\" osdev_type=\"5\"") +
          "/>\n";
    }
    xml += "</object>\n";
    if (g % 2 == 1 || g + 1 == gpus.size()) xml += "</object>\n";
  }
  return xml + "</object>\n";
}

inline std::string nvlinks_xml(const Machine& machine, const std::string& devices) {
  std::vector<int> numbers;
  for (const auto& package : machine.gpus) numbers.insert(numbers.end(), package.begin(), package.end());
  std::string indexes;
  std::string values;
  for (const int number : numbers) {
    const auto name = devices.find("\"cuda" + std::to_string(number) + "\"");
    const auto id = devices.find("gp_index=\"", name) + 10;
    indexes += devices.substr(id, devices.find('"', id) - id) + " ";
    for (const int other : numbers) {
      int bandwidth = number == other ? 1000000 : 0;
      for (const auto& [a, b, megabytes] : machine.nvlinks) {
        if ((a == number && b == other) || (b == number && a == other)) bandwidth = megabytes;
      }
      values += std::to_string(bandwidth) + " ";
    }
  }
  return "<distances2 type=\"OSDev\" nbobjs=\"" + std::to_string(numbers.size()) +
         "\" kind=\"9\" name=\"NVLinkBandwidth\" indexing=\"gp\">\n<indexes length=\"" +
         std::to_string(indexes.size()) + "\">" + indexes + "</indexes>\n<u64values length=\"" +
         std::to_string(values.size()) + "\">" + values + "</u64values>\n</distances2>\n";
}

/// The machine, as `lstopo FILE.xml` would write it.
inline std::string machine_xml(const Machine& machine) {
  std::string xml = cpus_xml(machine.cpus);
  std::string devices;
  int id = 100000;
  std::size_t at = 0;
  for (std::size_t package = 0; package < machine.gpus.size(); ++package) {
    at = xml.find("\n    </object>", at) + 1;  // the end of the package
    const std::string more = devices_xml(machine.gpus[package], package, id);
    xml.insert(at, more);
    at += more.size() + 1;
    devices += more;
  }
  if (!machine.nvlinks.empty()) {
    const std::string end = "\n  </object>";  // of the machine
    xml.insert(xml.find(end, at) + end.size() + 1, nvlinks_xml(machine, devices));
  }
  return xml;
}

/// A temporary file with the machine, for its own lifetime.
class MachineFile {
 public:
  explicit MachineFile(const Machine& machine) { folder_.write("machine.xml", machine_xml(machine)); }
  [[nodiscard]] std::filesystem::path path() const { return folder_ / "machine.xml"; }

 private:
  Folder folder_;
};

inline std::vector<DeviceKind> kinds_of(std::span<const Device> devices) {
  std::vector<DeviceKind> kinds;
  for (const Device& device : devices) kinds.push_back(device.kind);
  return kinds;
}

/// Two sockets, eight GPUs, NVLinks in a cube mesh as a DGX-1's with V100: one or two links of 25 GB/s.
inline Machine cube_mesh() {
  Machine machine{.gpus = {{0, 1, 2, 3}, {4, 5, 6, 7}}};
  for (const auto& [a, b, links] : {std::tuple{0, 1, 1},
                                    {0, 2, 1},
                                    {0, 3, 2},
                                    {0, 4, 2},
                                    {1, 2, 2},
                                    {1, 3, 1},
                                    {1, 5, 2},
                                    {2, 3, 2},
                                    {2, 6, 1},
                                    {3, 7, 1},
                                    {4, 5, 1},
                                    {4, 6, 1},
                                    {4, 7, 2},
                                    {5, 6, 2},
                                    {5, 7, 1},
                                    {6, 7, 2}}) {
    machine.nvlinks.emplace_back(a, b, 25000 * links);
  }
  return machine;
}

/// The GPUs of a machine, by CUDA number, on a host of that name.
inline std::vector<Device> gpus_of(const Machine& machine, const std::string& host = "") {
  const MachineFile file(machine);
  std::vector<Device> gpus = find_gpus(Topology::from_file(file.path()));
  for (Device& gpu : gpus) gpu.host = host;
  std::ranges::sort(gpus, {}, &Device::number);
  return gpus;
}

/// By worker, for a rank that has the machine alone: its GPU, in the order of their numbers, or its core.
inline std::vector<Device> mixed_of(const Machine& machine, const std::vector<bool>& on_gpu,
                                    const std::string& host = "") {
  const MachineFile file(machine);
  const Topology topology = Topology::from_file(file.path());
  std::vector<Device> numbered = gpus_of(machine);
  std::vector<std::optional<Device>> gpus(on_gpu.size());
  auto next = numbered.begin();
  for (std::size_t slot = 0; slot < gpus.size(); ++slot) {
    if (on_gpu[slot]) gpus[slot] = *next++;
  }
  const std::vector<RankOnHost> alone = {{topology.binding(), static_cast<int>(on_gpu.size())}};
  const CoreShare share = near_gpus(topology, topology.share(alone, 0), gpus);
  std::vector<Device> devices = slot_devices(topology, share, gpus, static_cast<int>(on_gpu.size()));
  for (Device& device : devices) device.host = host;
  return devices;
}

}  // namespace starpipe::runtime::testing
