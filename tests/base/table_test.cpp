// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <gtest/gtest.h>

#include "base/messages.hpp"

namespace starpipe {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  const std::array<TableRow, 3> rows = {{{"stage", "time"}, {"0", "1.25"}, {"1", "100.75"}}};
  EXPECT_EQ(table_text(rows),
            "stage    time\n"
            "    0    1.25\n"
            "    1  100.75\n");
}

TEST(Table, ColumnsHaveAnAlignmentAndALeastWidth) {
  const std::array<TableRow, 2> rows = {{{"a", "b", "c"}, {"long cell", "1", "last cell"}}};
  constexpr std::array columns = {TableColumn{Align::left, 4}, TableColumn{Align::right, 3},
                                  TableColumn{Align::left, 20}};
  EXPECT_EQ(table_text(rows, columns),
            "a            b  c\n"
            "long cell    1  last cell\n");
}

TEST(Table, RowsMayBeShort) {
  const std::array<TableRow, 3> rows = {{{"a"}, {"1", "2"}, {}}};
  EXPECT_EQ(table_text(rows), "a\n1  2\n\n");
}

TEST(Csv, CellsAreQuotedWhereTheyMustBe) {
  const std::array<TableRow, 2> rows = {{{"plain", "with, comma", ""}, {"a \"word\"", "two\nlines", "1e-3"}}};
  EXPECT_EQ(csv_text(rows),
            "plain,\"with, comma\",\n"
            "\"a \"\"word\"\"\",\"two\nlines\",1e-3\n");
}

}  // namespace
}  // namespace starpipe
