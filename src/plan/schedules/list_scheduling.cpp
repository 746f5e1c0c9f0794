// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <deque>
#include <tuple>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {
namespace {

// Tolerance for rounding: a gap that W fills exactly must not count as shorter than W.
constexpr double rounding = 1 + 1e-12;

// The passes before which W may fill a gap shorter than itself, and so delay the pass. Without `always`, it
// does so only where idling through the gap would make this worker the one that has idled most.
struct ShortGaps {
  bool forward = false;
  bool early_backward = false;  // B of the first half of the stages
  bool late_backward = false;
  bool always = false;

  [[nodiscard]] bool before(const Job& job, int stages) const {
    if (job.pass == Pass::F) return forward;
    return 2 * job.stage < stages ? early_backward : late_backward;
  }
};

constexpr std::array variants = {
    ShortGaps{},
    ShortGaps{.early_backward = true},
    ShortGaps{.early_backward = true, .late_backward = true},
    ShortGaps{.forward = true, .early_backward = true},
    ShortGaps{.forward = true, .early_backward = true, .late_backward = true},
    ShortGaps{.forward = true, .early_backward = true, .late_backward = true, .always = true}};

struct SchedulingProblem {
  std::span<const Job> passes;
  const StageGraph& graph;
  int microbatches;
  std::vector<int> workers_of;  // by micro-batch and stage
  int workers;
  int limit;
  const Costs& costs;

  [[nodiscard]] std::size_t at(int stage, int microbatch) const {
    return index(microbatch) * index(graph.size()) + index(stage);
  }
};

/// The order that one pass of the list scheduler makes, with its times.
class ListSchedule {
 public:
  ListSchedule(const SchedulingProblem& problem, ShortGaps short_gaps)
      : problem_(&problem),
        short_gaps_(short_gaps),
        workers_(index(problem.workers)),
        forward_end_(problem.workers_of.size()),
        backward_end_(problem.workers_of.size()) {
    for (const Job& job : problem.passes) {
      if (job.pass != Pass::W) run(job);
    }
    for (Worker& worker : workers_) {
      while (!worker.waiting.empty()) run_weight_gradient(worker);
    }
  }

  // Returns the device span, then the makespan.
  [[nodiscard]] std::tuple<double, double> length() const {
    double span = 0;
    double makespan = 0;
    for (const Worker& worker : workers_) {
      span = std::max(span, worker.time - worker.start);
      makespan = std::max(makespan, worker.time);
    }
    return {span, makespan};
  }

  std::vector<std::vector<Job>> take_rows() {
    std::vector<std::vector<Job>> rows;
    for (Worker& worker : workers_) rows.push_back(std::move(worker.row));
    return rows;
  }

 private:
  struct Worker {
    double time = 0;
    double start = 0;
    double idle = 0;  // since its first pass
    int live = 0;
    std::deque<Job> waiting;  // W
    std::vector<Job> row;
  };

  [[nodiscard]] double transfer(int from, int to, std::uint64_t bytes) const {
    return from == to ? 0 : problem_->costs.link(from, to).time(bytes);
  }

  // Returns the time at which the inputs of F or B are on its worker.
  [[nodiscard]] double arrival(const Job& job) const {
    const auto here = problem_->at(job.stage, job.microbatch);
    const int worker = problem_->workers_of[here];
    double time = job.pass == Pass::F ? 0 : forward_end_[here];
    const auto from = [&](const std::vector<double>& ends, int stage, std::uint64_t bytes) {
      const auto there = problem_->at(stage, job.microbatch);
      time = std::max(time, ends[there] + transfer(problem_->workers_of[there], worker, bytes));
    };
    if (job.pass == Pass::F) {
      for (const int s : problem_->graph.pred(job.stage)) {
        from(forward_end_, s, problem_->costs.size(s).activation);
      }
    } else {
      for (const int s : problem_->graph.succ(job.stage)) {
        from(backward_end_, s, problem_->costs.size(job.stage).gradient);
      }
    }
    return time;
  }

  void run(const Job& job) {
    const auto here = problem_->at(job.stage, job.microbatch);
    Worker& worker = workers_[index(problem_->workers_of[here])];
    const double arrives = arrival(job);
    if (job.pass == Pass::F) {
      while (worker.live >= problem_->limit && !worker.waiting.empty()) run_weight_gradient(worker);
    }
    while (!worker.waiting.empty() && worker.time + weight_gradient_time(worker) <= arrives * rounding) {
      run_weight_gradient(worker);
    }
    const double gap = arrives - worker.time;
    if (gap > 0 && !worker.waiting.empty() && short_gaps_.before(job, problem_->graph.size()) &&
        (short_gaps_.always || gap > max_idle_ - worker.idle)) {
      run_weight_gradient(worker);
    }
    const double start = std::max(worker.time, arrives);
    if (worker.row.empty()) {
      worker.start = start;
    } else {
      worker.idle += start - worker.time;
      max_idle_ = std::max(max_idle_, worker.idle);
    }
    worker.time = start + problem_->costs.duration(job.stage).of(job.pass);
    worker.row.push_back(job);
    if (job.pass == Pass::F) {
      ++worker.live;
      forward_end_[here] = worker.time;
    } else {
      worker.waiting.push_back({job.stage, job.microbatch, Pass::W});
      backward_end_[here] = worker.time;
    }
  }

  [[nodiscard]] double weight_gradient_time(const Worker& worker) const {
    return problem_->costs.duration(worker.waiting.front().stage).W;
  }

  void run_weight_gradient(Worker& worker) {
    worker.time += weight_gradient_time(worker);
    worker.row.push_back(worker.waiting.front());
    worker.waiting.pop_front();
    --worker.live;
  }

  const SchedulingProblem* problem_;
  ShortGaps short_gaps_;
  std::vector<Worker> workers_;
  std::vector<double> forward_end_;
  std::vector<double> backward_end_;
  double max_idle_ = 0;
};

}  // namespace

std::vector<std::vector<Job>> with_weight_gradients(
    std::span<const Job> passes, const StageGraph& graph, int workers, int microbatches,
    const std::function<int(int stage, int microbatch)>& worker, int limit, const Costs& costs) {
  SchedulingProblem problem{passes, graph, microbatches, {}, workers, limit, costs};
  for (int b = 0; b < microbatches; ++b) {
    for (int s = 0; s < graph.size(); ++s) problem.workers_of.push_back(worker(s, b));
  }
  ListSchedule best(problem, variants.front());
  for (const ShortGaps& variant : std::span(variants).subspan(1)) {
    ListSchedule other(problem, variant);
    if (other.length() < best.length()) std::swap(best, other);
  }
  return best.take_rows();
}

}  // namespace starpipe::plan
