// SPDX-License-Identifier: Apache-2.0
// Data that are larger than StarPU or MPI can count. Nothing is allocated.
#include "runtime/engine/data_sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/engine/kernels.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Sizes {
  int hidden;
  int microbatch_size;
  model::Precision precision = model::Precision::fp32;
  int ranks = 1;
};

// Returns the refusal of two stages of three layers each; empty if they fit.
std::string refusal(const Sizes& sizes) {
  model::ModelConfig config = small("mlp", {{"layers", 6}, {"hidden", sizes.hidden}});
  config.precision = sizes.precision;
  const model::Network network = model::build_network(config, sizes.microbatch_size, 2);
  const plan::Schedule schedule =
      plan::make_schedule("1f1b", {.workers = 2, .microbatches = 2, .graph = network.graph});
  return message_of([&] {
    check_data_sizes(TaskGraph(schedule, network, {.kind = "sgd"}), schedule, network,
                     WorkerMap(2, sizes.ranks));
  });
}

TEST(DataSizes, FitOrAreRefused) {
  EXPECT_EQ(refusal({.hidden = 1000, .microbatch_size = 1000}), "");
  EXPECT_EQ(refusal({.hidden = 30'000, .microbatch_size = 1}), "");  // 1.8e9 words of weights
  EXPECT_THAT(refusal({.hidden = 60'000, .microbatch_size = 1}),
              AllOf(HasSubstr("stage 0: its weights"), HasSubstr("at most 4294967295")));
  EXPECT_THAT(refusal({.hidden = 4000, .microbatch_size = 500'000}),
              AllOf(HasSubstr("stage"), HasSubstr("stash"), HasSubstr("at most 4294967295")));
}

// The weights in bf16 alone would fit. Their gradients are in fp32, and so are copies in the scratch memory
// on a processor without products in bf16.
TEST(DataSizes, CountWhatIsLargerThanWeightsInBf16) {
  const Sizes sizes{.hidden = 55'000, .microbatch_size = 1, .precision = model::Precision::bf16};
  EXPECT_THAT(refusal(sizes), HasSubstr("words"));
  EXPECT_THAT(refusal({.hidden = 40'000, .microbatch_size = 350'000, .precision = model::Precision::bf16}),
              HasSubstr("at most 4294967295"));
}

TEST(DataSizes, CountTheBytesOfMessages) {
  Sizes sizes{.hidden = 1000, .microbatch_size = 600'000};  // 2.4e9 bytes of activations
  EXPECT_EQ(refusal(sizes), "");
  sizes.ranks = 2;
  EXPECT_THAT(refusal(sizes), AllOf(HasSubstr("at most 2147483647 bytes"), HasSubstr("stage 0")));
}

// Attention of a slice gathers the keys of all slices before. In a narrow network it needs more scratch than
// the passes on whole sequences.
TEST(ScratchSize, IsEnoughForEachSlice) {
  model::ModelConfig config = small(
      "llama",
      {{"layers", 1}, {"heads", 1}, {"kv_heads", 1}, {"hidden", 64}, {"intermediate", 64}, {"context", 128}});
  config.slices = 2;
  const model::Network network = model::build_network(config, 1, 3, {1, 2});
  const plan::Schedule schedule =
      plan::make_schedule("1f1b", {.workers = 3, .microbatches = 2, .slices = 2, .graph = network.graph});
  bool is_larger = false;
  for (int stage = 0; stage < 3; ++stage) {
    const std::size_t words = scratch_size(schedule, network, stage, false);
    for (int slice = 0; slice < 2; ++slice) EXPECT_GE(words, network.stage(stage, slice).scratch_size());
    is_larger = is_larger || words > network.stages[index(stage)].scratch_size();
  }
  EXPECT_TRUE(is_larger);
}

}  // namespace
}  // namespace starpipe::runtime
