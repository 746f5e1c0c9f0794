// SPDX-License-Identifier: Apache-2.0
// The line on cores that slow a run. The hosts are hwloc's synthetic ones.
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>

#include "base/environment.hpp"
#include "runtime/host/core_share.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class Advice : public ::testing::Test {
 protected:
  /// The line of the first rank. `ranks`: all on this host of four cores with two PUs each, all computing.
  std::string line(const std::vector<RankOnHost>& ranks) {
    const CoreShare share = host_.share(ranks, 0);
    return core_advice({.host = host_,
                        .share = share,
                        .machine = "node7",
                        .launched = ranks[0].binding,
                        .rank = 0,
                        .ranks = static_cast<int>(ranks.size()),
                        .computing = share.workers});
  }

 private:
  const Topology host_{"package:1 core:4 pu:2"};
  // The environment of all tests has it.
  const ScopedVariable binding_{"STARPU_WORKERS_NOBIND", std::nullopt};
};

TEST_F(Advice, IsEmptyWhereAllThreadsHaveCores) {
  EXPECT_THAT(line({{"0-7", 4}}), IsEmpty()) << "one rank sends nothing";
  EXPECT_THAT(line({{"0-7", 1}, {"0-7", 1}}), IsEmpty());
  EXPECT_THAT(line({{"0-3", 1}, {"4-7", 1}}), IsEmpty());
}

TEST_F(Advice, NamesALauncherThatBindsTooTightly) {
  EXPECT_EQ(
      line({{"0-1", 1}, {"0-1", 1}}),
      "2 workers run on 1 of the 4 cores of node7, to which the launcher bound rank 0: give each rank more "
      "cores (srun --cpus-per-task), or let starpipe divide them (srun --cpu-bind=none, mpiexec -bind-to "
      "none)");
  EXPECT_THAT(line({{"0-1", 3}, {"2-7", 1}}), StartsWith("3 workers run on 1 of the 4 cores"));
}

TEST_F(Advice, TellsThatThereAreMoreWorkersThanCores) {
  EXPECT_EQ(
      line({{"0-7", 3}, {"0-7", 2}}),
      "5 workers run on 4 cores of node7 and slow each other: take more cores or hosts, or fewer workers "
      "(runtime.workers_per_core: 1 refuses such a run)");
}

TEST_F(Advice, TellsThatWorkersShareAQuota) {
  const Topology host("core:4 pu:1");
  const CoreShare share = host.share(std::vector<RankOnHost>{{"0-3", 2}}, 0);
  const auto with_quota = [&](double cores, int workers) {
    return core_advice({.host = host,
                        .share = share,
                        .machine = "node7",
                        .launched = "0-3",
                        .computing = 2,
                        .quota = {.cores = cores, .group = "1:2"},
                        .sharing_quota = workers});
  };
  EXPECT_THAT(with_quota(2, 2), IsEmpty());
  EXPECT_EQ(with_quota(1.5, 2),
            "a CPU quota of 1.5 cores on node7 (of the container or the batch system) slows its 2 workers: "
            "raise the quota, or take fewer workers (runtime.workers_per_core: 1 refuses such a run)");
  EXPECT_THAT(with_quota(0.5, 1), HasSubstr("CPU quota of 0.5 cores on node7"));
  const ScopedVariable bound("STARPU_WORKERS_NOBIND", "1");
  EXPECT_THAT(with_quota(1, 4), HasSubstr("CPU quota of 1 core on node7")) << "of several ranks";
}

TEST_F(Advice, TellsThatMpisThreadSharesACore) {
  EXPECT_EQ(
      line({{"0-7", 2}, {"0-7", 2}}),
      "rank 0 has a worker on each of its cores, so MPI's thread takes a few per cent of their time: give "
      "each rank one core more than it has workers");
}

TEST_F(Advice, LooksWhereTheUserBindsMpisThread) {
  const std::vector<RankOnHost> ranks = {{"0-3", 1}, {"4-7", 1}};  // the first core has the worker of rank 0
  for (const auto& [variable, value, on_worker] :
       {std::tuple("STARPU_MPI_THREAD_CPUID", "0", true), std::tuple("STARPU_MPI_THREAD_CPUID", "1", true),
        std::tuple("STARPU_MPI_THREAD_CPUID", "2", false), std::tuple("STARPU_MPI_THREAD_COREID", "0", true),
        std::tuple("STARPU_MPI_THREAD_COREID", "1", false)}) {
    const ScopedVariable bound(variable, value);
    const std::string expected =
        std::string(variable) + " binds MPI's thread of rank 0 to the core of a worker";
    EXPECT_THAT(line(ranks), on_worker ? HasSubstr(expected) : ::testing::Matcher<std::string>(IsEmpty()))
        << variable << "=" << value;
  }
}

TEST_F(Advice, IsEmptyWhereTheUserBindsTheWorkers) {
  const ScopedVariable bound("STARPU_WORKERS_CPUID", "0 1");
  EXPECT_THAT(line({{"0-7", 3}, {"0-7", 2}}), IsEmpty());
}

}  // namespace
}  // namespace starpipe::runtime
