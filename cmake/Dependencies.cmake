# SPDX-License-Identifier: Apache-2.0
# Finds all libraries that starpipe links. Imported targets for other files: fmt::fmt,
# nlohmann_json::nlohmann_json, PkgConfig::openblas, starpipe::onednn; with the runtime yaml-cpp, CLI11::CLI11, ZLIB::ZLIB,
# PkgConfig::hwloc, MPI::MPI_C, starpipe::starpu, starpipe::starpumpi, CUDA::cudart, CUDA::cublas,
# CUDA::cublasLt, with STARPIPE_WITH_SIMGRID starpipe::simulated_starpu.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(openblas QUIET IMPORTED_TARGET openblas)
include(Products)

if(STARPIPE_WITH_RUNTIME)
  find_package(yaml-cpp REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(ZLIB REQUIRED)
  pkg_check_modules(hwloc REQUIRED QUIET IMPORTED_TARGET hwloc)
  include(StarPU)
  starpipe_find_mpi(${STARPIPE_MPI})
  starpipe_find_starpu(HINTS "${PROJECT_SOURCE_DIR}/.deps/starpu" "${PROJECT_SOURCE_DIR}/.deps/starpu-openmpi")
endif()

if(STARPIPE_WITH_SIMGRID)
  include(SimGrid)
  starpipe_find_simgrid(HINTS "${PROJECT_SOURCE_DIR}/.deps/starpu-simgrid")
endif()

if(STARPIPE_WITH_CUDA)
  if(NOT STARPIPE_WITH_RUNTIME)
    message(FATAL_ERROR "STARPIPE_WITH_CUDA is ON, but the CUDA code needs the runtime, and STARPIPE_WITH_RUNTIME is OFF")
  endif()
  if(NOT STARPIPE_STARPU_WITH_CUDA)
    message(FATAL_ERROR "STARPIPE_WITH_CUDA is ON, but the StarPU in ${STARPIPE_STARPU_PREFIX} was built without CUDA")
  endif()
  find_package(CUDAToolkit REQUIRED)
  if(NOT DEFINED CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}") # nvcc is often not on PATH
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90) # A100; H100 and H200. Newer GPUs compile the PTX of 90
  endif()
  enable_language(CUDA)
endif()
