// SPDX-License-Identifier: Apache-2.0
// The time of MPI_Allreduce, to compare with sums of gradients: mpiexec -n P allreduce_benchmark NUMBERS.
// Prints the median of five sums of NUMBERS floats in seconds.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <mpi.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int numbers = argc == 2 ? std::atoi(argv[1]) : 0;
  if (numbers < 1) {
    std::fprintf(stderr, "usage: allreduce_benchmark NUMBERS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  std::vector<float> own(static_cast<std::size_t>(numbers), 1);
  std::vector<float> sum(own.size());
  std::array<double, 5> times{};
  for (double& time : times) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    MPI_Allreduce(own.data(), sum.data(), numbers, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double here = MPI_Wtime() - start;
    MPI_Allreduce(&here, &time, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::ranges::sort(times);
  if (rank == 0) std::printf("%.6f\n", times[times.size() / 2]);
  MPI_Finalize();
  return 0;
}
