// SPDX-License-Identifier: Apache-2.0
// Trains a small network on two workers under a schedule of two functions.
#include <cstdio>
#include <exception>

#include <starpipe/starpipe.hpp>

int main() try {
  const starpipe::MpiLibrary mpi;
  starpipe::Runtime runtime(MPI_COMM_WORLD);
  starpipe::Config config;
  config.model.kind = "mlp";
  config.model.options = {{"layers", 3}, {"hidden", 32}, {"inputs", 8}, {"outputs", 4}};
  config.data.kind = "synthetic";
  config.training.steps = 5;
  const auto w = [](int stage, int, starpipe::Pass) { return stage; };  // stage s is on worker s
  const auto n = [](int, int microbatch, starpipe::Pass pass) {         // backward passes come first
    return pass == starpipe::Pass::F ? 100 + microbatch : microbatch;
  };
  starpipe::TrainerParts parts;
  parts.schedule = starpipe::make_schedule({.stages = 2, .workers = 2, .microbatches = 4}, w, n);
  starpipe::Trainer trainer(runtime, config, parts);
  while (trainer.steps_done() < 5) {
    const starpipe::Step step = trainer.step();
    if (runtime.rank() == 0) std::printf("step %d: loss %.4f\n", step.number + 1, *step.loss);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
