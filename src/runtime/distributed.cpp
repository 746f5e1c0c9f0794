// SPDX-License-Identifier: Apache-2.0
#include "distributed.hpp"

#include <cstdio>

#include <fmt/format.h>

#include "starpipe/model/weights.hpp"

namespace starpipe::runtime {

void or_abort(const Mpi& mpi, const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    fmt::print(stderr, "starpipe: rank {}: {}\n", mpi.rank(), error.what());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

Engine make_engine(const Session& session, const Assignment& job) {
  const Experiment& e = job.experiment;
  return {session,
          e.schedule,
          e.network,
          job.config.training.optimizer,
          job.parameters,
          job.config.runtime.timeout,
          e.emulated ? &*e.emulated : nullptr};
}

int run_on_ranks(const std::function<Config()>& configure,
                 const std::function<void(const Assignment&)>& work) {
  const Mpi mpi;
  int status = 0;
  or_abort(mpi, [&] {
    try {
      Config config = agree(mpi, configure);
      Experiment experiment = agree(mpi, [&] { return make_experiment(config); });
      auto parameters =
          agree(mpi, [&] { return model::start_parameters(experiment.network, config.training.seed); });
      const WorkerMap map(config.schedule.workers, mpi.ranks());
      const CoreShare share = share_cores(mpi, map, config.runtime);
      work({mpi, std::move(config), std::move(experiment), std::move(parameters), map, share});
    } catch (const InputError& error) {
      if (mpi.rank() == 0) fmt::print(stderr, "starpipe: {}\n", error.what());
      status = 2;
    }
  });
  return status;
}

}  // namespace starpipe::runtime
