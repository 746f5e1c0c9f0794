// SPDX-License-Identifier: Apache-2.0
#include "runtime/step/task_graph.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "runtime/step/verdict.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/reductions.hpp"

namespace starpipe::runtime {

namespace {

// In the order of the enums.
constexpr std::array<std::string_view, 12> data_names = {
    "weights", "master weights", "optimizer state", "weight gradient", "input",    "target",
    "loss",    "verdict",        "activation",      "stash",           "gradient", "gradient stash"};
static_assert(data_names.size() == index(DataKind::gradient_stash) + 1);
constexpr std::array<std::string_view, 12> task_names = {
    "zero", "F", "B", "W", "BW", "close", "add", "copy", "judge", "norm", "merge", "optimize"};
static_assert(task_names.size() == index(TaskKind::optimize) + 1);

}  // namespace

std::string_view to_string(DataKind kind) { return data_names[index(kind)]; }
std::string_view to_string(TaskKind kind) { return task_names[index(kind)]; }

std::string name_of(const Task& task, const plan::Schedule& schedule) {
  if (task.job) return plan::to_string(schedule.job(*task.job));
  return std::string(to_string(task.kind)) + "(" + std::to_string(task.stage) + ")";
}

class TaskGraph::Builder {
 public:
  Builder(const plan::Schedule& schedule, const model::Network& network,
          const model::OptimizerConfig& optimizer, TaskGraph& graph, int in_flight = 0)
      : schedule_(schedule),
        network_(network),
        optimizer_(optimizer),
        can_skip_(graph.rules_.can_skip),
        in_flight_(in_flight),
        updates_wait_(graph.rules_.has_norm && (optimizer.clip || can_skip_)),
        graph_(graph) {}

  void build() {
    for (int s = 0; s < schedule_.stages(); ++s) persistent(s);
    if (graph_.rules_.has_norm) add_verdicts();
    graph_.tasks_.reserve(schedule_.job_count());
    for (const plan::JobId id : plan::topological_order(schedule_)) job(id);
    if (!schedule_.forward_only()) add_update();
    for (Task& task : graph_.tasks_) task.data.shrink_to_fit();
    graph_.tasks_.shrink_to_fit();
    graph_.data_.shrink_to_fit();
  }

 private:
  // The tasks after the jobs.
  void add_update() {
    for (const int worker : judges_)
      graph_.tasks_.push_back({TaskKind::judge, 0, worker, std::nullopt, {{verdict(worker), Access::write}}});
    // Backward passes end with the first stage. A worker's norms run one after the other, in this order.
    for (int s = schedule_.stages(); s-- > 0;) reduce(s);
    join_verdicts();
    for (int s = 0; s < schedule_.stages(); ++s) update(s);
  }

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

  [[nodiscard]] bool has_parameters(int s) const { return stage(s).parameter_size() > 0; }

  // The list of parameters, weights, optimizer state and gradient accumulators of a stage, and the tasks that
  // zero the accumulators.
  void persistent(int s) {
    StageParameters parameters{.first = parameter_count_, .sizes = {}, .ranges = {}};
    const std::vector<model::Parameter> all = stage(s).parameters();
    for (const model::Parameter& parameter : all) parameters.sizes.push_back(parameter.size());
    parameters.ranges = model::decay_ranges(optimizer_, all);
    parameter_count_ += all.size();
    graph_.parameters_.push_back(std::move(parameters));
    const std::size_t size = stage(s).parameter_size();
    if (size == 0) return;
    std::vector<int> accumulators = plan::gradient_workers(schedule_, s);
    for (const int holder : plan::weight_holders(schedule_, s)) {
      add({DataKind::weights, s, -1, holder}, {DataKind::weights, s, -1, holder, stage(s).weights_size()});
      if (schedule_.forward_only()) continue;
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
    const bool has_weights = has_parameters(j.stage);
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

  // The holder that computes the norm of a stage.
  [[nodiscard]] int norm_worker(int s) const {
    const std::vector<int> holders = plan::weight_holders(schedule_, s);
    return holders[index(s) % holders.size()];
  }

  // A verdict for each worker that computes norms, or waits for them, or whose passes may find infinity or
  // NaN.
  void add_verdicts() {
    std::set<int> workers;
    for (const plan::JobId id : schedule_.order()) {
      if (can_skip_) workers.insert(schedule_.compute(id));
    }
    for (int s = 0; s < schedule_.stages(); ++s) {
      if (!has_parameters(s)) continue;
      workers.insert(norm_worker(s));
      if (!updates_wait_) continue;
      for (const int holder : plan::weight_holders(schedule_, s)) workers.insert(holder);
    }
    for (const int worker : workers) {
      add({DataKind::verdict, -1, -1, worker},
          {DataKind::verdict, -1, -1, worker, Verdict::words(parameter_count_)});
      judges_.push_back(worker);
    }
  }

  // Up a binary tree to the first worker, and down again when updates wait for the complete verdict.
  void join_verdicts() {
    const auto merge = [&](int from, int into) {
      graph_.tasks_.push_back({TaskKind::merge,
                               0,
                               into,
                               std::nullopt,
                               {{verdict(from), Access::read}, {verdict(into), Access::update}}});
    };
    const std::size_t count = judges_.size();
    std::size_t distance = 1;
    for (; distance < count; distance *= 2) {
      for (std::size_t i = 0; i + distance < count; i += 2 * distance)
        merge(judges_[i + distance], judges_[i]);
    }
    if (!updates_wait_) return;
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
    if (preds.empty() && in_flight_ > 0 && b >= in_flight_) {
      const int sink = schedule_.graph().sink();
      task.data.push_back({find({DataKind::loss, sink, b - in_flight_, 0}), Access::read});
    }
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
    if (!schedule_.recompute() && !schedule_.forward_only()) write_stash(j, task);
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

  [[nodiscard]] std::size_t gradient(int s, int worker) const {
    return find({DataKind::weight_gradient, s, -1, worker});
  }

  // Reduces the gradient of a stage, and computes its norm.
  void reduce(int s) {
    if (!has_parameters(s)) return;
    // Accumulating tasks share the accumulator. `close` takes it for itself, so that tasks that read the sum
    // wait for all of them.
    for (const int worker : plan::gradient_workers(schedule_, s)) {
      graph_.tasks_.push_back(
          {TaskKind::close, s, worker, std::nullopt, {{gradient(s, worker), Access::update}}});
    }
    for (const plan::ReductionStep& step : plan::reduction_plan(schedule_, s)) {
      const auto kind = step.broadcast ? TaskKind::copy : TaskKind::add;
      const auto access = step.broadcast ? Access::write : Access::update;
      graph_.tasks_.push_back({kind,
                               s,
                               step.into,
                               std::nullopt,
                               {{gradient(s, step.from), Access::read}, {gradient(s, step.into), access}}});
    }
    if (!graph_.rules_.has_norm) return;
    const int worker = norm_worker(s);
    graph_.tasks_.push_back({TaskKind::norm,
                             s,
                             worker,
                             std::nullopt,
                             {{gradient(s, worker), Access::read}, {verdict(worker), Access::update}}});
  }

  // Updates the weights of a stage on each holder.
  void update(int s) {
    if (!has_parameters(s)) return;
    for (const int holder : plan::weight_holders(schedule_, s)) {
      Task task{TaskKind::optimize, s, holder, std::nullopt, {}};
      if (updates_wait_) task.data.push_back({verdict(holder), Access::read});
      task.data.push_back({gradient(s, holder), Access::read});
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
  int in_flight_;      // most micro-batches that an evaluation has begun and not ended; 0: no limit
  bool updates_wait_;  // for a verdict
  TaskGraph& graph_;
  std::vector<int> judges_;  // the workers with a verdict
  std::size_t parameter_count_ = 0;
  std::map<Key, std::size_t> numbers_;
};

TaskGraph::TaskGraph(const plan::Schedule& schedule, const model::Network& network,
                     const model::OptimizerConfig& optimizer, const StepRules& rules)
    : rules_(rules) {
  if (!(schedule.graph() == network.graph)) throw std::logic_error("the schedule is for another stage graph");
  Builder(schedule, network, optimizer, *this).build();
}

// At least a round of the schedule lies between a micro-batch and the one that it waits for. So the wait goes
// forward in the graph's order of tasks.
TaskGraph TaskGraph::evaluation(const plan::Schedule& schedule, const plan::Schedule& forward,
                                const model::Network& network) {
  TaskGraph graph;
  graph.rules_ = {.has_norm = false};
  const int in_flight = 2 * std::max(schedule.microbatches(), schedule.workers());
  Builder(forward, network, {}, graph, in_flight).build();
  return graph;
}

std::optional<std::size_t> TaskGraph::complete_verdict() const {
  const auto found = std::ranges::find(data_, DataKind::verdict, &Datum::kind);
  if (found == data_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - data_.begin());
}

}  // namespace starpipe::runtime
