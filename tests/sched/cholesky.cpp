// SPDX-License-Identifier: Apache-2.0
// A StarPU program that knows nothing of starpipe: the tiled Cholesky factorisation A = L L^T, with
// priorities. Prints the policy that really runs and the seconds of each factorisation. Fails when another
// policy runs than expected (StarPU falls back without a message) or when L L^T is not A.
//
// Usage: cholesky POLICY TILES TILE_SIZE REPETITIONS
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <cblas.h>
#include <starpu.h>

namespace {

int tile_size = 0;

double* tile(void* buffer) { return reinterpret_cast<double*>(STARPU_MATRIX_GET_PTR(buffer)); }

// Tiles are stored by columns, one after the other.
void potrf(void** buffers, void* /*unused*/) {
  double* const a = tile(buffers[0]);
  const int n = tile_size;
  for (int k = 0; k < n; ++k) {
    double* const column = a + k * n;
    cblas_dgemv(CblasColMajor, CblasNoTrans, n - k, k, -1.0, a + k, n, a + k, n, 1.0, column + k, 1);
    column[k] = std::sqrt(column[k]);
    cblas_dscal(n - k - 1, 1.0 / column[k], column + k + 1, 1);
  }
}

void trsm(void** buffers, void* /*unused*/) {
  cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, tile_size, tile_size, 1.0,
              tile(buffers[0]), tile_size, tile(buffers[1]), tile_size);
}

void syrk(void** buffers, void* /*unused*/) {
  cblas_dsyrk(CblasColMajor, CblasLower, CblasNoTrans, tile_size, tile_size, -1.0, tile(buffers[0]),
              tile_size, 1.0, tile(buffers[1]), tile_size);
}

void gemm(void** buffers, void* /*unused*/) {
  cblas_dgemm(CblasColMajor, CblasNoTrans, CblasTrans, tile_size, tile_size, tile_size, -1.0,
              tile(buffers[0]), tile_size, tile(buffers[1]), tile_size, 1.0, tile(buffers[2]), tile_size);
}

starpu_codelet codelet(void (*function)(void**, void*), int reads) {
  starpu_codelet result;
  starpu_codelet_init(&result);
  result.cpu_funcs[0] = function;
  result.nbuffers = reads + 1;
  for (int i = 0; i < reads; ++i) result.modes[i] = STARPU_R;
  result.modes[reads] = STARPU_RW;
  return result;
}

class Matrix {
 public:
  explicit Matrix(int tiles) : tiles_(tiles) {
    const auto elements = static_cast<std::size_t>(tile_size) * static_cast<std::size_t>(tile_size);
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform(-1, 1);
    data_.resize(static_cast<std::size_t>(tiles) * static_cast<std::size_t>(tiles));
    for (int i = 0; i < tiles; ++i) {
      for (int j = 0; j <= i; ++j) {
        at(i, j).resize(elements);
        for (double& x : at(i, j)) x = uniform(random);
      }
      // Symmetric, and each diagonal element is larger than the sum of the rest of its row.
      for (int r = 0; r < tile_size; ++r) {
        for (int c = 0; c < r; ++c) element(i, i, c, r) = element(i, i, r, c);
        element(i, i, r, r) = 2.0 * tiles * tile_size;
      }
    }
  }

  std::vector<double>& at(int i, int j) { return data_[static_cast<std::size_t>(i * tiles_ + j)]; }
  double& element(int i, int j, int r, int c) {
    return at(i, j)[static_cast<std::size_t>(c * tile_size + r)];
  }
  [[nodiscard]] int tiles() const { return tiles_; }

 private:
  int tiles_;
  std::vector<std::vector<double>> data_;  // the lower triangle of tiles
};

// Seconds from the first submission to the end of the last task.
double factorise(Matrix& matrix) {
  static starpu_codelet cl_potrf = codelet(potrf, 0);
  static starpu_codelet cl_trsm = codelet(trsm, 1);
  static starpu_codelet cl_syrk = codelet(syrk, 1);
  static starpu_codelet cl_gemm = codelet(gemm, 2);
  const int n = matrix.tiles();
  std::vector<starpu_data_handle_t> handles(static_cast<std::size_t>(n * n));
  const auto handle = [&](int i, int j) -> starpu_data_handle_t& {
    return handles[static_cast<std::size_t>(i * n + j)];
  };
  const auto size = static_cast<std::uint32_t>(tile_size);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      starpu_matrix_data_register(&handle(i, j), STARPU_MAIN_RAM,
                                  reinterpret_cast<std::uintptr_t>(matrix.at(i, j).data()), size, size, size,
                                  sizeof(double));
    }
  }
  const double start = starpu_timing_now();
  for (int k = 0; k < n; ++k) {
    // Tasks on the way to the next diagonal tile have priority.
    starpu_task_insert(&cl_potrf, STARPU_RW, handle(k, k), STARPU_PRIORITY, 3 * (n - k), 0);
    for (int i = k + 1; i < n; ++i) {
      starpu_task_insert(&cl_trsm, STARPU_R, handle(k, k), STARPU_RW, handle(i, k), STARPU_PRIORITY,
                         3 * (n - k) - i, 0);
    }
    for (int i = k + 1; i < n; ++i) {
      starpu_task_insert(&cl_syrk, STARPU_R, handle(i, k), STARPU_RW, handle(i, i), STARPU_PRIORITY,
                         3 * (n - k) - 2 * i, 0);
      for (int j = k + 1; j < i; ++j) {
        starpu_task_insert(&cl_gemm, STARPU_R, handle(i, k), STARPU_R, handle(j, k), STARPU_RW, handle(i, j),
                           STARPU_PRIORITY, 3 * (n - k) - i - j, 0);
      }
    }
  }
  starpu_task_wait_for_all();
  const double end = starpu_timing_now();
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) starpu_data_unregister(handle(i, j));
  }
  return (end - start) / 1e6;
}

// The largest |A - L L^T| over the lower triangle; A is overwritten.
double residual(Matrix& a, Matrix& l) {
  const int n = a.tiles();
  for (int k = 0; k < n; ++k) {
    for (int c = 1; c < tile_size; ++c) {
      for (int r = 0; r < c; ++r)
        l.element(k, k, r, c) = 0;  // the kernels do not set elements above the diagonal
    }
  }
  double largest = 0;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      for (int k = 0; k <= j; ++k) {
        cblas_dgemm(CblasColMajor, CblasNoTrans, CblasTrans, tile_size, tile_size, tile_size, -1.0,
                    l.at(i, k).data(), tile_size, l.at(j, k).data(), tile_size, 1.0, a.at(i, j).data(),
                    tile_size);
      }
      for (const double x : a.at(i, j)) largest = std::isnan(x) ? x : std::fmax(largest, std::fabs(x));
      if (std::isnan(largest)) return largest;
    }
  }
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: cholesky POLICY TILES TILE_SIZE REPETITIONS\n");
    return 2;
  }
  const std::string expected = argv[1];
  const int tiles = std::atoi(argv[2]);
  tile_size = std::atoi(argv[3]);
  const int repetitions = std::atoi(argv[4]);
  openblas_set_num_threads(1);
  if (starpu_init(nullptr) != 0) return 1;
  const std::string policy = starpu_sched_get_sched_policy()->policy_name;
  std::printf("policy %s\n", policy.c_str());
  bool right = policy == expected;
  if (!right) std::fprintf(stderr, "expected policy %s\n", expected.c_str());
  for (int i = 0; i < repetitions && right; ++i) {
    Matrix matrix(tiles);
    std::printf("seconds %.6f\n", factorise(matrix));
    Matrix original(tiles);
    const double difference = residual(original, matrix);
    right = difference <= 1e-12 * tiles * tile_size * tiles * tile_size;
    if (!right) std::fprintf(stderr, "L L^T differs from A by %g\n", difference);
  }
  starpu_shutdown();
  return right ? 0 : 1;
}
