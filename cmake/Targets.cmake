# SPDX-License-Identifier: Apache-2.0
# Helpers that make our libraries. Sources are globbed, so that adding a schedule, a layer or a
# kernel is adding one file.

# starpipe_sources(RESULT PATTERN...): the files that match, relative to the project's root;
# building notices new ones.
function(starpipe_sources result)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/")
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  set(${result} "${files}" PARENT_SCOPE)
endfunction()

# starpipe_library(NAME SOURCES PATTERN... [PUBLIC LIBRARY...] [PRIVATE LIBRARY...])
# makes the shared library libstarpipe_NAME, known as starpipe::NAME.
#
# Shared, because layers and schedules register themselves: a static library would drop the files
# nobody calls by name, and a plug-in must meet the program's own registry.
function(starpipe_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  starpipe_sources(sources ${arg_SOURCES})
  set(target starpipe_${name})
  add_library(${target} SHARED ${sources})
  add_library(starpipe::${name} ALIAS ${target})
  starpipe_target_options(${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
  # A library that only registers things is linked for its side effect; keep it although no symbol
  # of it is used (some distributions' compilers drop it by default).
  target_link_options(${target} INTERFACE $<BUILD_INTERFACE:LINKER:--no-as-needed>)
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY STARPIPE_INSTALLED_LIBRARIES ${target})
endfunction()

# starpipe_executable(NAME SOURCES FILE... [LIBS LIBRARY...])
function(starpipe_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  starpipe_target_options(${name})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
endfunction()
