// SPDX-License-Identifier: Apache-2.0
// A StarPU program with a placement w and a priority n of its own: the tiled Cholesky factorisation.
//
//   w  owner computes: a task runs on the worker that owns the tile it updates. Tiles are dealt block-cyclic.
//   n  the longest path from a task to the end comes first.
//
// It checks that each task ran on the worker that w names, and that L L^T = A. With a single worker it also
// checks that the ready task with the smallest n always ran next. Exit status: 0 when all checks
// hold, 1 when one fails, 2 under another policy.
//
// Usage: STARPU_SCHED_LIB=PREFIX/lib/libstarpipe_sched.so STARPU_SCHED=starpipe cholesky TILES TILE_SIZE
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cblas.h>
#include <starpipe/base/error.hpp>
#include <starpipe/sched/starpu_policy.hpp>
#include <starpu.h>

#include "tiles.hpp"

namespace {

using cholesky::Task;

/// A value of T for each task.
template <class T>
class PerTask {
 public:
  explicit PerTask(int n) : n_(n), values_(cholesky::at(n) * cholesky::at(n) * cholesky::at(n)) {}
  [[nodiscard]] int n() const { return n_; }
  T& operator[](const Task& task) {
    return values_[(cholesky::at(task.i) * cholesky::at(n_) + cholesky::at(task.j)) * cholesky::at(n_) +
                   cholesky::at(task.k)];
  }

 private:
  int n_;
  std::vector<T> values_;
};

// w, as the position of a worker. The workers form a grid that is as square as their number allows.
int owner(const Task& task, int workers) {
  int rows = 1;
  for (int r = 2; r * r <= workers; ++r) {
    if (workers % r == 0) rows = r;
  }
  const int columns = workers / rows;
  return task.i % rows * columns + task.j % columns;
}

// In b^3 / 3 operations.
std::int64_t cost(const Task& task) {
  if (task.i == task.j) return task.j == task.k ? 1 : 3;
  return task.j == task.k ? 3 : 6;
}

// n of each task: minus the cost of the longest path from its start to the end of the factorisation.
PerTask<std::int64_t> critical_paths(int n) {
  std::vector<Task> tasks;
  cholesky::for_each_task(n, [&](const Task& task) { tasks.push_back(task); });
  PerTask<std::int64_t> result(n);
  for (auto task = tasks.rbegin(); task != tasks.rend(); ++task) {
    std::int64_t rest = 0;
    cholesky::for_each_successor(n, *task, [&](const Task& next) { rest = std::min(rest, result[next]); });
    result[*task] = rest - cost(*task);
  }
  return result;
}

// Repeats the run of one worker. Returns true if each task was ready when it ran, and no ready task had a
// smaller n.
bool smallest_first(PerTask<cholesky::Record>& records, PerTask<std::int64_t>& n) {
  std::vector<Task> ran;
  PerTask<int> waits_for(n.n());
  cholesky::for_each_task(n.n(), [&](const Task& task) {
    ran.push_back(task);
    cholesky::for_each_successor(n.n(), task, [&](const Task& next) { ++waits_for[next]; });
  });
  std::vector<Task> ready = {ran.front()};
  std::ranges::sort(ran, {}, [&](const Task& task) { return records[task].position; });
  for (const Task& task : ran) {
    const auto here = std::ranges::find_if(ready, [&](const Task& other) {
      return other.i == task.i && other.j == task.j && other.k == task.k;
    });
    if (here == ready.end()) return false;
    ready.erase(here);
    if (std::ranges::any_of(ready, [&](const Task& other) { return n[other] < n[task]; })) return false;
    cholesky::for_each_successor(n.n(), task, [&](const Task& next) {
      if (--waits_for[next] == 0) ready.push_back(next);
    });
  }
  return true;
}

bool fail(const char* message) {
  std::fprintf(stderr, "cholesky: %s\n", message);
  return false;
}

bool run(int tiles, int tile_size) {
  const int count = static_cast<int>(starpu_cpu_worker_get_count());
  std::vector<int> workers(cholesky::at(count));
  starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, workers.data(), starpu_cpu_worker_get_count());
  PerTask<std::int64_t> n = critical_paths(tiles);
  PerTask<cholesky::Record> records(tiles);
  const auto worker_of = [&](const Task& task) { return workers[cholesky::at(owner(task, count))]; };
  cholesky::Matrix matrix(tiles, tile_size);
  {
    const cholesky::Handles handles(matrix);
    starpu_pause();  // no task ends before all are submitted, so that the order does not depend on the time
    const bool accepted = cholesky::submit(handles, [&](const Task& task) {
      return cholesky::Hints{.sched_data = starpipe::sched::pack_pinned(worker_of(task), n[task]),
                             .record = &records[task]};
    });
    starpu_resume();
    starpu_task_wait_for_all();
    if (!accepted) return fail("StarPU refused a task");
  }
  bool right = true;
  cholesky::for_each_task(tiles, [&](const Task& task) {
    if (records[task].worker != worker_of(task)) right = fail("a task ran on another worker than w");
  });
  if (count == 1 && !smallest_first(records, n))
    right = fail("a task ran before a ready one with a smaller n");
  cholesky::Matrix original(tiles, tile_size);
  if (!cholesky::is_factor(matrix, original)) right = fail("L L^T is not A");
  if (right) std::printf("%d x %d tiles on %d workers: w, n and L L^T = A hold\n", tiles, tiles, count);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const int tiles = argc == 3 ? std::atoi(argv[1]) : 0;
  const int tile_size = argc == 3 ? std::atoi(argv[2]) : 0;
  if (tiles < 1 || tile_size < 1) {
    std::fprintf(stderr, "usage: cholesky TILES TILE_SIZE\n");
    return 2;
  }
  openblas_set_num_threads(1);  // StarPU has a worker for each core
  if (starpu_init(nullptr) != 0) return 1;
  int status = 2;
  try {
    starpipe::sched::require_active_policy();
    status = run(tiles, tile_size) ? 0 : 1;
  } catch (const starpipe::InputError& error) {
    std::fprintf(stderr, "cholesky: %s\n", error.what());
  }
  starpu_shutdown();
  return status;
}
