# SPDX-License-Identifier: Apache-2.0
# Uses ccache where it is installed, so that builds in other folders and clones share compiler output.
# CMAKE_CXX_COMPILER_LAUNCHER, when set, is used instead.
find_program(STARPIPE_CCACHE ccache)
if(STARPIPE_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache refuses precompiled headers unless it may ignore the time of day (time_macros) and macros that are defined in
  # them (pch_defines). CMake compiles a precompiled header again when it changes, so its time stamp may be ignored too.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${STARPIPE_CCACHE}")
  # Tells ccache which precompiled header GCC used.
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>")
endif()
