// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "plan/search/instance.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan {

/// Tabu search over the workers' orders, as for job shops. A move puts a job of a critical path elsewhere
/// among the critical jobs around it on its worker. Each step makes the move with the best estimate, even if
/// the makespan grows, and forbids for some steps to swap the same jobs back (Nowicki and Smutnicki, A Fast
/// Taboo Search Algorithm for the Job Shop Problem, 1996; moves by more than one position as in Balas and
/// Vazacopoulos, 1998). Memory depends on the orders alone, not on times, so every visited order keeps the
/// limit.
class OrderSearch {
 public:
  /// `orders` must have no cycle with the data dependencies and must keep the memory limit. Keeps a reference
  /// to `instance`.
  OrderSearch(const Instance& instance, Orders orders);

  /// Makespan of the best orders so far, with every job as early as they allow.
  [[nodiscard]] double makespan() const { return best_makespan_; }
  [[nodiscard]] const Orders& orders() const { return best_; }
  /// Makes random moves, even if the makespan grows; `run` continues from there. O(jobs) a move.
  void shake(int moves, Random& random);
  /// Makes moves until the makespan is at most `good_enough`, many moves in a row have not improved it,
  /// `max` moves are done, or `stop(moves)` is true. Returns the number of moves. O(jobs) a move.
  long run(long max, double good_enough, Random& random, const std::function<bool(long)>& stop);

 private:
  struct Move {
    int worker;
    std::size_t from, to;
    double estimate = 0;
  };

  bool evaluate();
  void evaluate_tails();
  [[nodiscard]] double inputs_arrival(JobId job) const;
  [[nodiscard]] double tail_after(JobId job) const;
  [[nodiscard]] std::vector<JobId> critical_path(Random& random) const;
  void collect_moves(const std::vector<JobId>& path);
  void offer(int worker, std::size_t from, std::size_t to);
  [[nodiscard]] bool cannot_cycle(const Move& move) const;
  [[nodiscard]] bool keeps_limit(const Move& move) const;
  double estimate(const Move& move);
  [[nodiscard]] bool is_tabu(const Move& move, long now) const;
  void forbid_reversal(const Move& move, long until);
  [[nodiscard]] const Move& select(long now, Random& random) const;
  void apply(const Move& move);
  void make(const Move& move);
  [[nodiscard]] std::uint64_t pair(JobId before, JobId after) const {
    return static_cast<std::uint64_t>(before) * instance_.jobs() + after;
  }
  // Calls f(index in the worker's order) for each job that the moved job passes.
  template <class Function>
  static void for_each_passed(const Move& move, Function&& f);

  const Instance& instance_;
  Orders orders_;
  Orders best_;
  double makespan_ = 0;
  double best_makespan_ = 0;

  static constexpr JobId none = 0xffffffffU;
  // Vectors with one entry per job:
  std::vector<double> duration_;
  // Names the job at the other end of an edge. `lag` is the transfer time of the result along it.
  struct Link {
    JobId job = none;
    double lag = 0;
  };
  // Entries behind the last one are none.
  std::vector<std::array<Link, 2>> pred_;
  std::vector<std::array<Link, 3>> succ_;
  std::vector<int> worker_;
  std::vector<double> memory_;  // change of the worker's memory
  std::vector<std::uint32_t> position_;
  std::vector<double> head_;           // earliest start
  std::vector<double> tail_;           // longest path from its start to the end of the schedule
  std::vector<std::uint8_t> waiting_;  // number of jobs that it still waits for

  std::vector<JobId> topological_;
  std::vector<JobId> ready_;
  std::vector<Move> moves_;
  std::vector<JobId> moved_;
  std::vector<double> moved_heads_;
  std::unordered_map<std::uint64_t, long> tabu_;  // pair of jobs -> step until which their order is forbidden
};

/// Random orders: repeatedly takes the job that can start first, after a random delay for each job.
///
/// Orders are always found if some schedule keeps the memory limit. F of a stage leaves room for one stash of
/// each later stage of its worker, and a stage runs its micro-batches in order. So younger micro-batches
/// never hold the memory that the oldest unfinished micro-batch needs next. Nor do they where no stash has a
/// home, since a stash then waits for its own W alone. Where some have one, a dead end is possible: throws
/// std::logic_error. O(jobs S).
Orders random_orders(const Instance& instance, Random& random);

}  // namespace starpipe::plan
