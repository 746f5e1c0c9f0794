// SPDX-License-Identifier: Apache-2.0
#include "runtime/step/task_graph.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/reductions.hpp"

namespace starpipe::runtime {

std::string_view to_string(DataKind kind) {
  switch (kind) {
    case DataKind::weights:
      return "weights";
    case DataKind::master:
      return "master weights";
    case DataKind::optimizer_state:
      return "optimizer state";
    case DataKind::weight_gradient:
      return "weight gradient";
    case DataKind::input:
      return "input";
    case DataKind::target:
      return "target";
    case DataKind::loss:
      return "loss";
    case DataKind::verdict:
      return "verdict";
    case DataKind::activation:
      return "activation";
    case DataKind::stash:
      return "stash";
    case DataKind::gradient:
      return "gradient";
    case DataKind::gradient_stash:
      return "gradient stash";
  }
  return "";
}

std::string_view to_string(TaskKind kind) {
  switch (kind) {
    case TaskKind::zero:
      return "zero";
    case TaskKind::F:
      return "F";
    case TaskKind::B:
      return "B";
    case TaskKind::W:
      return "W";
    case TaskKind::BW:
      return "BW";
    case TaskKind::close:
      return "close";
    case TaskKind::add:
      return "add";
    case TaskKind::copy:
      return "copy";
    case TaskKind::judge:
      return "judge";
    case TaskKind::merge:
      return "merge";
    case TaskKind::optimize:
      return "optimize";
  }
  return "?";
}

std::string name_of(const Task& task, const plan::Schedule& schedule) {
  if (task.job) return plan::to_string(schedule.job(*task.job));
  return std::string(to_string(task.kind)) + "(" + std::to_string(task.stage) + ")";
}

class TaskGraph::Builder {
 public:
  Builder(const plan::Schedule& schedule, const model::Network& network,
          const model::OptimizerConfig& optimizer, bool can_skip, TaskGraph& graph)
      : schedule_(schedule), network_(network), optimizer_(optimizer), can_skip_(can_skip), graph_(graph) {}

  void build() {
    for (int s = 0; s < schedule_.stages(); ++s) persistent(s);
    if (can_skip_) add_verdicts();
    graph_.tasks_.reserve(schedule_.job_count());
    for (const plan::JobId id : plan::topological_order(schedule_)) job(id);
    if (can_skip_) join_verdicts();
    for (int s = 0; s < schedule_.stages(); ++s) update(s);
    for (Task& task : graph_.tasks_) task.data.shrink_to_fit();
    graph_.tasks_.shrink_to_fit();
    graph_.data_.shrink_to_fit();
  }

 private:
  // The key of a datum: kind, stage, micro-batch and a fourth number where these three are ambiguous. For
  // weights, accumulators and host-filled data it is the writer; for a gradient, the stage that writes it;
  // else 0.
  using Key = std::tuple<DataKind, int, int, int>;

  std::size_t add(Key key, Datum datum) {
    graph_.data_.push_back(datum);
    const auto [at, is_new] = numbers_.emplace(key, graph_.data_.size() - 1);
    if (!is_new) throw std::logic_error("a datum has two writers");
    return at->second;
  }

  [[nodiscard]] std::size_t find(const Key& key) const { return numbers_.at(key); }

  [[nodiscard]] const model::Stage& stage(int s) const { return network_.stages[index(s)]; }

  // Weights, optimizer state and gradient accumulators of a stage, and the tasks that zero the accumulators.
  void persistent(int s) {
    const std::size_t size = stage(s).parameter_size();
    if (size == 0) return;
    std::vector<int> accumulators = plan::gradient_workers(schedule_, s);
    for (const int holder : plan::weight_holders(schedule_, s)) {
      add({DataKind::weights, s, -1, holder}, {DataKind::weights, s, -1, holder, stage(s).weights_size()});
      if (stage(s).has_master())
        add({DataKind::master, s, -1, holder}, {DataKind::master, s, -1, holder, size});
      const std::size_t state = model::optimizer_state_size(optimizer_, size);
      if (state > 0)
        add({DataKind::optimizer_state, s, -1, holder}, {DataKind::optimizer_state, s, -1, holder, state});
      if (std::ranges::find(accumulators, holder) == accumulators.end()) accumulators.push_back(holder);
    }
    for (const int worker : accumulators) {
      const auto datum =
          add({DataKind::weight_gradient, s, -1, worker}, {DataKind::weight_gradient, s, -1, worker, size});
      graph_.tasks_.push_back({TaskKind::zero, s, worker, std::nullopt, {{datum, Access::write}}});
    }
  }

  void job(plan::JobId id) {
    const plan::Job j = schedule_.job(id);
    const auto [holder, worker] = schedule_.placement(id);
    Task task{TaskKind::F, j.stage, worker, id, {}};
    const bool has_weights = stage(j.stage).parameter_size() > 0;
    if (has_weights && j.pass != plan::Pass::W) {
      task.data.push_back({find({DataKind::weights, j.stage, -1, holder}), Access::read});
    }
    switch (j.pass) {
      case plan::Pass::F:
        forward(j, task);
        break;
      case plan::Pass::B:
        task.kind = TaskKind::B;
        backward(j, task);
        break;
      case plan::Pass::W:
        task.kind = TaskKind::W;
        weights(j, task);
        break;
      case plan::Pass::BW:
        task.kind = TaskKind::BW;
        backward(j, task);
        break;
    }
    if (has_weights && (j.pass == plan::Pass::W || j.pass == plan::Pass::BW)) {
      task.data.push_back({find({DataKind::weight_gradient, j.stage, -1, worker}), Access::accumulate});
    }
    if (can_skip_) task.data.push_back({verdict(worker), Access::precede});
    graph_.tasks_.push_back(std::move(task));
  }

  [[nodiscard]] std::size_t verdict(int worker) const { return find({DataKind::verdict, -1, -1, worker}); }

  // One for each worker that runs passes or holds weights.
  void add_verdicts() {
    std::set<int> workers;
    for (const plan::JobId id : schedule_.order()) workers.insert(schedule_.compute(id));
    for (int s = 0; s < schedule_.stages(); ++s) {
      for (const int holder : plan::weight_holders(schedule_, s)) workers.insert(holder);
    }
    for (const int worker : workers) {
      add({DataKind::verdict, -1, -1, worker}, {DataKind::verdict, -1, -1, worker, 1});
      judges_.push_back(worker);
    }
  }

  // Up a binary tree to the first worker, and down again. The same merge serves both ways: on the way down,
  // the other worker's verdict includes this worker's already.
  void join_verdicts() {
    const auto merge = [&](int from, int into) {
      graph_.tasks_.push_back({TaskKind::merge,
                               0,
                               into,
                               std::nullopt,
                               {{verdict(from), Access::read}, {verdict(into), Access::update}}});
    };
    for (const int worker : judges_) {
      graph_.tasks_.push_back(
          {TaskKind::judge, 0, worker, std::nullopt, {{verdict(worker), Access::update}}});
    }
    const std::size_t count = judges_.size();
    std::size_t distance = 1;
    for (; distance < count; distance *= 2) {
      for (std::size_t i = 0; i + distance < count; i += 2 * distance)
        merge(judges_[i + distance], judges_[i]);
    }
    for (distance /= 2; distance > 0; distance /= 2) {
      for (std::size_t i = 0; i + distance < count; i += 2 * distance)
        merge(judges_[i], judges_[i + distance]);
    }
  }

  // Data of size 0 are left out: write() does not add them, and read() does not find them.
  void write(Task& task, Key key, Datum datum) {
    if (datum.size > 0) task.data.push_back({add(key, datum), Access::write});
  }
  void read(Task& task, const Key& key) {
    if (const auto at = numbers_.find(key); at != numbers_.end())
      task.data.push_back({at->second, Access::read});
  }

  // Reads a datum that the host fills before the step. Each worker that reads it has its own.
  void read_from_host(Task& task, DataKind kind, int s, int b, std::size_t size) {
    const Key key = {kind, s, b, task.worker};
    const auto at = numbers_.find(key);
    task.data.push_back(
        {at != numbers_.end() ? at->second : add(key, {kind, s, b, task.worker, size}), Access::read});
  }

  // The inputs of F, except the weights.
  void read_inputs(const plan::Job& j, Task& task) {
    const auto& [s, b, pass] = j;
    const model::Stage& st = stage(s);
    const auto preds = schedule_.graph().pred(s);
    if (preds.empty()) read_from_host(task, DataKind::input, s, b, st.input_size(0));
    for (const int p : preds) task.data.push_back({find({DataKind::activation, p, b, 0}), Access::read});
    if (st.is_sink()) read_from_host(task, DataKind::target, s, b, st.rows() * st.target_columns());
  }

  void write_stash(const plan::Job& j, Task& task) {
    const auto& [s, b, pass] = j;
    write(task, {DataKind::stash, s, b, 0}, {DataKind::stash, s, b, task.worker, stage(s).stash_size()});
  }

  void forward(const plan::Job& j, Task& task) {
    const auto& [s, b, pass] = j;
    const model::Stage& st = stage(s);
    const int w = task.worker;
    read_inputs(j, task);
    if (st.is_sink()) {
      write(task, {DataKind::loss, s, b, 0}, {DataKind::loss, s, b, w, 1});
    } else {
      write(task, {DataKind::activation, s, b, 0}, {DataKind::activation, s, b, w, st.output_size()});
    }
    if (!schedule_.recompute()) write_stash(j, task);
  }

  void backward(const plan::Job& j, Task& task) {
    const auto& [s, b, pass] = j;
    const model::Stage& st = stage(s);
    if (schedule_.recompute()) {
      read_inputs(j, task);
      read(task, {DataKind::loss, s, b, 0});  // the sink's B waits for its F
      write_stash(j, task);
    } else {
      read(task, {DataKind::stash, s, b, 0});
    }
    for (const int next : schedule_.graph().succ(s)) read(task, {DataKind::gradient, s, b, next});
    const auto preds = schedule_.graph().pred(s);
    for (std::size_t i = 0; i < preds.size(); ++i) {
      write(task, {DataKind::gradient, preds[i], b, s},
            {DataKind::gradient, preds[i], b, task.worker, st.input_size(i)});
    }
    if (pass == plan::Pass::B) {
      write(task, {DataKind::gradient_stash, s, b, 0},
            {DataKind::gradient_stash, s, b, task.worker, st.gradient_stash_size()});
    }
  }

  void weights(const plan::Job& j, Task& task) {
    read(task, {DataKind::stash, j.stage, j.microbatch, 0});
    read(task, {DataKind::gradient_stash, j.stage, j.microbatch, 0});
  }

  // Reduces the gradient of a stage and updates its weights on each holder.
  void update(int s) {
    if (stage(s).parameter_size() == 0) return;
    const auto gradient = [&](int worker) { return find({DataKind::weight_gradient, s, -1, worker}); };
    // Accumulating tasks share the accumulator. `close` takes it for itself, so that tasks that read the sum
    // wait for all of them.
    for (const int worker : plan::gradient_workers(schedule_, s)) {
      graph_.tasks_.push_back(
          {TaskKind::close, s, worker, std::nullopt, {{gradient(worker), Access::update}}});
    }
    for (const plan::ReductionStep& step : plan::reduction_plan(schedule_, s)) {
      const auto kind = step.broadcast ? TaskKind::copy : TaskKind::add;
      const auto access = step.broadcast ? Access::write : Access::update;
      graph_.tasks_.push_back({kind,
                               s,
                               step.into,
                               std::nullopt,
                               {{gradient(step.from), Access::read}, {gradient(step.into), access}}});
    }
    for (const int holder : plan::weight_holders(schedule_, s)) {
      Task task{TaskKind::optimize, s, holder, std::nullopt, {}};
      if (can_skip_) task.data.push_back({verdict(holder), Access::read});
      task.data.push_back({gradient(holder), Access::read});
      const bool has_master = stage(s).has_master();
      if (has_master) task.data.push_back({find({DataKind::master, s, -1, holder}), Access::update});
      task.data.push_back(
          {find({DataKind::weights, s, -1, holder}), has_master ? Access::write : Access::update});
      if (const auto state = numbers_.find({DataKind::optimizer_state, s, -1, holder});
          state != numbers_.end()) {
        task.data.push_back({state->second, Access::update});
      }
      graph_.tasks_.push_back(std::move(task));
    }
  }

  const plan::Schedule& schedule_;
  const model::Network& network_;
  const model::OptimizerConfig& optimizer_;
  bool can_skip_;
  TaskGraph& graph_;
  std::vector<int> judges_;  // the workers with a verdict
  std::map<Key, std::size_t> numbers_;
};

TaskGraph::TaskGraph(const plan::Schedule& schedule, const model::Network& network,
                     const model::OptimizerConfig& optimizer, bool can_skip) {
  if (!(schedule.graph() == network.graph)) throw std::logic_error("the schedule is for another stage graph");
  Builder(schedule, network, optimizer, can_skip, *this).build();
}

}  // namespace starpipe::runtime
