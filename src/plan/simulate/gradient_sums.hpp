// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "plan/simulate/transfers_in_flight.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// The sums of weight gradients over workers, as a step goes on. A worker's contribution to the gradient of a
/// stage, or of weights that stages share, is complete at the end of the worker's last W of these stages.
/// `reduction_plan` gives the steps, for `updated()` bytes. A segment leaves when the sender has added its
/// own contribution and all that earlier rounds bring to it. An addition takes no time, but its worker runs
/// one thing at a time: it waits for the end of the present job.
///
/// The caller tells when jobs end and segments arrive, and sends the segments. Times have the unit of the
/// costs.
class GradientSums {
 public:
  /// Returns the end of the job that a worker runs at a time, or the time itself where it runs none.
  using PresentJobEnd = std::function<double(int worker, double time)>;
  /// Sends a segment; `number` names it.
  using Send = std::function<void(int from, int to, std::uint64_t bytes, std::uint32_t number)>;

  /// `schedule` must outlive this.
  GradientSums(const Schedule& schedule, const Costs& costs, PresentJobEnd present_job_end);

  /// True if the gradient of some weights is summed over workers.
  [[nodiscard]] bool any() const { return !segments_.empty(); }

  /// Notes that a job has ended at `time`. Call it once for each job, in any order.
  void job_ended(JobId id, double time);
  /// Notes that segment `number` has arrived. Call it in the order of the arrivals.
  void arrived(std::uint32_t number, double now);

  /// Returns the time at which the next segment leaves, TransfersInFlight::never if none is ready.
  [[nodiscard]] double next() const;
  /// Sends the segments that leave at `now` or before, in the order of their times. Of several at one time,
  /// the segment of the smallest stage goes first.
  void send_until(double now, const Send& send);

  /// Returns when the latest of all sums was complete on a worker, as far as the caller has told.
  [[nodiscard]] double last() const { return last_; }

 private:
  /// One round of the plan on one worker: segments come in and are added, and segments are sent.
  struct Round {
    int missing = 0;                       // segments that have not arrived
    std::optional<double> arrived = {};    // the last of the others
    std::vector<std::uint32_t> sent = {};  // segments
  };
  /// The sum of one gradient on a worker.
  struct Sum {
    int worker;
    int jobs = 0;                      // that contribute and have not ended
    double ready = 0;                  // when all that the worker has so far is added
    std::map<int, Round> rounds = {};  // that have not ended
    bool sends = true;                 // the segments of the first of them have not been sent
  };
  struct Segment {
    std::size_t from;  // sum
    std::size_t into;
    int round;
    std::uint64_t bytes;
  };

  void add(std::span<const int> stages, std::uint64_t bytes);
  void go_on(Sum& sum);

  const Schedule& schedule_;
  PresentJobEnd present_job_end_;
  std::vector<Sum> sums_;
  std::vector<std::map<int, std::vector<std::size_t>>>
      sums_of_;  // by stage and worker: sums that a W adds to
  std::vector<Segment> segments_;
  std::set<std::pair<double, std::uint32_t>> leaving_;  // when a segment leaves, and its number
  double last_ = 0;
};

/// Predicts when the weight gradients of all stages are summed, and the sums are on all holders of the
/// weights: the time from the first job's start, at least the makespan. `timeline` is a run of `schedule` in
/// which transfers do not delay each other; only its `spans` and `order` are read. Returns nullopt where no
/// gradient is summed over workers, and where transfers take time and workers do not prefetch
/// (Costs::prefetch).
///
/// O(stages * micro-batches + steps * log(jobs)).
std::optional<double> gradients_summed(const Schedule& schedule, const Costs& costs,
                                       const Timeline& timeline);

}  // namespace starpipe::plan
