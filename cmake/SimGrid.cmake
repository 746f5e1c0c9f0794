# SPDX-License-Identifier: Apache-2.0
# The part of starpipe that runs on simulated GPUs: the same engine and policy, compiled against StarPU's build for
# SimGrid's MPI (SMPI). docs/simulated-clusters.md is the page for users.

# starpipe_find_simgrid(HINTS PREFIX...): makes the imported target starpipe::simulated_starpu: StarPU-MPI and StarPU,
# static, with SimGrid and SMPI's mpi.h. PREFIX is where scripts/setup --simgrid has installed them.
function(starpipe_find_simgrid)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "HINTS")
  find_path(STARPIPE_SMPI_INCLUDE NAMES mpi.h PATH_SUFFIXES smpi NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH)
  find_program(STARPIPE_SMPIRUN NAMES smpirun)
  if(NOT STARPIPE_SMPI_INCLUDE MATCHES "/smpi$" OR NOT STARPIPE_SMPIRUN)
    message(FATAL_ERROR "STARPIPE_WITH_SIMGRID is ON, but there is no SimGrid; run scripts/setup --simgrid")
  endif()
  set(user_path "$ENV{PKG_CONFIG_PATH}")
  foreach(prefix IN LISTS STARPIPE_SIMGRID_STARPU_PREFIX arg_HINTS)
    if(EXISTS "${prefix}/lib/libstarpumpi-1.4.a")
      set(ENV{PKG_CONFIG_PATH} "${prefix}/lib/pkgconfig:${user_path}")
      _starpipe_pkg_config(includes --cflags-only-I starpumpi-1.4 starpu-1.4)
      _starpipe_pkg_config(libraries --static --libs starpumpi-1.4 starpu-1.4)
      set(STARPIPE_SIMGRID_STARPU_PREFIX "${prefix}" CACHE PATH "StarPU on SimGrid that was found" FORCE)
      break()
    endif()
  endforeach()
  set(ENV{PKG_CONFIG_PATH} "${user_path}")
  if(NOT libraries)
    message(FATAL_ERROR "STARPIPE_WITH_SIMGRID is ON, but there is no StarPU on SimGrid; run scripts/setup --simgrid")
  endif()
  list(TRANSFORM includes REPLACE "^-I" "")
  add_library(starpipe::simulated_starpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(starpipe::simulated_starpu SYSTEM INTERFACE ${includes} "${STARPIPE_SMPI_INCLUDE}")
  target_link_libraries(starpipe::simulated_starpu INTERFACE ${libraries})
  message(STATUS "Found StarPU on SimGrid in ${STARPIPE_SIMGRID_STARPU_PREFIX}")
endfunction()

# starpipe_simulated_objects(NAME SOURCES PATTERN... [LIBS LIBRARY...])
# compiles sources for programs on SimGrid, as the object library NAME.
function(starpipe_simulated_objects name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  starpipe_sources(sources ${arg_SOURCES})
  list(FILTER sources EXCLUDE REGEX "/simulated_exchange\\.cpp$") # a library of its own
  # simulated_X.cpp takes the place of X.cpp.
  foreach(source IN LISTS sources)
    if(source MATCHES "/simulated_[a-z_]*\\.cpp$")
      string(REPLACE "/simulated_" "/" replaced "${source}")
      list(REMOVE_ITEM sources "${replaced}")
    endif()
  endforeach()
  add_library(${name} OBJECT ${sources})
  starpipe_target_options(${name})
  starpipe_unhurried(${name} -O1)
  starpipe_unite(${name})
  target_compile_definitions(${name} PUBLIC STARPIPE_ON_SIMGRID)
  # GNU's unique symbols would be one for all ranks.
  target_compile_options(${name} PUBLIC -fno-gnu-unique)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${arg_LIBS} starpipe::simulated_starpu)
  starpipe_precompile(${name} <fmt/format.h> <nlohmann/json.hpp>)
endfunction()

# starpipe_simulated_program(NAME SOURCES FILE... LIBS LIBRARY...)
# makes NAME.so, which smpirun loads once for each simulated rank, in one process. Each of these copies has its own
# globals, StarPU's among them, which is why all code that belongs to one rank is compiled into it: LIBS has the object
# libraries with this code. The other libraries are loaded once for all ranks: they hold nothing that belongs to a rank.
function(starpipe_simulated_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_library(${name} MODULE ${arg_SOURCES})
  starpipe_target_options(${name})
  starpipe_unhurried(${name} -O1)
  set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
endfunction()
