// SPDX-License-Identifier: Apache-2.0
// The frame of every command that runs on ranks: start of MPI, one line for an error, exit code, end of MPI.
#pragma once

#include <functional>

#include "cli/options/options.hpp"
#include "runtime/api/agreed_run.hpp"
#include "starpipe/runtime/api/trainer.hpp"

namespace starpipe::cli {

/// Starts MPI, calls `work` on every rank, ends MPI. Returns the exit code: 0; after one line on standard
/// error 2 if `work` throws InputError, and the failure's status if it throws RunFailure; `work` does so on
/// every rank or on none. Any other exception ends the job.
int run_on_ranks(const std::function<void(Runtime& runtime)>& work);

/// Collective. Returns the configurations that `configure` returns on each rank. Throws InputError on every
/// rank when `configure` does on some rank, and when ranks have other configurations or another `request`.
std::vector<Config> agree_on_configs(const Runtime& runtime, const runtime::RankRequest& request,
                                     const std::function<std::vector<Config>()>& configure);
Config agree_on_config(const Runtime& runtime, const runtime::RankRequest& request,
                       const std::function<Config()>& configure);

/// Adds the files that are asked for.
void add_outputs(runtime::RankRequest& request, const OutputFiles& outputs);

/// Collective. Runs what follows the steps: if `work` throws anything but RunFailure, ends the job.
void finish_on_ranks(const Runtime& runtime, const std::function<void()>& work);

}  // namespace starpipe::cli
