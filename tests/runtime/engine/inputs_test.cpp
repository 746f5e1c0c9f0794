// SPDX-License-Identifier: Apache-2.0
// Which thread makes the values of inputs and targets. Collective, like engine_test.cpp.
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/engine/engine.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/started_mpi.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/runtime/config/config.hpp"
#include "support/datasets.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

/// Notes the threads that ask for the data.
class Watched final : public OtherData {
 public:
  using OtherData::OtherData;

  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    note();
    OtherData::input(step, microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    note();
    OtherData::target(step, microbatch, out);
  }
  [[nodiscard]] const std::set<std::thread::id>& threads() const { return threads_; }

 private:
  void note() const {
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
  }

  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
};

// A worker that made them would make its next job wait: steps with data of 1 ms took up to 20 % longer.
TEST(Inputs, AreMadeByTheThreadThatRunsTheStep) {
  constexpr int workers = 2;
  constexpr int microbatches = 60;
  RuntimeConfig config = {.timeout = 100};
  config.workers_per_core = workers;
  const WorkerMap map(workers, mpi->ranks());
  const Session session(*mpi, map, share_cores(*mpi, map, config), policy_of(config));
  const model::Network network = tiny_mlp(workers);
  const auto data = data_for(network);
  const auto schedule = plan::make_schedule("1f1b", {.workers = workers, .microbatches = microbatches});
  std::vector<std::vector<float>> losses;
  for (const int window : {30, 10'000}) {
    const Watched watched(*data);
    config.window = window;
    Engine engine(session, schedule, network, plain_sgd, model::given_values(start_values(network)), config);
    for (int step = 0; step < 2; ++step) losses.push_back(engine.run_step(step, watched).losses);
    for (const std::thread::id thread : watched.threads()) EXPECT_EQ(thread, std::this_thread::get_id());
    if (mpi->ranks() == 1) {
      EXPECT_EQ(watched.threads().size(), 1U);
    }
  }
  EXPECT_EQ(losses[0], losses[2]);
  EXPECT_EQ(losses[1], losses[3]);
}

}  // namespace
}  // namespace starpipe::runtime
