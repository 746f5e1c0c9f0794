// SPDX-License-Identifier: Apache-2.0
// The .cu source as C++: CMake cannot compile one source in two languages within a folder.
#include "codelets/tensor_cores_test.cu"  // NOLINT(bugprone-suspicious-include)
