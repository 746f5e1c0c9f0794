// SPDX-License-Identifier: Apache-2.0
#include "model/data/make_dataset.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "model/data/binary.hpp"
#include "model/gradients.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

ModelConfig gpt(int context) { return small("gpt", {{"context", context}}); }

ModelConfig table_model(int branches = 1) {
  return small("mlp", {{"inputs", 6}, {"outputs", 2}, {"branches", branches}});
}

std::string all_bytes() {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i * 37 % 256));
  return text;
}

TEST(Validation, IsTheBeginningOfTheFile) {
  const Folder folder;
  const DataConfig config = {.kind = "text", .path = "none", .validation = folder.write("v", "abcdefghijkl")};
  const auto data = make_validation(config, gpt(5), {.microbatch_size = 1}, 1);
  Guarded input(5);
  for (const auto& [microbatch, first] : {std::pair{0, 'a'}, {1, 'f'}, {2, 'a'}}) {
    data->input(0, microbatch, 0, input);
    EXPECT_EQ(input.span()[0], static_cast<float>(first)) << microbatch;
  }
  const DataConfig small = {.kind = "text", .path = "none", .validation = folder.write("s", "abcde")};
  expect_input_error([&] { make_validation(small, gpt(5), {}, 1); }, "data.validation");
  expect_input_error([&] { make_validation({}, gpt(5), {}, 1); }, "data.validation");
}

// The same task as the training's, and other samples.
TEST(Validation, OfMadeUpData) {
  const auto sample = [](const Dataset& data) {
    std::vector<float> input(6);
    data.input(0, 0, 0, input);
    return input;
  };
  const DataConfig config = {.kind = "synthetic"};
  const auto training = make_dataset(config, table_model(), {}, 1);
  const auto validation = make_validation(config, table_model(), {}, 1);
  EXPECT_NE(sample(*validation), sample(*training));
  EXPECT_EQ(sample(*validation), sample(*make_validation(config, table_model(), {}, 1)));
}

TEST(Text, TokensAreTheBytesAtTheOffsets) {
  const Folder folder;
  const std::string text = all_bytes();
  const auto data = make_dataset({"text", folder.write("t", text)}, gpt(5), {.microbatch_size = 3}, 1);
  EXPECT_EQ(data->sample_word(), "tokens");
  EXPECT_EQ(data->samples_per_microbatch(), 15u);
  std::set<std::uint64_t> seen;
  for (int b = 0; b < 20; ++b) {
    const std::vector<std::uint64_t> offsets = data->offsets(4, b);
    ASSERT_EQ(offsets.size(), 3u);
    Guarded input(15);
    Guarded target(15);
    data->input(4, b, 0, input);
    data->target(4, b, target);
    for (std::size_t s = 0; s < 3; ++s) {
      ASSERT_LE(offsets[s], text.size() - 5 - 1);
      seen.insert(offsets[s]);
      for (std::size_t t = 0; t < 5; ++t) {
        EXPECT_EQ(input.span()[5 * s + t], static_cast<unsigned char>(text[offsets[s] + t]));
        EXPECT_EQ(target.span()[5 * s + t], static_cast<unsigned char>(text[offsets[s] + t + 1]));
      }
    }
  }
  EXPECT_GT(seen.size(), 40u);  // of 60 draws from 251
}

TEST(Text, OffsetsReachBothEnds) {
  const Folder folder;
  const auto data = make_dataset({"text", folder.write("t", "abcdefgh")}, gpt(5), {.microbatch_size = 1}, 1);
  std::set<std::uint64_t> seen;
  for (int step = 0; step < 200; ++step) seen.insert(data->offsets(step, 0)[0]);
  EXPECT_EQ(seen, (std::set<std::uint64_t>{0, 1, 2}));
}

TEST(Text, TheShortestFileHasOneOffset) {
  const Folder folder;
  const auto data = make_dataset({"text", folder.write("t", "abcdef")}, gpt(5), {.microbatch_size = 2}, 1);
  EXPECT_EQ(data->offsets(0, 0), (std::vector<std::uint64_t>{0, 0}));
  Floats target(10);
  data->target(0, 0, target);
  EXPECT_EQ(target[4], 'f');
}

TEST(Text, DependsOnSeedStepMicrobatchAndSequence) {
  const Folder folder;
  const auto file = folder.write("t", std::string(100000, 'x'));
  const auto one = make_dataset({"text", file}, gpt(5), {.microbatch_size = 4}, 1);
  const auto same = make_dataset({"text", file}, gpt(5), {.microbatch_size = 4}, 1);
  const auto other = make_dataset({"text", file}, gpt(5), {.microbatch_size = 4}, 2);
  const auto smaller = make_dataset({"text", file}, gpt(5), {.microbatch_size = 2}, 1);
  const auto offsets = one->offsets(3, 2);
  EXPECT_EQ(same->offsets(3, 2), offsets);
  EXPECT_NE(other->offsets(3, 2), offsets);
  EXPECT_NE(one->offsets(2, 3), offsets);
  EXPECT_NE(one->offsets(3, 1), offsets);
  EXPECT_EQ(std::set<std::uint64_t>(offsets.begin(), offsets.end()).size(), 4u);
  EXPECT_EQ(smaller->offsets(3, 2), (std::vector<std::uint64_t>{offsets[0], offsets[1]}));
}

TEST(Text, FilesThatCannotWorkAreNamed) {
  const Folder folder;
  const auto refused = [&](const std::filesystem::path& path, const std::string& part) {
    expect_input_error([&] { make_dataset({"text", path}, gpt(5), {.microbatch_size = 1}, 1); }, part);
  };
  refused(folder / "absent", (folder / "absent").string() + ": cannot be read: No such file");
  refused(folder.path(), folder.path().string() + ": is not a file");
  refused(folder.write("empty", ""), "empty has 0 tokens, fewer than model.context + 1 = 6");
  refused(folder.write("short", "abcde"), "short has 5 tokens, fewer than model.context + 1 = 6");
  refused({}, "data.path");
}

TEST(Tokens, AreTheNumbersAtTheOffsets) {
  const Folder folder;
  std::vector<std::uint16_t> numbers;
  for (unsigned i = 0; i < 3000; ++i) numbers.push_back(static_cast<std::uint16_t>(i * 7919 % 50'257));
  const auto file = folder.write("t", bytes_of_numbers(numbers));
  ModelConfig model = gpt(5);
  model.options["vocabulary"] = 50'257;
  for (const SampleOrder order : {SampleOrder::random, SampleOrder::shuffled}) {
    const auto data = make_dataset({"tokens", file, order}, model, {.microbatch_size = 4}, 1);
    EXPECT_EQ(data->sample_word(), "tokens");
    EXPECT_EQ(data->samples_per_microbatch(), 20U);
    const std::vector<std::uint64_t> offsets = data->offsets(3, 0);
    Guarded input(20);
    Guarded target(20);
    data->input(3, 0, 0, input);
    data->target(3, 0, target);
    input.expect_whole("input");
    target.expect_whole("target");
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(input.span()[i], numbers[offsets[i / 5] + i % 5]);
      EXPECT_EQ(target.span()[i], numbers[offsets[i / 5] + i % 5 + 1]);
    }
  }
  model.options["vocabulary"] = 1000;
  expect_input_error(
      [&] {
        make_dataset({"tokens", file}, model, {}, 1);
      },
      file.string() + ": token 7919 at position 1 is not below model.vocabulary, 1000");
}

TEST(Tokens, FilesThatCannotWorkAreNamed) {
  const Folder folder;
  const auto refused = [&](const std::filesystem::path& path, const std::string& part) {
    expect_input_error([&] { make_dataset({"tokens", path}, gpt(5), {}, 1); }, part);
  };
  refused(folder.write("empty", ""), "empty has 0 tokens, fewer than model.context + 1 = 6");
  refused(folder.write("context", std::string(10, 'x').replace(1, 9, 9, '\0')),
          "context has 5 tokens, fewer than model.context + 1 = 6");
  refused(folder.write("odd", "abc"), "odd: has 3 bytes, an odd number");
  refused({}, "data.path: is needed for data.kind tokens");
}

TEST(Text, NeedsAVocabularyOfAllBytes) {
  ModelConfig model = gpt(5);
  model.options["vocabulary"] = 255;
  expect_input_error(
      [&] {
        make_dataset({"text", "x"}, model, {}, 1);
      },
      "model.vocabulary: 255 is less than 256, which data.kind text needs");
}

TEST(MakeDataset, KindsMustFitTheModel) {
  expect_input_error(
      [] {
        make_dataset({"images", ""}, gpt(5), {.microbatch_size = 1}, 1);
      },
      "data.kind: images");
  expect_input_error(
      [] {
        make_dataset({"synthetic", ""}, gpt(5), {.microbatch_size = 1}, 1);
      },
      "does not fit model.kind gpt, which reads text or tokens");
  expect_input_error(
      [] {
        make_dataset({"text", "x"}, table_model(), {.microbatch_size = 1}, 1);
      },
      "does not fit model.kind mlp");
}

TEST(Synthetic, IsAFixedFunctionOfNormalFeatures) {
  const auto data = make_dataset({"synthetic", ""}, table_model(), {.microbatch_size = 500}, 1);
  EXPECT_EQ(data->sample_word(), "samples");
  EXPECT_EQ(data->samples_per_microbatch(), 500u);
  EXPECT_TRUE(data->offsets(0, 0).empty());
  Guarded x(3000);
  Guarded y(1000);
  data->input(0, 0, 0, x);
  data->target(0, 0, y);
  x.expect_whole("input");
  y.expect_whole("target");
  EXPECT_NEAR(dot(x.span(), x.span()) / 3000, 1, 0.15);
  const double spread = dot(y.span(), y.span()) / 1000;
  EXPECT_GT(spread, 0.05);
  EXPECT_LT(spread, 5);

  const auto same = make_dataset({"synthetic", ""}, table_model(), {.microbatch_size = 500}, 1);
  Floats x2(3000);
  Floats y2(1000);
  same->input(0, 0, 0, x2);
  same->target(0, 0, y2);
  EXPECT_TRUE(std::equal(x2.begin(), x2.end(), x.span().begin()));
  EXPECT_TRUE(std::equal(y2.begin(), y2.end(), y.span().begin()));
  same->input(0, 1, 0, x2);
  EXPECT_FALSE(std::equal(x2.begin(), x2.end(), x.span().begin()));
  same->input(1, 0, 0, x2);
  EXPECT_FALSE(std::equal(x2.begin(), x2.end(), x.span().begin()));
}

TEST(Synthetic, BranchesShareTheFeatures) {
  const auto whole = make_dataset({"synthetic", ""}, table_model(), {.microbatch_size = 4}, 1);
  const auto shared = make_dataset({"synthetic", ""}, table_model(3), {.microbatch_size = 4}, 1);
  Floats x(24);
  whole->input(2, 1, 0, x);
  for (std::size_t branch = 0; branch < 3; ++branch) {
    Floats part(8);
    shared->input(2, 1, static_cast<int>(branch), part);
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(part[2 * r], x[6 * r + 2 * branch]);
      EXPECT_EQ(part[2 * r + 1], x[6 * r + 2 * branch + 1]);
    }
  }
  Floats y(8);
  Floats z(8);
  whole->target(2, 1, y);
  shared->target(2, 1, z);
  EXPECT_EQ(y, z);
}

}  // namespace
}  // namespace starpipe::model
