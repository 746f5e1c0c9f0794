// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/simulation/machine_files.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "starpipe/base/environment.hpp"
#include "starpipe/base/files.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::string_view host_name = "simulated";  // StarPU's name for the machine, by which it finds files
constexpr double fastest = 1e18;                     // bytes a second; SimGrid has no links without a limit

// The tables that StarPU's transfer predictions use, by memory node: main memory, then the GPUs. StarPU reads
// one column and row more than there are nodes.
std::string table_by_node(int gpus, double with_host, double between_gpus) {
  std::string text = "#\n";
  for (int from = 0; from <= gpus + 1; ++from) {
    for (int to = 0; to <= gpus + 1; ++to) {
      double value = from == 0 || to == 0 ? with_host : between_gpus;
      if (std::max(from, to) > gpus) value = std::numeric_limits<double>::quiet_NaN();
      if (from == to && from <= gpus) value = 0;
      text += fmt::format("{:e}\t", value);
    }
    text += '\n';
  }
  return text;
}

double bandwidth(const plan::Link& link) {
  return link.beta > 0 ? std::min(fastest, 1 / link.beta) : fastest;
}

std::string host_element(const std::string& id, const std::string& properties = {}) {
  return fmt::format("<host id=\"{}\" speed=\"1Gf\">{}</host>\n", id, properties);
}

std::string zone_element(const std::string& id, const std::string& content) {
  return fmt::format("<zone id=\"{}\" routing=\"Full\">\n{}</zone>\n", id, content);
}

std::string link_element(const std::string& id, double bandwidth, double latency, plan::Sharing sharing) {
  return fmt::format(R"(<link id="{}" bandwidth="{:.3f}Bps" latency="{:.12f}s"{}/>)"
                     "\n",
                     id, bandwidth, latency,
                     sharing == plan::Sharing::none ? R"( sharing_policy="FATPIPE")" : "");
}

std::string route_element(const std::string& from, const std::string& to,
                          const std::vector<std::string>& links) {
  std::string text = fmt::format(R"(<route src="{}" dst="{}" symmetrical="NO">)", from, to);
  for (const std::string& link : links) text += fmt::format(R"(<link_ctn id="{}"/>)", link);
  return text + "</route>\n";
}

// Each member of a level has a port out and a port in, with these names.
std::string port(const Cluster& cluster, std::size_t level, int worker, std::string_view way) {
  return fmt::format("{}-{}-{}", level, cluster.links.member(level, worker), way);
}

// The links of a transfer between two workers, or between the nodes that they are the first workers of.
std::vector<std::string> ports_between(const Cluster& cluster, int from, int to) {
  const std::size_t level = cluster.links.level(from, to);
  return {port(cluster, level, from, "out"), port(cluster, level, to, "in")};
}

// The ports of all members that contain one of the workers, of the levels from `first` to `last`.
std::string port_elements(const Cluster& cluster, const std::vector<int>& workers, std::size_t first,
                          std::size_t last) {
  std::set<std::string> made;
  std::string text;
  for (std::size_t level = first; level <= last; ++level) {
    const auto& [name, group, link, sharing] = cluster.links.levels()[level];
    for (const int worker : workers) {
      const std::string out = port(cluster, level, worker, "out");
      if (!made.insert(out).second) continue;
      // The port out has all of the latency.
      text += link_element(out, bandwidth(link), link.alpha, sharing);
      text += link_element(port(cluster, level, worker, "in"), bandwidth(link), 0, sharing);
    }
  }
  return text;
}

// The main memory and the GPUs of a rank, by the names that StarPU has for them.
std::string node_zone(const Cluster& cluster, int rank, int gpus) {
  const std::string name = fmt::format("StarPU-MPI{}", rank);
  const std::string ram = name + "-RAM";
  std::string hosts;
  for (const std::string_view host : {"MAIN", "CPU0", "RAM"})
    hosts += host_element(fmt::format("{}-{}", name, host));
  std::vector<int> workers;
  std::string links;
  std::string routes;
  const auto gpu = [&](int number) { return fmt::format("{}-CUDA{}", name, number); };
  for (int to = 0; to < gpus; ++to) {
    workers.push_back(rank * gpus + to);
    hosts += host_element(gpu(to),
                          fmt::format(R"(<prop id="model" value="simulated"/>)"
                                      R"(<prop id="memsize" value="{}"/><prop id="memcpy_peer" value="1"/>)",
                                      cluster.gpu_memory));
    for (const std::string& way : {gpu(to) + "-up", gpu(to) + "-down"})
      links += link_element(way, bandwidth(cluster.host_link), cluster.host_link.alpha, plan::Sharing::fair);
    routes +=
        route_element(gpu(to), ram, {gpu(to) + "-up"}) + route_element(ram, gpu(to), {gpu(to) + "-down"});
    for (int from = 0; from < gpus; ++from) {
      if (from != to)
        routes +=
            route_element(gpu(from), gpu(to), ports_between(cluster, workers.front() + from, workers.back()));
    }
  }
  const std::size_t last = gpus > 1 ? cluster.links.level(workers.front(), workers.back()) : 0;
  links += port_elements(cluster, workers, 0, last);
  return zone_element(name, hosts + links + routes);
}

// The nodes as MPI sees them.
std::string network_zone(const Cluster& cluster, int nodes, int gpus) {
  std::string hosts;
  std::string links;
  std::string routes;
  std::vector<int> first_workers;
  const auto node = [](int number) { return fmt::format("node{}", number); };
  for (int to = 0; to < nodes; ++to) {
    first_workers.push_back(to * gpus);
    hosts += host_element(node(to));
    links += link_element(node(to) + "-self", fastest, 0, plan::Sharing::none);
    routes += route_element(node(to), node(to), {node(to) + "-self"});
    for (int from = 0; from < nodes; ++from) {
      if (from != to)
        routes += route_element(node(from), node(to), ports_between(cluster, from * gpus, to * gpus));
    }
  }
  if (nodes > 1) {
    links += port_elements(cluster, first_workers, cluster.links.level(0, gpus),
                           cluster.links.level(0, (nodes - 1) * gpus));
  }
  return zone_element("network", hosts + links + routes);
}

}  // namespace

MachineFiles write_machine_files(const Cluster& cluster, int workers, const std::filesystem::path& folder) {
  const int nodes = cluster.nodes(workers);
  const int gpus = workers / nodes;
  const std::filesystem::path bus = folder / "bus";
  std::filesystem::create_directories(bus);
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    write_file("sim", file, text);
  };
  const auto of_bus = [&](std::string_view suffix) { return bus / fmt::format("{}.{}", host_name, suffix); };
  const plan::Link& first = cluster.links.levels().front().link;
  constexpr double mega = 1e6;
  write(of_bus("config"), "");
  write(of_bus("bandwidth"),
        table_by_node(gpus, bandwidth(cluster.host_link) / mega, bandwidth(first) / mega));
  write(of_bus("latency"), table_by_node(gpus, cluster.host_link.alpha * mega, first.alpha * mega));

  std::string platform =
      "<?xml version='1.0'?>\n"
      "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<platform version=\"4.1\">\n<zone id=\"cluster\" routing=\"None\">\n" +
      network_zone(cluster, nodes, gpus);
  std::string hosts;
  for (int node = 0; node < nodes; ++node) {
    platform += node_zone(cluster, node, gpus);
    hosts += fmt::format("node{}\n", node);
  }
  MachineFiles files = {.platform = folder / "platform.xml", .hosts = folder / "hosts", .environment = {}};
  write(files.platform, platform + "</zone>\n</platform>\n");
  write(files.hosts, hosts);
  files.environment = {{"STARPU_PERF_MODEL_DIR", folder.string()},
                       {"STARPU_HOSTNAME", std::string(host_name)},
                       {"STARPU_SCHED", ""},
                       {"STARPU_WORKERS_NOBIND", "1"},
                       {"STARPU_NWORKER_PER_CUDA", "1"}};
  for (const char* cost : {"CUDA_MALLOC", "CUDA_QUEUE", "TASK_SUBMIT", "TASK_PUSH", "FETCHING_INPUT"})
    files.environment.emplace_back(fmt::format("STARPU_SIMGRID_{}_COST", cost), "0");
  // As StarpuSettings and Session have them in real runs, unless the user has set them.
  for (const auto& [name, value] : {std::pair{"STARPU_SILENT", "1"},
                                    {"STARPU_MPI_STATS", "1"},
                                    {"STARPU_CUDA_PIPELINE", "1"},
                                    {"STARPU_MINIMUM_CLEAN_BUFFERS", "0"}}) {
    if (!starpipe::environment(name)) files.environment.emplace_back(name, value);
  }
  // By itself StarPU would take nine tenths of each GPU.
  constexpr const char* limit = "STARPU_LIMIT_CUDA_MEM";
  if (!starpipe::environment(limit))
    files.environment.emplace_back(limit, std::to_string(cluster.gpu_memory >> 20U));
  return files;
}

}  // namespace starpipe::runtime
