// SPDX-License-Identifier: Apache-2.0
// Results of steps that are spoilt in one place: each is found, and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/reference.hpp"
#include "model/weights.hpp"
#include "runtime/api/verify.hpp"
#include "support/datasets.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int microbatches = 3;

/// The results of two steps of a right run. The tests spoil them.
class Spoilt : public ::testing::Test {
 protected:
  Spoilt() : network_(tiny_mlp(2)), data_(data_for(network_)) {
    optimizer_.clip = 0.1;
    start_ = model::start_parameters(network_, 1);
    for (int steps = 1; steps <= 2; ++steps) {
      const auto run = model::train_reference(network_, *data_, optimizer_, start_, microbatches, steps);
      const auto before =
          steps == 1
              ? start_
              : model::train_reference(network_, *data_, optimizer_, start_, microbatches, 1).parameters;
      Step result;
      result.number = steps - 1;
      for (const double loss :
           model::expected_gradient(network_, *data_, before, microbatches, steps - 1).losses) {
        result.losses.push_back(static_cast<float>(loss));
      }
      result.gradient_norm = run.norms.back();
      results_.push_back(result);
      gradients_.push_back(run.gradients);
      parameters_.push_back(run.parameters);
    }
  }

  [[nodiscard]] std::string problem() const {
    StepComparison comparison(network_, *data_, microbatches, optimizer_, start_,
                              rounding_tolerance(model::Precision::fp32, false, microbatches * 2));
    for (std::size_t s = 0; s < 2; ++s) comparison.add(results_[s], gradients_[s], parameters_[s]);
    EXPECT_EQ(comparison.json()["agrees"], comparison.problem().empty());
    return comparison.problem();
  }

  model::Network network_;
  std::unique_ptr<model::Dataset> data_;
  model::OptimizerConfig optimizer_;
  std::vector<std::vector<float>> start_;
  std::vector<Step> results_;
  std::vector<std::vector<std::vector<float>>> gradients_;
  std::vector<std::vector<std::vector<float>>> parameters_;
};

TEST_F(Spoilt, NothingIsNot) { EXPECT_EQ(problem(), ""); }

TEST_F(Spoilt, Loss) {
  results_[1].losses[2] *= 1.001F;
  EXPECT_THAT(problem(), StartsWith("verify: step 2: the loss of micro-batch 2 differs by "));
}

TEST_F(Spoilt, Norm) {
  *results_[0].gradient_norm *= 1.001;
  EXPECT_THAT(problem(), StartsWith("verify: step 1: the gradient norm differs by "));
}

TEST_F(Spoilt, Gradient) {
  gradients_[1][1].back() *= 1.01F;
  EXPECT_THAT(problem(), StartsWith("verify: step 2, stage 1: the gradient of head.bias differs by "));
}

TEST_F(Spoilt, Update) {
  parameters_[0][0].front() += 1e-5F;
  EXPECT_THAT(problem(), StartsWith("verify: step 1, stage 0: the update of layers.0.weight differs by "));
}

TEST_F(Spoilt, UpdateOfAnotherLearningRate) {
  optimizer_.learning_rate *= 1.001;
  EXPECT_THAT(problem(), HasSubstr("the update of layers.0.weight differs by "));
}

TEST_F(Spoilt, UpdateThatWasSkippedForNoReason) {
  results_[1].skipped = true;
  parameters_[1] = parameters_[0];
  EXPECT_THAT(problem(), StartsWith("verify: step 2: the update, which was skipped, differs by inf"));
}

TEST_F(Spoilt, ValueThatIsNotFinite) {
  gradients_[0][0][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(problem(), HasSubstr("stage 0: the gradient of layers.0.weight differs by inf"));
}

TEST_F(Spoilt, WeightsOfAFileWhoseGradientsAreRoundingErrors) {
  const auto undecided = [&](const std::vector<std::vector<float>>& of_file) {
    const double rounding = rounding_tolerance(model::Precision::fp32, true, microbatches * 2);
    StepComparison comparison(network_, *data_, microbatches, optimizer_, start_, rounding);
    for (std::size_t s = 0; s < 2; ++s) comparison.add(results_[s], gradients_[s], parameters_[s]);
    comparison.add_file_weights(start_, of_file, 0.01, rounding);
    std::vector<std::string> wrong;
    for (const Difference& d : comparison.all()) {
      if (d.what == Compared::file_weights && !d.agrees()) wrong.push_back(d.name);
    }
    return std::pair{wrong, comparison.json()["undecided_weights"].get<int>()};
  };
  using Wrong = std::vector<std::string>;
  auto of_file = parameters_[1];
  const int before = undecided(of_file).second;
  EXPECT_EQ(undecided(of_file).first, Wrong{});
  of_file[0].front() += static_cast<float>(optimizer_.learning_rate);  // an update of either sign
  EXPECT_EQ(undecided(of_file).first, Wrong{"layers.0.weight"});
  gradients_[1][0].front() = 1e-10F;
  EXPECT_EQ(undecided(of_file), std::pair(Wrong{}, before + 1));
  optimizer_.kind = "sgd";  // its update is as small as the gradient
  EXPECT_EQ(undecided(of_file), std::pair(Wrong{"layers.0.weight"}, 0));
}

TEST(RoundingTolerance, GrowsWithTheRootOfAdditions) {
  const double one = rounding_tolerance(model::Precision::bf16, false, 1);
  EXPECT_EQ(one, 0x1p-21);
  EXPECT_EQ(rounding_tolerance(model::Precision::fp32, false, 1e4), 100 * one);
  EXPECT_GT(rounding_tolerance(model::Precision::bf16, true, 1), 0x1p-9);
}

}  // namespace
}  // namespace starpipe::runtime
