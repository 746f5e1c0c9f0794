// SPDX-License-Identifier: Apache-2.0
// A program of somebody else's that trains with the runtime library, through it with StarPU and MPI. The
// library leaves its environment as it was.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <starpipe/starpipe.hpp>
#include <unistd.h>

namespace {

std::vector<std::string> variables_of_starpu() {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (text.compare(0, 7, "STARPU_") == 0) found.push_back(text);
  }
  std::sort(found.begin(), found.end());
  return found;
}

starpipe::Config configuration() {
  starpipe::Config config;
  config.model.kind = "mlp";
  config.model.options = {{"layers", 4}, {"hidden", 8}, {"inputs", 4}, {"outputs", 2}};
  config.data.kind = "synthetic";
  config.training.steps = 3;
  config.schedule.workers = 2;
  config.runtime.workers_per_core = 16;
  return config;
}

}  // namespace

int main() {
  std::cout << "starpipe " << starpipe::version << '\n' << std::flush;
  const std::vector<std::string> before = variables_of_starpu();
  {
    const starpipe::MpiLibrary mpi;
    starpipe::Runtime runtime;
    starpipe::Trainer trainer(runtime, configuration());
    trainer.run();
  }
  if (variables_of_starpu() == before) return 0;
  std::cerr << "the library has changed the environment\n";
  return 1;
}
