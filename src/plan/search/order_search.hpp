// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tabu search over the workers' orders; private to plan.

#include <functional>
#include <unordered_map>
#include <vector>

#include "plan/search/instance.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan::detail {

/// Job-shop local search: a job on a critical path moves to another place among the critical jobs around it
/// on its worker, the best move by estimate is taken even if it makes things worse, and what it swapped may
/// not be swapped back for a while (Nowicki and Smutnicki, A Fast Taboo Search Algorithm for the Job Shop
/// Problem, 1996; moves by more than one place as in Balas and Vazacopoulos, 1998). Memory depends on the
/// orders alone, not on times, so every order it visits keeps the limit.
class OrderSearch {
 public:
  /// Takes orders that have no cycle with the data and keep the limit.
  OrderSearch(const Instance& instance, Orders orders);

  /// Makespan of the best orders so far, every job as early as they allow.
  [[nodiscard]] double makespan() const { return best_makespan_; }
  [[nodiscard]] const Orders& orders() const { return best_; }
  /// Random moves, however long the orders then take; `run` goes on from there. O(jobs) each.
  void shake(int moves, Random& random);
  /// Moves until the makespan is at most `good_enough`, many moves in a row have not improved it, `most` are
  /// done or `stop`, told how many, says so. Returns how many. O(jobs) each.
  long run(long most, double good_enough, Random& random, const std::function<bool(long)>& stop);

 private:
  struct Move {
    int worker;
    std::size_t from, to;
    double estimate = 0;
  };

  bool evaluate();
  void evaluate_tails();
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
  // Calls f(index in the worker's order) for all that `move` passes by, its own place not among them.
  template <class Function>
  static void for_each_passed(const Move& move, Function&& f);

  const Instance& instance_;
  Orders orders_;
  Orders best_;
  double makespan_ = 0;
  double best_makespan_ = 0;

  static constexpr JobId none = 0xffffffffU;
  // By JobId:
  std::vector<double> duration_;
  std::vector<JobId> pred_;  // the job whose result it needs, or none
  std::vector<double> lag_;  // of that result
  std::vector<std::array<JobId, 2>> succ_;
  std::vector<int> worker_;
  std::vector<double> memory_;  // change
  std::vector<std::uint32_t> position_;
  std::vector<double> head_;  // earliest start
  std::vector<double> tail_;  // longest way from its start to the end
  std::vector<std::uint8_t> waiting_;

  std::vector<JobId> topological_;
  std::vector<JobId> ready_;
  std::vector<Move> moves_;
  std::vector<JobId> moved_;
  std::vector<double> moved_heads_;
  std::unordered_map<std::uint64_t, long> tabu_;  // pair -> until
};

}  // namespace starpipe::plan::detail
