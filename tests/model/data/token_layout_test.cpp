// SPDX-License-Identifier: Apache-2.0
#include "model/data/token_layout.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/data/binary.hpp"
#include "starpipe/base/index.hpp"
#include "support/message_of.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

std::span<const unsigned char> bytes(const std::string& text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

void expect_layout(const TokenLayout& layout, std::size_t header, std::size_t token, std::uint64_t tokens) {
  EXPECT_EQ(layout.header_bytes, header);
  EXPECT_EQ(layout.token_bytes, token);
  EXPECT_EQ(layout.tokens, tokens);
}

TEST(TokenLayout, OfText) { expect_layout(text_layout("f", bytes("abcde")), 0, 1, 5); }

TEST(TokenLayout, IsFlatWithoutAMagicNumber) {
  expect_layout(token_layout("f", bytes("")), 0, 2, 0);
  expect_layout(token_layout("f", bytes(bytes_of_numbers<std::uint16_t>({7}))), 0, 2, 1);
  expect_layout(token_layout("f", bytes(bytes_of_numbers<std::uint16_t>({50256, 308, 0}))), 0, 2, 3);
  // 308 is the upper half of llm.c's magic numbers. No token of GPT-2's padded vocabulary is a lower half.
  for (const std::uint16_t token : {0, 1, 25'000, 50'256, 50'303, 54'912}) {
    for (const std::uint16_t next : {307, 308, 309}) {
      expect_layout(token_layout("f", bytes(bytes_of_numbers<std::uint16_t>({token, next}))), 0, 2, 2);
    }
  }
}

TEST(TokenLayout, OfFilesWithAHeader) {
  expect_layout(token_layout("f", bytes(llm_c_header(20240520, 1, 3) + std::string(6, 'x'))), 1024, 2, 3);
  expect_layout(token_layout("f", bytes(llm_c_header(20240801, 7, 3) + std::string(12, 'x'))), 1024, 4, 3);
  expect_layout(token_layout("f", bytes(llm_c_header(20240520, 1, 0))), 1024, 2, 0);
}

TEST(TokenLayout, RefusesWhatIsNeither) {
  const auto refused = [](const std::string& file, const std::string& why) {
    expect_input_error([&] { static_cast<void>(token_layout("the file", bytes(file))); }, "the file: " + why);
  };
  refused("abc", "has 3 bytes, an odd number, and no magic number");
  refused(llm_c_header(20240520, 2, 3) + std::string(6, 'x'),
          "has the magic number 20240520 with version 2, expected version 1");
  refused(llm_c_header(20240801, 1, 3) + std::string(12, 'x'),
          "has the magic number 20240801 with version 1, expected version 7");
  refused(llm_c_header(20240520, 1, 3).substr(0, 1023),
          "begins with the magic number 20240520 but has 1023 bytes, fewer than the 1024 of its header");
  refused(llm_c_header(20240520, 1, 3).substr(0, 4), "begins with the magic number 20240520 but has 4 bytes");
  for (const std::size_t size : {0, 5, 7, 8, 12}) {
    refused(llm_c_header(20240520, 1, 3) + std::string(size, 'x'),
            "its header counts 3 tokens of 2 bytes, but " + std::to_string(size) + " bytes follow");
  }
  refused(llm_c_header(20240520, 1, -1) + std::string(6, 'x'), "its header counts -1 tokens of 2 bytes");
  refused(llm_c_header(20240522, 1, 3) + std::string(6, 'x'),
          "begins with the magic number 20240522, expected one of token files: 20240520 with version 1, "
          "20240801 with version 7");
  refused(llm_c_header(20240326, 3, 1024), "begins with the magic number 20240326, expected");
}

TEST(TokenLayout, OfArraysOfNumpy) {
  for (const auto& [type, size] : {std::pair{"|u1", 1},
                                   {"|i1", 1},
                                   {"<u2", 2},
                                   {"<i2", 2},
                                   {"<u4", 4},
                                   {"<i4", 4},
                                   {"<u8", 8},
                                   {"<i8", 8}}) {
    for (const char version : {1, 2}) {
      const std::string file = npy_file(npy_head(type, "3,"), std::string(index(size) * 3, 'x'), version);
      expect_layout(token_layout("f", bytes(file)), file.size() - index(size) * 3, index(size), 3);
    }
  }
  const auto refused = [](const std::string& file, const std::string& why) {
    expect_input_error([&] { static_cast<void>(token_layout("the file", bytes(file))); },
                       "the file: is an array of NumPy " + why);
  };
  const std::string six(6, 'x');
  refused(npy_file(npy_head(">u2", "3,"), six), "of type >u2; save it as");
  refused(npy_file(npy_head("<f4", "3,"), six + six), "of type <f4; save it as");
  refused(npy_file(npy_head("|O", "3,"), six), "of type |O; save it as");
  refused(npy_file(npy_head("<u2", "3, 1"), six), "of shape (3, 1); save its tokens in one dimension");
  refused(npy_file(npy_head("<u2", ""), six), "of shape (); save its tokens");
  refused(npy_file(npy_head("<u2", "4,"), six),
          "whose header counts 4 numbers of 2 bytes, but 6 bytes follow");
  refused(npy_file(npy_head("<u2", "2,"), six),
          "whose header counts 2 numbers of 2 bytes, but 6 bytes follow");
  const std::string whole = npy_file(npy_head("<u2", "3,"), six);
  for (const std::size_t size : {6, 7, 9, 20, 70}) refused(whole.substr(0, size), "");
}

// Files that stand for another file: neither tokens nor a text.
TEST(TokenLayout, RefusesPackedFiles) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n";
  const auto refused = [](const std::string& file, const std::string& why) {
    expect_input_error([&] { static_cast<void>(token_layout("f", bytes(file))); },
                       "f: is " + why + ", not a file of token ids");
    expect_input_error([&] { static_cast<void>(text_layout("f", bytes(file))); },
                       "f: is " + why + ", not a text");
  };
  refused(pointer, "a pointer of Git LFS");
  refused("\x1f\x8b\x08\1\2\3\4\5", "packed by gzip");
  refused("Rar!\x1a\x07\1\2", "packed by RAR");
}

TEST(TokenLayout, FlatNumbersOfAGivenType) {
  const std::string eight = bytes_of_numbers<std::uint16_t>({1, 2, 3, 4});
  expect_layout(token_layout("f", bytes(eight), TokenType::uint32), 0, 4, 2);
  expect_layout(token_layout("f", bytes(eight), TokenType::int64), 0, 8, 1);
  expect_input_error([&] { static_cast<void>(token_layout("f", bytes(eight.substr(2)), TokenType::uint32)); },
                     "f: has 6 bytes, not a multiple of 4");
  expect_layout(token_layout("f", bytes(llm_c_header(20240520, 1, 3) + "xxxxxx"), TokenType::int64), 1024, 2,
                3);
}

TEST(TokenLayout, RefusesFilesOfOtherKinds) {
  const auto refused = [](std::string file, const std::string& why) {
    if (file.size() % 2 == 1) file += '\n';
    expect_input_error([&] { static_cast<void>(token_layout("the file", bytes(file))); },
                       "the file: is " + why);
  };
  const std::string rest("\1\0\xff\2\xfe\3\xfd\4\xfc\5\xfb\6\xfa\7\xf9\x8", 16);
  const std::string zero(1, '\0');
  refused("\x1f\x8b\x08" + rest, "packed by gzip, not a file of token ids; unpack it");
  refused("BZh91AY&SY" + rest, "packed by bzip2");
  refused(
      "\xfd"
      "7zXZ" +
          zero + rest,
      "packed by xz");
  refused("\x28\xb5\x2f\xfd" + rest, "packed by zstd");
  refused("PK\x03\x04" + rest, "a zip archive, as .npz and .pt are, not a file of token ids; save its array");
  refused("\x80\x04\x95\x11" + std::string(7, '\0') + "]\x94(K\1K\2K\3e.", "a pickle of Python");
  refused("\x80\x03]q" + zero + "(K\1K\2K\3K\4K\5e.", "a pickle of Python");
  refused("(lp0\nI1\naI2\naI3\na.", "a pickle of Python");
  refused("]q" + zero + "(K\1K\2K\3K\4K\5e.", "a pickle of Python");
  refused("}q" + zero + "(X\1" + std::string(3, '\0') + "aK\1u.", "a pickle of Python");
  refused("Obj\1" + rest, "an Avro file");
  refused("\xff\xff\xff\xff\x10" + std::string(3, '\0') + rest, "a stream of Arrow");
  refused("MATLAB 5.0 MAT-file" + zero + rest, "a file of MATLAB");
  refused("\x89HDF\r\n\x1a\n" + rest, "an HDF5 file");
  refused("a.txt" + std::string(252, '\0') + "ustar" + rest, "a tar archive");
  refused("PAR1" + rest, "a Parquet file");
  refused("MMIDIDX" + zero + zero + rest, "the index of Megatron-LM");
  refused("\x18" + std::string(7, '\0') + "{\"a\": {\"dtype\": 1}}  ", "a safetensors file");
  refused("[464, 2068, 7586, 21831]", "JSON, not a file of token ids; write its numbers with numpy.save");
  refused("{\"tokens\": [464, 2068]}", "JSON");
  refused("464 2068 7586 21831\n18045\n", "text, not a file of token ids; data.kind: text reads its bytes");
  refused("\xc3\x84pfel, \xe6\xa2\xa8, \xf0\x9f\x8d\x90 und mehr", "text");
  std::string long_text;
  for (int i = 0; i < 5000; ++i) long_text += "\xe6\xa2\xa8";  // 4,096 bytes end within a character
  refused(long_text, "text");
  std::string latin;
  for (int i = 0; i < 100; ++i) latin += "\xe4 und \xfc ";  // not UTF-8
  refused(latin, "text");
}

// Ids that NumPy has as floats by default.
TEST(TokenLayout, RefusesFloats) {
  std::vector<float> floats;
  for (int i = 0; i < 1000; ++i) floats.push_back(static_cast<float>(i * 7919 % 50'257));
  const std::vector<double> doubles(floats.begin(), floats.end());
  for (const std::string& file : {bytes_of_numbers(floats), bytes_of_numbers(doubles)}) {
    for (const TokenType type : {TokenType::uint16, TokenType::uint32}) {
      expect_input_error([&] { static_cast<void>(token_layout("f", bytes(file), type)); },
                         "f: holds floats, not a file of token ids");
    }
  }
}

std::string swapped(std::string file) {
  for (std::size_t i = 0; i + 1 < file.size(); i += 2) std::swap(file[i], file[i + 1]);
  return file;
}

// Ids of 10,000 places, frequent as words are: the id i as often as 1 / (i + 3). Or each as often as others.
std::string ids_below(std::uint32_t vocabulary, bool as_words) {
  std::vector<std::uint16_t> ids;
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    const double place = static_cast<double>(i * 40'503U % 65'536U) / 65'536;
    const double id = as_words ? 3 * std::pow((vocabulary + 3) / 3.0, place) - 3 : place * vocabulary;
    ids.push_back(static_cast<std::uint16_t>(id));
  }
  return bytes_of_numbers(ids);
}

TEST(TokenLayout, RefusesBigEndianNumbers) {
  for (const std::uint32_t vocabulary : {128U, 256U, 21'128U, 32'000U, 50'257U, 65'536U}) {
    const std::string file = ids_below(vocabulary, true);
    expect_layout(token_layout("f", bytes(file)), 0, 2, 10'000);
    expect_layout(token_layout("f", bytes(file.substr(0, 64))), 0, 2, 32);
    for (const std::size_t size : {file.size(), std::size_t{2000}, std::size_t{200}}) {
      const std::string numbers = swapped(file.substr(0, size));
      expect_input_error([&] { static_cast<void>(token_layout("f", bytes(numbers))); },
                         "f: its uint16 numbers seem to be big-endian");
    }
    // The same bytes are read if a header gives their type, or if data.token_type gives a wider one.
    const std::string array = npy_file(npy_head("<u2", "10000,"), swapped(file));
    EXPECT_EQ(token_layout("f", bytes(array)).tokens, 10'000);
    EXPECT_EQ(token_layout("f", bytes(swapped(file)), TokenType::uint32).tokens, 5'000);
  }
  for (const std::uint32_t vocabulary : {2U, 300U, 4'096U, 50'257U, 65'536U})
    expect_layout(token_layout("f", bytes(ids_below(vocabulary, false))), 0, 2, 10'000);
  expect_layout(token_layout("f", bytes(swapped(ids_below(65'536, false)))), 0, 2, 10'000);
  // Wider numbers: only the vocabulary could tell that their halves are no ids.
  for (const std::uint32_t vocabulary : {50'257U, 151'936U}) {
    std::vector<std::uint32_t> wide;
    std::vector<std::uint32_t> wider;
    for (std::uint32_t i = 0; i < 1000; ++i) {
      wide.push_back(__builtin_bswap32(i * 7919 % vocabulary));
      wider.insert(wider.end(), {0, wide.back()});
    }
    for (const std::string& numbers : {bytes_of_numbers(wide), bytes_of_numbers(wider)})
      expect_input_error([&] { static_cast<void>(token_layout("f", bytes(numbers))); },
                         "f: its numbers seem to be big-endian, of 4 bytes or more");
  }
  expect_layout(token_layout("f", bytes(std::string(4000, '\0'))), 0, 2, 2000);
  const std::string few = bytes_of_numbers(std::vector<std::uint16_t>(100, 25'600));
  expect_layout(token_layout("f", bytes(few)), 0, 2, 100);
}

TEST(TokenLayout, RefusesNumbersOfOneByte) {
  const std::string ids = ids_below(65, true);  // of characters, in 2 bytes each
  std::string characters;
  for (std::size_t i = 0; i < ids.size(); i += 2) characters += ids[(i * 7919) % ids.size()];
  characters += characters;
  expect_layout(token_layout("f", bytes(ids)), 0, 2, 10'000);
  expect_input_error([&] { static_cast<void>(token_layout("f", bytes(characters))); },
                     "f: its numbers seem to have one byte each");
}

// Ids that begin like one of these files, but do not continue as one.
TEST(TokenLayout, TokensAreNotMistakenForOtherKinds) {
  for (const std::vector<std::uint16_t>& tokens : {std::vector<std::uint16_t>{640, 1, 2, 3, 4, 5, 6, 7},
                                                   {1152, 149, 3, 9, 9, 11797},
                                                   {8224, 8224, 8224},
                                                   {28257, 25960, 25964, 8303, 12576, 28257, 25960, 300},
                                                   {35615, 300, 3, 4}}) {
    const std::string file = bytes_of_numbers(tokens);
    expect_layout(token_layout("f", bytes(file)), 0, 2, tokens.size());
  }
}

}  // namespace
}  // namespace starpipe::model
