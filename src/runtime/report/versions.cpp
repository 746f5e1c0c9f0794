// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/versions.hpp"

#include <array>
#include <string>

#include <cblas.h>
#include <fmt/format.h>
#include <hwloc.h>
#include <mpi.h>
#include <starpu.h>

#include "starpipe/version.hpp"

namespace starpipe::runtime {
namespace {

std::string starpu_version() {
  int major = 0;
  int minor = 0;
  int release = 0;
  starpu_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

// The first line of the MPI library's description, which may be a page long.
std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string line(text.data());
  line = line.substr(0, line.find('\n'));
  for (std::size_t at = 0; (at = line.find('\t', at)) != std::string::npos;) line[at] = ' ';
  return line;
}

}  // namespace

nlohmann::ordered_json versions() {
  return {{"starpipe", version},
          {"commit", commit()},
          {"compiler", compiler},
          {"build_type", build_type},
          {"starpu", starpu_version()},
          {"mpi", mpi_version()},
          {"openblas", openblas_get_config()},
          {"hwloc", fmt::format("{}.{}.{}", HWLOC_API_VERSION >> 16, (HWLOC_API_VERSION >> 8) & 0xff,
                                HWLOC_API_VERSION & 0xff)}};
}

}  // namespace starpipe::runtime
