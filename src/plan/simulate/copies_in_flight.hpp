// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/simulate/transfers_in_flight.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::plan {

/// The transfers under way between workers and their hosts, or their disks (HomeLink). From a worker to its
/// home, and back, they follow each other in the order of the calls of `begin`. Neighbours that share a link
/// share its bandwidth fairly, in each direction. Deterministic. Not thread-safe.
class HomeTransfers {
 public:
  explicit HomeTransfers(const HomeLink& home)
      : workers_(home.workers),
        links_(std::vector<LinkLevel>{{.link = home.link, .sharing = Sharing::fair}}),
        flying_(links_, home.workers + 1) {}
  HomeTransfers(const HomeTransfers&) = delete;
  HomeTransfers& operator=(const HomeTransfers&) = delete;

  /// As TransfersInFlight::begin. `out`: from the worker to its home.
  void begin(double now, int worker, bool out, std::uint64_t bytes, std::uint32_t number) {
    const int group = worker / workers_ * (workers_ + 1);
    const int here = group + worker % workers_;
    const int home = group + workers_;
    flying_.begin(now, out ? here : home, out ? home : here, bytes, number);
  }
  [[nodiscard]] double next() const { return flying_.next(); }
  void advance(double now, std::vector<std::uint32_t>& arrived) { flying_.advance(now, arrived); }

 private:
  // The workers that share a link, and then their home, are neighbours on one switch, and a rank. The link's
  // bandwidth is that of the home's port.
  int workers_;
  Links links_;
  TransfersInFlight flying_;
};

/// The way of a message between a worker and its host.
struct PassedHost {
  int worker = 0;
  bool out = true;  ///< to the host
  std::uint64_t bytes = 0;
  std::uint32_t number = 0;  ///< the caller's
};

/// The copies of stashes under way, to homes and back, and the messages that pass a host
/// (Costs::messages_pass_hosts). Each kind of home has links of its own. Deterministic. Not thread-safe.
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
        .begin(now, schedule_.compute(id), job.pass == Pass::O, costs_.size(job.stage).stash, 2 * id);
  }
  /// Begins the way of a message between its worker and the host at `now`. `number`: the caller's.
  void pass_host(double now, const PassedHost& message) {
    host_.begin(now, message.worker, message.out, message.bytes, 2 * message.number + 1);
  }
  /// Returns the time of the next event, TransfersInFlight::never if there is none.
  [[nodiscard]] double next() const { return std::min(host_.next(), disk_.next()); }
  /// Advances to `now`. Adds to `ended` the copies that have ended. Adds to `passed` the numbers of the
  /// messages that have passed the link of a host.
  void advance(double now, std::vector<JobId>& ended, std::vector<std::uint32_t>& passed) {
    arrived_.clear();
    host_.advance(now, arrived_);
    disk_.advance(now, arrived_);
    for (const std::uint32_t number : arrived_) (number % 2 == 0 ? ended : passed).push_back(number / 2);
  }

 private:
  const Schedule& schedule_;
  const Costs& costs_;
  HomeTransfers host_;
  HomeTransfers disk_;
  std::vector<std::uint32_t> arrived_;
};

}  // namespace starpipe::plan
