// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/task_graph.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "plan/simulate/reductions.hpp"
#include "runtime/engine/kernels.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/random.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

namespace {

// In the order of the enums.
constexpr std::array<std::string_view, 16> data_names = {"weights",
                                                         "master weights",
                                                         "optimizer state",
                                                         "weight gradient",
                                                         "input",
                                                         "target",
                                                         "loss",
                                                         "verdict",
                                                         "activation",
                                                         "stash",
                                                         "gradient",
                                                         "gradient stash",
                                                         "keys and values",
                                                         "gradient of keys and values",
                                                         "end of a pass",
                                                         "segment of the weight gradient"};
static_assert(data_names.size() == index(DataKind::gradient_segment) + 1);
constexpr std::array<std::string_view, 16> task_names = {"zero",  "F",    "B",     "W",       "BW",  "R",
                                                         "O",     "L",    "close", "segment", "add", "copy",
                                                         "judge", "norm", "merge", "optimize"};
static_assert(task_names.size() == index(TaskKind::optimize) + 1);

constexpr std::array passes = {TaskKind::F, TaskKind::B, TaskKind::W, TaskKind::BW,
                               TaskKind::R, TaskKind::O, TaskKind::L};  // by plan::Pass
static_assert(passes.size() == plan::pass_count);

}  // namespace

std::string_view to_string(DataKind kind) { return data_names[index(kind)]; }
std::string_view to_string(TaskKind kind) { return task_names[index(kind)]; }

std::string name_of(const Task& task, const plan::Schedule& schedule) {
  if (task.job) return plan::to_string(schedule.job(*task.job));
  const int shared = task.stage - schedule.stages();
  const std::string of = shared < 0 ? std::to_string(task.stage) : "shared " + std::to_string(shared);
  return std::string(to_string(task.kind)) + "(" + of + ")";
}

class TaskGraph::Builder {
 public:
  Builder(const plan::Schedule& schedule, const model::Network& network,
          const model::OptimizerConfig& optimizer, TaskGraph& graph, const plan::Schedule& training,
          int in_flight = 0)
      : schedule_(schedule),
        network_(network),
        optimizer_(optimizer),
        can_skip_(graph.rules_.can_skip),
        in_flight_(in_flight),
        updates_wait_(graph.rules_.has_norm && (optimizer.clip || can_skip_)),
        graph_(graph),
        sets_(network.sets()) {
    for (int s = 0; s < schedule.stages(); ++s) shared_sets_.push_back(network.shared_sets(s));
    for (std::size_t set = network.stages.size(); set < sets_.size(); ++set)
      shared_holders_.emplace_back(schedule, training, sets_[set].first_stage());
  }

  void build() {
    for (int set = 0; std::cmp_less(set, sets_.size()); ++set) persistent(set);
    if (graph_.rules_.has_norm) add_verdicts();
    // Reserved memory that is never written costs nothing. Without it a growing vector copies its elements.
    graph_.tasks_.reserve(2 * schedule_.job_count());
    graph_.data_.reserve(4 * schedule_.job_count());
    numbers_.reserve(2 * schedule_.job_count());
    for (const plan::JobId id : plan::topological_order(schedule_)) job(id);
    if (!schedule_.forward_only()) add_update();
  }

 private:
  // The key of a datum: kind, stage, micro-batch and a fourth number where these three are ambiguous. For
  // weights, accumulators and host-filled data it is the writer; for a gradient, the stage that writes it;
  // else 0.
  struct DatumKey {
    DataKind kind;
    int stage;
    int microbatch;
    int fourth;

    bool operator==(const DatumKey&) const = default;
  };

  struct DatumKeyHash {
    std::size_t operator()(const DatumKey& key) const {
      std::uint64_t hash = hash_of(index(key.kind), hash_start);
      for (const int number : {key.stage, key.microbatch, key.fourth})
        hash = hash_of(static_cast<std::uint32_t>(number), hash);
      return hash;
    }
  };

  // The tasks after the jobs.
  void add_update() {
    for (const int worker : judges_)
      add_task({TaskKind::judge, 0, worker, {{verdict(worker), Access::write}}});
    // Backward passes end with the first stage. A worker's norms run sequentially, in this order.
    for (int s = schedule_.stages(); s-- > 0;) reduce(s);
    for (int set = schedule_.stages(); std::cmp_less(set, sets_.size()); ++set) reduce(set);
    join_verdicts();
    for (int set = 0; std::cmp_less(set, sets_.size()); ++set) update(set);
  }

  // A task before its accesses are in the graph.
  struct Draft {
    TaskKind kind;
    int stage;
    int worker;
    std::vector<DataAccess> data = {};
    std::optional<plan::JobId> job = std::nullopt;
    std::optional<plan::Channel> channel = std::nullopt;
  };

  void add_task(const Draft& task) {
    std::pmr::polymorphic_allocator<DataAccess> allocator(graph_.memory_.get());
    const std::span<DataAccess> data(allocator.allocate(task.data.size()), task.data.size());
    std::ranges::uninitialized_copy(task.data, data);
    const int microbatch = task.job ? schedule_.job(*task.job).microbatch : -1;
    graph_.tasks_.push_back({task.kind, task.stage, task.worker, task.job, data, task.channel, microbatch});
  }

  // `fourth`: of the datum's key.
  std::uint32_t add(const Datum& datum, int fourth) {
    if (graph_.data_.size() > std::numeric_limits<std::uint32_t>::max())
      throw InputError("schedule: a step has more than 2^32 data");
    const auto number = static_cast<std::uint32_t>(graph_.data_.size());
    graph_.data_.push_back(datum);
    if (!numbers_.emplace(DatumKey{datum.kind, datum.stage, datum.microbatch, fourth}, number).second)
      throw std::logic_error("a datum has two writers");
    return number;
  }

  // Throws std::out_of_range if no task has written the datum.
  [[nodiscard]] std::uint32_t find(const DatumKey& key) const { return numbers_.at(key); }

  [[nodiscard]] const model::Stage& stage(int s, int b) const { return network_.stage(s, b); }

  [[nodiscard]] bool is_shared(int set) const { return set >= schedule_.stages(); }

  [[nodiscard]] bool has_parameters(int set) const { return sets_[index(set)].size > 0; }

  // Returns the workers that hold the weights of a set. An evaluation needs those that its jobs read.
  [[nodiscard]] std::vector<int> holders(int set) const {
    const int first = sets_[index(set)].first_stage();
    if (!is_shared(set) || !schedule_.forward_only()) return plan::weight_holders(schedule_, first);
    std::set<int> read;
    for (const int s : sets_[index(set)].stages) {
      for (int b = 0; b < schedule_.microbatches(); ++b)
        read.insert(shared_holder(index(set)).of(schedule_.forward(s, b)));
    }
    return {read.begin(), read.end()};
  }

  [[nodiscard]] const plan::SharedHolders& shared_holder(std::size_t set) const {
    return shared_holders_[set - network_.stages.size()];
  }

  // The list of parameters, weights, optimizer state and gradient accumulators of a set, and the tasks that
  // zero the accumulators.
  void persistent(int s) {
    const model::ParameterSet& set = sets_[index(s)];
    const std::vector<model::Parameter>& all = set.parameters;
    SetParameters parameters{
        .stages = set.stages, .size = set.size, .first = parameter_count_, .sizes = {}, .ranges = {}};
    for (const model::Parameter& parameter : all) parameters.sizes.push_back(parameter.size());
    parameters.ranges = model::decay_ranges(optimizer_, all);
    parameter_count_ += all.size();
    graph_.parameters_.push_back(std::move(parameters));
    const std::size_t size = set.size;
    if (size == 0) return;
    std::vector<int> accumulators = plan::gradient_workers(schedule_, set.stages);
    for (const int holder : holders(s)) {
      add({DataKind::weights, s, -1, holder, set.weights_size()}, holder);
      if (schedule_.forward_only()) continue;
      if (set.has_master()) add({DataKind::master, s, -1, holder, size}, holder);
      const std::size_t state = model::optimizer_state_size(optimizer_, size);
      if (state > 0) add({DataKind::optimizer_state, s, -1, holder, state}, holder);
      if (std::ranges::find(accumulators, holder) == accumulators.end()) accumulators.push_back(holder);
    }
    for (const int worker : accumulators) {
      const std::uint32_t datum = add({DataKind::weight_gradient, s, -1, worker, size}, worker);
      add_task({TaskKind::zero, s, worker, {{datum, Access::write}}});
    }
  }

  void job(plan::JobId id) {
    const plan::Job j = schedule_.job(id);
    const auto [holder, worker] = schedule_.placement(id);
    Draft task{.kind = passes[index(j.pass)], .stage = j.stage, .worker = worker, .job = id};
    if (plan::is_copy(j.pass)) {
      task.worker = schedule_.ends(id).second;
      task.channel = schedule_.channel(id, task.worker);
      copy(j, task);
      wait_by_n(j, task);
      return add_task(task);
    }
    const bool has_weights = has_parameters(j.stage);
    if (has_weights && j.pass != plan::Pass::W) {
      task.data.push_back({find({DataKind::weights, j.stage, -1, holder}), Access::read});
    }
    for (const std::size_t set : shared_sets_[index(j.stage)]) {
      if (j.pass == plan::Pass::W) continue;
      const auto number = static_cast<int>(set);
      task.data.push_back({find({DataKind::weights, number, -1, shared_holder(set).of(id)}), Access::read});
    }
    switch (j.pass) {
      case plan::Pass::F:
        forward(j, task);
        break;
      case plan::Pass::R:
        recomputation(j, task);
        break;
      case plan::Pass::W:
        weights(j, task);
        break;
      case plan::Pass::B:
      case plan::Pass::BW:
        backward(j, task);
        break;
      case plan::Pass::O:
      case plan::Pass::L:
        break;
    }
    if (plan::gives_weight_gradient(j.pass)) {
      if (has_weights) task.data.push_back({gradient(j.stage, worker), Access::accumulate});
      for (const std::size_t set : shared_sets_[index(j.stage)])
        task.data.push_back({gradient(static_cast<int>(set), worker), Access::accumulate});
    }
    wait_by_n(j, task);
    if (can_skip_) task.data.push_back({verdict(worker), Access::precede});
    add_task(task);
  }

  [[nodiscard]] std::uint32_t verdict(int worker) const { return find({DataKind::verdict, -1, -1, worker}); }

  // Returns the holder that computes the norm of a set.
  [[nodiscard]] int norm_worker(int s) const {
    const std::vector<int> all = holders(s);
    return all[index(s) % all.size()];
  }

  // A verdict for each worker that computes norms, or waits for them, or whose passes may find infinity or
  // NaN.
  void add_verdicts() {
    std::set<int> workers;
    for (const plan::JobId id : schedule_.order()) {
      if (can_skip_) workers.insert(schedule_.compute(id));
    }
    for (int s = 0; std::cmp_less(s, sets_.size()); ++s) {
      if (!has_parameters(s)) continue;
      workers.insert(norm_worker(s));
      if (!updates_wait_) continue;
      for (const int holder : holders(s)) workers.insert(holder);
    }
    for (const int worker : workers) {
      add({DataKind::verdict, -1, -1, worker, Verdict::words(parameter_count_)}, worker);
      judges_.push_back(worker);
    }
  }

  // Up a binary tree to the first worker, and down again when updates wait for the complete verdict.
  void join_verdicts() {
    const auto merge = [&](int from, int into) {
      add_task({TaskKind::merge, 0, into, {{verdict(from), Access::read}, {verdict(into), Access::update}}});
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
  void write(Draft& task, const Datum& datum, int fourth = 0) {
    if (datum.size > 0) task.data.push_back({add(datum, fourth), Access::write});
  }
  void read(Draft& task, const DatumKey& key) {
    if (const auto found = numbers_.find(key); found != numbers_.end())
      task.data.push_back({found->second, Access::read});
  }

  // Reads a datum that the host fills before the step. Each worker that reads it has its own.
  void read_from_host(Draft& task, DataKind kind, int s, int b, std::size_t size) {
    const DatumKey key = {kind, s, b, task.worker};
    if (!numbers_.contains(key)) add({kind, s, b, task.worker, size}, task.worker);
    read(task, key);
  }

  // The inputs of F and R, except the weights.
  void read_inputs(const plan::Job& j, Draft& task) {
    const auto& [s, b, pass] = j;
    const model::Stage& st = stage(s, b);
    const auto preds = schedule_.graph().pred(s);
    if (preds.empty()) read_from_host(task, DataKind::input, s, b, st.input_size(0));
    if (preds.empty() && in_flight_ > 0 && b >= in_flight_) {
      const int sink = schedule_.graph().sink();
      task.data.push_back({find({DataKind::loss, sink, b - in_flight_, 0}), Access::read});
    }
    for (const int p : preds) task.data.push_back({find({DataKind::activation, p, b, 0}), Access::read});
    if (st.target_columns() > 0)
      read_from_host(task, DataKind::target, s, b, st.rows() * st.target_columns());
  }

  // The parts of the keys of stashes: what F or R makes, what L brings back, and what waits on another
  // worker.
  enum StashCopy : std::uint8_t { made, brought_back, on_peer };

  void write_stash(const plan::Job& j, Draft& task, StashCopy copy) {
    const auto& [s, b, pass] = j;
    write(task, {DataKind::stash, s, b, task.worker, stage(s, b).stash_size()}, copy);
  }

  void copy(const plan::Job& j, Draft& task) {
    const auto& [s, b, pass] = j;
    const bool has_peer = schedule_.home(s, b).peer().has_value();
    const bool is_empty = stage(s, b).stash_size() == 0;
    if (pass == plan::Pass::O) {
      read(task, {DataKind::stash, s, b, made});
      if (has_peer) write_stash(j, task, on_peer);
      if (is_empty) read_end({s, b, plan::Pass::F}, task);
      if (is_empty || !has_peer) write_end(j, task);
    } else {
      if (has_peer) read(task, {DataKind::stash, s, b, on_peer});
      if (is_empty || !has_peer) read_end({s, b, plan::Pass::O}, task);
      write_stash(j, task, brought_back);
      if (is_empty) write_end(j, task);
    }
  }

  // Where n says when memory is free: waits for the jobs that free it.
  void wait_by_n(const plan::Job& j, Draft& task) {
    const plan::JobId id = *schedule_.find(j);
    schedule_.for_each_before_by_n(id, [&](plan::JobId other) { read_end(schedule_.job(other), task); });
    bool is_awaited = false;
    schedule_.for_each_after_by_n(id, [&](plan::JobId) { is_awaited = true; });
    const DatumKey own = {DataKind::end_of_pass, j.stage, j.microbatch, static_cast<int>(j.pass)};
    if (is_awaited && !numbers_.contains(own)) write_end(j, task);
  }

  // One word, where a pass leaves nothing that the pass that waits for it reads.
  void write_end(const plan::Job& j, Draft& task) {
    write(task, {DataKind::end_of_pass, j.stage, j.microbatch, task.worker, 1}, static_cast<int>(j.pass));
  }
  void read_end(const plan::Job& j, Draft& task) {
    read(task, {DataKind::end_of_pass, j.stage, j.microbatch, static_cast<int>(j.pass)});
  }

  void forward(const plan::Job& j, Draft& task) {
    const auto& [s, b, pass] = j;
    const model::Stage& st = stage(s, b);
    read_inputs(j, task);
    if (st.is_sink()) {
      write(task, {DataKind::loss, s, b, task.worker, 1});
    } else {
      write(task, {DataKind::activation, s, b, task.worker, st.output_size()});
    }
    if (schedule_.slices() > 1) forward_of_slice(j, task);
    if (schedule_.forward_only()) return;
    if (!schedule_.recomputes(s, b)) write_stash(j, task, made);
    if (schedule_.recomputes(s, b) || (schedule_.copies(s, b) && st.stash_size() == 0)) write_end(j, task);
  }

  // The keys and values of the slices before, and those of this one. A stage without any waits for the slice
  // before, which is what the schedule says.
  void forward_of_slice(const plan::Job& j, Draft& task) {
    const auto& [s, b, pass] = j;
    const std::size_t size = stage(s, b).keys_values_size();
    for (int earlier = b - schedule_.slice(b); earlier < b; ++earlier)
      read(task, {DataKind::keys_values, s, earlier, 0});
    write(task, {DataKind::keys_values, s, b, task.worker, size});
    if (size > 0) return;
    if (schedule_.slice(b) > 0) read_end({s, b - 1, plan::Pass::F}, task);
    if (!schedule_.is_last_slice(b)) write_end(j, task);
  }

  void backward_of_slice(const plan::Job& j, Draft& task) {
    const auto& [s, b, pass] = j;
    const model::Stage& st = stage(s, b);
    for (int of = b - schedule_.slice(b); of <= b; ++of) read(task, {DataKind::keys_values, s, of, 0});
    if (!schedule_.is_last_slice(b)) {
      read(task, {DataKind::keys_values_gradient, s, b + 1, 0});
      if (st.keys_values_size() == 0) read_end(schedule_.job(schedule_.backward(s, b + 1)), task);
    }
    write(task, {DataKind::keys_values_gradient, s, b, task.worker, st.earlier_gradient_size()});
    const DatumKey own = {DataKind::end_of_pass, s, b, static_cast<int>(pass)};
    if (st.keys_values_size() == 0 && schedule_.slice(b) > 0 && !numbers_.contains(own)) write_end(j, task);
  }

  void recomputation(const plan::Job& j, Draft& task) {
    const auto& [s, b, pass] = j;
    read_inputs(j, task);
    write_stash(j, task, made);
    if (stage(s, b).stash_size() == 0) write_end(j, task);
    read_end({s, b, plan::Pass::F}, task);
    if (schedule_.recomputes_late()) read_output_gradients(j, task);
  }

  void backward(const plan::Job& j, Draft& task) {
    const auto& [s, b, pass] = j;
    const model::Stage& st = stage(s, b);
    read_stash(j, task);
    // The sink's B waits for its F. Other stages wait for a gradient, which comes later.
    if (stage(s, b).stash_size() == 0) {
      read(task, {DataKind::loss, s, b, 0});
      read_end({s, b, plan::Pass::R}, task);
      read_end({s, b, plan::Pass::L}, task);
    }
    read_output_gradients(j, task);
    const auto preds = schedule_.graph().pred(s);
    const std::size_t gradients = st.adds_inputs() ? 1 : preds.size();
    for (std::size_t i = 0; i < gradients; ++i) {
      write(task, {DataKind::gradient, preds[i], b, task.worker, st.input_size(i)}, s);
    }
    if (pass == plan::Pass::B) {
      write(task, {DataKind::gradient_stash, s, b, task.worker, st.gradient_stash_size()});
      if (st.gradient_stash_size() == 0) write_end(j, task);
    }
    if (schedule_.slices() > 1) backward_of_slice(j, task);
  }

  void read_output_gradients(const plan::Job& j, Draft& task) {
    for (const int next : schedule_.graph().succ(j.stage))
      read(task, gradient_key(j.stage, j.microbatch, next));
  }

  // Returns the gradient of a stage's output that `next`, which reads this output, computes. A stage that
  // adds its inputs computes one for all of them, which counts as the gradient of the first.
  [[nodiscard]] DatumKey gradient_key(int s, int b, int next) const {
    const int of = stage(next, b).adds_inputs() ? schedule_.graph().pred(next).front() : s;
    return {DataKind::gradient, of, b, next};
  }

  void read_stash(const plan::Job& j, Draft& task) {
    read(task, {DataKind::stash, j.stage, j.microbatch,
                schedule_.copies(j.stage, j.microbatch) ? brought_back : made});
  }

  void weights(const plan::Job& j, Draft& task) {
    read_stash(j, task);
    read(task, {DataKind::gradient_stash, j.stage, j.microbatch, 0});
    read_end({j.stage, j.microbatch, plan::Pass::B}, task);
  }

  [[nodiscard]] std::uint32_t gradient(int s, int worker) const {
    return find({DataKind::weight_gradient, s, -1, worker});
  }

  // Adds the segment that a step of a reduction sends, and the task that takes it. `replaces`: see
  // GradientSegment.
  std::uint32_t add_segment(int s, const plan::ReductionStep& step, std::optional<std::uint32_t> replaces) {
    const auto number = static_cast<std::uint32_t>(graph_.data_.size());
    if (graph_.segments_.empty()) graph_.first_segment_ = number;
    const std::uint32_t from = gradient(s, step.from);
    graph_.data_.push_back({DataKind::gradient_segment, s, -1, step.from, step.bytes / sizeof(float)});
    graph_.segments_.push_back({step.first / sizeof(float), from, replaces});
    add_task({TaskKind::segment, s, step.from, {{from, Access::read}, {number, Access::write}}});
    return number;
  }

  // Reduces the gradient of a set, and computes its norm.
  void reduce(int s) {
    if (!has_parameters(s)) return;
    // Accumulating tasks share the accumulator. `close` takes it for itself, so that tasks that read the sum
    // wait for all of them.
    for (const int worker : plan::gradient_workers(schedule_, sets_[index(s)].stages)) {
      add_task({TaskKind::close, s, worker, {{gradient(s, worker), Access::update}}});
    }
    const std::uint64_t bytes = sets_[index(s)].size * sizeof(float);
    const std::vector<plan::ReductionStep> steps =
        plan::reduction_plan(schedule_, sets_[index(s)].stages, bytes);
    std::map<std::tuple<int, int, std::uint64_t>, std::uint32_t> sent;  // by sender, receiver and first byte
    for (auto first = steps.begin(); first != steps.end();) {
      const auto next = std::ranges::find_if(
          first, steps.end(), [&](int round) { return round != first->round; }, &plan::ReductionStep::round);
      // All segments come before the additions: so both workers of an exchange send at once.
      std::vector<std::uint32_t> segments;
      for (auto step = first; step != next; ++step) {
        const auto back = sent.find({step->into, step->from, step->first});
        segments.push_back(
            add_segment(s, *step, back == sent.end() ? std::nullopt : std::optional(back->second)));
        sent.emplace(std::tuple(step->from, step->into, step->first), segments.back());
      }
      for (const std::uint32_t segment : segments) {
        const plan::ReductionStep& step = *first++;
        add_task({step.finished ? TaskKind::copy : TaskKind::add,
                  s,
                  step.into,
                  {{segment, Access::read}, {gradient(s, step.into), Access::update}}});
      }
    }
    if (!graph_.rules_.has_norm) return;
    const int worker = norm_worker(s);
    add_task({TaskKind::norm,
              s,
              worker,
              {{gradient(s, worker), Access::read}, {verdict(worker), Access::update}}});
  }

  // Updates the weights of a set on each holder.
  void update(int s) {
    if (!has_parameters(s)) return;
    for (const int holder : holders(s)) {
      Draft task{TaskKind::optimize, s, holder};
      if (updates_wait_) task.data.push_back({verdict(holder), Access::read});
      task.data.push_back({gradient(s, holder), Access::read});
      const bool has_master = sets_[index(s)].has_master();
      if (has_master) task.data.push_back({find({DataKind::master, s, -1, holder}), Access::update});
      task.data.push_back(
          {find({DataKind::weights, s, -1, holder}), has_master ? Access::write : Access::update});
      const auto state = numbers_.find({DataKind::optimizer_state, s, -1, holder});
      if (state != numbers_.end()) task.data.push_back({state->second, Access::update});
      add_task(task);
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
  std::vector<model::ParameterSet> sets_;
  std::vector<std::vector<std::size_t>> shared_sets_;  // by stage
  std::vector<plan::SharedHolders> shared_holders_;    // of the sets that are shared
  // There may be millions of keys, and all of them go at once.
  std::pmr::monotonic_buffer_resource keys_;
  std::pmr::unordered_map<DatumKey, std::uint32_t, DatumKeyHash> numbers_{&keys_};  // of the graph's data
};

TaskGraph::TaskGraph(const plan::Schedule& schedule, const model::Network& network,
                     const model::OptimizerConfig& optimizer, const StepRules& rules)
    : rules_(rules) {
  if (!(schedule.graph() == network.graph)) throw std::logic_error("the schedule is for another stage graph");
  Builder(schedule, network, optimizer, *this, schedule).build();
}

// At least a round of the schedule lies between a micro-batch and the one that it waits for. So the wait goes
// forward in the graph's order of tasks.
TaskGraph TaskGraph::evaluation(const plan::Schedule& schedule, const plan::Schedule& forward,
                                const model::Network& network) {
  TaskGraph graph;
  graph.rules_ = {.has_norm = false};
  const int in_flight = 2 * std::max(schedule.microbatches(), schedule.workers());
  Builder(forward, network, {}, graph, schedule, in_flight).build();
  return graph;
}

std::optional<std::size_t> TaskGraph::find(DataKind kind, int stage, int worker) const {
  const auto found = std::ranges::find_if(data_, [&](const Datum& datum) {
    return datum.kind == kind && datum.stage == stage && datum.worker == worker;
  });
  if (found == data_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - data_.begin());
}

std::optional<std::size_t> TaskGraph::complete_verdict() const {
  const auto found = std::ranges::find(data_, DataKind::verdict, &Datum::kind);
  if (found == data_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - data_.begin());
}

}  // namespace starpipe::runtime
