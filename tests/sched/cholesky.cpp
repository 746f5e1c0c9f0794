// SPDX-License-Identifier: Apache-2.0
// A StarPU program that knows nothing of starpipe: the tiled Cholesky factorisation A = L L^T, with
// priorities. Prints the policy that really runs and the seconds of each factorisation. Fails when another
// policy runs than expected (StarPU only warns when it falls back) or when L L^T is not A.
//
// Usage: cholesky POLICY TILES TILE_SIZE REPETITIONS
#include <cstdio>
#include <cstdlib>
#include <string>

#include <cblas.h>
#include <starpu.h>

#include "experiments/cholesky/tiles.hpp"

namespace {

// Seconds from the first submission to the end of the last task.
double factorise(cholesky::Matrix& matrix) {
  const int n = matrix.n();
  const cholesky::Handles handles(matrix);
  const double start = starpu_timing_now();
  // Tasks on the way to the next diagonal tile have priority.
  cholesky::submit(handles, [n](const cholesky::Task& task) {
    const auto [i, j, k] = task;
    return cholesky::Hints{.priority = 3 * (n - k) - (i > k ? i : 0) - (j > k ? j : 0)};
  });
  starpu_task_wait_for_all();
  return (starpu_timing_now() - start) / 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: cholesky POLICY TILES TILE_SIZE REPETITIONS\n");
    return 2;
  }
  const std::string expected = argv[1];
  const int tiles = std::atoi(argv[2]);
  const int tile_size = std::atoi(argv[3]);
  const int repetitions = std::atoi(argv[4]);
  openblas_set_num_threads(1);
  if (starpu_init(nullptr) != 0) return 1;
  const std::string policy = starpu_sched_get_sched_policy()->policy_name;
  std::printf("policy %s\n", policy.c_str());
  bool right = policy == expected;
  if (!right) std::fprintf(stderr, "expected policy %s\n", expected.c_str());
  for (int i = 0; i < repetitions && right; ++i) {
    cholesky::Matrix matrix(tiles, tile_size);
    std::printf("seconds %.6f\n", factorise(matrix));
    cholesky::Matrix original(tiles, tile_size);
    right = cholesky::is_factor(matrix, original);
    if (!right) std::fprintf(stderr, "L L^T is not A\n");
  }
  starpu_shutdown();
  return right ? 0 : 1;
}
