# SPDX-License-Identifier: Apache-2.0
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix "${WORK_DIR}/prefix")
set(build "${WORK_DIR}/build")
file(REMOVE_RECURSE "${WORK_DIR}")
set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")
run("${CMAKE_COMMAND}" -S "${CONSUMER_DIR}" -B "${build}" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${flags}"
  "-DCOMPONENT=${COMPONENT}")
run("${CMAKE_COMMAND}" --build "${build}")
execute_process(COMMAND "${build}/consumer" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "${output}")
if(NOT output MATCHES "^starpipe ${EXPECTED_VERSION}\n")
  message(FATAL_ERROR "the consumer was built against another version than ${EXPECTED_VERSION}")
endif()
if(COMPONENT STREQUAL "runtime")
  run(${LAUNCHER} "${build}/consumer")
endif()
if(STARPU_PROGRAM)
  # Any StarPU program can load the installed policy.
  run("${CMAKE_COMMAND}" -E env "STARPU_SCHED_LIB=${prefix}/${LIBDIR}/libstarpipe_sched.so" STARPU_SCHED=starpipe
    "${STARPU_PROGRAM}" starpipe 8 16 2)
endif()
if(COMPONENT STREQUAL "runtime")
  # The installed programs of docs/library.md.
  set(example "${WORK_DIR}/library")
  run("${CMAKE_COMMAND}" -S "${prefix}/share/starpipe/experiments/library" -B "${example}" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${flags}")
  run("${CMAKE_COMMAND}" --build "${example}")
  foreach(launched IN ITEMS "" "${LAUNCHER}")
    execute_process(COMMAND ${launched} "${example}/first" OUTPUT_VARIABLE output ERROR_VARIABLE errors
      COMMAND_ERROR_IS_FATAL ANY)
    message(STATUS "${output}${errors}")
    if(NOT output MATCHES "^(step [1-5]: loss [0-9.]+\n)+$" OR NOT output MATCHES "step 5: " OR NOT errors STREQUAL "")
      message(FATAL_ERROR "the first example does not print the loss of each step once")
    endif()
    file(REMOVE_RECURSE "${WORK_DIR}/parts")
    file(MAKE_DIRECTORY "${WORK_DIR}/parts")
    run(${launched} "${example}/parts" WORKING_DIRECTORY "${WORK_DIR}/parts")
  endforeach()
  # The installed example of a placement and a priority of one's own. It checks itself.
  set(example "${WORK_DIR}/cholesky")
  run("${CMAKE_COMMAND}" -S "${prefix}/share/starpipe/experiments/cholesky" -B "${example}" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${flags}")
  run("${CMAKE_COMMAND}" --build "${example}")
  foreach(workers 1 3 4)
    run("${CMAKE_COMMAND}" -E env STARPU_NCPU=${workers} STARPU_SCHED=starpipe
      "STARPU_SCHED_LIB=${prefix}/${LIBDIR}/libstarpipe_sched.so" "${example}/cholesky" 10 16)
  endforeach()
endif()
# The installed docs are complete: their links lead to files that are installed, too.
file(GLOB pages "${prefix}/share/starpipe/README.md" "${prefix}/share/starpipe/docs/*.md"
  "${prefix}/share/starpipe/docs/internals/*.md")
if(NOT pages)
  message(FATAL_ERROR "no docs are installed")
endif()
run("${PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/../docs/links_test.py" ${pages})
if(EXISTS "${BUILD_DIR}/bin/starpipe")
  run("${prefix}/bin/starpipe" --version)
endif()
