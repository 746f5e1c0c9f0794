// SPDX-License-Identifier: Apache-2.0
// starpipe-simulated.so, the engine on simulated GPUs. `starpipe sim` starts it through smpirun, once for
// each rank:
//   starpipe-simulated.so REQUEST.json
// The request names the configuration and the file for the result, which rank 0 writes.
#include <csignal>
#include <exception>
#include <string>

#include <nlohmann/json.hpp>
#include <starpu.h>  // renames main: StarPU starts SimGrid, and then calls it
#include <sys/prctl.h>

#include "base/files.hpp"
#include "base/messages.hpp"
#include "cli/input/input_files.hpp"
#include "runtime/api/simulated_rank.hpp"

int main(int argc, char** argv) {
  namespace cli = starpipe::cli;
  namespace runtime = starpipe::runtime;
  // smpirun is a shell that waits for this process. When it is killed, with `sim`, this one would continue.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    if (argc != 3) throw std::runtime_error("starpipe-simulated.so: `starpipe sim` starts it");
    // `sim` may have been killed before. A process that has ended has no command line.
    const std::string caller = std::string("/proc/") + argv[2] + "/cmdline";
    if (starpipe::read_file(caller).empty()) throw std::runtime_error("`starpipe sim` has ended");
    const cli::SimulatedRequest request = nlohmann::json::parse(starpipe::read_file(argv[1]));
    const nlohmann::json result = runtime::run_simulated_rank(cli::configuration_of(request), request.steps);
    if (!result.is_null()) starpipe::write_file("sim", request.result, result.dump());
    return 0;
  } catch (const std::exception& error) {
    starpipe::print_message("starpipe: " + starpipe::one_line(error.what()) + "\n");
    return 1;
  }
}
