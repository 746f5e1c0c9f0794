// SPDX-License-Identifier: Apache-2.0
// A source cannot be of two languages in one folder of CMake.
#include "codelets/tensor_cores_test.cu"  // NOLINT(bugprone-suspicious-include)
