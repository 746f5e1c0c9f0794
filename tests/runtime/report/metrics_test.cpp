// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/metrics.hpp"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/files.hpp"
#include "support/folder.hpp"

namespace starpipe::runtime {
namespace {

void limit_files(rlim_t bytes) {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  setrlimit(RLIMIT_FSIZE, &limit);
}

// A full disk, which has room again later.
TEST(MetricsFile, KeepsTheLinesThatCannotBeWritten) {
  std::signal(SIGXFSZ, SIG_IGN);
  const Folder folder;
  const std::filesystem::path file = folder / "m.jsonl";
  MetricsFile metrics(file);
  metrics.add_evaluation(1, 0.5);
  const std::string first = read_file(file);
  limit_files(first.size() + 10);
  metrics.add_evaluation(2, 0.25);
  EXPECT_EQ(metrics.problem(), "metrics: cannot write " + file.string() + ": File too large");
  EXPECT_EQ(metrics.take_news(), metrics.problem() + "; training continues, and each step tries again");
  const MetricsPosition short_of_a_line = metrics.position(2);
  metrics.add_evaluation(3, 0.125);
  EXPECT_EQ(metrics.take_news(), "") << "once";
  limit_files(RLIM_INFINITY);
  EXPECT_EQ(read_file(file), first) << "whole lines only";
  EXPECT_NO_THROW(MetricsFile::check(file, short_of_a_line)) << "its run can be resumed";
  metrics.add_evaluation(4, 0.0625);
  EXPECT_EQ(metrics.problem(), "");
  EXPECT_EQ(metrics.take_news(), "metrics: " + file.string() + " has all lines again");
  EXPECT_EQ(read_file(file),
            "{\"step\":1,\"validation_loss\":0.5}\n{\"step\":2,\"validation_loss\":0.25}\n"
            "{\"step\":3,\"validation_loss\":0.125}\n{\"step\":4,\"validation_loss\":0.0625}\n");
  EXPECT_EQ(metrics.position(4).bytes, read_file(file).size());
  EXPECT_NO_THROW(MetricsFile::check(file, metrics.position(4)));
  std::signal(SIGXFSZ, SIG_DFL);
}

}  // namespace
}  // namespace starpipe::runtime
