// SPDX-License-Identifier: Apache-2.0
// Compiles and links against the runtime and, through it, StarPU and MPI.
#include <iostream>

#include <starpipe/version.hpp>
#include <starpu.h>

int main() {
  int version[3] = {};
  starpu_get_version(&version[0], &version[1], &version[2]);
  std::cout << "starpipe " << starpipe::version << "\nStarPU " << version[0] << '.' << version[1] << '\n';
  return version[0] == 1 ? 0 : 1;
}
