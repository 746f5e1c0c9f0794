// SPDX-License-Identifier: Apache-2.0
#include "base/messages.hpp"

#include <gtest/gtest.h>

namespace starpipe {
namespace {

TEST(Messages, OneLineKeepsText) {
  EXPECT_EQ(one_line(""), "");
  EXPECT_EQ(one_line("a 'b' \\ c"), "a 'b' \\ c");
  EXPECT_EQ(one_line("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"), "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
}

TEST(Messages, OneLineHasNoControlCharacters) {
  EXPECT_EQ(one_line("two\nlines\t\x1b[31m\x7f"), "two lines  [31m ");
}

TEST(Messages, OneLineShowsBytesThatAreNoText) {
  EXPECT_EQ(one_line("\xff"), "\\xff");
  EXPECT_EQ(one_line("a\x80z"), "a\\x80z");
  EXPECT_EQ(one_line("\xc3("), "\\xc3(");         // a second byte is missing
  EXPECT_EQ(one_line("\xe2\x82"), "\\xe2\\x82");  // cut at the end
  EXPECT_EQ(one_line("\xc0\xaf"), "\\xc0\\xaf");  // '/' in more bytes than it needs
}

TEST(Messages, ReplacesCharacters) {
  EXPECT_EQ(with_replaced("a<b<c>", {{'<', "&lt;"}, {'c', ""}}), "a&lt;b&lt;>");
  EXPECT_EQ(with_replaced("", {{'<', "&lt;"}}), "");
}

}  // namespace
}  // namespace starpipe
