// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/checkpoint/checkpoints.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/shell.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}
using Names = std::vector<std::string>;

TEST(Checkpoint, WhatWasWrittenIsFoundAndRead) {
  const Folder folder;
  const fs::path checkpoints = folder / "new/ckpt";
  EXPECT_FALSE(find_newest(checkpoints).manifest);  // there is no folder yet
  const Manifest manifest = write_parts(checkpoints, 40);
  EXPECT_FALSE(find_newest(checkpoints).manifest);
  EXPECT_EQ(find_newest(checkpoints).unfinished.size(), 1u);
  EXPECT_FALSE(has_checkpoints(checkpoints));

  const Committed committed = commit(checkpoints, manifest, 1);
  EXPECT_TRUE(committed.warnings.empty());
  EXPECT_EQ(names_in(checkpoints), (Names{"step-00000040"}));
  EXPECT_EQ(names_in(committed.directory),
            (Names{"manifest.json", "rank-0000.safetensors", "rank-0001.safetensors"}));
  const Found found = find_newest(checkpoints);
  ASSERT_TRUE(found.manifest);
  EXPECT_EQ(*found.manifest, manifest);
  EXPECT_EQ(found.directory, committed.directory);
  EXPECT_TRUE(found.damaged.empty());
  EXPECT_TRUE(found.unfinished.empty());
  EXPECT_TRUE(has_own_values(found));

  CheckpointReader reader(found.directory, *found.manifest);
  EXPECT_EQ(*reader.shape("rank1.weight"), (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(reader.shape("rank2.weight"), nullptr);
  EXPECT_EQ(reader.names(), (Names{"optimizer:first_moment:rank0.weight",
                                   "optimizer:first_moment:rank1.weight", "rank0.weight", "rank1.weight"}));
  std::vector<float> values(6);
  expect_input_error([&] { reader.read("rank2.weight", values); },
                     "step-00000040: tensor rank2.weight: is missing");
  values.resize(5);
  expect_input_error([&] { reader.read("rank1.weight", values); },
                     "rank-0001.safetensors: tensor rank1.weight: has 6 values, not 5");
}

TEST(Checkpoint, EveryBitOfAValueComesBack) {
  const Folder folder;
  const std::vector<float> values = {-0.0F, std::numeric_limits<float>::denorm_min(),
                                     -std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN(), 0.1F};
  const std::vector<TensorView> tensors = {
      {"values", {5}, values}, {"scalar", {}, {values.data(), 1}}, {"empty", {0, 3}, {}}};
  const Manifest manifest{0, nullptr, {write_part(folder.path(), 0, 0, tensors)}};
  commit(folder.path(), manifest, 1);
  const Found found = find_newest(folder.path());
  ASSERT_TRUE(found.manifest);
  CheckpointReader reader(found.directory, *found.manifest);
  std::vector<float> read(5);
  reader.read("values", read);
  EXPECT_EQ(std::memcmp(read.data(), values.data(), 20), 0);
  reader.read("empty", {});
  EXPECT_EQ(*reader.shape("scalar"), std::vector<std::size_t>{});
}

TEST(Checkpoint, AnyRunDataComesBack) {
  const Folder folder;
  const nlohmann::json run = {{"text", "a\nb \"c\" \xc3\xa9"},
                              {"loss", 0.1},
                              {"tiny", -0.0},
                              {"seed", 18446744073709551615U},
                              {"list", {1, nullptr, true}}};
  commit(folder.path(), {3, run, {}}, 1);
  EXPECT_EQ(find_newest(folder.path()).manifest->run, run);
  // Values that JSON cannot hold do not cost the checkpoint.
  commit(folder.path(), {4, {{"path", "\xff"}, {"loss", std::nan("")}}, {}}, 1);
  EXPECT_EQ(find_newest(folder.path()).manifest->run,
            (nlohmann::json{{"path", "\xef\xbf\xbd"}, {"loss", nullptr}}));
}

TEST(Checkpoint, OtherProgramsCanCheckAndReadIt) {
  const Folder folder;
  const Committed committed = write_checkpoint(folder.path(), 40);
  const auto script = folder.write("read.py", R"(
import json, struct, sys, zlib
manifest = json.load(open(sys.argv[1] + '/manifest.json'))
assert manifest['step'] == 40 and manifest['run']['samples'] == 1280
part = manifest['parts'][1]
data = open(sys.argv[1] + '/' + part['file'], 'rb').read()
assert len(data) == part['bytes'] and '%08x' % zlib.crc32(data) == part['crc32']
length = struct.unpack('<Q', data[:8])[0]
begin, end = json.loads(data[8:8 + length])['rank1.weight']['data_offsets']
values = data[8 + length + begin:8 + length + end]
assert part['tensors'][0] == {'name': 'rank1.weight', 'shape': [2, 3]}
print(struct.unpack('<6f', values))
)");
  const auto result = shell(STARPIPE_PYTHON " " + script.string() + " " + committed.directory.string());
  EXPECT_EQ(result.output, "(39.0, 39.25, 39.5, 39.75, 40.0, 40.25)\n");
}

TEST(Checkpoint, TheNewestStay) {
  const Folder folder;
  for (const int step : {9, 10, 100, 200}) write_checkpoint(folder.path(), step, 2);
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000100", "step-00000200"}));
  EXPECT_EQ(find_newest(folder.path()).manifest->step, 200);
  write_checkpoint(folder.path(), 123456789012, 1);  // by number, not by name
  EXPECT_EQ(names_in(folder.path()), (Names{"step-123456789012"}));
}

TEST(Checkpoint, OneWithoutAllFilesDoesNotCountAsKept) {
  const Folder folder;
  for (const int step : {1, 2, 3}) write_checkpoint(folder.path(), step);
  fs::remove(folder / "step-00000003/rank-0001.safetensors");
  write_checkpoint(folder.path(), 4, 2);
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000002", "step-00000003", "step-00000004"}));
}

TEST(Checkpoint, ASecondOneOfAStepDoesNotTouchTheFirst) {
  const Folder folder;
  const Committed first = write_checkpoint(folder.path(), 40);
  const std::string manifest = bytes_of(first.directory / "manifest.json");
  const Committed second = write_checkpoint(folder.path(), 40);
  EXPECT_EQ(second.directory, folder / "step-00000040.2");
  EXPECT_EQ(bytes_of(first.directory / "manifest.json"), manifest);
  EXPECT_EQ(find_newest(folder.path()).directory, second.directory);
  write_checkpoint(folder.path(), 40, 1);
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000040.3"}));
}

TEST(Checkpoint, FilesOfARunThatEndedWhileItWroteAreNoPartOfIt) {
  const Folder folder;
  write_parts(folder.path(), 40, 3);
  const Committed committed = write_checkpoint(folder.path(), 40, 1, 2);
  EXPECT_EQ(names_in(committed.directory),
            (Names{"manifest.json", "rank-0000.safetensors", "rank-0001.safetensors"}));
}

TEST(Checkpoint, WhatIsLeftOfEarlierOnesIsRemoved) {
  const Folder folder;
  write_parts(folder.path(), 40, 3);
  write_checkpoint(folder.path(), 30);
  fs::rename(folder / "step-00000030", folder / "step-00000030.removing");
  write_checkpoint(folder.path(), 50);
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000050"}));
}

TEST(Checkpoint, WritingTheNextPartsDoesNotDisturbACommit) {
  const Folder folder;
  const Manifest now = write_parts(folder.path(), 40);
  const Manifest next = write_parts(folder.path(), 50);
  commit(folder.path(), now, 1);
  commit(folder.path(), next, 1);
  EXPECT_TRUE(has_own_values(find_newest(folder.path())));
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000050"}));
}

TEST(Checkpoint, RanksWriteAtOnce) {
  const Folder folder;
  for (int step = 1; step <= 5; ++step) {
    Manifest manifest{step, {}, std::vector<PartRecord>(4)};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&, rank] {
        manifest.parts[static_cast<std::size_t>(rank)] = part_from_json(
            part_to_json(write_part(folder.path(), step, rank, RankTensors(step, rank).views())));
      });
    }
    for (std::thread& rank : ranks) rank.join();
    commit(folder.path(), manifest, 2);
    EXPECT_TRUE(has_own_values(find_newest(folder.path()), 4));
  }
}

TEST(Checkpoint, ImpossibleContentIsRefused) {
  const Folder folder;
  const std::vector<float> values(6);
  const std::vector<TensorView> twice = {{"a", {6}, values}, {"a", {2, 3}, values}};
  EXPECT_THROW(write_part(folder.path(), 1, 0, twice), std::invalid_argument);
  const std::vector<TensorView> misshaped = {{"a", {7}, values}};
  EXPECT_THROW(write_part(folder.path(), 1, 0, misshaped), std::invalid_argument);
  Manifest manifest = write_parts(folder.path(), 1);
  EXPECT_THROW(commit(folder.path(), manifest, 0), std::invalid_argument);
  manifest.parts[1].tensors[0].name = manifest.parts[0].tensors[0].name;  // a tensor of two ranks
  EXPECT_THROW(commit(folder.path(), manifest, 1), std::invalid_argument);
  manifest = write_parts(folder.path(), 1);
  manifest.parts.push_back(manifest.parts[0]);
  EXPECT_THROW(commit(folder.path(), manifest, 1), std::invalid_argument);
  EXPECT_FALSE(has_checkpoints(folder.path()));
}

TEST(Checkpoint, APartThatIsNotThereIsNoCheckpoint) {
  const Folder folder;
  write_checkpoint(folder.path(), 1);
  const Manifest manifest = write_parts(folder.path(), 2);
  fs::resize_file(folder / "step-00000002.writing/rank-0001.safetensors", 10);
  EXPECT_THROW(commit(folder.path(), manifest, 1), std::runtime_error);
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000001"}));  // no room is lost
  write_parts(folder.path(), 2);
  fs::remove(folder / "step-00000002.writing/rank-0001.safetensors");
  EXPECT_THROW(commit(folder.path(), manifest, 1), std::runtime_error);
  write_parts(folder.path(), 2);
  abandon(folder.path(), 2);
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000001"}));
  EXPECT_TRUE(has_own_values(find_newest(folder.path())));
}

TEST(Checkpoint, AResumedRunSetsDamagedOnesAside) {
  const Folder folder;
  for (const int step : {1, 2, 3}) write_checkpoint(folder.path(), step);
  write_parts(folder.path(), 4);
  fs::rename(folder / "step-00000001", folder / "step-00000001.removing");
  folder.write("step-by-step.writing", "notes of the user");
  fs::create_directory(folder / "step-by-step.removing");
  fs::resize_file(folder / "step-00000003/rank-0000.safetensors", 100);
  Found found = find_newest(folder.path());
  EXPECT_EQ(found.manifest->step, 2);
  ASSERT_EQ(found.damaged.size(), 1u);
  EXPECT_EQ(found.damaged[0].directory, folder / "step-00000003");
  EXPECT_TRUE(set_aside(found).empty());
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000002", "step-00000003.damaged", "step-by-step.removing",
                                            "step-by-step.writing"}));
  // The run comes to step 3 again.
  write_checkpoint(folder.path(), 3, 1);
  found = find_newest(folder.path());
  EXPECT_TRUE(found.damaged.empty());
  EXPECT_TRUE(has_own_values(found));
  fs::remove(folder / "step-00000003/manifest.json");
  set_aside(find_newest(folder.path()));
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000003.damaged", "step-00000003.damaged.2",
                                            "step-by-step.removing", "step-by-step.writing"}));
}

TEST(Checkpoint, PruningNeverTakesAnythingForTheNewest) {
  // A damaged one of a later step, which a run did not set aside, must not push out the only whole one.
  const Folder folder;
  write_checkpoint(folder.path(), 60);
  fs::resize_file(folder / "step-00000060/rank-0000.safetensors", 100);
  write_checkpoint(folder.path(), 40, 1);
  EXPECT_EQ(find_newest(folder.path()).manifest->step, 40);
}

}  // namespace
}  // namespace starpipe::runtime
