# SPDX-License-Identifier: Apache-2.0
# Builds the report page (viewer/) with npm, and a source file that holds it.
#
# src/CMakeLists.txt includes this file, which adds the source to starpipe_plan. The build runs it as a script (cmake -P),
# so that configuring never waits for the network. STARPIPE_BUILD_VIEWER=AUTO builds without the page where there is no npm
# or where its packages cannot be had, and says so; ON stops there.
if(CMAKE_SCRIPT_MODE_FILE)
  set(page "")
  if(NPM)
    file(LOCK "${VIEWER_DIR}/.build-lock" TIMEOUT 600 RESULT_VARIABLE status) # of builds in other folders
    set(said "the folder cannot be written")
    if(status EQUAL 0 AND "${VIEWER_DIR}/package-lock.json" IS_NEWER_THAN "${VIEWER_DIR}/node_modules/.package-lock.json")
      execute_process(
        COMMAND "${NPM}" ci --ignore-scripts --no-audit --no-fund --loglevel=error --prefer-offline
                --fetch-retries=1 --fetch-timeout=60000
        WORKING_DIRECTORY "${VIEWER_DIR}" TIMEOUT 300 RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
    endif()
    if(status EQUAL 0)
      execute_process(COMMAND "${NODE}" build.mjs "${OUTPUT}.html"
        WORKING_DIRECTORY "${VIEWER_DIR}" RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
      if(NOT status EQUAL 0)
        message(FATAL_ERROR "viewer/build.mjs failed:\n${said}")
      endif()
      file(READ "${OUTPUT}.html" page HEX)
    elseif(REQUIRED)
      message(FATAL_ERROR "STARPIPE_BUILD_VIEWER is ON, but npm ci failed in viewer/ (${status}):\n${said}")
    else()
      message(NOTICE "no report page in this build: npm ci failed in viewer/ (${status}), so --html is refused; "
        "delete ${OUTPUT} and build again once npm can get its packages")
    endif()
  endif()
  # A string literal may be too long for a compiler; an array of numbers is not.
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${page}")
  string(REGEX REPLACE "((0x..,){24})" "\\1\n" bytes "${bytes}")
  file(WRITE "${OUTPUT}" "// SPDX-License-Identifier: Apache-2.0
#include \"plan/drawing/page.hpp\"

namespace starpipe::plan {
namespace {

constexpr char page[] = {
${bytes}0};

}  // namespace

std::string_view page_template() { return {page, sizeof(page) - 1}; }

}  // namespace starpipe::plan
")
  return()
endif()

set(STARPIPE_BUILD_VIEWER AUTO CACHE STRING "Build the page of --html and `report` with npm: AUTO (where npm works), ON or OFF")
set_property(CACHE STARPIPE_BUILD_VIEWER PROPERTY STRINGS AUTO ON OFF)
set(npm "")
if(STARPIPE_BUILD_VIEWER)
  find_program(STARPIPE_NPM npm)
  find_program(STARPIPE_NODE NAMES node nodejs)
  if(STARPIPE_NPM AND STARPIPE_NODE)
    set(npm "${STARPIPE_NPM}")
  elseif(STARPIPE_BUILD_VIEWER STREQUAL "AUTO")
    message(STATUS "no npm: this build has no report page, and --html is refused")
  else()
    message(FATAL_ERROR "STARPIPE_BUILD_VIEWER is ${STARPIPE_BUILD_VIEWER}, but there is no npm")
  endif()
endif()
set(required OFF)
if(STARPIPE_BUILD_VIEWER AND NOT STARPIPE_BUILD_VIEWER STREQUAL "AUTO")
  set(required ON)
endif()
starpipe_sources(viewer_sources viewer/src/*.ts viewer/src/*.css viewer/src/*.html viewer/*.json viewer/*.mjs viewer/.npmrc)
set(page_source "${PROJECT_BINARY_DIR}/generated/page_template.cpp")
add_custom_command(OUTPUT "${page_source}"
  COMMAND "${CMAKE_COMMAND}" -D "NPM=${npm}" -D "NODE=${STARPIPE_NODE}" -D REQUIRED=${required}
          -D "VIEWER_DIR=${PROJECT_SOURCE_DIR}/viewer" -D "OUTPUT=${page_source}" -P "${CMAKE_CURRENT_LIST_FILE}"
  DEPENDS ${viewer_sources} "${CMAKE_CURRENT_LIST_FILE}"
  COMMENT "Building the report page"
  VERBATIM)
target_sources(starpipe_plan PRIVATE "${page_source}")
set_source_files_properties("${page_source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
