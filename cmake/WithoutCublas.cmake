# SPDX-License-Identifier: Apache-2.0
# Each start of a program with a StarPU for CUDA loads cuBLAS, half a gigabyte: 80 of the 95 ms of CPU time that the
# command takes then. The tests start it thousands of times. Where there is no GPU they load libraries of the same names
# with the same functions in its place, and a call of such a function ends the program.
#
# Sets STARPIPE_WITHOUT_CUBLAS to the folder of these libraries, or to nothing where tests may need cuBLAS: where there is
# a GPU, or a StarPU for runs on GPUs, since the tests may run on another node.
set(STARPIPE_WITHOUT_CUBLAS "")
if(NOT STARPIPE_STARPU_WITH_CUDA OR STARPIPE_STARPU_FOR_GPUS OR EXISTS /dev/nvidiactl)
  return()
endif()
set(STARPIPE_WITHOUT_CUBLAS "${PROJECT_BINARY_DIR}/lib/without_cublas")

execute_process(COMMAND ldd "${STARPIPE_STARPU_LIBDIR}/libstarpu-1.4.so" OUTPUT_VARIABLE loaded ERROR_QUIET)
string(REGEX MATCHALL "libcublas[^ ]* => [^ ]+" loaded "${loaded}")
foreach(line IN LISTS loaded)
  string(REGEX REPLACE " => .*" "" name "${line}")
  string(REGEX REPLACE ".* => " "" library "${line}")
  execute_process(COMMAND "${CMAKE_NM}" -D --defined-only "${library}" OUTPUT_VARIABLE functions)
  string(REGEX MATCHALL "cublas[A-Za-z0-9_]+@@[^\n]+" functions "${functions}")
  list(GET functions 0 version)
  string(REGEX REPLACE ".*@@" "" version "${version}")
  list(TRANSFORM functions REPLACE "(.*)@@.*" "FUNCTION(\\1)")
  list(JOIN functions "\n" functions)
  set(source "${PROJECT_BINARY_DIR}/generated/without_cublas/${name}")
  file(CONFIGURE OUTPUT "${source}.c" @ONLY CONTENT [[
#include <stdio.h>
#include <stdlib.h>
#define FUNCTION(name) \
  void name(void) { \
    fputs("a test called " #name ", but without a GPU tests have no cuBLAS\n", stderr); \
    abort(); \
  }
@functions@
]])
  file(CONFIGURE OUTPUT "${source}.map" @ONLY CONTENT "@version@ { cublas*; };\n")
  string(MAKE_C_IDENTIFIER "without_${name}" target)
  add_library(${target} SHARED "${source}.c")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${source}.map")
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME "${name}" SUFFIX "" LIBRARY_OUTPUT_DIRECTORY "${STARPIPE_WITHOUT_CUBLAS}")
endforeach()
