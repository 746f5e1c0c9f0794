// SPDX-License-Identifier: Apache-2.0
// Runtime: the ranks that it has, how long it may live, and what its ranks learn of each other's mistakes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/api/small_training.hpp"
#include "starpipe/starpipe.hpp"
#include "support/message_of.hpp"

namespace starpipe {
namespace {

TEST(Runtime, SeveralFollowEachOther) {
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) {
    Runtime runtime;
    Trainer trainer(runtime, mlp(), {.schedule = pipeline()});
    losses.push_back(losses_of(trainer, 2).back());
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(Runtime, AProcessHasOneAndItHasOneTrainer) {
  Runtime runtime;
  EXPECT_THROW(Runtime(MPI_COMM_WORLD), std::logic_error);
  Trainer trainer(runtime, mlp());
  EXPECT_THROW(Trainer(runtime, mlp()), std::logic_error);
}

TEST(Runtime, PartsOfTheWorldTrainTheirOwnModels) {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int part_ranks = ranks < 4 ? 1 : 2;  // of parts whose ranks are not neighbours in the world
  const int color = rank % (ranks / part_ranks);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, color, 0, &part);
  int alone = 0;
  {
    Runtime runtime(part);
    EXPECT_EQ(runtime.ranks(), part_ranks);
    Config config = mlp(3 + color);
    config.training.seed = static_cast<std::uint64_t>(color) + 1;
    Trainer trainer(runtime, config);
    EXPECT_TRUE(trainer.run());
    alone = trainer.steps_done();
  }
  EXPECT_EQ(alone, 3 + color);
  MPI_Comm_free(&part);
  Runtime together;  // and the whole world after it
  Config config = mlp();
  config.schedule.workers = std::max(2, ranks);
  Trainer trainer(together, config);
  EXPECT_TRUE(std::isfinite(trainer.step().loss.value()));
}

TEST(Runtime, NeedsRanksAndMpiOnce) {
  EXPECT_THROW(Runtime(MPI_COMM_NULL), std::logic_error);
  EXPECT_THROW(MpiLibrary(), std::logic_error);
  EXPECT_GE(Runtime().ranks(), 1) << "MPI runs as before";
}

TEST(Runtime, AgreesOnFunctionsWithoutAValue) {
  Runtime runtime;
  int calls = 0;
  runtime.agree([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  const auto fails = [&] {
    if (runtime.rank() == 0) throw InputError("rank 0 sees it");
  };
  EXPECT_EQ(message_of<InputError>([&] { runtime.agree(fails); }), "rank 0 sees it");
}

TEST(Runtime, SharesMistakes) {
  Runtime runtime;
  const int last = runtime.ranks() - 1;
  EXPECT_EQ(message_of<InputError>([&] {
              runtime.agree([&] {
                if (runtime.rank() == last) throw InputError("only here");
                return 1;
              });
            }),
            "only here");
  EXPECT_EQ(runtime.agree([] { return 7; }), 7);
  EXPECT_EQ(message_of<RunFailure>([&] { runtime.fail("all", 3); }), "all");
}

// Death tests fork the rank: the copy tells the reason and ends before MPI_Abort would.
RuntimeOptions ends_the_copy() {
  return {.on_abort = [](const std::string& reason) {
    static_cast<void>(!write(STDERR_FILENO, reason.data(), reason.size()));
    _exit(3);
  }};
}

TEST(Runtime, EndsAfterItsTrainer) {
  auto runtime = std::make_unique<Runtime>(MPI_COMM_WORLD, ends_the_copy());
  const Trainer trainer(*runtime, mlp());
  EXPECT_EXIT(runtime.reset(), ::testing::ExitedWithCode(3), "the Runtime ends before its Trainer");
}

// An InputError that was thrown before, on every rank, says nothing about the exception.
TEST(Runtime, AnExceptionOfOneRankEndsTheOthers) {
  Runtime runtime(MPI_COMM_WORLD, ends_the_copy());
  EXPECT_THROW(Trainer(runtime, mlp(), {.weights = {{{1.0F}}}}), InputError);
  auto trainer = std::make_unique<Trainer>(runtime, mlp());
  if (runtime.ranks() == 1) return;  // there is no other
  const auto fails = [&] {
    const auto ended = std::move(trainer);
    throw std::runtime_error("mine");
  };
  EXPECT_EXIT(fails(), ::testing::ExitedWithCode(3), "an exception of the program");
}

// Ends all ranks of this program. tests/runtime/CMakeLists.txt says with which line.
TEST(Runtime, DISABLED_AnExceptionOfAnyTypeEndsTheOthers) {
  Runtime runtime;
  Trainer trainer(runtime, mlp());
  trainer.on_step([&](const Step&) {
    if (runtime.rank() == 1) throw 42;
  });
  trainer.run();
}

}  // namespace
}  // namespace starpipe
