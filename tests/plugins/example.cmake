# SPDX-License-Identifier: Apache-2.0
# The steps of a user: install starpipe, build the example's project against it, use and check the plug-in.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY WORKING_DIRECTORY "${WORK_DIR}")
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
file(COPY "${EXAMPLE_DIR}/" DESTINATION "${WORK_DIR}/example") # no file of starpipe's source tree next to it
set(starpipe "${WORK_DIR}/prefix/bin/starpipe")
set(plugin "${WORK_DIR}/build/libfolded.so")

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
run("${CMAKE_COMMAND}" -S example -B build -G "${GENERATOR}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix"
  "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror")
run("${CMAKE_COMMAND}" --build build)
run("${starpipe}" schedule show folded --workers 3 --microbatches 4 --plugin "${plugin}")
run("${starpipe}" search --workers 3 --microbatches 4 --budget 0.2 --quiet --plugin "${plugin}")
run("${starpipe}" plugin check "${plugin}")
set(wave "${WORK_DIR}/build/libwave.so")
run("${starpipe}" schedule show wave --workers 3 --microbatches 6 --option waves=2 --plugin "${wave}")
run("${starpipe}" plugin check "${wave}")
set(settings --plugin "${plugin}" --set schedule.name=folded --set training.steps=2)
run("${starpipe}" train "${CONFIG}" ${settings})
run("${MPIEXEC}" -n 2 "${starpipe}" train "${CONFIG}" ${settings})
