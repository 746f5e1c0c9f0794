// SPDX-License-Identifier: Apache-2.0
// Damage to the files of a checkpoint is found, and an older checkpoint is used.
#include <algorithm>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint/checkpoints.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/rounds.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
namespace fs = std::filesystem;

void overwrite(const fs::path& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<long>(bytes.size()));
}

/// A folder with the checkpoints of steps 1 and 2. Damage to the checkpoint of step 2 must be found.
class CheckpointDamage : public ::testing::Test {
 protected:
  CheckpointDamage() {
    write_checkpoint(folder_.path(), 1);
    directory_ = write_checkpoint(folder_.path(), 2).directory;
    whole_ = *find_newest(folder_.path()).manifest;
  }

  /// Expects that step 1 is found, and that the reason why step 2 is not names the file.
  void expect_skipped(const std::string& file, const std::string& reason = {}) const {
    const Found found = find_newest(folder_.path());
    ASSERT_TRUE(found.manifest) << reason;
    EXPECT_EQ(found.manifest->step, 1) << reason;
    ASSERT_EQ(found.damaged.size(), 1u);
    EXPECT_EQ(found.damaged[0].directory, directory_);
    EXPECT_EQ(found.damaged[0].step, 2);
    const std::string& text = found.damaged[0].reason;
    EXPECT_NE(text.find((directory_ / file).string()), std::string::npos) << text;
    EXPECT_NE(text.find(reason), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  void expect_whole() const {
    const Found found = find_newest(folder_.path());
    EXPECT_EQ(found.manifest, whole_);
    EXPECT_TRUE(has_own_values(found));
  }

  Folder folder_;
  fs::path directory_;
  Manifest whole_;
};

/// Changes one byte of a file in its place.
void put_byte(const fs::path& file, std::size_t at, char byte) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<long>(at));
  stream.put(byte);
}

TEST_F(CheckpointDamage, AFlippedByteAnywhere) {
  for (const char* name : {"rank-0000.safetensors", "rank-0001.safetensors", "manifest.json"}) {
    const fs::path file = directory_ / name;
    const std::string good = bytes_of(file);
    for (std::size_t i = 0; i < good.size(); i += round_stride) {
      for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
        put_byte(file, i, static_cast<char>(good[i] ^ flip));
        SCOPED_TRACE(i);
        expect_skipped(name, name == std::string("manifest.json") ? "is damaged" : "has checksum");
        if (HasFailure()) return;
      }
      put_byte(file, i, good[i]);
    }
    expect_whole();
  }
}

TEST_F(CheckpointDamage, TruncatedAtAnyByte) {
  for (const char* name : {"rank-0000.safetensors", "rank-0001.safetensors", "manifest.json"}) {
    const fs::path file = directory_ / name;
    const std::string good = bytes_of(file);
    for (std::size_t cut = 1; cut <= good.size(); cut += round_stride) {
      const std::size_t size = good.size() - cut;
      fs::resize_file(file, size);
      SCOPED_TRACE(size);
      expect_skipped(name);
      if (HasFailure()) return;
    }
    overwrite(file, good + '\0');
    expect_skipped(name);
    overwrite(file, good);
    expect_whole();
  }
}

TEST_F(CheckpointDamage, BytesOfAnotherCheckpoint) {
  for (const char* name : {"rank-0000.safetensors", "rank-0001.safetensors", "manifest.json"}) {
    const std::string good = bytes_of(directory_ / name);
    fs::copy_file(folder_ / "step-00000001" / name, directory_ / name, fs::copy_options::overwrite_existing);
    expect_skipped(name);
    overwrite(directory_ / name, good);
  }
  // The whole of step 1, under the name of step 2.
  fs::remove_all(directory_);
  fs::copy(folder_ / "step-00000001", directory_);
  expect_skipped("manifest.json", "is of step 1");
}

TEST_F(CheckpointDamage, ABlockOfZeros) {
  const fs::path file = directory_ / "rank-0000.safetensors";
  std::string bad = bytes_of(file);
  std::fill(bad.end() - 16, bad.end(), '\0');
  overwrite(file, bad);
  expect_skipped("rank-0000.safetensors", "has checksum");
}

TEST_F(CheckpointDamage, MissingFiles) {
  for (const char* name : {"rank-0000.safetensors", "manifest.json"}) {
    const std::string good = bytes_of(directory_ / name);
    fs::remove(directory_ / name);
    expect_skipped(name, "is missing");
    fs::create_directory(directory_ / name);
    expect_skipped(name, "is ");
    fs::remove(directory_ / name);
    fs::create_symlink("nowhere", directory_ / name);
    expect_skipped(name, "is missing");
    fs::remove(directory_ / name);
    overwrite(directory_ / name, good);
  }
  expect_whole();
  // Files that could be read without end, or would fill the memory.
  for (const char* name : {"rank-0000.safetensors", "manifest.json"}) {
    const std::string good = bytes_of(directory_ / name);
    fs::remove(directory_ / name);
    ASSERT_EQ(mkfifo((directory_ / name).c_str(), 0600), 0);
    expect_skipped(name, "is not a file");
    fs::remove(directory_ / name);
    fs::create_symlink("/dev/zero", directory_ / name);
    expect_skipped(name, "is not a file");
    fs::remove(directory_ / name);
    overwrite(directory_ / name, good);
    fs::resize_file(directory_ / name, std::uintmax_t{1} << 40U);
    expect_skipped(name, name == std::string("manifest.json") ? "is too large" : "has 1099511627776 bytes");
    overwrite(directory_ / name, good);
  }
  expect_whole();
  fs::remove_all(directory_);
  fs::create_directory(directory_);
  expect_skipped("manifest.json", "is missing");
}

TEST_F(CheckpointDamage, NoneIsWhole) {
  for (const char* step : {"step-00000001", "step-00000002"})
    fs::resize_file(folder_ / step / "manifest.json", 9);
  const Found found = find_newest(folder_.path());
  EXPECT_FALSE(found.manifest);
  ASSERT_EQ(found.damaged.size(), 2u);
  EXPECT_EQ(found.damaged[0].step, 2);
  EXPECT_EQ(found.damaged[1].step, 1);
  EXPECT_TRUE(has_checkpoints(folder_.path()));
}

/// A manifest's text with the checksum of its content.
std::string signed_text(nlohmann::json json) {
  json.erase("crc32");
  std::string text = json.dump(1);
  text.resize(text.size() - 2);  // the end of the last line, and the closing brace
  return text + ",\n \"crc32\": \"" + checksum_text(checksum_of(text, checksum_start)) + "\"\n}\n";
}

TEST_F(CheckpointDamage, AManifestOfAnotherVersionOrContent) {
  const fs::path file = directory_ / "manifest.json";
  const nlohmann::json good = nlohmann::json::parse(bytes_of(file));
  overwrite(file, signed_text(good));
  expect_whole();
  struct Case {
    const char* place;
    nlohmann::json value;
    std::string reason;
  };
  nlohmann::json deep;
  for (int level = 0; level < 200; ++level) deep = nlohmann::json::array({std::move(deep)});
  const std::vector<Case> cases = {
      {"/run", deep, "is nested more than 100 levels deep"},
      {"/version", 2, "has version 2 of the format; this starpipe reads version 1"},
      {"/version", 0, "has version 0"},
      {"/version", "1", "\"version\""},
      {"/format", "other", "is not of a starpipe checkpoint"},
      {"/step", -2, "\"step\""},
      {"/step", 2.0, "\"step\""},
      {"/step", 18446744073709551615U, "\"step\""},
      {"/step", 3, "is of step 3"},
      {"/parts", 5, "\"parts\""},
      {"/parts/0", nullptr, "\"file\""},
      {"/parts/0/file", "../step-00000001/rank-0000.safetensors", "not a plain name"},
      {"/parts/0/file", "", "not a plain name"},
      {"/parts/0/file", "..", "not a plain name"},
      {"/parts/0/file", "rank-0001.safetensors", "twice"},
      {"/parts/0/bytes", -1, "\"bytes\""},
      {"/parts/0/crc32", "123", "\"crc32\""},
      {"/parts/0/crc32", 123, "\"crc32\""},
      {"/parts/0/tensors", nullptr, "\"tensors\""},
      {"/parts/0/tensors/0/name", "rank1.weight", "the tensor rank1.weight twice"},
      {"/parts/0/tensors/0/shape", nlohmann::json::array({-2, 3}), "\"shape\""},
      {"/parts/0/crc32", "zzzzzzzz", "\"crc32\""},
  };
  for (const auto& [place, value, reason] : cases) {
    nlohmann::json json = good;
    json[nlohmann::json::json_pointer(place)] = value;
    overwrite(file, signed_text(json));
    SCOPED_TRACE(place);
    const Found found = find_newest(folder_.path());
    ASSERT_EQ(found.damaged.size(), 1u);
    EXPECT_NE(found.damaged[0].reason.find(reason), std::string::npos) << found.damaged[0].reason;
  }
  for (const char* key : {"format", "version", "step", "run", "parts"}) {
    nlohmann::json json = good;
    json.erase(key);
    overwrite(file, signed_text(json));
    expect_skipped("manifest.json", key == std::string("format") ? "" : key);
  }
  for (const char* text : {"", "null", "[]", "{}", "5", "\"x\""}) {
    overwrite(file, text);
    expect_skipped("manifest.json");
  }
}

TEST_F(CheckpointDamage, AFileThatChangedAfterItWasFound) {
  const Found found = find_newest(folder_.path());
  CheckpointReader reader(found.directory, *found.manifest);
  const fs::path file = directory_ / "rank-0001.safetensors";
  std::string bad = bytes_of(file);
  bad.replace(bad.find("\"rank1.weight\""), 14, "\"rank1.weighT\"");
  overwrite(file, bad);
  std::vector<float> values(6);
  expect_input_error([&] { reader.read("rank1.weight", values); },
                     file.string() + ": tensor rank1.weight: is missing, or has another shape");
  CheckpointReader late(found.directory, *found.manifest);
  fs::remove(file);
  expect_input_error([&] { late.read("rank1.weight", values); }, file.string());
}

}  // namespace
}  // namespace starpipe::runtime
