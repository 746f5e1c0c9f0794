# SPDX-License-Identifier: Apache-2.0
# starpipe_target_options(TARGET): the warnings, sanitizers and language level of all our own code.
# Warnings are errors; packagers may set CMAKE_COMPILE_WARNING_AS_ERROR to OFF.
if(NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ${PROJECT_IS_TOP_LEVEL})
endif()

# Builds with sanitizers do not warn: instrumented code makes compilers report problems that are not there, and of sources
# that are compiled together (starpipe_unite) names may hide each other. The other builds warn.
set(STARPIPE_WARNINGS -w)
if(NOT STARPIPE_SANITIZE)
  set(STARPIPE_WARNINGS
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion
    -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual -Wcast-align -Wunused
    -Wformat=2 -Wimplicit-fallthrough)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND STARPIPE_WARNINGS
      -Wduplicated-cond -Wduplicated-branches -Wlogical-op -Wuseless-cast -Wextra-semi)
  endif()
endif()

# The undefined-behaviour sanitizer's checks of each pointer and reference. They double the time to compile. The address
# sanitizer reports most of the same faults when the memory is used.
set(STARPIPE_POINTER_CHECKS null,alignment,object-size,pointer-overflow)

# starpipe_check_pointers(TARGET): has these checks in the target: for code that computes addresses.
function(starpipe_check_pointers target)
  if(STARPIPE_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${STARPIPE_POINTER_CHECKS}>")
  endif()
endfunction()

# starpipe_exact_loops(TARGET): the same bits at each width of vectors, and so on each processor (model/full_width.hpp): a
# product and a sum are not contracted into one operation, which not all processors have. Without errno square roots are
# computed in vectors.
function(starpipe_exact_loops target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno>")
endfunction()

# Macros by which code sees a sanitizer. GCC and newer versions of Clang define them.
set(STARPIPE_SANITIZER_MACROS "")
foreach(sanitizer address thread)
  if(STARPIPE_SANITIZE MATCHES "${sanitizer}")
    string(TOUPPER "${sanitizer}" name)
    list(APPEND STARPIPE_SANITIZER_MACROS -D__SANITIZE_${name}__=1)
  endif()
endforeach()

function(starpipe_target_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${STARPIPE_WARNINGS}>"
    # CMake before 3.26 does not know nvcc's option for C++20.
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xcompiler=-Wall,-Wextra>"
    # GCC collects its garbage at 512 MiB: sooner, that takes a tenth of the time to compile.
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>")
  if(STARPIPE_SANITIZE)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${STARPIPE_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>"
      "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:${STARPIPE_SANITIZER_MACROS}>")
    if(STARPIPE_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=${STARPIPE_POINTER_CHECKS}>")
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${STARPIPE_SANITIZE})
  endif()
endfunction()
