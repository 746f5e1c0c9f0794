// SPDX-License-Identifier: Apache-2.0
// A session refuses what cannot run, with the same message on every rank, and StarPU starts again afterwards.
#include "runtime/session/session.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cblas.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/report/report.hpp"
#include "runtime/session/mpi_polling.hpp"
#include "runtime/started_mpi.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "support/message_of.hpp"

namespace {

std::ptrdiff_t thread_count() {
  const std::filesystem::path tasks = "/proc/self/task";
  return std::distance(std::filesystem::directory_iterator(tasks), std::filesystem::directory_iterator());
}

const std::ptrdiff_t threads_at_start = thread_count();
std::ptrdiff_t max_threads_at_a_change = 0;  // of our variables, before the tests: while MPI starts
int changes = 0;
bool tests_run = false;

/// Open MPI changes variables of its own while it has threads.
bool is_ours(std::string_view variable) {
  return std::ranges::any_of(std::array{"STARP", "UCX_", "MPIR_"},
                             [variable](const char* prefix) { return variable.starts_with(prefix); });
}

template <class Function>
Function* next(const char* name, const char* variable) {
  ++changes;
  if (!tests_run && is_ours(variable))
    max_threads_at_a_change = std::max(max_threads_at_a_change, thread_count());
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Libraries call these in place of the system's.
extern "C" int setenv(const char* name, const char* value, int overwrite) {
  return next<decltype(setenv)>("setenv", name)(name, value, overwrite);
}
extern "C" int unsetenv(const char* name) { return next<decltype(unsetenv)>("unsetenv", name)(name); }
extern "C" int putenv(char* text) { return next<decltype(putenv)>("putenv", text)(text); }

namespace starpipe::runtime {
namespace {

using namespace testing;

class TestsRun : public ::testing::Environment {
  void SetUp() override { tests_run = true; }
};
const ::testing::Environment* const note_tests = ::testing::AddGlobalTestEnvironment(new TestsRun);

/// The policy that runs, or the message of the InputError; the same on all ranks.
std::string start(const std::string& policy) {
  RuntimeConfig config;
  config.policy = policy;
  try {
    const WorkerMap map(2 * mpi->ranks(), mpi->ranks());
    const Session session(*mpi, map, share_cores(*mpi, map, config), policy_of(config));
    EXPECT_EQ(session.core() != nullptr, session.policy() == "starpipe");
    return "runs " + session.policy();
  } catch (const InputError& error) {
    return error.what();
  }
}

class Environment : public ::testing::Test {
 protected:
  ~Environment() override {
    unsetenv("STARPU_SCHED");
    unsetenv("STARPU_SCHED_LIB");
  }
};

using Policies = Environment;

TEST_F(Policies, KnownOnesRun) {
  for (const char* name : {"starpipe", "lws", "eager", "starpipe"}) {
    EXPECT_EQ(start(name), std::string("runs ") + name);
  }
}

TEST_F(Policies, TheEnvironmentWins) {
  setenv("STARPU_SCHED", "prio", 1);
  EXPECT_EQ(start("starpipe"), "runs prio");
}

TEST_F(Policies, UnknownOnesAreNamed) {
  const std::string message = start("strapipe");
  EXPECT_NE(message.find("runtime.policy: unknown policy 'strapipe'"), std::string::npos) << message;
  EXPECT_NE(message.find("starpipe"), std::string::npos) << "the known ones";
  setenv("STARPU_SCHED", "nosuch", 1);
  const std::string from_environment = start("starpipe");
  EXPECT_NE(from_environment.find("STARPU_SCHED: unknown policy 'nosuch'"), std::string::npos)
      << from_environment;
}

// StarPU would warn and run `lws`.
TEST_F(Policies, AreRefusedWhenTheLibraryDoesNotHaveThem) {
  for (const char* library : {"/nonexistent/libsched.so", "libm.so.6"}) {
    setenv("STARPU_SCHED_LIB", library, 1);
    const std::string message = start("nosuch");
    EXPECT_NE(message.find("STARPU_SCHED_LIB: "), std::string::npos) << message;
    EXPECT_NE(message.find(library), std::string::npos) << message;
  }
  unsetenv("STARPU_SCHED_LIB");
  EXPECT_EQ(start("starpipe"), "runs starpipe") << "after a refusal";
}

TEST_F(Policies, AreRefusedWhenTheLibraryCannotBeLoaded) {
  setenv("STARPU_SCHED_LIB", "/nonexistent/libsched.so", 1);
  const std::string message = start("starpipe");
  EXPECT_NE(message.find("STARPU_SCHED_LIB: /nonexistent/libsched.so"), std::string::npos) << message;
}

TEST(Ranks, AgreeOnTheFirstProblem) {
  EXPECT_EQ(mpi->first_problem(""), "");
  EXPECT_EQ(mpi->first_problem("on rank " + std::to_string(mpi->rank())), "on rank 0");
  const int ranks = mpi->ranks();
  EXPECT_EQ(mpi->first_problem("on rank " + std::to_string(mpi->rank()), ranks - mpi->rank()),
            "on rank " + std::to_string(ranks - 1));
  const int last = mpi->ranks() - 1;
  EXPECT_EQ(mpi->first_problem(mpi->rank() == last ? "on the last" : ""), "on the last");
  const std::string large(10000, 'x');
  const std::string cut = mpi->first_problem(large);
  EXPECT_EQ(cut, large.substr(0, cut.size()));
  EXPECT_GE(cut.size(), 1000U);
}

TEST(Ranks, CombineNumbersOf64Bits) {
  constexpr std::uint64_t large = ~std::uint64_t{0};
  const std::uint64_t mine = mpi->rank() == 0 ? large : index(mpi->rank());
  const bool alone = mpi->ranks() == 1;
  EXPECT_EQ(mpi->combine(mine, Combine::min), alone ? large : 1);
  EXPECT_EQ(mpi->combine(mine, Combine::max), large);
  EXPECT_EQ(mpi->combine(3, Combine::sum), index(3 * mpi->ranks()));
  EXPECT_EQ(mpi->combine(std::uint64_t{1} << index(mpi->rank()), Combine::bits),
            (std::uint64_t{1} << index(mpi->ranks())) - 1);
  EXPECT_EQ(mpi->share("of rank " + std::to_string(mpi->rank()), mpi->ranks() - 1),
            "of rank " + std::to_string(mpi->ranks() - 1));
}

TEST(Ranks, GatherTexts) {
  const auto said = mpi->gather(std::string(index(3 * mpi->rank()), 'x'));
  ASSERT_EQ(said.size(), index(mpi->ranks()));
  for (std::size_t rank = 0; rank < said.size(); ++rank) EXPECT_EQ(said[rank], std::string(3 * rank, 'x'));
}

// MPI counts in int: a larger sum would have been negative.
TEST(Ranks, GatherAsManyItemsAsMpiCanCount) {
  const GatherPlaces places = gather_places(std::array<std::uint64_t, 3>{max_gathered - 5, 0, 5});
  EXPECT_EQ(places.counts, (std::vector<int>{2147483642, 0, 5}));
  EXPECT_EQ(places.starts, (std::vector<int>{0, 2147483642, 2147483642}));
  EXPECT_EQ(places.total, max_gathered);
  using Counts = std::vector<std::uint64_t>;
  for (const Counts& counts :
       {Counts{max_gathered - 5, 0, 6}, Counts{max_gathered + 1}, Counts{1, std::uint64_t{1} << 63U},
        Counts{std::uint64_t{1} << 63U, std::uint64_t{1} << 63U}}) {
    EXPECT_THROW(gather_places(counts), std::length_error);
  }
}

struct Told {
  int rank = 0;
  std::vector<std::string> words;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Told, rank, words)

TEST(Ranks, GatherNamedFields) {
  const Told mine{.rank = mpi->rank(), .words = std::vector<std::string>(index(mpi->rank()), "\"x\" y")};
  const std::vector<Told> told = gather_all(*mpi, mine);
  ASSERT_EQ(told.size(), index(mpi->ranks()));
  for (int rank = 0; rank < mpi->ranks(); ++rank) {
    EXPECT_EQ(told[index(rank)].rank, rank);
    EXPECT_EQ(told[index(rank)].words, std::vector<std::string>(index(rank), "\"x\" y"));
  }
}

std::string check(int workers, int workers_per_core) {
  RuntimeConfig config;
  config.workers_per_core = workers_per_core;
  return message_of([&] { share_cores(*mpi, WorkerMap(workers, mpi->ranks()), config); });
}

TEST(Devices, CoresCarryALimitedNumberOfWorkers) {
  EXPECT_EQ(check(mpi->ranks(), 100), "");
  const std::string message = check(100000, 1);
  EXPECT_NE(message.find("schedule.workers: 100000 workers put"), std::string::npos) << message;
  EXPECT_NE(message.find("runtime.workers_per_core: 1"), std::string::npos) << message;
  EXPECT_NE(check(100000, 1000000).find("StarPU was built for"), std::string::npos);
}

TEST(Devices, WorkersOnGpusNeedNoCores) {
  RuntimeConfig config;
  config.workers_per_core = 1;
  config.device = {"cuda"};
  EXPECT_NO_THROW(share_cores(*mpi, WorkerMap(100000, mpi->ranks()), config));
  // Each rank has one worker on a GPU and one on a core.
  config.device.clear();
  for (int rank = 0; rank < mpi->ranks(); ++rank) config.device.insert(config.device.end(), {"cuda", "cpu"});
  const WorkerMap map(2 * mpi->ranks(), mpi->ranks());
  config.workers_per_core = 100;
  setenv("STARPU_NCPU", "1", 1);
  EXPECT_NO_THROW(share_cores(*mpi, map, config));
  config.device = {"cpu"};
  EXPECT_THROW(share_cores(*mpi, map, config), InputError);
  unsetenv("STARPU_NCPU");
}

TEST(Devices, ThreadsThatDriveGpusGetTheFirstCores) {
  const auto gpu = [](int number) {
    Device device;
    device.number = number;
    return std::optional(device);
  };
  const std::vector<unsigned> pus = {10, 11, 12, 13, 14};
  using Order = std::vector<unsigned>;
  EXPECT_EQ(cores_in_order(pus, {}), (Order{10, 11, 12, 13, 14}));
  const GpuShare mixed{.gpus = {0, 1}, .workers_each = 1, .devices = {{}, gpu(0), {}, gpu(1), {}}};
  EXPECT_EQ(cores_in_order(pus, mixed), (Order{11, 13, 10, 12, 14}));
  const GpuShare streams{.gpus = {0}, .workers_each = 2, .devices = {gpu(0), gpu(0), {}, {}, {}}};
  EXPECT_EQ(cores_in_order(pus, streams), (Order{10, 12, 13, 14, 11}));
}

TEST(Devices, EveryRankHasAWorker) {
  if (mpi->ranks() == 1) GTEST_SKIP();
  const std::string message = check(mpi->ranks() - 1, 100);
  EXPECT_NE(message.find("some ranks would have none"), std::string::npos) << message;
}

// More ranks than cores, on two ranks.
TEST(Devices, WorkersOnGpusComputeOnNoCore) {
  const std::string allowed = Topology::host().allowed();
  const ProcessBinding one_core(allowed.substr(0, allowed.find_first_of(",-")));
  RuntimeConfig config;
  config.device = {"cuda"};
  const CoreShare share = share_cores(*mpi, WorkerMap(3 * mpi->ranks(), mpi->ranks()), config);
  EXPECT_EQ(share.cores, 1);
  EXPECT_EQ(share.workers, 3 * mpi->ranks()) << "above workers_per_core, if they computed there";
}

TEST(Devices, TheUserMayAllowFewerCores) {
  setenv("STARPU_NCPU", "1", 1);
  const std::string message = check(2 * mpi->ranks(), 100);
  unsetenv("STARPU_NCPU");
  EXPECT_NE(message.find("carries 2 workers, but STARPU_NCPU allows 1"), std::string::npos) << message;
}

TEST(Devices, AMalformedNumberOfCoresIsRefused) {
  for (const char* text : {"two", "2x", "-1"}) {
    const ScopedVariable allowed("STARPU_NCPU", text);
    const std::string message = check(2 * mpi->ranks(), 100);
    EXPECT_EQ(message,
              std::string("STARPU_NCPU: expected a whole number from 0 to 2147483647, got '") + text + "'");
  }
}

std::vector<std::string> whole_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  std::ranges::sort(variables);
  return variables;
}

TEST(Sessions, LeaveTheProcessAsItWas) {
  const ScopedVariable by_user("STARPU_SCHED", "prio");  // hidden from StarPU, which would prefer it
  openblas_set_num_threads(3);
  const std::vector<std::string> before = whole_environment();
  const std::ptrdiff_t threads = thread_count();
  changes = 0;
  {
    RuntimeConfig config;
    const WorkerMap map(2 * mpi->ranks(), mpi->ranks());
    const CoreShare share = share_cores(*mpi, map, config);
    const Session session(*mpi, map, share, find_policy("starpipe", "the test"));
    EXPECT_EQ(session.policy(), "starpipe");
    EXPECT_EQ(environment("STARPU_SCHED"), "");
    EXPECT_EQ(environment("STARPU_WORKERS_NOBIND"), share.worker_pus.empty() ? "1" : "");
    // Each product of oneDNN uses one thread by itself.
    EXPECT_EQ(openblas_get_num_threads(), std::string_view(STARPIPE_PRODUCTS_BY) == "cblas" ? 1 : 3);
    EXPECT_GT(thread_count(), threads);
  }
  EXPECT_EQ(whole_environment(), before);
  EXPECT_EQ(openblas_get_num_threads(), 3);
  EXPECT_EQ(changes, 0) << "of the environment's table, which other threads may be reading";
  openblas_set_num_threads(1);
}

// MPI's threads may read the environment.
TEST(Sessions, TheEnvironmentChangesBeforeMpiHasThreads) {
  EXPECT_EQ(environment("STARPU_SILENT"), "1");
  EXPECT_EQ(environment("STARPU_MPI_NDETACHED_SEND"), "0");
  EXPECT_EQ(environment("STARPU_NWORKER_PER_CUDA"), "1");
  EXPECT_GT(max_threads_at_a_change, 0) << "variables were set";
  EXPECT_LE(max_threads_at_a_change, threads_at_start);
}

TEST(Sessions, KeepVariablesOfTheUser) {
  const ScopedVariable by_user("STARPU_MPI_STATS", "0");
  RuntimeConfig config;
  const WorkerMap map(2 * mpi->ranks(), mpi->ranks());
  const Session session(*mpi, map, share_cores(*mpi, map, config), find_policy("starpipe", "the test"));
  EXPECT_EQ(environment("STARPU_MPI_STATS"), "0");
}

// StarPU-MPI's statistics are not printed, and nothing else is lost.
TEST(Sessions, StandardErrorIsOpenAllTheTime) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const int kept = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  int lines = 0;
  {
    std::jthread other([&lines](const std::stop_token& stop) {
      for (; !stop.stop_requested(); ++lines) {
        dprintf(STDERR_FILENO, "line\n");
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
    RuntimeConfig config;
    const WorkerMap map(2 * mpi->ranks(), mpi->ranks());
    const Session session(*mpi, map, share_cores(*mpi, map, config), find_policy("starpipe", "the test"));
  }
  dup2(kept, STDERR_FILENO);
  close(kept);
  std::rewind(file);
  int seen = 0;
  for (std::array<char, 256> line{}; std::fgets(line.data(), line.size(), file) != nullptr;) {
    EXPECT_STREQ(line.data(), "line\n");
    ++seen;
  }
  EXPECT_EQ(seen, lines);
  std::fclose(file);
}

TEST(Clocks, OfOneHostAreTheSame) {
  EXPECT_EQ(measure_clock_offset(*mpi), 0);
  // As if each rank had a host of its own. Two clocks that are the same may differ by exactly 0 now and then.
  bool differ = false;
  for (int round = 0; round < 20; ++round) {
    const double measured = measure_clock_offset(*mpi, std::to_string(mpi->rank()));
    EXPECT_LT(std::abs(measured), 1) << "a round trip";
    differ = differ || measured != 0;
  }
  EXPECT_EQ(differ, mpi->rank() != 0);
}

TEST(MpiThread, RunsOnTheGivenPus) {
  const auto pus_of_thread = [] {
    std::string pus;
    std::thread([&] {
      note_transfer();
      const std::ifstream status("/proc/thread-self/status");
      std::stringstream text;
      text << status.rdbuf();
      const std::string words = text.str();
      const std::string key = "Cpus_allowed_list:\t";
      const std::size_t begin = words.find(key) + key.size();
      pus = words.substr(begin, words.find('\n', begin) - begin);
    }).join();
    return pus;
  };
  const std::string all = Topology::host().binding();
  EXPECT_EQ(pus_of_thread(), all);
  const std::string first = all.substr(0, all.find_first_of(",-"));
  if (first == all) GTEST_SKIP() << "this host has one PU";
  poll_mpi(Polling::eager, 1, first);
  EXPECT_EQ(pus_of_thread(), first);
  poll_mpi(Polling::eager);
  EXPECT_EQ(pus_of_thread(), all);
}

// Its absence would not fail a run, but each run would end with StarPU-MPI's statistics.
TEST(Session, StarpuHasThePrivateFunctionThatDropsItsStatistics) {
  EXPECT_NE(dlsym(RTLD_DEFAULT, "_starpu_mpi_comm_amounts_shutdown"), nullptr);
}

// Asks StarPU-MPI and MPI themselves, which needs no GPU.
TEST(GpuCopies, TellTheWayBetweenRanks) {
  RuntimeConfig config;
  const WorkerMap map(2 * mpi->ranks(), mpi->ranks());
  const Session session(*mpi, map, share_cores(*mpi, map, config), policy_of(config));
  const GpuCopies copies = find_gpu_copies(*mpi);
  ASSERT_EQ(copies.between_ranks.has_value(), mpi->ranks() > 1);
  EXPECT_EQ(copies.pairs, 0) << "this session has no GPU workers";
#ifdef MPIX_GPU_SUPPORT_CUDA
  if (copies.between_ranks && MPIX_Query_cuda_support() == 0) {
    EXPECT_EQ(*copies.between_ranks, "through the host: this MPI was not built for GPU memory");
  }
#endif
}

}  // namespace
}  // namespace starpipe::runtime
