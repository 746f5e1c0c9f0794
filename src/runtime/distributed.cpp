// SPDX-License-Identifier: Apache-2.0
#include "distributed.hpp"

#include <array>
#include <cstdint>
#include <cstdio>

#include <fmt/format.h>

#include "starpipe/model/weights.hpp"

namespace starpipe::runtime {
namespace {

// Collective. Ranks with different schedules would wait for each other without end; a plug-in whose w or n
// depends on more than the request, or that is not the same file everywhere, gives them.
void require_same(const Mpi& mpi, const plan::Schedule& schedule) {
  std::uint64_t digest = 14695981039346656037U;  // FNV-1a, a word at a time
  const auto add = [&digest](std::uint64_t word) { digest = (digest ^ word) * 1099511628211U; };
  add(static_cast<std::uint64_t>(schedule.discipline()));
  for (const int limit : schedule.memory_limits()) add(static_cast<std::uint64_t>(limit));
  for (const plan::JobId id : schedule.order()) {
    add(id);
    add(static_cast<std::uint64_t>(schedule.placement(id).compute));
    add(static_cast<std::uint64_t>(schedule.placement(id).weights));
  }
  const std::array mine = {digest, ~digest};
  std::array<std::uint64_t, 2> least{};  // the smallest digest, and the largest one's complement
  MPI_Allreduce(mine.data(), least.data(), 2, MPI_UINT64_T, MPI_MIN, mpi.comm());
  if (least[0] == ~least[1]) return;
  throw InputError(fmt::format(
      "schedule {}: the ranks have built different ones, w and n must follow from the request alone",
      schedule.name()));
}

}  // namespace

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
      require_same(mpi, experiment.schedule);
      auto parameters =
          agree(mpi, [&] { return model::start_parameters(experiment.network, config.training.seed); });
      const WorkerMap map(experiment.schedule.workers(), mpi.ranks());
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
