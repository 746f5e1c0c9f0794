# SPDX-License-Identifier: Apache-2.0
# A program with a StarPU for CUDA loads cuBLAS, half a gigabyte, when it starts. Without a GPU that is 80 of the 95 ms of
# CPU time that the command takes, and 216 of the 232 MB that it then holds. So our programs load small libraries in its
# place, with the same names and functions. They load cuBLAS only where a driver for GPUs is, and then jump to its functions.
# Where cuBLAS was not loaded, a call of such a function ends the program. A loader that finds cuBLAS itself in
# LD_LIBRARY_PATH takes it instead.
#
# Makes a target for each of these libraries; STARPIPE_LATE_CUBLAS has the targets, STARPIPE_CUBLAS the libraries that they
# replace. Does nothing where a GPU is used anyway, and on processors for which no jump is written here.
set(STARPIPE_LATE_CUBLAS "")
set(STARPIPE_CUBLAS "")
if(NOT STARPIPE_STARPU_WITH_CUDA OR STARPIPE_STARPU_FOR_GPUS OR EXISTS /dev/nvidiactl
   OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  return()
endif()

# starpipe_late_library(TARGET LIBRARY DEVICES FOLDER) makes a library, in FOLDER, with the name and functions of LIBRARY,
# which it loads if one of the files DEVICES exists.
function(starpipe_late_library target library devices folder)
  get_filename_component(name "${library}" NAME)
  execute_process(COMMAND "${CMAKE_NM}" -D --defined-only "${library}" OUTPUT_VARIABLE functions)
  string(REGEX MATCHALL "cublas[A-Za-z0-9_]+@@[^\n]+" functions "${functions}")
  list(GET functions 0 version)
  string(REGEX REPLACE ".*@@" "" version "${version}")
  list(TRANSFORM functions REPLACE "(.*)@@.*" "FUNCTION(\\1)")
  list(JOIN functions "\n" functions)
  list(TRANSFORM devices REPLACE "(.+)" "\"\\1\"")
  list(JOIN devices ", " devices)
  set(source "${PROJECT_BINARY_DIR}/generated/late/${target}")
  file(CONFIGURE OUTPUT "${source}.h" @ONLY CONTENT "@functions@\n")
  file(CONFIGURE OUTPUT "${source}.map" @ONLY CONTENT "@version@ { cublas*; };\n")
  file(CONFIGURE OUTPUT "${source}.c" @ONLY CONTENT [[
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char problem[512] = "there is no driver for GPUs";

static void not_loaded(void) {
  fprintf(stderr, "@name@ is needed and was not loaded: %s\n", problem);
  abort();
}

#if defined(__x86_64__)
#define JUMP(name) "jmp *to_" #name "(%rip)\n"
#else
#define JUMP(name) "adrp x16, to_" #name "\nldr x16, [x16, :lo12:to_" #name "]\nbr x16\n"
#endif
#define FUNCTION(name) \
  __attribute__((used, visibility("hidden"))) void (*to_##name)(void) = not_loaded; \
  __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" JUMP(name) \
          ".size " #name ", . - " #name "\n");
#include "@target@.h"
#undef FUNCTION

__attribute__((constructor)) static void load(void) {
  const char* const devices[] = {@devices@};
  size_t device = 0;
  while (device < sizeof devices / sizeof *devices && access(devices[device], F_OK) != 0) ++device;
  if (device == sizeof devices / sizeof *devices) return;
  void* const library = dlopen("@library@", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(problem, sizeof problem, "%s", dlerror());
    return;
  }
  snprintf(problem, sizeof problem, "@library@ has no such function");
#define FUNCTION(name) \
  if (dlsym(library, #name) != NULL) to_##name = (void (*)(void))dlsym(library, #name);
#include "@target@.h"
}
]])
  add_library(${target} SHARED "${source}.c")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${source}.map")
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME "${name}" SUFFIX "" LIBRARY_OUTPUT_DIRECTORY "${folder}")
endfunction()

execute_process(COMMAND ldd "${STARPIPE_STARPU_LIBDIR}/libstarpu-1.4.so" OUTPUT_VARIABLE loaded ERROR_QUIET)
string(REGEX MATCHALL "libcublas[^ ]* => [^ \n]+" loaded "${loaded}")
list(REVERSE loaded) # cuBLAS calls the library that comes after it, so it is loaded later
foreach(line IN LISTS loaded)
  string(REGEX REPLACE ".* => " "" library "${line}")
  get_filename_component(name "${library}" NAME)
  string(MAKE_C_IDENTIFIER "late_${name}" target)
  starpipe_late_library(${target} "${library}" "/dev/nvidiactl;/dev/dxg" "${PROJECT_BINARY_DIR}/lib/late")
  target_link_libraries(${target} PRIVATE -Wl,--no-as-needed ${STARPIPE_LATE_CUBLAS})
  install(TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/starpipe")
  list(PREPEND STARPIPE_LATE_CUBLAS ${target})
  list(PREPEND STARPIPE_CUBLAS "${library}")
endforeach()
