// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/ranks.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/messages.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/host/mpi.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::cli {
namespace {

void say(const std::string& line) { print_message(fmt::format("starpipe: {}\n", line)); }

}  // namespace

int run_on_ranks(const std::function<void(Runtime& runtime)>& work) {
  const MpiLibrary library(say);
  int rank = 0;
  int ranks = 1;
  Runtime runtime(
      MPI_COMM_WORLD,
      {.on_message = say,
       .on_progress = [line = ProgressLine()](const std::string& words) { line.show(words); },
       .on_abort = [&](const std::string& reason) { runtime::report_and_end_job(rank, ranks, reason); }});
  rank = runtime.rank();
  ranks = runtime.ranks();
  int status = 0;
  const auto report = [&](const std::string& message, int exit_code) {
    if (rank == 0) say(one_line(message));
    status = exit_code;
  };
  runtime::or_abort(runtime.mpi(), [&] {
    try {
      work(runtime);
    } catch (const InputError& error) {
      report(error.what(), 2);
    } catch (const RunFailure& failure) {
      report(failure.what(), failure.status());
      if (status != runtime::status_of_stopped_run) return;
      runtime.mpi().barrier();
      runtime::end_stopped_run();
    }
  });
  return status;
}

std::vector<Config> agree_on_configs(const Runtime& runtime, const runtime::RankRequest& request,
                                     const std::function<std::vector<Config>()>& configure) {
  std::vector<Config> configs = runtime.agree(configure);
  request.require_same(runtime.mpi(), configs);
  return configs;
}

Config agree_on_config(const Runtime& runtime, const runtime::RankRequest& request,
                       const std::function<Config()>& configure) {
  return agree_on_configs(runtime, request, [&] { return std::vector{configure()}; }).front();
}

void add_outputs(runtime::RankRequest& request, const OutputFiles& outputs) {
  for (const OutputFile& output : outputs.files()) request.add(output.option, output.file);
}

void finish_on_ranks(const Runtime& runtime, const std::function<void()>& work) {
  runtime::or_abort(runtime.mpi(), work);
}

}  // namespace starpipe::cli
