// SPDX-License-Identifier: Apache-2.0
#include "cli/options/size_options.hpp"

namespace starpipe::cli {

void add_size_options(CLI::App& command, int& workers, int most_workers, int& microbatches,
                      int most_microbatches) {
  command.add_option("--workers", workers, "Number of workers")
      ->required()
      ->type_name("W")
      ->check(CLI::Range(1, most_workers));
  command.add_option("--microbatches", microbatches, "Number of micro-batches in a step")
      ->required()
      ->type_name("B")
      ->check(CLI::Range(1, most_microbatches));
}

}  // namespace starpipe::cli
