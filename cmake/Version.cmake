# SPDX-License-Identifier: Apache-2.0
# Generates starpipe/version.hpp and, at every build, a source file with the commit.
#
# src/CMakeLists.txt includes this file, which adds both to starpipe_base. The build runs it as a script (cmake -P) to write
# the source file.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit unknown)
  execute_process(COMMAND git rev-parse --show-toplevel
    WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(top STREQUAL SOURCE_DIR) # not when the sources lie within another repository
    execute_process(COMMAND git describe --always --abbrev=12 --dirty --exclude *
      WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE described RESULT_VARIABLE status
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(status EQUAL 0)
      set(commit "${described}")
    endif()
  endif()
  configure_file("${CMAKE_CURRENT_LIST_DIR}/version.cpp.in" "${OUTPUT}" @ONLY) # leaves an equal file untouched
  return()
endif()

# Hashes the headers with which plug-ins are compiled, without comments and spaces. A change configures again.
set(STARPIPE_HEADERS "")
foreach(library IN ITEMS base plan model)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/starpipe/${library}/*.hpp")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
  foreach(header IN LISTS headers)
    file(READ "${header}" text)
    string(REGEX REPLACE "//[^\n]*" "" text "${text}")
    string(REGEX REPLACE "[ \n]+" " " text "${text}")
    string(APPEND STARPIPE_HEADERS "${text}")
  endforeach()
endforeach()
string(SHA256 STARPIPE_HEADERS "${STARPIPE_HEADERS}")
string(SUBSTRING "${STARPIPE_HEADERS}" 0 12 STARPIPE_HEADERS)

configure_file("${PROJECT_SOURCE_DIR}/cmake/version.hpp.in"
  "${PROJECT_BINARY_DIR}/include/starpipe/version.hpp" @ONLY)
set(version_source "${PROJECT_BINARY_DIR}/generated/version.cpp")
add_custom_target(starpipe_version
  COMMAND "${CMAKE_COMMAND}" -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D OUTPUT=${version_source}
          -P "${CMAKE_CURRENT_LIST_FILE}"
  BYPRODUCTS "${version_source}"
  COMMENT "Recording the commit")
target_sources(starpipe_base PRIVATE "${version_source}")
add_dependencies(starpipe_base starpipe_version)
