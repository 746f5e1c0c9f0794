// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/idle_sums.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// The sums by key as a list of `Item{key..., seconds}`, the largest first.
template <class Item, class Sums>
std::vector<Item> largest_first(const Sums& sums) {
  std::vector<Item> items;
  for (const auto& sum : sums) {
    items.push_back(std::apply([&](const auto&... key) { return Item{key..., sum.second}; }, sum.first));
  }
  std::ranges::stable_sort(items, std::greater<>{}, &Item::seconds);
  return items;
}

// Follows waiting workers to the job that all of them wait for.
class Chains {
 public:
  Chains(std::span<const IdlePart> parts, const RecordedStep& step)
      : step_(step), pieces_(index(step.as_run.workers())), now_(pieces_.size(), 0) {
    for (std::size_t w = 0; w < pieces_.size(); ++w) {
      for (const JobId id : step.timeline.order[w]) {
        add(w, {.start = step.timeline.spans[id].start, .end = step.timeline.spans[id].end, .job = id});
      }
    }
    for (const IdlePart& part : parts) {
      add(index(part.worker), {.start = part.start, .end = part.end, .idle = &part});
    }
    for (std::vector<Piece>& pieces : pieces_) std::ranges::sort(pieces, {}, &Piece::start);
    std::ranges::sort(times_);
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
  }

  std::vector<ProducerWait> waits() {
    for (std::size_t i = 0; i + 1 < times_.size(); ++i) {
      for (std::size_t w = 0; w < pieces_.size(); ++w) {
        while (now_[w] < pieces_[w].size() && pieces_[w][now_[w]].end <= times_[i]) ++now_[w];
      }
      for (std::size_t w = 0; w < pieces_.size(); ++w) count(w, times_[i + 1] - times_[i]);
    }
    return largest_first<ProducerWait>(sums_);
  }

 private:
  // A job, or an idle part.
  struct Piece {
    double start = 0;
    double end = 0;
    JobId job = 0;
    const IdlePart* idle = nullptr;
  };

  void add(std::size_t worker, const Piece& piece) {
    if (piece.end <= piece.start) return;
    pieces_[worker].push_back(piece);
    times_.push_back(piece.start);
    times_.push_back(piece.end);
  }

  // What the worker does now; null when all its pieces are over.
  [[nodiscard]] const Piece* piece(std::size_t worker) const {
    return now_[worker] < pieces_[worker].size() ? &pieces_[worker][now_[worker]] : nullptr;
  }

  // Under the cause order the worker had something else to run. It waited all the same, for the job that its
  // next one reads.
  static bool waits_for_job(const IdlePart& idle) {
    return idle.cause == IdleCause::producer || (idle.cause == IdleCause::order && idle.producer);
  }

  // The job that runs where the chain from `worker` ends; nothing when none runs there.
  [[nodiscard]] std::optional<JobId> running(std::size_t worker) const {
    // Where clocks differ, workers may seem to wait for each other. So the chain has at most all of them.
    for (std::size_t hops = 0; hops < pieces_.size(); ++hops) {
      const Piece* now = piece(worker);
      if (now == nullptr) return std::nullopt;
      if (now->idle == nullptr) return now->job;
      if (now->idle->cause == IdleCause::transfer || !now->idle->producer) return std::nullopt;
      worker = index(step_.as_run.compute(*now->idle->producer));
    }
    return std::nullopt;
  }

  void count(std::size_t worker, double seconds) {
    const Piece* now = piece(worker);
    if (now == nullptr || now->idle == nullptr || !waits_for_job(*now->idle)) return;
    const std::optional<JobId> id = running(worker);
    if (!id) return;
    const Job job = step_.as_run.job(*id);
    sums_[{job.stage, job.pass, step_.as_run.compute(*id)}] += seconds;
  }

  const RecordedStep& step_;
  std::vector<std::vector<Piece>> pieces_;  // by worker
  std::vector<std::size_t> now_;            // by worker: index of the piece at the time that is looked at
  std::vector<double> times_;               // at which some piece begins or ends
  std::map<std::tuple<int, Pass, int>, double> sums_;
};

}  // namespace

std::vector<std::array<double, idle_cause_count>> idle_seconds(std::span<const IdlePart> parts, int workers) {
  std::vector<std::array<double, idle_cause_count>> seconds(index(workers));
  for (const IdlePart& part : parts) seconds[index(part.worker)][index(part.cause)] += part.end - part.start;
  return seconds;
}

std::vector<ProducerWait> producer_waits(std::span<const IdlePart> parts, const RecordedStep& step) {
  return Chains(parts, step).waits();
}

std::vector<LinkWait> link_waits(std::span<const IdlePart> parts) {
  std::map<std::tuple<int, int>, double> sums;
  for (const IdlePart& part : parts) {
    if (part.cause == IdleCause::transfer) sums[{part.from, part.worker}] += part.end - part.start;
  }
  return largest_first<LinkWait>(sums);
}

}  // namespace starpipe::plan
