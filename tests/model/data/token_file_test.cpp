// SPDX-License-Identifier: Apache-2.0
#include "model/data/token_file.hpp"

#include <array>
#include <numeric>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "model/data/binary.hpp"
#include "starpipe/model/dataset.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

template <class Number>
std::vector<Number> counting(std::size_t count) {
  std::vector<Number> numbers(count);
  std::iota(numbers.begin(), numbers.end(), Number{1});
  return numbers;
}

TEST(TokenFile, ReadsEachLayout) {
  const Folder folder;
  const auto expect_counting = [](const TokenFile& file) {
    ASSERT_EQ(file.size(), 1000U);
    std::array<float, 3> tokens{};
    for (const std::uint64_t start : {0, 1, 500, 997}) {
      file.read(start, tokens);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(tokens[i], static_cast<float>(start + i + 1));
    }
  };
  const std::string two = bytes_of_numbers(counting<std::uint16_t>(1000));
  const std::string four = bytes_of_numbers(counting<std::uint32_t>(1000));
  expect_counting({folder.write("flat", two), tokens_data, 1001});
  expect_counting({folder.write("v1", llm_c_header(20240520, 1, 1000) + two), tokens_data, 1001});
  expect_counting({folder.write("v7", llm_c_header(20240801, 7, 1000) + four), tokens_data, 1001});
  const std::string eight = bytes_of_numbers(counting<std::int64_t>(1000));
  expect_counting({folder.write("four", four), tokens_data, 1001, TokenType::uint32});
  expect_counting({folder.write("eight", eight), tokens_data, 1001, TokenType::int64});
  expect_counting({folder.write("2.npy", npy_file(npy_head("<u2", "1000,"), two)), tokens_data, 1001});
  expect_counting({folder.write("4.npy", npy_file(npy_head("<i4", "1000,"), four)), tokens_data, 128'256});
  expect_counting({folder.write("8.npy", npy_file(npy_head("<i8", "1000,"), eight)), tokens_data, 1001});
}

TEST(TokenFile, TokensOutsideTheVocabularyAreNamed) {
  const Folder folder;
  // 200,000 tokens, so that most lie between the places that are read when the file is opened.
  std::vector<std::uint32_t> numbers(200'000, 3);
  const auto write = [&] {
    return folder.write("v7", llm_c_header(20240801, 7, 200'000) + bytes_of_numbers(numbers));
  };
  numbers[1000] = 128'255;
  const TokenFile file(write(), tokens_data, 128'255);
  std::array<float, 10> tokens{};
  file.read(990, tokens);
  expect_input_error(
      [&] { file.read(991, tokens); },
      (folder / "v7").string() + ": token 128255 at position 1000 is not below model.vocabulary, 128255");
  const TokenFile larger(folder / "v7", tokens_data, 128'256);
  larger.read(991, tokens);
  EXPECT_EQ(tokens[9], 128'255.0F);
  // The first and the last tokens are looked at when the file is opened.
  for (const std::size_t place : {0, 199'998}) {
    numbers[place] = 4'294'967'295U;
    write();
    expect_input_error([&] { const TokenFile opened(folder / "v7", tokens_data, 1U << 24U); },
                       "token 4294967295 at position " + std::to_string(place));
    numbers[place] = 3;
  }
}

TEST(TokenFile, NegativeIdsAreRefused) {
  const Folder folder;
  std::vector<std::int16_t> numbers(1000, 7);
  numbers[20] = -1;
  const auto path = folder.write("t", npy_file(npy_head("<i2", "1000,"), bytes_of_numbers(numbers)));
  expect_input_error([&] { const TokenFile file(path, tokens_data, 65'536); },
                     "token -1 at position 20 is not below model.vocabulary, 65536");
}

TEST(TokenFile, AFileThatBecomesShorterIsNamed) {
  const Folder folder;
  const auto path = folder.write("t", bytes_of_numbers(counting<std::uint16_t>(30'000)));
  const TokenFile file(path, tokens_data, 30'001);
  std::array<float, 4> tokens{};
  file.read(29'990, tokens);
  std::filesystem::resize_file(path, 10'000);
  expect_input_error([&] { file.read(29'990, tokens); },
                     path.string() + ": has become shorter during the run: 10000 bytes, 60000 at its start");
  // A file that grows, or loses its name, keeps its tokens.
  std::filesystem::resize_file(path, 80'000);
  file.read(10, tokens);
  std::filesystem::remove(path);
  file.read(10, tokens);
  EXPECT_EQ(tokens[0], 11.0F);
  EXPECT_EQ(file.size(), 30'000U);
}

TEST(TokenFile, WiderFlatNumbersAreRefused) {
  const Folder folder;
  const std::string why = "every second uint16 is 0";
  const auto refused = [&](const std::string& bytes) {
    expect_input_error([&] { const TokenFile file(folder.write("t", bytes), tokens_data, 50'257); }, why);
  };
  refused(bytes_of_numbers(counting<std::uint32_t>(1000)));
  refused(bytes_of_numbers(counting<std::int64_t>(1000)));
  std::vector<std::int64_t> with_zeros(1000, 0);  // as a token, and as padding
  for (std::size_t i = 0; i < with_zeros.size(); i += 3) with_zeros[i] = 7;
  refused(bytes_of_numbers(with_zeros));
  // Some ids need more than 16 bits.
  std::vector<std::uint32_t> numbers = counting<std::uint32_t>(10'000);
  for (std::size_t i = 0; i < numbers.size(); i += 200) numbers[i] += 65'536;
  refused(bytes_of_numbers(numbers));
  refused(bytes_of_numbers(counting<std::uint32_t>(17)));
  const auto with_type = [&](const std::string& bytes, TokenType type) {
    static_cast<void>(TokenFile(folder.write("t", bytes), tokens_data, 128'256, type));
  };
  for (std::uint32_t& number : numbers) number += 65'536 * (number % 2);
  expect_input_error([&] { with_type(bytes_of_numbers(numbers), TokenType::uint16); },
                     "nearly every second uint16 is at most 3, so its numbers seem to have 4 bytes or more");
  expect_input_error([&] { with_type(bytes_of_numbers(counting<std::int64_t>(1000)), TokenType::uint32); },
                     "nearly every second uint32 is 0, so its numbers seem to have 8 bytes or more");
  // The vocabulary does not show how large the ids of the file are.
  for (std::uint32_t i = 0; i < numbers.size(); ++i) numbers[i] = i * 7919 % 152'000;
  const auto as_uint16 = [&] {
    static_cast<void>(TokenFile(folder.write("t", bytes_of_numbers(numbers)), tokens_data, 65'536));
  };
  expect_input_error(as_uint16, "nearly every second uint16 is at most 3");
  // Labels of -100 in an int32 file: the upper half is all ones.
  numbers = counting<std::uint32_t>(10'000);
  for (std::size_t i = 0; i < numbers.size(); i += 10) numbers[i] = static_cast<std::uint32_t>(-100);
  expect_input_error(as_uint16, why);
  const TokenFile zeros(folder.write("z", std::string(1000, '\0')), tokens_data, 50'257);
  EXPECT_EQ(zeros.size(), 500U);
}

// Ids that do not fit uint16 are in no flat file of them: the user says what the file has.
TEST(TokenFile, ALargeVocabularyNeedsATypeOrAHeader) {
  const Folder folder;
  const std::string two = bytes_of_numbers(counting<std::uint16_t>(1000));
  const auto path = folder.write("t", two);
  EXPECT_EQ(TokenFile(path, tokens_data, 65'536).size(), 1000U);
  expect_input_error([&] { const TokenFile file(path, tokens_data, 65'537); },
                     path.string() +
                         ": has no header that says the type of its numbers, and the ids of "
                         "model.vocabulary, 65537, do not fit uint16; give data.token_type");
  EXPECT_EQ(TokenFile(path, tokens_data, 128'256, TokenType::uint16).size(), 1000U);
  EXPECT_EQ(TokenFile(folder.write("h", llm_c_header(20240520, 1, 1000) + two), tokens_data, 128'256).size(),
            1000U);
  EXPECT_EQ(TokenFile(path, text_data, 128'256).size(), 2000U);
}

TEST(TokenFile, NegativeIdsAreNamed) {
  const Folder folder;
  const auto path =
      folder.write("t.npy", npy_file(npy_head("<i8", "3,"), bytes_of_numbers<std::int64_t>({7, -100, 9})));
  expect_input_error([&] { const TokenFile file(path, tokens_data, 10); }, "token -100 at position 1");
}

TEST(TokenFile, IsNoPipeNorFolder) {
  const Folder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& path : {folder / "pipe", folder.path(), std::filesystem::path("/dev/zero")}) {
    expect_input_error([&] { const TokenFile file(path, tokens_data, 100); },
                       path.string() + ": is not a file");
  }
}

// A sparse file of a terabyte: only what is read is loaded.
TEST(TokenFile, MayBeLargerThanMemory) {
  const Folder folder;
  const auto path = folder.write("huge", "");
  constexpr std::uint64_t bytes = std::uint64_t{1} << 40U;
  std::error_code error;
  std::filesystem::resize_file(path, bytes, error);
  if (error) GTEST_SKIP() << "no sparse file of a terabyte here: " << error.message();
  const TokenFile file(path, tokens_data, 1);
  EXPECT_EQ(file.size(), bytes / 2);
  std::array<float, 4> tokens = {1, 1, 1, 1};
  file.read(bytes / 2 - 4, tokens);
  EXPECT_EQ(tokens, (std::array<float, 4>{}));
}

TEST(TokenFile, DigestsTellFilesApart) {
  const Folder folder;
  const auto digest = [&](const std::string& bytes, std::string_view kind = tokens_data) {
    return TokenFile(folder.write("t", bytes), kind, 65'536).digest();
  };
  std::vector<std::uint16_t> numbers = counting<std::uint16_t>(1000);
  const std::uint64_t one = digest(bytes_of_numbers(numbers));
  EXPECT_EQ(digest(bytes_of_numbers(numbers)), one);
  EXPECT_NE(digest(bytes_of_numbers(numbers), text_data), one);
  numbers[500] = 7;
  EXPECT_NE(digest(bytes_of_numbers(numbers)), one);
  EXPECT_NE(digest(bytes_of_numbers(counting<std::uint16_t>(1001))), one);
}

// A file that the 64 places do not cover. One byte follows the last whole word of 8 bytes.
TEST(TokenFile, DigestsTellEveryTokenOfASmallFile) {
  const Folder folder;
  const auto digest = [&](const std::string& bytes) {
    return TokenFile(folder.write("t", bytes), text_data, 256).digest();
  };
  std::string bytes(20'001, 'a');
  const std::uint64_t one = digest(bytes);
  for (std::size_t i = 0; i < bytes.size(); i += i < 19'990 ? 111 : 1) {
    bytes[i] = 'b';
    EXPECT_NE(digest(bytes), one) << i;
    bytes[i] = 'a';
  }
  EXPECT_EQ(digest(bytes), one);
}

}  // namespace
}  // namespace starpipe::model
