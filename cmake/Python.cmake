# SPDX-License-Identifier: Apache-2.0
# Finds the interpreter of the tests and of the Python package.
#
# Python_EXECUTABLE names it. Without, it is the first python3 on PATH if it has NumPy, else the system's. Sets
# STARPIPE_PYTHON to it.
find_program(STARPIPE_PYTHON NAMES python3)
if(Python_EXECUTABLE)
  set(STARPIPE_PYTHON "${Python_EXECUTABLE}")
else()
  execute_process(COMMAND "${STARPIPE_PYTHON}" -c "import numpy" RESULT_VARIABLE without_numpy ERROR_QUIET OUTPUT_QUIET)
  if(without_numpy)
    set(STARPIPE_PYTHON /usr/bin/python3)
  endif()
endif()
