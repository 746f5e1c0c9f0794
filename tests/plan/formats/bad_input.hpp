// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/message_of.hpp"

namespace starpipe::plan::testing {

struct BadInput {
  std::string text;
  std::vector<std::string> named;  ///< what the message must mention
};

/// Checks that `read(text)` throws InputError for each input. The message must be one line, begin with the
/// name of the file, and mention the input's words.
void expect_refused(const std::vector<BadInput>& inputs, const std::string& file, const auto& read) {
  for (const BadInput& input : inputs) {
    const std::string message = message_of([&] { read(input.text); });
    EXPECT_TRUE(message.starts_with(file + ": ")) << input.text << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& word : input.named) {
      EXPECT_NE(message.find(word), std::string::npos) << input.text << "\n" << message << "\n" << word;
    }
  }
}

}  // namespace starpipe::plan::testing
