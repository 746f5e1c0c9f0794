// SPDX-License-Identifier: Apache-2.0
#include "cli/options/size_options.hpp"

#include "cli/options/value_checks.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::cli {

void add_size_options(CLI::App& command, int& workers, int workers_limit, int& microbatches,
                      int microbatches_limit) {
  command.add_option("--workers", workers, "Number of workers")
      ->required()
      ->type_name("W")
      ->transform(whole_number(1, index(workers_limit)));
  command.add_option("--microbatches", microbatches, "Number of micro-batches in a step")
      ->required()
      ->type_name("B")
      ->transform(whole_number(1, index(microbatches_limit)));
}

}  // namespace starpipe::cli
