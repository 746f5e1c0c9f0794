// SPDX-License-Identifier: Apache-2.0
// Ranks share the cores of a host; the hosts are hwloc's synthetic ones.
#include "runtime/host/hardware.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <stdexcept>

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two sockets, eight cores, sixteen PUs; hwloc numbers them socket by socket, core by core.
const Topology& server() {
  static const Topology topology("package:2 core:4 pu:2");
  return topology;
}

std::vector<CoreShare> shares(const Topology& topology, const std::vector<RankOnHost>& ranks) {
  std::vector<CoreShare> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) all.push_back(topology.share(ranks, rank));
  return all;
}

/// A root with the groups of a process and the files of groups.
struct Groups {
  Folder root;
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root / name).parent_path());
    root.write(name, text);
  }
  [[nodiscard]] double cores() const { return find_cpu_quota(root.path()).cores; }
};

TEST(Quota, OfVersion2IsTheSmallestOfAllAncestors) {
  const Groups groups;
  EXPECT_TRUE(std::isinf(groups.cores())) << "no groups";
  groups.write("proc/self/cgroup", "0::/job/step\n");
  groups.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_TRUE(std::isinf(groups.cores()));
  groups.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(groups.cores(), 1.5);
  const std::string outer = find_cpu_quota(groups.root.path()).group;
  groups.write("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
  EXPECT_EQ(find_cpu_quota(groups.root.path()).group, outer) << "all steps of the job share it";
  groups.write("sys/fs/cgroup/job/step/cpu.max", "50000 200000\n");
  EXPECT_EQ(groups.cores(), 0.25);
  EXPECT_NE(find_cpu_quota(groups.root.path()).group, outer);
}

TEST(Quota, OfVersion1BelongsToTheControllerCpu) {
  const Groups groups;
  groups.write("proc/self/cgroup", "12:memory:/other\n4:cpu,cpuacct:/docker/1f\n3:cpuset:/cpus\n0::/\n");
  groups.write("sys/fs/cgroup/memory/other/cpu.cfs_quota_us", "1\n");
  groups.write("sys/fs/cgroup/memory/other/cpu.cfs_period_us", "1000\n");
  groups.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  groups.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_TRUE(std::isinf(groups.cores())) << "-1 is not a limit";
  // A container sees its own group at the root, although its path is one of the host.
  groups.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(groups.cores(), 2.5);
  groups.write("sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_quota_us", "200000\n");
  groups.write("sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(groups.cores(), 2);
}

TEST(MemoryLimits, AreOfTheHostAndOfAllGroups) {
  const Groups groups;
  const auto limits = [&] {
    std::vector<std::uint64_t> bytes;
    for (const MemoryLimit& limit : find_memory_limits(groups.root.path())) bytes.push_back(limit.bytes);
    return bytes;
  };
  using Bytes = std::vector<std::uint64_t>;
  EXPECT_EQ(limits(), Bytes());
  groups.write("proc/meminfo", "MemTotalOther: 1 kB\nMemTotal:       4000 kB\nMemFree: 7 kB\n");
  EXPECT_EQ(limits(), Bytes{4'096'000});
  groups.write("proc/self/cgroup", "0::/job/step\n");
  groups.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  groups.write("sys/fs/cgroup/job/memory.max", "3000000\n");
  EXPECT_EQ(limits(), (Bytes{4'096'000, 3'000'000}));
  groups.write("proc/self/cgroup", "7:cpu:/cpus\n8:memory:/old\n");
  groups.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  groups.write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "2000000\n");
  groups.write("sys/fs/cgroup/cpu/cpus/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(limits(), (Bytes{4'096'000, 2'000'000}));
  const std::uint64_t resident = memory_of_process("VmRSS");
  EXPECT_GE(memory_of_process("VmHWM"), resident);
  EXPECT_GT(resident, 1U << 20U);
  EXPECT_EQ(memory_of_process("VmOther"), 0U);
}

TEST(Quota, IsReadAlsoWhereFilesAreOdd) {
  const Groups groups;
  groups.write("proc/self/cgroup", "\nnonsense\n0::/../..\n");
  groups.write("sys/fs/cgroup/cpu.max", "0 0\n");
  EXPECT_TRUE(std::isinf(groups.cores()));
  groups.write("sys/fs/cgroup/cpu.max", "100000");
  EXPECT_TRUE(std::isinf(groups.cores()));
  groups.write("sys/fs/cgroup/cpu.max", "400000 100000");
  EXPECT_EQ(groups.cores(), 4) << "the root of a container";
}

TEST(Cores, CountWithOneOfTheirThreads) {
  EXPECT_EQ(server().cores("0-15"), 8);
  EXPECT_EQ(server().cores("0,2,4"), 3) << "one thread of each";
  EXPECT_EQ(server().cores("0-2"), 2);
  EXPECT_EQ(Topology("pu:4").cores("0-3"), 4);
}

TEST(Share, ARankAloneHasThemAll) {
  const CoreShare share = server().share(std::vector<RankOnHost>{{"0-15", 7}}, 0);
  EXPECT_EQ(share.binding, "0-15");
  EXPECT_EQ(share.cores, 8);
  EXPECT_FALSE(share.oversubscribed());
  EXPECT_THAT(share.worker_pus, ElementsAre(0, 2, 4, 6, 8, 10, 12));
}

TEST(Share, AnUnboundHostIsDividedBetweenItsRanks) {
  const auto two = shares(server(), {{"0-15", 3}, {"0-15", 3}});
  EXPECT_EQ(two[0].binding, "0-7") << "a socket each";
  EXPECT_EQ(two[1].binding, "8-15");
  EXPECT_THAT(two[0].worker_pus, ElementsAre(0, 2, 4));
  EXPECT_THAT(two[1].worker_pus, ElementsAre(8, 10, 12));
  EXPECT_EQ(two[0].ranks, 2);
  EXPECT_EQ(two[0].workers, 6);
  EXPECT_EQ(two[0].cores, 8);

  const auto uneven = shares(server(), {{"0-15", 1}, {"0-15", 2}});
  EXPECT_EQ(uneven[0].binding, "0-5");
  EXPECT_EQ(uneven[1].binding, "6-15");
}

TEST(Share, KeepsTheBindingOfSlurm) {
  const auto bound = shares(server(), {{"0-1,6-7", 1}, {"8-11", 1}});
  EXPECT_EQ(bound[0].binding, "0-1,6-7");
  EXPECT_THAT(bound[0].worker_pus, ElementsAre(0));
  EXPECT_EQ(bound[1].binding, "8-11");
  EXPECT_THAT(bound[1].worker_pus, ElementsAre(8));
  EXPECT_EQ(bound[1].ranks, 1);
  EXPECT_EQ(bound[1].cores, 2);

  // Second threads only, with a hole: StarPU itself does not do holes.
  const CoreShare odd = server().share(std::vector<RankOnHost>{{"1,5,9", 2}}, 0);
  EXPECT_EQ(odd.binding, "1,5,9");
  EXPECT_THAT(odd.worker_pus, ElementsAre(1, 5));
}

TEST(Share, MpiThreadsShareCoresBeforeWorkersDo) {
  const auto two = shares(server(), {{"0-7", 2}, {"0-7", 2}});
  EXPECT_EQ(two[0].binding, "0-3");
  EXPECT_EQ(two[1].binding, "4-7");
  EXPECT_THAT(two[0].worker_pus, ElementsAre(0, 2));
  EXPECT_THAT(two[1].worker_pus, ElementsAre(4, 6));
  EXPECT_TRUE(two[0].oversubscribed());
  EXPECT_TRUE(two[0].exclusive) << "MPI's thread shares cores with workers of its own rank only";

  const auto uneven = shares(server(), {{"0-15", 1}, {"0-15", 5}, {"0-15", 1}});
  EXPECT_EQ(uneven[0].binding, "0-3") << "the core that is left goes to the first of equals";
  EXPECT_EQ(uneven[1].binding, "4-13");
  EXPECT_EQ(uneven[2].binding, "14-15");
}

TEST(Share, TellsTheCoresWithoutAWorker) {
  const auto free = [](const std::string& binding, int workers) {
    return server().free_pus(server().share(std::vector<RankOnHost>{{binding, workers}}, 0));
  };
  EXPECT_EQ(free("0-15", 7), "14-15");
  EXPECT_EQ(free("0-15", 8), "") << "a second thread of a worker's core is not free";
  EXPECT_EQ(free("1,5,9", 2), "9");
  EXPECT_EQ(free("0-1", 2), "") << "workers are not bound";
}

TEST(Share, WorkersFloatOverTheCoresOfTheirRank) {
  const auto two = shares(server(), {{"0-7", 4}, {"0-7", 3}});
  EXPECT_EQ(two[0].binding, "0-3");
  EXPECT_EQ(two[1].binding, "4-7");
  for (const CoreShare& share : two) EXPECT_THAT(share.worker_pus, IsEmpty());
  EXPECT_THAT(server().share(std::vector<RankOnHost>{{"0-1", 2}}, 0).worker_pus, IsEmpty());
}

TEST(Share, RanksThatAreMoreThanCoresShareThem) {
  const auto four = shares(server(), {{"0-3", 1}, {"0-3", 1}, {"0-3", 1}, {"0-3", 1}});
  for (const std::size_t rank : {0U, 1U}) EXPECT_EQ(four[rank].binding, "0-1");
  for (const std::size_t rank : {2U, 3U}) EXPECT_EQ(four[rank].binding, "2-3");
  for (const CoreShare& share : four) EXPECT_THAT(share.worker_pus, IsEmpty()) << "no core of its own";
  for (const CoreShare& share : four) EXPECT_FALSE(share.exclusive);
  const auto uneven = shares(server(), {{"0-3", 4}, {"0-3", 1}, {"0-3", 1}});
  EXPECT_EQ(uneven[0].binding, "0-1");
  EXPECT_EQ(uneven[1].binding, "2-3");
  EXPECT_EQ(uneven[2].binding, "2-3");
}

TEST(Share, KeepsBindingsThatOverlapInPart) {
  const auto shared = shares(server(), {{"0-7", 1}, {"4-15", 1}});
  EXPECT_EQ(shared[0].binding, "0-7");
  EXPECT_EQ(shared[1].binding, "4-15");
  for (const CoreShare& share : shared) {
    EXPECT_THAT(share.worker_pus, IsEmpty());
    EXPECT_FALSE(share.exclusive);
    EXPECT_EQ(share.ranks, 2);
    EXPECT_EQ(share.workers, 2);
    EXPECT_EQ(share.cores, 8);
  }
}

TEST(Neighbours, AreTheRanksWhoseBindingsOverlap) {
  const std::vector<RankOnHost> ranks = {{"0-3", 1}, {"2-5", 1}, {"6-7", 1}, {"4-7", 1}};
  EXPECT_THAT(neighbours(ranks, 0), ElementsAre(0, 1));
  EXPECT_THAT(neighbours(ranks, 1), ElementsAre(0, 1, 3));
  EXPECT_THAT(neighbours(ranks, 2), ElementsAre(2, 3));
}

TEST(Share, AllCoresAreSharedOut) {
  std::mt19937 random(1);
  const auto up_to = [&random](int max) { return std::uniform_int_distribution(1, max)(random); };
  int with_own_cores = 0;
  for (int i = 0; i < 300; ++i) {
    const int cores = up_to(64);
    const Topology topology("package:1 core:" + std::to_string(cores) + " pu:1");
    std::vector<RankOnHost> ranks(index(up_to(8)));
    int threads = 0;
    for (RankOnHost& rank : ranks) {
      rank = {"0-" + std::to_string(cores - 1), up_to(8)};
      threads += rank.workers + 1;
    }
    const int workers = threads - static_cast<int>(ranks.size());
    std::set<unsigned> taken;
    int total = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const CoreShare share = topology.share(ranks, rank);
      const int own = topology.cores(share.binding);
      total += own;
      const bool one_each = ranks.size() <= index(cores) && own >= ranks[rank].workers;
      EXPECT_EQ(share.worker_pus.size(), one_each ? index(ranks[rank].workers) : 0);
      const int min = cores < workers ? 1 : ranks[rank].workers;
      EXPECT_GE(own, cores < threads ? min : ranks[rank].workers + 1);
      for (const unsigned pu : share.worker_pus) EXPECT_TRUE(taken.insert(pu).second) << pu;
      if (!share.worker_pus.empty()) ++with_own_cores;
    }
    EXPECT_GE(total, cores);
    EXPECT_TRUE(total == cores || ranks.size() > index(cores));
  }
  EXPECT_GT(with_own_cores, 500);
}

TEST(Topology, NamesAFileThatHasNone) {
  const auto problem = [](const std::filesystem::path& file) {
    return message_of([&] { static_cast<void>(Topology::from_file(file)); });
  };
  EXPECT_THAT(problem("/nonexistent.xml"), ::testing::HasSubstr("/nonexistent.xml"));
  const Folder folder;
  const auto file = folder.write("none", "layers: []\n");
  EXPECT_THAT(problem(file), ::testing::HasSubstr(file.string()));
}

TEST(Process, IsBoundAndSetFree) {
  const Topology& host = Topology::host();
  const std::string before = host.binding();
  const std::string first = before.substr(0, before.find_first_of(",-"));
  {
    const ProcessBinding bound(first);
    EXPECT_EQ(host.binding(), first);
    EXPECT_EQ(find_hardware().binding, first);
    EXPECT_EQ(find_hardware().cores, 1);
  }
  EXPECT_EQ(host.binding(), before);
}

TEST(Process, SlurmsNameOfTheNodeIsTheMachines) {
  const std::string host = find_hardware().machine;
  setenv("SLURMD_NODENAME", "node17", 1);
  const Hardware hardware = find_hardware();
  unsetenv("SLURMD_NODENAME");
  EXPECT_EQ(hardware.machine, "node17");
  EXPECT_EQ(hardware.host, find_hardware().host) << "the node's name must not change the host";
  EXPECT_FALSE(host.empty());
}

}  // namespace
}  // namespace starpipe::runtime
