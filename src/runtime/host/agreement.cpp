// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/agreement.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <new>
#include <numeric>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "runtime/host/blas.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::runtime {

void or_abort(const Mpi& mpi, const std::function<void()>& function) {
  try {
    function();
  } catch (const RunFailure&) {
    throw;
  } catch (const plan::PluginOutOfMemory& error) {
    mpi.abort(error.what());
  } catch (const std::bad_alloc&) {
    mpi.abort("out of memory");
  } catch (const std::exception& error) {
    mpi.abort(error.what());
  }
}

EndWatch::EndWatch(const Mpi& mpi, std::chrono::milliseconds limit) {
  if (on_simgrid) return;
  deadline_.emplace(limit + std::chrono::seconds(std::min(mpi.rank(), 10)), [&mpi, limit] {
    mpi.abort(fmt::format("not all ranks have ended the run within {:g} s: a rank is lost or stopped",
                          std::chrono::duration<double>(limit).count()));
  });
}

bool Mpi::all_equal(std::uint64_t mine) const {
  return std::ranges::count(gather_values(mine), mine) == ranks_;
}

std::uint64_t Mpi::sum_on_root(std::uint64_t mine) const {
  const std::vector<std::uint64_t> all = gather_values(mine);
  return rank_ == 0 ? std::accumulate(all.begin(), all.end(), std::uint64_t{0}) : 0;
}

std::string Mpi::first_problem(const std::string& mine, int place) const {
  constexpr int none = std::numeric_limits<int>::max();
  const std::vector<int> places = gather_values(mine.empty() ? none : place);
  const auto first = std::ranges::min_element(places);
  return *first == none ? std::string() : gather(mine)[static_cast<std::size_t>(first - places.begin())];
}

std::shared_ptr<StarpuSettings> StarpuSettings::of_process() {
  static std::weak_ptr<StarpuSettings> used;
  std::shared_ptr<StarpuSettings> settings = used.lock();
  if (!settings) {
    choose_blas_kernels();
    used = settings = std::make_shared<StarpuSettings>();
  }
  return settings;
}

StarpuSettings::StarpuSettings() : hides_statistics_(!environment("STARPU_MPI_STATS")) {
  const auto unless_set = [this](const char* name, const char* value) {
    if (!environment(name)) constants_.emplace_back(name, value);
  };
  for (const char* name : {"STARPU_SILENT", "STARPU_MPI_STATS", "STARPU_MPI_NOBIND"}) unless_set(name, "1");
  // A GPU's worker takes a task only when the task before has ended. Policy and meter rely on it.
  unless_set("STARPU_CUDA_PIPELINE", "1");
  // No limit. By itself StarPU-MPI sends ten messages of a rank at a time, and links without traffic wait.
  unless_set("STARPU_MPI_NDETACHED_SEND", "0");
  if (folder.own.empty()) return;
  constants_.emplace_back("STARPU_PERF_MODEL_DIR", sampling_folder(folder.own).string());
  // StarPU also reads what it finds in the folder that this variable comes first for.
  constants_.emplace_back("XDG_CACHE_HOME", folder.own.string());
}

}  // namespace starpipe::runtime
