// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/step/memory_need.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/step/kernels.hpp"
#include "runtime/step/task_graph.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

using Part = std::uint64_t WorkerMemory::*;

constexpr double always = -std::numeric_limits<double>::infinity();
constexpr double forever = std::numeric_limits<double>::infinity();

Part part_of(DataKind kind) {
  switch (kind) {
    case DataKind::weights:
    case DataKind::master:
      return &WorkerMemory::weights;
    case DataKind::optimizer_state:
      return &WorkerMemory::optimizer;
    case DataKind::weight_gradient:
      return &WorkerMemory::gradients;
    case DataKind::stash:
    case DataKind::gradient_stash:
      return &WorkerMemory::stashes;
    case DataKind::input:
    case DataKind::target:
    case DataKind::loss:
    case DataKind::verdict:
    case DataKind::activation:
    case DataKind::gradient:
      return &WorkerMemory::activations;
  }
  return &WorkerMemory::activations;
}

std::uint64_t bytes_of(const Datum& datum) { return std::uint64_t{datum.size} * sizeof(float); }

/// The memory that one device holds over time.
class Holdings {
 public:
  void add(Part part, std::uint64_t bytes, double from, double to) {
    // At equal times ends come before starts, so back-to-back intervals do not overlap. An interval of length
    // zero ends after the starts, so it counts at its instant.
    changes_.push_back({from, Order::start, part, static_cast<std::int64_t>(bytes)});
    changes_.push_back(
        {to, from < to ? Order::end : Order::end_of_instant, part, -static_cast<std::int64_t>(bytes)});
  }

  /// The memory at the moment with the largest total.
  WorkerMemory peak() {
    std::ranges::sort(changes_, [](const Change& a, const Change& b) {
      return std::pair(a.time, a.order) < std::pair(b.time, b.order);
    });
    WorkerMemory now;
    WorkerMemory most;
    for (const Change& change : changes_) {
      now.*change.part += static_cast<std::uint64_t>(change.bytes);  // an end adds modulo 2^64
      if (change.order == Order::start && now.total() > most.total()) most = now;
    }
    return most;
  }

 private:
  enum class Order : std::uint8_t { end, start, end_of_instant };  // of changes at one time
  struct Change {
    double time;
    Order order;
    Part part;
    std::int64_t bytes;
  };
  std::vector<Change> changes_;
};

/// Goes over the tasks of a step in the graph's order, and notes when each datum is on each device.
class Accountant {
 public:
  Accountant(const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline,
             const TaskGraph& graph, const std::vector<int>& devices)
      : schedule_(schedule),
        costs_(costs),
        timeline_(timeline),
        graph_(graph),
        devices_(devices),
        written_(graph.data().size(), 0),
        holdings_(index(std::ranges::max(devices)) + 1) {}

  std::vector<Holdings> holdings() {
    for (const Task& task : graph_.tasks()) take(task);
    std::ranges::sort(touches_, {}, [](const Touch& t) { return std::pair(t.datum, t.device); });
    for (auto first = touches_.begin(); first != touches_.end();) {
      plan::Span time = first->time;
      auto next = first + 1;
      for (; next != touches_.end() && next->datum == first->datum && next->device == first->device; ++next) {
        time.start = std::min(time.start, next->time.start);
        time.end = std::max(time.end, next->time.end);
      }
      hold(first->datum, first->device, time);
      first = next;
    }
    for (std::size_t d = 0; d < graph_.data().size(); ++d) {
      if (!is_temporary(graph_.data()[d].kind)) hold(d, device(graph_.data()[d].worker), {always, forever});
    }
    return std::move(holdings_);
  }

 private:
  struct Touch {
    std::size_t datum;
    int device;
    plan::Span time;
  };

  [[nodiscard]] int device(int worker) const { return devices_[index(worker)]; }

  void hold(std::size_t datum, int device, plan::Span time) {
    const Datum& held = graph_.data()[datum];
    holdings_[index(device)].add(part_of(held.kind), bytes_of(held), time.start, time.end);
  }

  [[nodiscard]] double arrival(std::size_t datum) const {
    return written_[datum] + costs_.link().time(bytes_of(graph_.data()[datum]));
  }

  // A job has the times of the timeline. Any other task starts and ends when its last input is there.
  [[nodiscard]] plan::Span time_of(const Task& task) const {
    if (task.job) return timeline_.spans[*task.job];
    double time = 0;
    for (const DataAccess& access : task.data) {
      const bool is_here = graph_.data()[access.datum].worker == task.worker;
      time = std::max(time, is_here ? written_[access.datum] : arrival(access.datum));
    }
    return {time, time};
  }

  void touch(std::size_t datum, int worker, plan::Span time) {
    touches_.push_back({datum, device(worker), time});
  }

  void take(const Task& task) {
    const plan::Span time = time_of(task);
    for (const auto& [datum, access] : task.data) {
      const Datum& accessed = graph_.data()[datum];
      if (device(accessed.worker) == device(task.worker)) {
        if (is_temporary(accessed.kind)) touch(datum, task.worker, time);
        if (access != Access::read) written_[datum] = std::max(written_[datum], time.end);
        continue;
      }
      const double sent = arrival(datum);
      const double from = costs_.prefetch ? std::min(sent, time.start) : time.start;
      touch(datum, task.worker, {from, time.end});
      if (is_temporary(accessed.kind))
        touch(datum, accessed.worker, {from, costs_.prefetch ? sent : time.start});
    }
  }

  const plan::Schedule& schedule_;
  const plan::Costs& costs_;
  const plan::Timeline& timeline_;
  const TaskGraph& graph_;
  const std::vector<int>& devices_;
  std::vector<double> written_;  // by datum: when its value is ready
  std::vector<Touch> touches_;   // uses of temporaries, and of copies of all other data
  std::vector<Holdings> holdings_;
};

}  // namespace

std::vector<WorkerMemory> memory_need(const plan::Schedule& schedule, const model::Network& network,
                                      const model::OptimizerConfig& optimizer, const plan::Costs& costs,
                                      const plan::Timeline& timeline, const WorkerDevices& workers) {
  const TaskGraph graph(schedule, network, optimizer);
  std::vector<int> devices = workers.devices;
  if (devices.empty()) {
    devices.resize(index(schedule.workers()));
    std::iota(devices.begin(), devices.end(), 0);
  }
  std::vector<Holdings> holdings = Accountant(schedule, costs, timeline, graph, devices).holdings();
  std::vector<std::set<int>> stages(devices.size());  // by worker: the stages that it computes
  for (const plan::JobId id : schedule.order()) {
    stages[index(schedule.compute(id))].insert(schedule.job(id).stage);
  }
  std::vector<WorkerMemory> needs;
  for (std::size_t w = 0; w < devices.size(); ++w) {
    // StarPU keeps the workspace of each stage that a worker has run.
    for (const int s : stages[w]) {
      const model::Stage& stage = network.stages[index(s)];
      const bool on_gpu = !workers.on_gpu.empty() && workers.on_gpu[w];
      holdings[index(devices[w])].add(&WorkerMemory::workspace,
                                      scratch_size(schedule, stage, on_gpu) * sizeof(float), always, forever);
    }
  }
  for (Holdings& device : holdings) needs.push_back(device.peak());
  return needs;
}

}  // namespace starpipe::runtime
