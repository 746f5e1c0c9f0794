// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <optional>
#include <span>

#include <gtest/gtest.h>

#include "model/gradients.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/shell.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

/// A file from its header's text.
std::string raw(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::map<std::string, Tensor> example() {
  return {{"b.weight", {{2, 3}, {1, 2, 3, 4, 5, 6}}},
          {"a.bias", {{2}, {-0.0f, std::numeric_limits<float>::denorm_min()}}},
          {"scalar", {{}, {3.5f}}},
          {"empty", {{0, 4}, {}}}};
}

TEST(Safetensors, RoundTripIsExact) {
  const Folder folder;
  const auto file = folder / "w.safetensors";
  write_safetensors(file, example(), {{"format", "pt"}, {"name", "quote \" and \xc3\xa9"}});
  std::map<std::string, std::string> metadata;
  const auto read = read_safetensors(file, &metadata);
  EXPECT_EQ(metadata,
            (std::map<std::string, std::string>{{"format", "pt"}, {"name", "quote \" and \xc3\xa9"}}));
  ASSERT_EQ(read.size(), 4u);
  for (const auto& [name, tensor] : example()) {
    EXPECT_EQ(read.at(name).shape, tensor.shape) << name;
    ASSERT_EQ(read.at(name).values.size(), tensor.values.size()) << name;
    if (tensor.values.empty()) continue;
    EXPECT_EQ(std::memcmp(read.at(name).values.data(), tensor.values.data(), 4 * tensor.values.size()), 0);
  }
  EXPECT_TRUE(std::signbit(read.at("a.bias").values[0]));
}

TEST(Safetensors, LayoutMatchesTheFormat) {
  const Folder folder;
  const auto file = folder / "w.safetensors";
  write_safetensors(file, {{"b", {{1}, {2}}}, {"a", {{1}, {1}}}}, {});
  const std::string bytes = bytes_of(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  ASSERT_EQ(bytes.size(), 8 + length + 8);
  float first = 0;
  std::memcpy(&first, bytes.data() + 8 + length, 4);
  EXPECT_EQ(first, 1.0f);  // sorted by name
  // Nothing but the file is left behind.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Safetensors, AnIndependentReaderAgrees) {
  const Folder folder;
  const auto file = folder / "w.safetensors";
  write_safetensors(file, {{"x", {{2, 2}, {1, 2.5f, -3, 4}}}, {"y", {{3}, {7, 8, 9}}}}, {{"format", "pt"}});
  const auto script = folder.write("read.py", R"(
import json, struct, sys
data = open(sys.argv[1], 'rb').read()
length = struct.unpack('<Q', data[:8])[0]
header = json.loads(data[8:8 + length])
assert header.pop('__metadata__') == {'format': 'pt'}
for name, entry in sorted(header.items()):
    assert entry['dtype'] == 'F32'
    begin, end = entry['data_offsets']
    values = struct.unpack('<%df' % ((end - begin) // 4), data[8 + length + begin:8 + length + end])
    print(name, entry['shape'], list(values))
)");
  const ShellResult result = shell(STARPIPE_PYTHON " " + script.string() + " " + file.string());
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output, "x [2, 2] [1.0, 2.5, -3.0, 4.0]\ny [3] [7.0, 8.0, 9.0]\n");
}

TEST(Safetensors, ReadsWhatAnIndependentWriterWrote) {
  const Folder folder;
  const auto file = folder / "w.safetensors";
  const auto script = folder.write("write.py", R"(
import json, struct, sys
header = json.dumps({'z': {'dtype': 'F32', 'shape': [2], 'data_offsets': [0, 8]},
                     'a': {'dtype': 'F32', 'shape': [1, 1], 'data_offsets': [8, 12]}}).encode()
open(sys.argv[1], 'wb').write(struct.pack('<Q', len(header)) + header + struct.pack('<3f', 1, 2, 3))
)");
  ASSERT_EQ(shell(STARPIPE_PYTHON " " + script.string() + " " + file.string()).status, 0);
  const auto read = read_safetensors(file);
  EXPECT_EQ(read.at("z").values, (Floats{1, 2}));
  EXPECT_EQ(read.at("a").values, (Floats{3}));
  EXPECT_EQ(read.at("a").shape, (std::vector<std::size_t>{1, 1}));
}

TEST(Safetensors, NumbersOf16BitsKeepTheirValues) {
  const Folder folder;
  const auto file = folder / "w.safetensors";
  const auto script = folder.write("write.py", R"(
import json, struct, sys
values = [0.0, -0.0, 1.0, -1.5, 65504.0, 2.0 ** -14, 2.0 ** -24, -1023 * 2.0 ** -24, 0.333251953125, float('inf')]
half = struct.pack('<10e', *values)
brain = b''.join(struct.pack('<f', value)[2:] for value in [1.0, -2.5, 2.0 ** -126, 1.0078125])
header = json.dumps({'half': {'dtype': 'F16', 'shape': [2, 5], 'data_offsets': [0, 20]},
                     'brain': {'dtype': 'BF16', 'shape': [4], 'data_offsets': [20, 28]}}).encode()
open(sys.argv[1], 'wb').write(struct.pack('<Q', len(header)) + header + half + brain)
)");
  ASSERT_EQ(shell(STARPIPE_PYTHON " " + script.string() + " " + file.string()).status, 0);
  const auto read = read_safetensors(file);
  EXPECT_EQ(read.at("half").values,
            (Floats{0.0F, -0.0F, 1.0F, -1.5F, 65504.0F, 0x1p-14F, 0x1p-24F, -1023 * 0x1p-24F, 0.333251953125F,
                    std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(std::signbit(read.at("half").values[1]));
  EXPECT_EQ(read.at("brain").values, (Floats{1.0F, -2.5F, 0x1p-126F, 1.0078125F}));
}

TEST(Safetensors, TensorsThatAreNotWantedMayHaveAnyType) {
  const Folder folder;
  const auto file = folder.write("w", raw(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
                                              "mask": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}})",
                                          std::string(6, '\0')));
  const auto read = read_safetensors(file, nullptr, [](const std::string& name) { return name != "mask"; });
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read.at("a").values, Floats{0});
  expect_input_error([&] { read_safetensors(file); }, "tensor mask: is BOOL, not F32, F16 or BF16");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const Folder folder;
  const auto file = folder / "w.safetensors";
  write_safetensors(file, example(), {{"format", "pt"}});
  const std::string bytes = bytes_of(file);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto cut = folder.write("cut.safetensors", bytes.substr(0, size));
    expect_input_error([&] { read_safetensors(cut); }, cut.string());
  }
  expect_input_error([&] { read_safetensors(folder.write("cut.safetensors", bytes + "....")); },
                     "unused bytes at its end");
}

TEST(Safetensors, MalformedFilesAreRefused) {
  const Folder folder;
  const auto refused = [&](const std::string& header, const std::string& data, const std::string& why) {
    const auto file = folder.write("bad.safetensors", raw(header, data));
    expect_input_error([&] { read_safetensors(file); }, file.string());
    expect_input_error([&] { read_safetensors(file); }, why);
  };
  const std::string eight(8, '\0');
  refused("{\"a\": ", "", "not a JSON object");
  refused("[1, 2]", "", "not a JSON object");
  refused("\xff\xfe", "", "not a JSON object");
  refused(R"({"a": 1})", "", "tensor a: its header entry is not an object");
  refused(R"({"a": {"shape": [2], "data_offsets": [0, 8]}})", eight, "tensor a: has no dtype");
  refused(R"({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}})", eight,
          "tensor a: is I64, not F32, F16 or BF16");
  refused(R"({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 8]}})", eight, "do not fit its shape");
  refused(R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", eight, "no valid shape");
  refused(R"({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}})", eight, "no valid shape");
  refused(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}})", eight, "no valid data_offsets");
  refused(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8.5]}})", eight,
          "no valid data_offsets");
  refused(R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", eight, "do not fit its shape");
  refused(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})", eight,
          "lies outside the file");
  refused(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}})", eight, "lies outside the file");
  refused(R"({"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})", "",
          "too large");
  refused(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
              "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
          eight, "tensor b: overlaps another");
  refused(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", eight,
          "unused bytes before it");
  refused(R"({"__metadata__": {"heads": 4}})", "", "metadata heads that is not a string");
  refused(R"({"__metadata__": 4})", "", "metadata that is not an object");
  refused(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
              "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
          eight, "tensor \"a\": is there twice");
}

TEST(Safetensors, MetadataMayBeNull) {
  const Folder folder;
  const auto file = folder.write(
      "null", raw(R"({"__metadata__": null, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
                  std::string(8, '\0')));
  std::map<std::string, std::string> metadata;
  EXPECT_EQ(read_safetensors(file, &metadata).at("a").values, (std::vector<float>{0, 0}));
  EXPECT_TRUE(metadata.empty());
}

TEST(Safetensors, UnusableFilesAreNamed) {
  const Folder folder;
  expect_input_error([&] { read_safetensors(folder / "absent"); }, (folder / "absent").string());
  expect_input_error([&] { read_safetensors(folder.path()); }, folder.path().string());
  expect_input_error([&] { write_safetensors(folder / "no" / "w.safetensors", example(), {}); },
                     (folder / "no" / "w.safetensors").string());
  std::filesystem::create_directories(folder / "full" / "x");
  expect_input_error([&] { write_safetensors(folder / "full", example(), {}); }, (folder / "full").string());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// Shards of a tensor's columns are many short runs.
TEST(Safetensors, EachByteIsReadOnce) {
  const Folder folder;
  constexpr std::size_t rows = 512;
  constexpr std::size_t columns = 1024;
  Tensor tensor{{rows, columns}, std::vector<float>(rows * columns)};
  std::iota(tensor.values.begin(), tensor.values.end(), 0.0F);
  write_safetensors(folder / "w", {{"x", tensor}}, {});
  const auto read_so_far = [] {
    std::ifstream io("/proc/self/io");
    std::string word;
    std::uint64_t bytes = 0;
    io >> word >> bytes;  // rchar
    return bytes;
  };
  const std::uint64_t before = read_so_far();
  SafetensorsReader reader(folder / "w");
  std::vector<float> run(columns / 4);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t first = row * columns + columns / 2;
    reader.read("x", first, run);
    ASSERT_TRUE(std::ranges::equal(run, std::span(tensor.values).subspan(first, run.size()))) << row;
  }
  EXPECT_LT(read_so_far() - before, sizeof(float) * rows * columns + 65536);
}

// Each number of the type is itself, and the middle between two neighbours becomes the even one.
TEST(Safetensors, NumbersAreRoundedToTheNearest) {
  const auto check = [](StoredType type, float (*value)(std::uint16_t), std::uint16_t infinity) {
    for (std::uint16_t bits = 0; bits <= infinity; ++bits) {
      const auto stored = [&](float number) { return stored_numbers(type, std::span(&number, 1)).front(); };
      const float number = value(bits);
      EXPECT_EQ(stored(number), bits);
      EXPECT_EQ(stored(-number), bits | 0x8000);
      if (bits + 1 >= infinity) continue;
      const auto middle =
          static_cast<float>((static_cast<double>(number) + static_cast<double>(value(bits + 1))) / 2);
      EXPECT_EQ(stored(middle), bits + (bits & 1));
      EXPECT_EQ(stored(std::nextafter(middle, 0.0F)), bits);
      EXPECT_EQ(stored(std::nextafter(middle, std::numeric_limits<float>::infinity())), bits + 1);
      const std::array finite = {number, -middle, number};
      EXPECT_EQ(first_overflow(type, finite), std::nullopt);
    }
    const float nan = std::nanf("1");
    EXPECT_TRUE(std::isnan(value(stored_numbers(type, std::span(&nan, 1)).front())));
  };
  check(
      StoredType::fp16,
      [](std::uint16_t bits) {
        if (bits > 0x7c00) return std::nanf("");
        return bits == 0x7c00
                   ? std::numeric_limits<float>::infinity()
                   : std::ldexp((bits & 1023) + (bits < 1024 ? 0.0F : 1024.0F), std::max(bits >> 10, 1) - 25);
      },
      0x7c00);
  check(
      StoredType::bf16, [](std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16U); },
      0x7f80);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_overflow(StoredType::fp16, std::array{1.0F, infinity, 65519.99F, -65520.0F}), -65520.0F);
  EXPECT_EQ(first_overflow(StoredType::bf16, std::array{-infinity, 0x1.fefffep127F, 0x1.ffp127F}),
            0x1.ffp127F);
  EXPECT_EQ(first_overflow(StoredType::fp32, std::array{std::numeric_limits<float>::max()}), std::nullopt);
}

}  // namespace
}  // namespace starpipe::model
