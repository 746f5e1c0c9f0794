// SPDX-License-Identifier: Apache-2.0
// The main() of the engine's tests.
//
// --workers=N (4): logical workers. --device=cpu|cuda|mixed: their devices. --policy=NAME: the scheduling
// policy. --slots=linear|reversed: the workers' slots. --copies=no|yes: the session can copy stashes.
// --stall=yes|gathering: no tests; rank 1 stops answering, for fault_test.py.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>

#include "runtime/engine/engine_run.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/cuda_devices.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/lost_rank.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "support/network_schedules.hpp"
#include "support/rank_reports.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

/// Rank 0 waits for rank 1, which never comes: to the second step, or to the gathering of the weights. The
/// watchdog must end both. Returns only if the watchdog fails.
int stall(bool in_gathering) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = workers(), .microbatches = 2});
  Engine engine(*session, schedule, network, sgd, model::given_values(start_values(network)), {.timeout = 2});
  engine.run_step(0, *data);
  if (in_gathering) {
    if (session->mpi().rank() == 1) std::raise(SIGSTOP);
    return engine.parameters().empty() ? 1 : 0;
  }
  if (session->mpi().rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(2));
  engine.run_step(1, *data);
  return 0;
}

/// Returns the value of `--name=value`, or `otherwise`.
std::string option(int argc, char** argv, std::string_view name, std::string otherwise) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(name) && argument.size() > name.size() && argument[name.size()] == '=') {
      otherwise = argument.substr(name.size() + 1);
    }
  }
  return otherwise;
}

int run(int argc, char** argv) {
  openblas_set_num_threads(1);
  const StartedMpi library;
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const Mpi mpi(MPI_COMM_WORLD, {.message = {}, .abort = [=](const std::string& reason) {
                                   report_and_end_job(rank, ranks, reason);
                                 }});
  report_on_rank_0(mpi.comm());
  Config whole;
  RuntimeConfig& config = whole.runtime;
  config.policy = option(argc, argv, "--policy", "starpipe");
  // "mixed": cores and GPUs in turn.
  const std::string device = option(argc, argv, "--device", "cpu");
  const int count = std::stoi(option(argc, argv, "--workers", "4"));
  config.device = {device};
  if (device == "mixed") {
    config.device.clear();
    for (int worker = 0; worker < count; ++worker)
      config.device.emplace_back(worker % 2 == 0 ? "cuda" : "cpu");
  }
  if (config.uses_gpus() && cuda_devices().empty()) {
    if (mpi.rank() == 0) std::puts("skipped: no CUDA device");
    return 77;
  }
  WorkerMap map(count, mpi.ranks());
  if (option(argc, argv, "--slots", "linear") == "reversed") {
    std::vector<int> slots;
    for (int worker = 0; worker < map.workers(); ++worker) slots.push_back(map.workers() - 1 - worker);
    map = WorkerMap(mpi.ranks(), std::move(slots));
  }
  const Session started(mpi, map, share_cores(mpi, map, config), configured_policy(whole),
                        share_gpus(mpi, map, config), option(argc, argv, "--copies", "no") == "yes");
  session = &started;
  const std::string stalls = option(argc, argv, "--stall", "no");
  if (stalls != "no") return stall(stalls == "gathering");
  return run_all_tests(mpi.comm());
}

}  // namespace
}  // namespace starpipe::runtime

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return starpipe::runtime::run(argc, argv);
}
