// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3, 2024, arXiv 2412.19437, section 3.2.1. Each worker is on two pipelines, near the start of one
// (way 0) and near the end of the other (way 1). It alternates between F of one way and the backward pass of
// the other, and most of these run at once.
#include <array>
#include <deque>
#include <set>

#include <fmt/format.h>

#include "plan/schedules/read_request.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {
namespace {

// One way through a worker: its stage, and the next micro-batch of each pass.
struct Way {
  int stage;
  int forward;
  int backward;
};

// The jobs of one worker, in order. `length` workers lie between an end of the two ways and their middle;
// this worker is number `depth` of them, counted from the end. `microbatches` micro-batches go each way. Adds
// the F of pairs to `pairs`.
class Row {
 public:
  Row(int length, int depth, int microbatches, std::array<Way, 2> ways, std::set<Job>& pairs)
      : ways_(ways), pairs_(pairs) {
    const int before = length - 1 - depth;  // workers between this one and the middle
    const int after = depth + 1;
    repeat(2 * before, [&](int) { forward(0); });
    repeat(after, [&](int) { forward(0), forward(1); });
    repeat(before, [&](int) { split_backward(1), weight_gradient(), forward(1); });
    repeat(microbatches - 2 * length + after, [&](int i) {
      // The first two jobs of a worker in the middle are alone: that makes the bubble shorter.
      i == 0 && before == 0 ? (forward(0), backward(1)) : pair(0, 1);
      pair(1, 0);
    });
    repeat(before, [&](int) { backward(1), pair(1, 0); });
    // In the second half of these, W is left for the end.
    repeat(2 * after, [&](int i) { i < after ? backward(1 - i % 2) : split_backward(1 - i % 2); });
    repeat(before, [&](int) { weight_gradient(), split_backward(0); });
    repeat(after, [&](int) { weight_gradient(); });
  }

  std::vector<Job> take() { return std::move(jobs_); }

 private:
  template <class Function>
  void repeat(int times, Function&& f) {
    for (int i = 0; i < times; ++i) f(i);
  }
  void forward(int way) { jobs_.push_back({at(way).stage, at(way).forward++, Pass::F}); }
  void backward(int way) { jobs_.push_back({at(way).stage, at(way).backward++, Pass::BW}); }
  void pair(int forward_way, int backward_way) {
    forward(forward_way);
    pairs_.insert(jobs_.back());
    backward(backward_way);
  }
  void split_backward(int way) {
    waiting_.push_back({at(way).stage, at(way).backward, Pass::W});
    jobs_.push_back({at(way).stage, at(way).backward++, Pass::B});
  }
  void weight_gradient() {
    jobs_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  Way& at(int way) { return ways_[index(way)]; }

  std::array<Way, 2> ways_;
  std::set<Job>& pairs_;
  std::vector<Job> jobs_;
  std::deque<Job> waiting_;  // W of split backward passes
};

Schedule dualpipe(const ScheduleRequest& request) {
  const StageGraph graph = requested_chain("dualpipe", request, 1);
  const int workers = request.workers;
  if (workers % 2 != 0)
    throw InputError(fmt::format("dualpipe needs an even number of workers, not {}", workers));
  if (request.microbatches % 2 != 0 || request.microbatches < 2 * workers) {
    throw InputError(fmt::format("dualpipe needs an even number of at least 2 W = {} micro-batches, not {}",
                                 2 * workers, request.microbatches));
  }
  const int each_way = request.microbatches / 2;
  std::vector<std::vector<Job>> rows;
  std::set<Job> pairs;
  for (int w = 0; w < workers; ++w) {
    const int depth = std::min(w, workers - 1 - w);
    const int down = w < workers / 2 ? 0 : each_way;  // first micro-batch of the way that starts near w
    const int up = each_way - down;
    Row row(workers / 2, depth, each_way, {Way{depth, down, down}, Way{workers - 1 - depth, up, up}}, pairs);
    rows.push_back(row.take());
  }
  return in_order("dualpipe", graph, request.microbatches, rows, pairs);
}

const bool registered_dualpipe =
    register_schedule({.name = "dualpipe",
                       .summary = "half of the micro-batches down, half up, two replicas; F alongside BW",
                       .source = "DeepSeek-V3, 2024, arXiv 2412.19437, section 3.2.1",
                       .build = dualpipe});

Schedule dualpipe_v(const ScheduleRequest& request) {
  const StageGraph graph = requested_chain("dualpipe-v", request, 2);
  const int workers = request.workers;
  if (request.microbatches < 2 * workers) {
    throw InputError(fmt::format("dualpipe-v needs at least 2 W = {} micro-batches, not {}", 2 * workers,
                                 request.microbatches));
  }
  std::vector<std::vector<Job>> rows;
  std::set<Job> pairs;
  for (int w = 0; w < workers; ++w) {
    Row row(workers, w, request.microbatches, {Way{w, 0, 0}, Way{2 * workers - 1 - w, 0, 0}}, pairs);
    rows.push_back(row.take());
  }
  return in_order("dualpipe-v", graph, request.microbatches, rows, pairs);
}

const bool registered_v =
    register_schedule({.name = "dualpipe-v",
                       .summary = "DualPipe's order along a V: no replicas",
                       .source = "DualPipe's cut-in-half variant, github.com/deepseek-ai/DualPipe",
                       .build = dualpipe_v,
                       .stages_per_worker = 2,
                       .alias = "DualPipeV"});

}  // namespace
}  // namespace starpipe::plan
