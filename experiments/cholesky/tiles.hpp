// SPDX-License-Identifier: Apache-2.0
// The tiled Cholesky factorisation A = L L^T as StarPU tasks on CPU workers. The caller chooses what the
// scheduler is told of each task. Nothing here knows starpipe.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <cblas.h>
#include <starpu.h>

namespace cholesky {

/// A task, named by the tile (i, j) that it updates and by its step k <= j <= i: potrf where i = j = k, trsm
/// where i > j = k, syrk where i = j > k, and gemm elsewhere. The tasks of a tile run in the order of k.
struct Task {
  int i;
  int j;
  int k;
};

/// Where and when a task ran.
struct Record {
  int worker = -1;
  int position = -1;  // in the order in which the tasks of the process began
};

/// The facts about a task that the scheduler gets.
struct Hints {
  int priority = 0;            // StarPU's: larger first
  void* sched_data = nullptr;  // for the policy
  Record* record = nullptr;    // where to note the task's run, if anywhere
};

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// The lower triangle of a symmetric matrix of n x n tiles, each of b x b numbers by columns.
class Matrix {
 public:
  /// Random, and each diagonal element is larger than the sum of the rest of its row. Equal arguments give
  /// equal matrices.
  Matrix(int n, int b) : n_(n), b_(b), tiles_(at(n) * at(n)) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j <= i; ++j) {
        tile(i, j).resize(at(b) * at(b));
        for (double& x : tile(i, j)) x = uniform(random);
      }
      for (int r = 0; r < b; ++r) {
        for (int c = 0; c < r; ++c) element(i, i, c, r) = element(i, i, r, c);
        element(i, i, r, r) = 2.0 * n * b;
      }
    }
  }

  [[nodiscard]] int n() const { return n_; }
  [[nodiscard]] int b() const { return b_; }
  std::vector<double>& tile(int i, int j) { return tiles_[at(i) * at(n_) + at(j)]; }
  double& element(int i, int j, int r, int c) { return tile(i, j)[at(c) * at(b_) + at(r)]; }

 private:
  int n_;
  int b_;
  std::vector<std::vector<double>> tiles_;
};

/// The tiles of a matrix as data of StarPU. The destructor waits for their tasks. The matrix must live
/// longer.
class Handles {
 public:
  explicit Handles(Matrix& matrix) : n_(matrix.n()), handles_(at(n_) * at(n_)) {
    const auto b = static_cast<std::uint32_t>(matrix.b());
    for (int i = 0; i < n_; ++i) {
      for (int j = 0; j <= i; ++j) {
        const auto address = reinterpret_cast<std::uintptr_t>(matrix.tile(i, j).data());
        starpu_matrix_data_register(&handles_[at(i) * at(n_) + at(j)], STARPU_MAIN_RAM, address, b, b, b,
                                    sizeof(double));
      }
    }
  }
  ~Handles() {
    for (int i = 0; i < n_; ++i) {
      for (int j = 0; j <= i; ++j) starpu_data_unregister((*this)(i, j));
    }
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  [[nodiscard]] int n() const { return n_; }
  starpu_data_handle_t operator()(int i, int j) const { return handles_[at(i) * at(n_) + at(j)]; }

 private:
  int n_;
  std::vector<starpu_data_handle_t> handles_;
};

namespace kernels {

inline double* tile(void* buffer) { return reinterpret_cast<double*>(STARPU_MATRIX_GET_PTR(buffer)); }

inline int begin(void** buffers, void* record) {
  static std::atomic<int> begun = 0;
  const int position = begun++;
  if (record != nullptr)
    *static_cast<Record*>(record) = {.worker = starpu_worker_get_id(), .position = position};
  return static_cast<int>(STARPU_MATRIX_GET_NX(buffers[0]));
}

inline void potrf(void** buffers, void* record) {
  const int b = begin(buffers, record);
  double* const a = tile(buffers[0]);
  for (int k = 0; k < b; ++k) {
    double* const column = a + k * b;
    cblas_dgemv(CblasColMajor, CblasNoTrans, b - k, k, -1.0, a + k, b, a + k, b, 1.0, column + k, 1);
    column[k] = std::sqrt(column[k]);
    cblas_dscal(b - k - 1, 1.0 / column[k], column + k + 1, 1);
  }
}

inline void trsm(void** buffers, void* record) {
  const int b = begin(buffers, record);
  cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, b, b, 1.0, tile(buffers[0]), b,
              tile(buffers[1]), b);
}

inline void syrk(void** buffers, void* record) {
  const int b = begin(buffers, record);
  cblas_dsyrk(CblasColMajor, CblasLower, CblasNoTrans, b, b, -1.0, tile(buffers[0]), b, 1.0, tile(buffers[1]),
              b);
}

inline void gemm(void** buffers, void* record) {
  const int b = begin(buffers, record);
  cblas_dgemm(CblasColMajor, CblasNoTrans, CblasTrans, b, b, b, -1.0, tile(buffers[0]), b, tile(buffers[1]),
              b, 1.0, tile(buffers[2]), b);
}

inline starpu_codelet codelet(void (*function)(void**, void*), int reads) {
  starpu_codelet result;
  starpu_codelet_init(&result);
  result.cpu_funcs[0] = function;
  result.nbuffers = reads + 1;
  for (int i = 0; i < reads; ++i) result.modes[i] = STARPU_R;
  result.modes[reads] = STARPU_RW;
  return result;
}

}  // namespace kernels

/// Calls `function` with each task, in a valid sequential order.
template <class Function>
void for_each_task(int n, Function function) {
  for (int k = 0; k < n; ++k) {
    function(Task{k, k, k});
    for (int i = k + 1; i < n; ++i) function(Task{i, k, k});
    for (int i = k + 1; i < n; ++i) {
      for (int j = k + 1; j <= i; ++j) function(Task{i, j, k});
    }
  }
}

/// Calls `function` with each task that waits for `task`: the next update of its tile, or the tasks that read
/// the finished tile.
template <class Function>
void for_each_successor(int n, const Task& task, Function function) {
  const auto [i, j, k] = task;
  if (k < j) return function(Task{i, j, k + 1});
  for (int r = i + 1; r < n; ++r) function(i == j ? Task{r, k, k} : Task{r, i, k});
  if (i == j) return;
  for (int c = k + 1; c <= i; ++c) function(Task{i, c, k});
}

/// Submits the factorisation. `hints(task)` gives the Hints of a task. Returns false when StarPU refuses a
/// task.
template <class HintsOf>
bool submit(const Handles& handles, HintsOf hints_of) {
  static starpu_codelet potrf = kernels::codelet(kernels::potrf, 0);
  static starpu_codelet trsm = kernels::codelet(kernels::trsm, 1);
  static starpu_codelet syrk = kernels::codelet(kernels::syrk, 1);
  static starpu_codelet gemm = kernels::codelet(kernels::gemm, 2);
  bool accepted = true;
  for_each_task(handles.n(), [&](const Task& task) {
    const auto [i, j, k] = task;
    const Hints hints = hints_of(task);
    starpu_task* const submitted = starpu_task_create();
    int count = 0;
    if (i == j) {
      submitted->cl = j == k ? &potrf : &syrk;
    } else {
      submitted->cl = j == k ? &trsm : &gemm;
    }
    if (i > j && j == k) submitted->handles[count++] = handles(k, k);
    if (j > k) submitted->handles[count++] = handles(i, k);
    if (i > j && j > k) submitted->handles[count++] = handles(j, k);
    submitted->handles[count] = handles(i, j);
    submitted->cl_arg = hints.record;
    submitted->priority = hints.priority;
    submitted->sched_data = hints.sched_data;
    if (accepted) accepted = starpu_task_submit(submitted) == 0;
  });
  return accepted;
}

/// Returns true if L L^T = A up to rounding. Overwrites both.
inline bool is_factor(Matrix& l, Matrix& a) {
  const int n = a.n();
  const int b = a.b();
  for (int k = 0; k < n; ++k) {
    for (int c = 1; c < b; ++c) {
      for (int r = 0; r < c; ++r) l.element(k, k, r, c) = 0;  // the kernels leave elements above the diagonal
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      for (int k = 0; k <= j; ++k) {
        cblas_dgemm(CblasColMajor, CblasNoTrans, CblasTrans, b, b, b, -1.0, l.tile(i, k).data(), b,
                    l.tile(j, k).data(), b, 1.0, a.tile(i, j).data(), b);
      }
      for (const double x : a.tile(i, j)) {
        if (!(std::fabs(x) <= 1e-12 * n * b * n * b)) return false;  // also where x is NaN
      }
    }
  }
  return true;
}

}  // namespace cholesky
