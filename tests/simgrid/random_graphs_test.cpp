// SPDX-License-Identifier: Apache-2.0
// random_graphs_test PROGRAM [COUNT [FIRST [PERCENT]]]: runs COUNT random graphs
// (tests/simgrid/random_graphs.cpp) on simulated GPUs, half of them in one rank and half in two. Graph
// numbers are seeds, from FIRST on. PERCENT: the most of a GPU's memory that a graph needs.
#include "simgrid/random_graphs.hpp"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/files.hpp"
#include "cli/processes/processes.hpp"
#include "runtime/simulation/cluster.hpp"

namespace {

namespace runtime = starpipe::runtime;
using namespace runtime::testing;

bool run(const std::filesystem::path& program, int ranks, std::uint64_t first, std::uint64_t count,
         const std::string& percent) {
  const starpipe::TemporaryFolder folder;
  const runtime::MachineFiles files =
      runtime::write_machine_files(small_cluster(ranks), small_cluster_gpus, folder.path());
  const auto result = starpipe::cli::run_program(
      runtime::smpirun_command(
          files, program,
          {std::to_string(first), std::to_string(count), std::to_string(small_cluster_gpus), percent},
          folder.path()),
      std::chrono::hours(4));
  fmt::print("{} ranks, from graph {}:\n{}", ranks, first, result.output);
  // SimGrid's exit status says nothing: it is 0 after a deadlock, too.
  return result.output.ends_with(last_line(count, 0));
}

}  // namespace

int main(int argc, char** argv) {
  // Otherwise StarPU takes memory in blocks of 32 MiB, more than these GPUs have.
  setenv("STARPU_SUBALLOCATOR", "0", 1);
  const std::filesystem::path program = argc > 1 ? argv[1] : "";
  const std::uint64_t count = argc > 2 ? std::stoull(argv[2]) : 200;
  const std::uint64_t first = argc > 3 ? std::stoull(argv[3]) : 1;
  const std::string percent = argc > 4 ? argv[4] : "80";
  const std::uint64_t half = count / 2;
  const bool one = run(program, 1, first, count - half, percent);
  const bool two = run(program, 2, first + count - half, half, percent);
  return one && two ? 0 : 1;
}
