// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "model/data/binary.hpp"
#include "model/data/token_file.hpp"
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

TEST(TokenLayout, OfText) { expect_layout(text_layout(bytes("abcde")), 0, 1, 5); }

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

}  // namespace
}  // namespace starpipe::model
