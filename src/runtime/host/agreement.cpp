// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/agreement.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <new>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "runtime/host/product_library.hpp"
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

std::string Mpi::first_problem(const std::string& mine, int place) const {
  constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t own = std::uint64_t{index(place)} << 32U | index(rank_);
  const std::uint64_t first = combine(mine.empty() ? none : own, Combine::min);
  return first == none ? std::string() : share(mine, static_cast<int>(first & 0xffffffffU));
}

std::vector<std::string> texts_on_root(const Mpi& mpi, const std::string& mine) {
  std::string all;
  std::vector<std::uint64_t> sizes;
  mpi.gather_on_root(std::as_bytes(std::span(mine)), 1, [&](std::span<const std::uint64_t> counts) {
    sizes.assign(counts.begin(), counts.end());
    all.resize(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
    return std::as_writable_bytes(std::span(all));
  });
  std::vector<std::string> texts;
  std::size_t next = 0;
  for (const std::uint64_t size : sizes) {
    texts.push_back(all.substr(next, size));
    next += size;
  }
  return texts;
}

std::shared_ptr<StarpuSettings> StarpuSettings::of_process() {
  static std::weak_ptr<StarpuSettings> used;
  std::shared_ptr<StarpuSettings> settings = used.lock();
  if (!settings) {
    choose_product_kernels();
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
