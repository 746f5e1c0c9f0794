// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starpipe/plan/schedule/home.hpp"
#include "starpipe/plan/schedule/job.hpp"
#include "starpipe/plan/schedule/stage_graph.hpp"

namespace starpipe::plan {

/// How a worker uses the priority n.
enum class Discipline : std::uint8_t {
  greedy,   ///< among ready jobs the one with the smallest n
  bounded,  ///< greedy, but never more live stashes than the worker's limit (see WorkerQueue)
  ordered,  ///< exactly in the order of n, waiting for the next one
};

/// The disciplines' words, in the order of the enum.
inline constexpr std::array<std::string_view, 3> discipline_words = {"greedy", "bounded", "ordered"};
std::string_view to_string(Discipline discipline);
/// Throws InputError for any other word.
Discipline parse_discipline(std::string_view word);

/// Dense number of a job within its schedule, in [0, Schedule::id_count()).
using JobId = std::uint32_t;

/// The two functions w and n, and everything else that makes a schedule.
struct ScheduleSpec {
  std::string name = {};
  StageGraph graph = StageGraph::chain(1);
  int microbatches = 1;
  /// Slices K of a sequence: micro-batches q K to q K + K - 1 have the parts of the same sequences, in order.
  /// K divides the number of micro-batches. See Schedule::slices.
  int slices = 1;
  int workers = 1;
  /// Returns true if (stage, micro-batch) has B and W as two jobs. Empty: no backward pass is split.
  std::function<bool(int stage, int microbatch)> split_backward = {};
  /// w(s, b, d). It is called for no O and no L: O is on the worker of its F, and L on the worker of its B,
  /// whatever the home.
  std::function<Placement(const Job&)> placement = {};
  /// n(s, b, d), smaller first. Equal values are ordered by micro-batch, stage and pass: F, O, R, L, B, W.
  std::function<std::int64_t(const Job&)> priority = {};
  Discipline discipline = Discipline::ordered;
  /// Number of stashes that each worker may hold at once; empty for no limits.
  std::vector<int> memory_limits = {};
  /// h(s, b). Empty: every stash waits with its worker.
  std::function<Home(int stage, int microbatch)> home = {};
  /// For the ordered discipline; see Schedule::recomputes_late.
  bool late_recomputation = false;
  /// True if equal n makes a pair of F and a backward pass (B or BW) of one worker. No other job may lie
  /// between them. F is the first of the two. Needs the ordered discipline. See Schedule::has_pairs.
  bool pairs = false;
};

/// A schedule as a value: stage graph, micro-batches, workers, w, n, discipline and memory limits,
/// tabulated. A schedule may be unable to run: see `check`. Copies share the tables, so a copy is cheap
/// however many jobs there are.
class Schedule {
 public:
  /// Evaluates w and n once for each job. Throws InputError for counts below 1, a missing w or n, or
  /// memory limits that are not one per worker.
  explicit Schedule(const ScheduleSpec& spec) : Schedule(spec, false) {}

  /// Returns a spec from which an equal schedule can be made, to change parts of it. This schedule must
  /// outlive it.
  [[nodiscard]] ScheduleSpec spec() const;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const StageGraph& graph() const { return graph_; }
  [[nodiscard]] int stages() const { return graph_.size(); }
  [[nodiscard]] int microbatches() const { return microbatches_; }
  /// Returns the number K of slices of a sequence. Micro-batches form chains of K. On each stage F of a slice
  /// also waits for F of the slice before, whose keys and values it reads. B waits for B of the slice after,
  /// which hands back the gradients of these keys and values.
  [[nodiscard]] int slices() const { return slices_; }
  /// Returns the number of micro-batches before they were cut into slices.
  [[nodiscard]] int whole_microbatches() const { return microbatches_ / slices_; }
  /// Returns which slice of its sequences a micro-batch has, from 0.
  [[nodiscard]] int slice(int microbatch) const { return microbatch % slices_; }
  [[nodiscard]] bool is_last_slice(int microbatch) const { return slice(microbatch) == slices_ - 1; }
  [[nodiscard]] int workers() const { return workers_; }
  [[nodiscard]] Discipline discipline() const { return discipline_; }
  [[nodiscard]] std::span<const int> memory_limits() const { return memory_limits_; }
  /// True when any (stage, micro-batch) has B and W as two jobs.
  [[nodiscard]] bool split_backward() const { return has_w_; }
  [[nodiscard]] bool split_backward(int stage, int microbatch) const;

  /// True when any (stage, micro-batch) has R: its stash is live from R on.
  [[nodiscard]] bool recomputes() const { return has_r_; }
  /// True when every (stage, micro-batch) has R.
  [[nodiscard]] bool recomputes_all() const { return recomputes_all_; }
  [[nodiscard]] bool recomputes(int stage, int microbatch) const {
    return has_r_ && home(stage, microbatch) == Home::none;
  }
  [[nodiscard]] Home home(int stage, int microbatch) const {
    return tables_->homes.empty() ? Home::worker : tables_->homes[pair(stage, microbatch)];
  }
  /// True when any stash is copied to its home and back, by O and L.
  [[nodiscard]] bool copies() const { return has_copies_; }
  /// True when any stash waits on another worker than that of its F.
  [[nodiscard]] bool has_peers() const { return has_peers_; }
  [[nodiscard]] bool copies(int stage, int microbatch) const {
    return has_copies_ && is_copied(home(stage, microbatch));
  }
  /// True if R also waits for the gradients that B waits for. Otherwise a greedy worker would run R right
  /// after F, and hold as many stashes as without R. So greedy and bounded schedules are late. An ordered
  /// schedule says by n when R runs. It may run R early, in a bubble (Mario, "Overlap recomputation"), unless
  /// its spec says `late_recomputation`, or it is the order of a greedy or bounded run.
  [[nodiscard]] bool recomputes_late() const {
    return has_r_ && (discipline_ != Discipline::ordered || late_recomputation_);
  }
  /// True if F is the only pass (see `forward_passes`). Nothing is stashed then, and no function may be asked
  /// for a backward pass.
  [[nodiscard]] bool forward_only() const { return stride_ == 1; }
  /// Returns the same schedule with other homes. Passes keep w, and their order by n. A new R runs directly
  /// before B, on B's worker. A new O may last until the end of the job after F in the order of the worker,
  /// and a new L may begin with the job before B: so each copy overlaps one job, where there is one. With a
  /// new home on another worker, n also compares jobs of two workers: jobs then keep the order of each
  /// worker, and come in the order of their starts if F, B, W and R take 1 and BW takes 2. Throws InputError,
  /// then, if this schedule cannot finish. A schedule of forward passes alone stays as it is.
  [[nodiscard]] Schedule with_homes(const std::function<Home(int stage, int microbatch)>& home) const;
  /// The same by stage: `homes` has one for all stages, or one for each. Empty: returns this schedule. Throws
  /// InputError for another number.
  [[nodiscard]] Schedule with_homes(std::span<const Home> homes) const;
  /// Returns the same schedule without a home for any stash.
  [[nodiscard]] Schedule with_recomputation() const;

  /// True if any two jobs are a pair: F and the backward pass behind it, which their worker runs at once.
  /// Both wait until both can start, and their results leave when both have ended.
  [[nodiscard]] bool has_pairs() const { return has_pairs_; }
  /// Returns the job that runs at once with `id`; nullopt if it runs alone.
  [[nodiscard]] std::optional<JobId> partner(JobId id) const {
    return has_pairs_ && tables_->partner[id] != no_job ? std::optional(tables_->partner[id]) : std::nullopt;
  }
  /// Returns the same schedule without pairs: their jobs follow each other as other jobs do.
  [[nodiscard]] Schedule without_pairs() const;
  /// Returns F of the pair of which `id` is the backward pass; any other job itself.
  [[nodiscard]] JobId first_of_pair(JobId id) const {
    const std::optional<JobId> other = partner(id);
    return other && *other % static_cast<JobId>(stride_) == 0 ? *other : id;
  }
  /// Returns the job that ends when the results of `id` leave: the backward pass of a pair for its F, and any
  /// other job itself.
  [[nodiscard]] JobId last_of_pair(JobId id) const {
    const std::optional<JobId> other = partner(id);
    return other && id % static_cast<JobId>(stride_) == 0 ? *other : id;
  }

  /// Returns the same jobs, w and n under another discipline or other limits. Only ordered schedules have
  /// pairs.
  [[nodiscard]] Schedule with(Discipline discipline, std::vector<int> memory_limits = {}) const;

  /// Returns the same jobs, w and limits under the ordered discipline with another n, which is given by
  /// JobId. The backward pass of a pair keeps the n of its F.
  [[nodiscard]] Schedule ordered_by(std::span<const std::int64_t> priorities) const;

  /// Job numbers run over [0, id_count()); with split backward passes some numbers may have no job.
  [[nodiscard]] JobId id_count() const { return static_cast<JobId>(tables_->turn.size()); }
  [[nodiscard]] bool exists(JobId id) const { return tables_->turn[id] != no_turn; }
  [[nodiscard]] std::size_t job_count() const { return tables_->order.size(); }
  [[nodiscard]] Job job(JobId id) const;
  [[nodiscard]] JobId forward(int stage, int microbatch) const {
    return (static_cast<JobId>(microbatch) * static_cast<JobId>(stages()) + static_cast<JobId>(stage)) *
           static_cast<JobId>(stride_);
  }
  /// Returns B, or BW where the backward pass is not split.
  [[nodiscard]] JobId backward(int stage, int microbatch) const { return forward(stage, microbatch) + 1; }
  /// Returns W, or BW where the backward pass is not split.
  [[nodiscard]] JobId weight_gradient(int stage, int microbatch) const {
    return forward(stage, microbatch) + (split_backward(stage, microbatch) ? 2 : 1);
  }
  /// Returns R, if the stage and micro-batch have one.
  [[nodiscard]] JobId recomputation(int stage, int microbatch) const {
    return forward(stage, microbatch) + remade_or_offloaded();
  }
  /// Returns O or L, if the stage and micro-batch have them.
  [[nodiscard]] JobId offload(int stage, int microbatch) const {
    return forward(stage, microbatch) + remade_or_offloaded();
  }
  [[nodiscard]] JobId reload(int stage, int microbatch) const { return offload(stage, microbatch) + 1; }
  /// Returns the job that makes the stash: F, or R if the stash has no home.
  [[nodiscard]] JobId stash_maker(int stage, int microbatch) const {
    return recomputes(stage, microbatch) ? recomputation(stage, microbatch) : forward(stage, microbatch);
  }
  /// Returns nullopt if the schedule has no such job (BW where the backward pass is split, a stage out of
  /// range, ...).
  [[nodiscard]] std::optional<JobId> find(const Job& job) const;

  [[nodiscard]] Placement placement(JobId id) const { return tables_->placement[id]; }
  [[nodiscard]] int compute(JobId id) const { return tables_->placement[id].compute; }
  /// Returns w by JobId.
  [[nodiscard]] std::span<const Placement> placements() const { return tables_->placement; }
  /// Returns the job's position in the total order n of all jobs: 0 is first. Unique.
  [[nodiscard]] std::uint32_t turn(JobId id) const { return tables_->turn[id]; }
  /// Returns `turn` by JobId; 0xffffffff for an id without a job.
  [[nodiscard]] std::span<const std::uint32_t> turns() const { return tables_->turn; }
  /// Returns the index of the job in `order(compute(id))`. O and L have none.
  [[nodiscard]] std::uint32_t position(JobId id) const { return tables_->position[id]; }
  /// Returns every job, smallest n first.
  [[nodiscard]] std::span<const JobId> order() const { return tables_->order; }
  /// Returns the jobs that `worker` computes, smallest n first. Empty for a worker that does not exist.
  [[nodiscard]] std::span<const JobId> order(int worker) const;
  /// Returns all O and L that use a channel of `worker`, smallest n first: those of its own stashes, and
  /// those of stashes that wait on it. Empty for a worker that does not exist.
  [[nodiscard]] std::span<const JobId> copies_of(int worker) const;
  /// Returns those of one channel.
  [[nodiscard]] std::vector<JobId> copies_of(int worker, Channel channel) const;
  /// Returns the channel of `worker` that O or L uses: `out` for O of its own stashes, and for L of stashes
  /// that waited on it.
  [[nodiscard]] Channel channel(JobId copy, int worker) const {
    return (job(copy).pass == Pass::O) == (compute(copy) == worker) ? Channel::out : Channel::in;
  }
  /// Returns the worker on which the stash of O or L waits; nullopt if it is no worker.
  [[nodiscard]] std::optional<int> peer(JobId copy) const {
    const Job of = job(copy);
    return home(of.stage, of.microbatch).peer();
  }
  /// Returns the workers that O or L takes the stash from, and brings it to; the same one twice if the home
  /// is no worker.
  [[nodiscard]] std::pair<int, int> ends(JobId copy) const;
  /// Returns all jobs of `worker`, and the copies that use its channels, smallest n first.
  [[nodiscard]] std::vector<JobId> order_with_copies(int worker) const;

  /// Returns the jobs that each worker computes, smallest n first.
  [[nodiscard]] const std::vector<std::vector<JobId>>& rows() const { return tables_->rows; }

  /// Returns the micro-batches, sorted by the smallest n of their forward passes.
  [[nodiscard]] std::span<const int> microbatches_by_age() const { return tables_->by_age; }

  /// Calls f(JobId) for every job that must end before `id` starts: F of the preceding stages, and of the
  /// slice before, for F; the backward pass of the slice after, for B and BW; the
  /// maker of the stash (or L) and the backward passes of the succeeding stages for B and BW; its own B for
  /// W; its own F for R, and where R is late (see `recomputes_late`) the backward passes that B waits for;
  /// its own F for O, and its own O for L.
  ///
  /// Where stashes are copied, n also says when memory is free. The copies of a channel run in the order of
  /// n. F, R and copies in take memory for a stash, but not F of a stash without a home; copies out free it,
  /// and so do W and BW. A job that takes
  /// memory waits for all jobs of this worker that free memory and have a smaller n. So a worker never holds
  /// more stashes than in the order of n, however long copies take. These jobs come after those above.
  template <class Function>
  void for_each_pred(JobId id, Function&& f) const;
  /// The inverse of `for_each_pred`.
  template <class Function>
  void for_each_succ(JobId id, Function&& f) const;
  [[nodiscard]] int pred_count(JobId id) const;
  /// Calls f(JobId) for the jobs for which `id` waits only because of n (see `for_each_pred`). There are
  /// some only where stashes are copied. `for_each_pred` calls f for them last.
  template <class Function>
  void for_each_before_by_n(JobId id, Function&& f) const {
    if (has_copies_) for_each(tables_->waits_for[id], f);
  }
  /// Calls f(JobId) for the jobs that wait for `id` only because of n.
  template <class Function>
  void for_each_after_by_n(JobId id, Function&& f) const {
    if (has_copies_) for_each(tables_->waited_for[id], f);
  }

  /// Compares the tables job by job.
  friend bool operator==(const Schedule& a, const Schedule& b);

 private:
  friend Schedule forward_passes(const Schedule& schedule, int microbatches);
  Schedule(const ScheduleSpec& spec, bool forward_only);

  using FewJobs = std::array<JobId, 4>;  // the first ones are jobs, the others `no_job`
  static constexpr JobId no_job = 0xffffffffU;
  static void add(FewJobs& jobs, JobId job) {
    const auto at = std::ranges::find_if(jobs, [job](JobId here) { return here == no_job || here == job; });
    *at = job;
  }
  template <class Function>
  static void for_each(const FewJobs& jobs, Function&& f) {
    for (auto job = jobs.begin(); job != jobs.end() && *job != no_job; ++job) f(*job);
  }

  // w and n, never changed once made.
  struct Tables {
    std::vector<Placement> placement;     // by JobId, as the next two
    std::vector<std::uint32_t> turn;      // `no_turn` where there is no job
    std::vector<std::uint32_t> position;  // in the order of its worker
    std::vector<JobId> order;
    std::vector<std::vector<JobId>> rows;  // by worker
    std::vector<int> by_age;
    std::vector<Home> homes;     // by micro-batch and stage; empty: all with their workers
    std::vector<JobId> partner;  // by JobId, `no_job` for a job that runs alone; empty: no pairs
    // Where stashes are copied:
    std::vector<std::vector<JobId>> copies;  // by worker
    std::vector<FewJobs> waits_for;          // by JobId: jobs that free memory, and the copies before
    std::vector<FewJobs> waited_for;         // the inverse

    friend bool operator==(const Tables&, const Tables&) = default;
  };
  /// By micro-batch and stage, what the jobs are.
  struct Passes {
    bool split = false;  // B and W are two jobs
    Home home = Home::worker;
  };
  [[nodiscard]] static std::vector<Passes> passes_of(const ScheduleSpec& spec);
  [[nodiscard]] Tables make_tables(const ScheduleSpec& spec, std::span<const Passes> passes) const;
  void order_copies(Tables& tables) const;
  void find_pairs(std::span<const std::int64_t> priority, Tables& tables) const;
  [[nodiscard]] std::vector<std::int64_t> starts_of_equal_passes() const;
  [[nodiscard]] std::size_t pair(int stage, int microbatch) const {
    return static_cast<std::size_t>(microbatch) * static_cast<std::size_t>(stages()) +
           static_cast<std::size_t>(stage);
  }
  [[nodiscard]] JobId remade_or_offloaded() const { return has_w_ ? 3 : 2; }

  static constexpr std::uint32_t no_turn = 0xffffffffU;

  std::string name_;
  StageGraph graph_;
  int microbatches_;
  int slices_;
  int workers_;
  int stride_ = 2;  // F, then B or BW, then W if there is any, then R or O if there is any, then L
  bool has_w_ = false;
  bool has_r_ = false;
  bool has_copies_ = false;
  bool has_peers_ = false;
  bool has_pairs_ = false;
  bool recomputes_all_ = false;
  bool late_recomputation_ = false;
  Discipline discipline_;
  std::vector<int> memory_limits_;
  std::shared_ptr<const Tables> tables_;
};

inline Job Schedule::job(JobId id) const {
  const auto stride = static_cast<JobId>(stride_);
  const JobId number = id / stride;
  const JobId place = id % stride;
  Pass pass = Pass::F;
  if (place == 1) pass = has_w_ && exists(id + 1) ? Pass::B : Pass::BW;
  if (place == 2 && has_w_) pass = Pass::W;
  if (place == remade_or_offloaded()) pass = tables_->homes[number] == Home::none ? Pass::R : Pass::O;
  if (place == remade_or_offloaded() + 1) pass = Pass::L;
  const auto stages_of_graph = static_cast<JobId>(stages());
  return {.stage = static_cast<int>(number % stages_of_graph),
          .microbatch = static_cast<int>(number / stages_of_graph),
          .pass = pass};
}

template <class Function>
void Schedule::for_each_pred(JobId id, Function&& f) const {
  const Job j = job(id);
  switch (j.pass) {
    case Pass::F:
      for (const int s : graph_.pred(j.stage)) f(forward(s, j.microbatch));
      if (slice(j.microbatch) > 0) f(forward(j.stage, j.microbatch - 1));
      break;
    case Pass::R:
      f(forward(j.stage, j.microbatch));
      if (!recomputes_late()) break;
      for (const int s : graph_.succ(j.stage)) f(backward(s, j.microbatch));
      break;
    case Pass::B:
    case Pass::BW:
      f(copies(j.stage, j.microbatch) ? reload(j.stage, j.microbatch) : stash_maker(j.stage, j.microbatch));
      for (const int s : graph_.succ(j.stage)) f(backward(s, j.microbatch));
      if (!is_last_slice(j.microbatch)) f(backward(j.stage, j.microbatch + 1));
      break;
    case Pass::W:
      f(backward(j.stage, j.microbatch));
      break;
    case Pass::O:
      f(forward(j.stage, j.microbatch));
      break;
    case Pass::L:
      f(offload(j.stage, j.microbatch));
      break;
  }
  for_each_before_by_n(id, f);
}

template <class Function>
void Schedule::for_each_succ(JobId id, Function&& f) const {
  const Job j = job(id);
  switch (j.pass) {
    case Pass::F:
      for (const int s : graph_.succ(j.stage)) f(forward(s, j.microbatch));
      if (!is_last_slice(j.microbatch)) f(forward(j.stage, j.microbatch + 1));
      if (forward_only()) break;
      f(home(j.stage, j.microbatch) == Home::worker ? backward(j.stage, j.microbatch)
                                                    : forward(j.stage, j.microbatch) + remade_or_offloaded());
      break;
    case Pass::R:
      f(backward(j.stage, j.microbatch));
      break;
    case Pass::B:
      f(weight_gradient(j.stage, j.microbatch));
      [[fallthrough]];
    case Pass::BW:
      for (const int s : graph_.pred(j.stage)) {
        f(backward(s, j.microbatch));
        if (recomputes_late() && recomputes(s, j.microbatch)) f(recomputation(s, j.microbatch));
      }
      if (slice(j.microbatch) > 0) f(backward(j.stage, j.microbatch - 1));
      break;
    case Pass::W:
      break;
    case Pass::O:
      f(reload(j.stage, j.microbatch));
      break;
    case Pass::L:
      f(backward(j.stage, j.microbatch));
      break;
  }
  for_each_after_by_n(id, f);
}

/// Returns "6 micro-batches", or "2 micro-batches of 3 slices" where micro-batches are cut.
std::string microbatches_text(const Schedule& schedule);

/// Returns the forward passes of `schedule` alone, on any number of micro-batches: the evaluation of a
/// network that `schedule` trains. The micro-batches are divided into rounds of `schedule.microbatches()`;
/// the last round may be shorter. Within a round, each pass has the placement w that it has in `schedule`,
/// and the passes keep their order n. Every pass comes before all passes of later rounds. An ordered schedule
/// stays ordered. The others become greedy: nothing is stashed, so there is nothing to limit. The result can
/// finish if `schedule` can. Throws InputError with `check`'s message when `schedule` cannot finish. Also
/// throws it for less than one micro-batch, for too many jobs, and where the slices do not divide
/// `microbatches`.
Schedule forward_passes(const Schedule& schedule, int microbatches);

}  // namespace starpipe::plan
