// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "plan/simulate/transfers_in_flight.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::plan {

/// The copies of stashes under way, to homes and back. Each kind of home has links of its own (HomeLink),
/// which no other transfer uses. Neighbours that share a link share its bandwidth fairly, in each direction.
/// Deterministic. Not thread-safe.
class CopiesInFlight {
 public:
  /// The references must outlive this.
  CopiesInFlight(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        host_(costs.host.value_or(HomeLink{})),
        disk_(costs.disk.value_or(HomeLink{})) {}

  /// Begins O or L at `now`, which must not be before the time of an earlier call.
  void begin(double now, JobId id) {
    const Job job = schedule_.job(id);
    const Home kind = schedule_.home(job.stage, job.microbatch);
    static_cast<void>(costs_.home_link(kind));  // for its error
    (kind == Home::host ? host_ : disk_)
        .begin(now, schedule_.compute(id), job.pass, costs_.size(job.stage).stash, id);
  }
  /// Returns the time of the next event, TransfersInFlight::never if there is none.
  [[nodiscard]] double next() const { return std::min(host_.flying.next(), disk_.flying.next()); }
  /// Advances to `now`. Adds the copies that have ended to `ended`.
  void advance(double now, std::vector<std::uint32_t>& ended) {
    host_.flying.advance(now, ended);
    disk_.flying.advance(now, ended);
  }

 private:
  // The workers that share a link, and then their home, are neighbours on one switch. The link's bandwidth is
  // that of the home's port.
  struct HomeTransfers {
    explicit HomeTransfers(const HomeLink& home)
        : workers(home.workers),
          links(std::vector<LinkLevel>{{.link = home.link, .sharing = Sharing::fair}}),
          flying(links) {}
    HomeTransfers(const HomeTransfers&) = delete;
    HomeTransfers& operator=(const HomeTransfers&) = delete;

    void begin(double now, int worker, Pass pass, std::uint64_t bytes, JobId id) {
      const int group = worker / workers * (workers + 1);
      const int here = group + worker % workers;
      const int home = group + workers;
      flying.begin(now, pass == Pass::O ? here : home, pass == Pass::O ? home : here, bytes, id);
    }

    int workers;
    Links links;
    TransfersInFlight flying;
  };

  const Schedule& schedule_;
  const Costs& costs_;
  HomeTransfers host_;
  HomeTransfers disk_;
};

}  // namespace starpipe::plan
