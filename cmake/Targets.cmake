# SPDX-License-Identifier: Apache-2.0
# Functions that make our libraries and programs. Sources are globbed, so that a new schedule, layer or kernel is one new
# file.

# starpipe_sources(RESULT PATTERN...): the files that match the patterns, which are relative to the project's root. A build
# notices new files.
function(starpipe_sources result)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/")
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  list(FILTER files EXCLUDE REGEX "${STARPIPE_OTHER_PRODUCTS}")
  set(${result} "${files}" PARENT_SCOPE)
endfunction()

# starpipe_library(NAME SOURCES PATTERN... [UNHURRIED_SOURCES PATTERN... UNHURRIED_OPTIMIZATION -O1|-Og]
#                  [PUBLIC LIBRARY...] [PRIVATE LIBRARY...] [CHECK_POINTERS] [EXACT_LOOPS])
# makes the shared library libstarpipe_NAME, alias starpipe::NAME.
#
# UNHURRIED_SOURCES are the SOURCES that do not have to be fast. They compile in a third of the time: with JSON's
# header precompiled, since most of them use JSON, and with starpipe_unhurried of UNHURRIED_OPTIMIZATION. Large files of
# JSON are read and written five times as slowly with -Og as with -O1. CHECK_POINTERS, EXACT_LOOPS: see
# starpipe_check_pointers, starpipe_exact_loops.
#
# It is shared because layers and schedules register themselves: a linker drops files of a static library that
# no code calls by name. And a plug-in must find the program's own registry.
function(starpipe_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CHECK_POINTERS;EXACT_LOOPS" "UNHURRIED_OPTIMIZATION" "SOURCES;UNHURRIED_SOURCES;PUBLIC;PRIVATE")
  starpipe_sources(sources ${arg_SOURCES})
  list(FILTER sources EXCLUDE REGEX "/simulated_[a-z_]*\\.cpp$") # see starpipe_simulated_program
  if(arg_UNHURRIED_SOURCES)
    starpipe_sources(unhurried_sources ${arg_UNHURRIED_SOURCES})
    list(FILTER unhurried_sources EXCLUDE REGEX "/simulated_[a-z_]*\\.cpp$")
    list(REMOVE_ITEM sources ${unhurried_sources})
  endif()
  set(target starpipe_${name})
  add_library(${target} SHARED ${sources})
  add_library(starpipe::${name} ALIAS ${target})
  starpipe_target_options(${target})
  if(arg_CHECK_POINTERS)
    starpipe_check_pointers(${target})
  endif()
  if(arg_EXACT_LOOPS)
    starpipe_exact_loops(${target})
  endif()
  set_target_properties(${target} PROPERTIES
    DEFINE_SYMBOL "" # a macro of its own would keep the target from using another's precompiled header
    EXPORT_NAME ${name} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
  # Calls stay within the library: another library's or the program's copy of an inline function may be a slow one.
  target_link_options(${target} PRIVATE LINKER:-Bsymbolic-functions)
  # Keep a library of which no symbol is used: it registers things when it is loaded. Some distributions' compilers
  # drop it by default.
  target_link_options(${target} INTERFACE $<BUILD_INTERFACE:LINKER:--no-as-needed>)
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY STARPIPE_INSTALLED_LIBRARIES ${target})
  starpipe_unite(${target})
  if("fmt::fmt" IN_LIST arg_PRIVATE)
    starpipe_precompile(${target} <algorithm> <array> <functional> <limits> <map> <optional> <span> <string> <string_view>
      <vector> <fmt/format.h>)
  endif()
  if(arg_UNHURRIED_SOURCES)
    add_library(${target}_unhurried OBJECT ${unhurried_sources})
    starpipe_target_options(${target}_unhurried)
    starpipe_unhurried(${target}_unhurried ${arg_UNHURRIED_OPTIMIZATION})
    target_include_directories(${target}_unhurried PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${target}_unhurried PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_link_libraries(${target}_unhurried PRIVATE $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
    # After the library's own objects: of an inline function in both, the linker takes the first.
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_unhurried>)
    starpipe_precompile(${target}_unhurried <fmt/format.h> <nlohmann/json.hpp>)
    starpipe_unite(${target}_unhurried)
  endif()
endfunction()

# starpipe_unhurried(TARGET OPTIMIZATION): compiles the target with OPTIMIZATION in a release build, and under the
# sanitizers, where it halves the time, with none.
function(starpipe_unhurried target optimization)
  if(STARPIPE_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${optimization}>)
  endif()
endfunction()

# starpipe_precompile(TARGET HEADER...): compiles the headers once for all targets that are compiled with the same options.
# A source still includes what it uses: scripts/lint compiles without precompiled headers.
function(starpipe_precompile target)
  get_target_property(options ${target} COMPILE_OPTIONS)
  get_target_property(definitions ${target} COMPILE_DEFINITIONS)
  get_target_property(type ${target} TYPE)
  string(MAKE_C_IDENTIFIER "STARPIPE_PRECOMPILED_${type}_${options}_${ARGN}" key)
  get_property(owner GLOBAL PROPERTY ${key})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    if(NOT definitions) # others may lack its macros, and GCC then refuses the header
      set_property(GLOBAL PROPERTY ${key} ${target})
    endif()
  endif()
endfunction()

# starpipe_unite(TARGET): compiles several sources of the target at once, since most of their time goes to the same
# headers and templates. So names in the unnamed namespaces of these sources differ from one another. CMAKE_UNITY_BUILD
# overrides it: scripts/lint turns it off, so that each source has to include what it uses.
function(starpipe_unite target)
  if(NOT DEFINED CMAKE_UNITY_BUILD)
    # After a change a sanitizers' build compiles all anyway. In others a small batch is soon compiled again.
    set(batch 6)
    if(STARPIPE_SANITIZE)
      set(batch 12)
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  endif()
endfunction()

# starpipe_executable(NAME SOURCES FILE... [LIBS LIBRARY...]): it loads cuBLAS only where it needs it (LateCublas.cmake).
function(starpipe_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  starpipe_target_options(${name})
  target_link_libraries(${name} PRIVATE ${STARPIPE_LATE_CUBLAS} ${arg_LIBS})
endfunction()
