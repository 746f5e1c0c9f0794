// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedules/orders.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/ceil_div.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

int cells_of(const BuildingBlock& block, Pass pass) { return pass == Pass::BW ? block.fused_cells : 1; }

using Passes = std::map<Job, const BlockPass*>;

// Throws unless `pass` comes after all passes that it waits for in a chain of stages. BW counts as B.
void check_order(const BuildingBlock& block, const Passes& passes, const BlockPass& pass) {
  const auto after = [&](Job job) {
    auto found = passes.find(job);
    if (found == passes.end() && job.pass == Pass::B) {
      job.pass = Pass::BW;
      found = passes.find(job);
    }
    if (found == passes.end()) throw InputError(fmt::format("building block: {} is missing", to_string(job)));
    if (pass.cell >= found->second->cell + cells_of(block, job.pass)) return;
    throw InputError(fmt::format("building block: {} in cell {} does not wait for {} in cell {}",
                                 to_string(pass.job), pass.cell, to_string(job), found->second->cell));
  };
  const auto [stage, microbatch, kind] = pass.job;
  if (kind == Pass::F && stage > 0) after({stage - 1, microbatch, Pass::F});
  if (kind == Pass::B || kind == Pass::BW) after({stage, microbatch, Pass::F});
  if ((kind == Pass::B || kind == Pass::BW) && stage + 1 < block.stages)
    after({stage + 1, microbatch, Pass::B});
  if (kind == Pass::W) after({stage, microbatch, Pass::B});
}

}  // namespace

void BuildingBlock::validate() const {
  constexpr std::int64_t most_cells = 20'000'000;
  if (std::int64_t{workers} * interval > most_cells) {
    throw InputError(fmt::format("building block: {} workers and an interval of {} are too many cells",
                                 workers, interval));
  }
  Passes found;
  std::vector<const BlockPass*> taken(index(workers) * index(interval), nullptr);
  for (const BlockPass& pass : passes) {
    found.emplace(pass.job, &pass);
    for (int c = pass.cell; c < pass.cell + cells_of(*this, pass.job.pass); ++c) {
      const BlockPass*& other = taken[index(pass.worker * interval + c % interval)];
      if (other != nullptr) {
        throw InputError(
            fmt::format("building block: {} and {} collide on worker {} when it repeats every {} cells",
                        to_string(other->job), to_string(pass.job), pass.worker, interval));
      }
      other = &pass;
    }
  }
  for (const BlockPass& pass : passes) check_order(*this, found, pass);
}

std::vector<int> BuildingBlock::peak_memory() const {
  std::map<std::pair<int, int>, std::pair<int, int>> lifespans;  // by stage, micro-batch: from, to
  std::vector<int> peaks(index(workers), 0);
  for (const BlockPass& pass : passes) {
    auto& [from, to] = lifespans[{pass.job.stage, pass.job.microbatch}];
    if (pass.job.pass == Pass::F) from = pass.cell;
    to = std::max(to, pass.cell + cells_of(*this, pass.job.pass));
  }
  for (const BlockPass& pass : passes) {
    if (pass.job.pass != Pass::F) continue;
    const auto [from, to] = lifespans[{pass.job.stage, pass.job.microbatch}];
    peaks[index(pass.worker)] += ceil_div(to - from, interval);
  }
  return peaks;
}

}  // namespace starpipe::plan
