# SPDX-License-Identifier: Apache-2.0
# Finds MPI and a StarPU that uses the same MPI. This file is installed with starpipe, so that users of the package find
# both in the same way.

# starpipe_find_mpi(MPI): finds the C library of `mpich` or `openmpi`, by the name that Debian gives its compiler if there is
# one (there plain mpicc may belong to either). MPICC in the environment or MPI_C_COMPILER in the cache names another
# compiler. Enables the language C, without which CMake does not find a library for it.
macro(starpipe_find_mpi mpi)
  enable_language(C)
  if(NOT MPI_C_COMPILER AND DEFINED ENV{MPICC})
    find_program(MPI_C_COMPILER NAMES $ENV{MPICC})
  endif()
  find_program(MPI_C_COMPILER NAMES mpicc.${mpi} mpicc)
  if(MPI_C_COMPILER MATCHES "mpicc\\.(mpich|openmpi)$")
    find_program(MPIEXEC_EXECUTABLE NAMES mpiexec.${CMAKE_MATCH_1})
  endif()
  find_package(MPI REQUIRED COMPONENTS C)
endmacro()

# _starpipe_mpi_libraries(RESULT NEEDED|SONAME FILES...): the names of the MPI libraries that FILES need (NEEDED), or the
# names of FILES themselves (SONAME).
function(_starpipe_mpi_libraries result tag)
  set(names "")
  foreach(file IN LISTS ARGN)
    execute_process(COMMAND "${CMAKE_OBJDUMP}" -p "${file}" OUTPUT_VARIABLE dump ERROR_QUIET)
    string(REGEX MATCHALL "${tag} +libmpi[^ \n]*" lines "${dump}")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^${tag} +" "" name "${line}")
      list(APPEND names "${name}")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES names)
  list(SORT names)
  set(${result} "${names}" PARENT_SCOPE)
endfunction()

function(_starpipe_pkg_config result)
  execute_process(COMMAND "${PKG_CONFIG_EXECUTABLE}" ${ARGN}
    OUTPUT_VARIABLE output ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(output UNIX_COMMAND "${output}")
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

# starpipe_find_starpu([HINTS PREFIX...]): makes the imported targets starpipe::starpu and starpipe::starpumpi
# (StarPU-MPI). Call starpipe_find_mpi() first.
#
# Candidates, in this order: the StarPU that pkg-config finds by itself (PKG_CONFIG_PATH, Spack, Guix, modules, the
# system), the one found by the last run of CMake, and the installations in the given prefixes. The first one is taken
# that is new enough and linked to our MPI library.
#
# Sets STARPIPE_STARPU_VERSION, STARPIPE_STARPU_LIBDIR, STARPIPE_STARPU_WITH_CUDA and STARPIPE_STARPU_FOR_GPUS (with CUDA,
# and without blocking drivers); in the cache, for the next run of
# CMake, whose environment may be another, STARPIPE_STARPU_PREFIX.
function(starpipe_find_starpu)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "HINTS")
  set(minimum 1.4.5)
  _starpipe_mpi_libraries(our_mpi SONAME ${MPI_C_LIBRARIES})
  set(problems "")
  set(user_path "$ENV{PKG_CONFIG_PATH}")
  foreach(hint IN ITEMS "" ${STARPIPE_STARPU_PREFIX} ${arg_HINTS})
    if(hint STREQUAL "")
      set(where "pkg-config")
    else()
      set(where "${hint}")
      set(ENV{PKG_CONFIG_PATH} "${hint}/lib/pkgconfig:${hint}/lib64/pkgconfig:${user_path}")
    endif()
    _starpipe_pkg_config(version --modversion starpu-1.4)
    _starpipe_pkg_config(libdir --variable=libdir starpu-1.4)
    _starpipe_pkg_config(mpi_libdir --variable=libdir starpumpi-1.4)
    set(starpu "${libdir}/libstarpu-1.4.so")
    set(starpumpi "${mpi_libdir}/libstarpumpi-1.4.so")
    set(problem "")
    if(hint AND NOT EXISTS "${hint}")
      set(problem "no such folder")
    elseif(NOT version OR NOT mpi_libdir)
      set(problem "no starpu-1.4 with starpumpi-1.4")
    elseif(version VERSION_LESS minimum)
      set(problem "StarPU ${version} is older than ${minimum}")
    elseif(NOT EXISTS "${starpu}" OR NOT EXISTS "${starpumpi}")
      set(problem "StarPU ${version} has no shared libraries in ${libdir}")
    else()
      _starpipe_mpi_libraries(starpu_mpi NEEDED "${starpumpi}")
      if(NOT starpu_mpi STREQUAL our_mpi)
        set(problem "${starpumpi} is linked to ${starpu_mpi}, but ${MPI_C_COMPILER} links ${our_mpi}")
      endif()
    endif()
    if(problem STREQUAL "")
      break()
    endif()
    string(APPEND problems "\n  ${where}: ${problem}")
  endforeach()
  if(problem STREQUAL "")
    _starpipe_pkg_config(prefix --variable=prefix starpu-1.4)
    _starpipe_pkg_config(includes --cflags-only-I starpumpi-1.4 starpu-1.4)
    _starpipe_pkg_config(starpu_includes --variable=starpu_includedir starpu-1.4)
  endif()
  set(ENV{PKG_CONFIG_PATH} "${user_path}")
  if(NOT problem STREQUAL "")
    message(FATAL_ERROR "Found no StarPU >= ${minimum} with StarPU-MPI on our MPI; run scripts/setup, or "
      "name your StarPU in PKG_CONFIG_PATH and its MPI compiler in MPICC:${problems}")
  endif()

  list(TRANSFORM includes REPLACE "^-I" "")
  add_library(starpipe::starpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(starpipe::starpu SYSTEM INTERFACE ${includes})
  target_link_libraries(starpipe::starpu INTERFACE "${starpu}")
  # starpu.h includes cusparse.h, and CUDA 13 declares half of cusparse.h deprecated.
  target_compile_definitions(starpipe::starpu INTERFACE DISABLE_CUSPARSE_DEPRECATED)
  add_library(starpipe::starpumpi INTERFACE IMPORTED GLOBAL)
  target_link_libraries(starpipe::starpumpi INTERFACE "${starpumpi}" starpipe::starpu MPI::MPI_C)
  # Leave out MPI's C++ bindings: they are gone from the standard and need one more library.
  target_compile_definitions(starpipe::starpumpi INTERFACE MPICH_SKIP_MPICXX OMPI_SKIP_MPICXX)

  file(STRINGS "${starpu_includes}/starpu_config.h" defined REGEX "^#define STARPU_(USE_CUDA|NON_BLOCKING_DRIVERS) 1")
  set(STARPIPE_STARPU_WITH_CUDA OFF PARENT_SCOPE)
  set(STARPIPE_STARPU_FOR_GPUS OFF PARENT_SCOPE)
  if(defined MATCHES "STARPU_USE_CUDA")
    set(STARPIPE_STARPU_WITH_CUDA ON PARENT_SCOPE)
    if(defined MATCHES "STARPU_NON_BLOCKING_DRIVERS")
      set(STARPIPE_STARPU_FOR_GPUS ON PARENT_SCOPE)
    endif()
  endif()
  set(STARPIPE_STARPU_VERSION "${version}" PARENT_SCOPE)
  set(STARPIPE_STARPU_LIBDIR "${libdir}" PARENT_SCOPE)
  set(STARPIPE_STARPU_PREFIX "${prefix}" CACHE PATH "StarPU that was found" FORCE)
  message(STATUS "Found StarPU ${version} in ${prefix} on ${our_mpi}")
endfunction()
