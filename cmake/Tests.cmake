# SPDX-License-Identifier: Apache-2.0
find_package(GTest REQUIRED)
# Tests must not depend on the user's environment, bind threads (several ranks share the cores) or write outside of the
# build tree.
set(STARPIPE_TEST_ENVIRONMENT
  OPENBLAS_NUM_THREADS=1
  STARPU_WORKERS_NOBIND=1
  STARPU_MPI_NOBIND=1
  STARPU_SILENT=1
  "STARPU_HOME=${PROJECT_BINARY_DIR}/starpu-home"
  "STARPIPE_SANITIZE=${STARPIPE_SANITIZE}" # for tests that depend on speed
  "ASAN_OPTIONS=detect_stack_use_after_return=0"
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp,print_suppressions=0"
  "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp,ignore_noninstrumented_modules=1"
  "UBSAN_OPTIONS=print_stacktrace=1")
if(STARPIPE_SANITIZE)
  # This plug-in of hwloc leaks, and a suppression cannot name a library that is unloaded.
  list(APPEND STARPIPE_TEST_ENVIRONMENT HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so)
endif()
if(STARPIPE_MPI STREQUAL "openmpi")
  # By itself Open MPI starts neither as root nor more ranks than cores, and binds ranks. Its ranks poll without giving up
  # their core unless it knows that they share cores.
  list(APPEND STARPIPE_TEST_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    OMPI_MCA_orte_execute_quiet=1) # its lines about a rank that has ended with another status than 0
endif()
list(APPEND STARPIPE_TEST_ENVIRONMENT STARPIPE_MPI=${STARPIPE_MPI})
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/starpu-home")

# Builds only the tests with the label threads, which are those that run under the thread sanitizer.
add_custom_target(threads_tests)

# starpipe_mpi_command(RESULT RANKS COMMAND...): the command that starts COMMAND as RANKS MPI ranks.
function(starpipe_mpi_command result ranks)
  if(STARPIPE_MPI_LAUNCHER STREQUAL "slurm")
    set(${result} srun --mpi=pmi2 -n ${ranks} ${ARGN} PARENT_SCOPE)
  elseif(STARPIPE_MPI_LAUNCHER STREQUAL "plain")
    set(${result} "${MPIEXEC_EXECUTABLE}" -n ${ranks} ${ARGN} PARENT_SCOPE)
  else()
    message(FATAL_ERROR "STARPIPE_MPI_LAUNCHER is ${STARPIPE_MPI_LAUNCHER}; it must be plain or slurm")
  endif()
endfunction()

# starpipe_add_test(NAME COMMAND ARG... [RANKS n] [LABELS label...] [TIMEOUT seconds] [SERIAL]):
# adds a command as a test. With RANKS it runs as n ranks, and has the labels mpi and rank_n. Several ranks, and SERIAL,
# have no other test next to them: for tests that measure times, or keep all cores busy. Tests with the longest limits
# start first, since they take longest: one that starts last leaves the other cores idle.
function(starpipe_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "RANKS;TIMEOUT" "COMMAND;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(STARPIPE_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  if(arg_RANKS)
    starpipe_mpi_command(arg_COMMAND ${arg_RANKS} ${arg_COMMAND})
    list(APPEND arg_LABELS mpi rank_${arg_RANKS})
    set(processors ${arg_RANKS})
    if(arg_RANKS GREATER 1)
      set(arg_SERIAL TRUE)
    endif()
  else()
    set(processors 1)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT} LABELS "${arg_LABELS}" PROCESSORS ${processors} RUN_SERIAL ${arg_SERIAL}
    ENVIRONMENT "${STARPIPE_TEST_ENVIRONMENT}")
endfunction()

# starpipe_test(NAME SOURCES PATTERN... [LIBS LIBRARY...] [RANKS n...] [SHARDS n] [LABELS label...]
#               [TIMEOUT seconds] [SERIAL] [MAIN] [OWN_CODE] [DEFINITIONS macro...])
# builds a GoogleTest program and adds it as a test; starpipe_add_test explains the options. Patterns are relative to the
# folder of the list; one with a * leaves out the sources of earlier programs of the list, so that it takes the rest of a
# room. The sources are united (starpipe_unite), so names in their unnamed namespaces differ, and no test depends on
# another one. Several RANKS add one test each, NAME_n. SHARDS adds n tests, NAME_1 to NAME_n, each with a part of the
# program's tests: for programs that take long. MAIN: the sources have a main() of their own. The test is left out when
# one of its libraries is not built. OWN_CODE: there is code of ours among the sources. They are compiled with
# optimization, and the undefined-behaviour sanitizer checks them. DEFINITIONS are set here, and not afterwards, since other
# programs cannot use a header that is precompiled with macros that they lack.
function(starpipe_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "MAIN;SERIAL;OWN_CODE" "TIMEOUT;SHARDS" "SOURCES;LIBS;RANKS;LABELS;DEFINITIONS")
  foreach(library IN LISTS arg_LIBS)
    if(library MATCHES "::" AND NOT TARGET ${library})
      message(STATUS "test ${name} left out: no ${library}")
      return()
    endif()
  endforeach()
  set(sources "")
  foreach(pattern IN LISTS arg_SOURCES)
    if(pattern MATCHES "[*]")
      file(GLOB found CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/${pattern}")
      get_property(taken DIRECTORY PROPERTY STARPIPE_TEST_SOURCES)
      list(REMOVE_ITEM found ${taken})
      list(APPEND sources ${found})
    else()
      list(APPEND sources "${pattern}")
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY STARPIPE_TEST_SOURCES ${sources})
  set(gtest GTest::gmock GTest::gtest)
  if(NOT arg_MAIN)
    list(APPEND gtest GTest::gtest_main)
  endif()
  starpipe_executable(${name} SOURCES ${sources} LIBS ${arg_LIBS} ${gtest})
  starpipe_unite(${name})
  # gtest's macros compare and convert in ways that our own code must not, and a name of one source may be a local one of
  # another.
  target_compile_options(${name} PRIVATE -Wno-sign-conversion -Wno-conversion -Wno-shadow
    $<$<CXX_COMPILER_ID:GNU>:-Wno-useless-cast>)
  if(arg_OWN_CODE)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    starpipe_check_pointers(${name})
  else()
    # Tests need no fast code of their own, and the sanitizers look for faults of our libraries: so they compile in less
    # than half of the time.
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0>)
    if(STARPIPE_SANITIZE MATCHES "undefined")
      target_compile_options(${name} PRIVATE -O0 -fno-sanitize=undefined)
    endif()
  endif()
  target_compile_definitions(${name} PRIVATE ${arg_DEFINITIONS})
  starpipe_precompile(${name} <gmock/gmock.h> <gtest/gtest.h>)
  target_include_directories(${name} PRIVATE
    "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin/tests")

  if("threads" IN_LIST arg_LABELS)
    add_dependencies(threads_tests ${name})
  endif()
  set(options LABELS ${arg_LABELS})
  if(arg_TIMEOUT)
    list(APPEND options TIMEOUT ${arg_TIMEOUT})
  endif()
  if(arg_SERIAL)
    list(APPEND options SERIAL)
  endif()
  if(arg_SHARDS)
    foreach(shard RANGE 1 ${arg_SHARDS})
      math(EXPR index "${shard} - 1")
      starpipe_add_test(${name}_${shard} COMMAND $<TARGET_FILE:${name}> ${options})
      set_property(TEST ${name}_${shard} APPEND PROPERTY
        ENVIRONMENT GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${index})
    endforeach()
    return()
  endif()
  if(STARPIPE_SANITIZE AND 2 IN_LIST arg_RANKS)
    set(arg_RANKS 2) # one rank, and four, run the same code
  endif()
  list(LENGTH arg_RANKS variants)
  if(variants EQUAL 0)
    starpipe_add_test(${name} COMMAND $<TARGET_FILE:${name}> ${options})
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    set(test ${name})
    if(variants GREATER 1)
      set(test ${name}_${ranks})
    endif()
    starpipe_add_test(${test} COMMAND $<TARGET_FILE:${name}> RANKS ${ranks} ${options})
  endforeach()
endfunction()
