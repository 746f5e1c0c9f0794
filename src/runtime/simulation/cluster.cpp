// SPDX-License-Identifier: Apache-2.0
#include "runtime/simulation/cluster.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

int Cluster::nodes(int workers) const {
  if (workers > gpus_per_node && workers % gpus_per_node != 0) {
    throw InputError(
        fmt::format("schedule.workers: {} workers do not fill nodes of {} GPUs", workers, gpus_per_node));
  }
  const int nodes = workers <= gpus_per_node ? 1 : workers / gpus_per_node;
  if (devices.size() > 1 && std::cmp_less(devices.size(), nodes)) {
    throw InputError(fmt::format("schedule.workers: {} workers need {} nodes, but device has the kinds of {}",
                                 workers, nodes, devices.size()));
  }
  return nodes;
}

int Cluster::ranks(int workers) const {
  const int count = nodes(workers);
  if (workers / count % ranks_per_node != 0) {
    throw InputError(
        fmt::format("--ranks-per-node: the {} workers of a node cannot be divided among {} ranks",
                    workers / count, ranks_per_node));
  }
  return count * ranks_per_node;
}

std::string Cluster::device(int worker) const {
  if (devices.empty()) return {};
  return devices.size() == 1 ? devices.front() : devices[index(worker / gpus_per_node)];
}

namespace {

constexpr std::string_view host_name = "simulated";  // StarPU's name for the machine, by which it finds files
constexpr double fastest = 1e18;                     // bytes per second; SimGrid has no links without a limit

// Returns the tables that StarPU's transfer predictions use, by memory node: main memory, then the GPUs.
// StarPU reads one column and row more than there are nodes.
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

// Between a GPU and main memory.
plan::Link host_link(const Cluster& cluster) { return cluster.gpu_direct ? plan::Link{} : cluster.host_link; }

double bandwidth(const plan::Link& link) {
  return link.beta > 0 ? std::min(fastest, 1 / link.beta) : fastest;
}

std::string host_element(const std::string& id, const std::string& properties = {}) {
  return fmt::format("<host id=\"{}\" speed=\"1Gf\">{}</host>\n", id, properties);
}

std::string mpi_host(int rank) { return fmt::format("rank{}", rank); }

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

// SimGrid's links, each made when a route first needs it. Their names are global, so that routes of several
// ranks share them.
class SimulatedLinks {
 public:
  explicit SimulatedLinks(const Cluster& cluster, int gpus_per_rank)
      : cluster_(cluster), gpus_per_rank_(gpus_per_rank) {}

  /// Returns the links of a transfer between GPUs of one rank.
  std::vector<std::string> between_gpus(int from, int to) {
    const std::size_t level = cluster_.links.level(from, to);
    return ports("", level, cluster_.links.member(level, from), cluster_.links.member(level, to));
  }

  /// Returns the links of a message between ranks. A level's member smaller than a rank is taken as large as
  /// one.
  std::vector<std::string> between_ranks(int from, int to) {
    const auto& levels = cluster_.links.levels();
    const std::size_t level = cluster_.links.level(from * gpus_per_rank_, to * gpus_per_rank_);
    const int member = std::max(gpus_per_rank_, level == 0 ? 1 : levels[level - 1].workers);
    return ports("mpi-", level, from * gpus_per_rank_ / member, to * gpus_per_rank_ / member);
  }

  /// Returns the link between a GPU and main memory, one way.
  std::string with_host(int worker, std::string_view way) {
    std::string name = fmt::format("host-{}-{}", worker / cluster_.gpus_per_host_link, way);
    const plan::Link link = host_link(cluster_);
    add(name, link, link.alpha, cluster_.gpu_direct ? plan::Sharing::none : plan::Sharing::fair);
    return name;
  }

  void add(const std::string& name, const plan::Link& link, double latency, plan::Sharing sharing) {
    if (made_.insert(name).second) text_ += link_element(name, bandwidth(link), latency, sharing);
  }

  [[nodiscard]] const std::string& elements() const { return text_; }

 private:
  // Each member of a level has a port out and a port in. The port out has all of the latency.
  std::vector<std::string> ports(std::string_view port, std::size_t level, int from, int to) {
    const plan::LinkLevel& all = cluster_.links.levels()[level];
    const std::string out = fmt::format("{}{}-{}-out", port, level, from);
    const std::string in = fmt::format("{}{}-{}-in", port, level, to);
    add(out, all.link.slowed(all.slowness(from)), all.link.alpha, all.sharing);
    add(in, all.link.slowed(all.slowness(to)), 0, all.sharing);
    return {out, in};
  }

  const Cluster& cluster_;
  int gpus_per_rank_;
  std::set<std::string> made_;
  std::string text_;
};

// Returns the main memory and the GPUs of a rank, by the names that StarPU has for them.
std::string rank_zone(const Cluster& cluster, SimulatedLinks& links, int rank, int gpus, bool copies) {
  const std::string name = fmt::format("StarPU-MPI{}", rank);
  const std::string ram = name + "-RAM";
  std::string hosts;
  for (const std::string_view host : {"MAIN", "RAM"}) hosts += host_element(fmt::format("{}-{}", name, host));
  for (int core = 0; core < (copies ? 2 * gpus : 1); ++core)
    hosts += host_element(fmt::format("{}-CPU{}", name, core));
  std::string routes;
  const auto gpu = [&](int number) { return fmt::format("{}-CUDA{}", name, number); };
  for (int to = 0; to < gpus; ++to) {
    const int worker = rank * gpus + to;
    hosts += host_element(gpu(to),
                          fmt::format(R"(<prop id="model" value="simulated"/>)"
                                      R"(<prop id="memsize" value="{}"/><prop id="memcpy_peer" value="1"/>)",
                                      cluster.gpu_memory));
    routes += route_element(gpu(to), ram, {links.with_host(worker, "up")}) +
              route_element(ram, gpu(to), {links.with_host(worker, "down")});
    for (int from = 0; from < gpus; ++from) {
      if (from != to)
        routes += route_element(gpu(from), gpu(to), links.between_gpus(rank * gpus + from, worker));
    }
  }
  return zone_element(name, hosts + routes);
}

// Returns the ranks as MPI sees them.
std::string network_zone(SimulatedLinks& links, int ranks) {
  std::string hosts;
  std::string routes;
  for (int to = 0; to < ranks; ++to) {
    hosts += host_element(mpi_host(to));
    const std::string self = mpi_host(to) + "-self";
    links.add(self, {}, 0, plan::Sharing::none);
    routes += route_element(mpi_host(to), mpi_host(to), {self});
    for (int from = 0; from < ranks; ++from) {
      if (from != to) routes += route_element(mpi_host(from), mpi_host(to), links.between_ranks(from, to));
    }
  }
  return zone_element("network", hosts + routes);
}

// SimGrid's options. MPI's factors for real networks are off: a link has the latency and the bandwidth that
// the cluster file gives it, also for messages. SimGrid maps one block of memory again and again where values
// would be: with large blocks, large stashes on the host take few of the mappings that Linux allows
// (vm.max_map_count).
std::vector<std::string> simgrid_options() {
  std::vector<std::string> options = {"--log=root.thresh:critical"};
  for (const char* setting :
       {"network/model:CM02", "network/TCP-gamma:-1", "network/latency-factor:1",
        "network/bandwidth-factor:1", "network/weight-S:0", "network/crosstraffic:0",
        "smpi/simulate-computation:no", "smpi/host-speed:1", "contexts/stack-size:1024"})
    options.push_back(fmt::format("--cfg={}", setting));
  return options;
}

}  // namespace

MachineFiles write_machine_files(const Cluster& cluster, int workers, const std::filesystem::path& folder,
                                 bool copies) {
  const int ranks = cluster.ranks(workers);
  const int gpus = workers / ranks;
  const std::filesystem::path bus = folder / "bus";
  std::filesystem::create_directories(bus);
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    write_file("sim", file, text);
  };
  const auto of_bus = [&](std::string_view suffix) { return bus / fmt::format("{}.{}", host_name, suffix); };
  const plan::Link host = host_link(cluster);
  const plan::Link& first = cluster.links.levels().front().link;
  constexpr double mega = 1e6;
  write(of_bus("config"), "");
  write(of_bus("bandwidth"), table_by_node(gpus, bandwidth(host) / mega, bandwidth(first) / mega));
  write(of_bus("latency"), table_by_node(gpus, host.alpha * mega, first.alpha * mega));

  SimulatedLinks links(cluster, gpus);
  std::string zones = network_zone(links, ranks);
  std::string hosts;
  for (int rank = 0; rank < ranks; ++rank) {
    zones += rank_zone(cluster, links, rank, gpus, copies);
    hosts += mpi_host(rank) + "\n";
  }
  const std::string platform =
      "<?xml version='1.0'?>\n"
      "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<platform version=\"4.1\">\n<zone id=\"cluster\" routing=\"None\">\n" +
      zone_element("links", links.elements()) + zones + "</zone>\n</platform>\n";
  MachineFiles files = {
      .ranks = ranks, .platform = folder / "platform.xml", .hosts = folder / "hosts", .environment = {}};
  write(files.platform, platform);
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
                                    {"STARPU_MPI_NDETACHED_SEND", "0"},
                                    {"STARPU_MINIMUM_CLEAN_BUFFERS", "0"}}) {
    if (!starpipe::environment(name)) files.environment.emplace_back(name, value);
  }
  // StarPU-MPI starts so many messages, and then looks for messages that have ended. On a real machine it
  // continues with the rest at once; on SimGrid it sleeps until something happens.
  constexpr const char* started_at_once = "STARPU_MPI_NREADY_PROCESS";
  if (!starpipe::environment(started_at_once))
    files.environment.emplace_back(started_at_once, std::to_string(std::numeric_limits<int>::max()));
  // By itself StarPU would take nine tenths of each GPU.
  constexpr const char* limit = "STARPU_LIMIT_CUDA_MEM";
  if (!starpipe::environment(limit))
    files.environment.emplace_back(limit, std::to_string(cluster.gpu_memory >> 20U));
  return files;
}

std::vector<std::string> smpirun_command(const MachineFiles& files, const std::filesystem::path& program,
                                         const std::vector<std::string>& arguments,
                                         const std::filesystem::path& folder) {
  // Each rank loads a copy of the program, which smpirun puts there.
  std::vector<std::string> command = {"env", fmt::format("TMPDIR={}", folder.string())};
  for (const auto& [name, value] : files.environment) command.push_back(fmt::format("{}={}", name, value));
  command.insert(command.end(), {"smpirun", "-platform", files.platform.string(), "-hostfile",
                                 files.hosts.string(), "-np", std::to_string(files.ranks)});
  std::ranges::move(simgrid_options(), std::back_inserter(command));
  command.push_back(program.string());
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace starpipe::runtime
