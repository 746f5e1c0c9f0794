// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe {

/// How many rounds of a test with many inputs stand for one that is run. A round takes ten times as long
/// under a sanitizer, and one of them is enough to find a fault of memory or of threads there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int round_stride = 5;
#else
inline constexpr int round_stride = 1;
#endif

/// The rounds of a test with random input: a fifth of them under a sanitizer.
constexpr int rounds(int all) { return (all + round_stride - 1) / round_stride; }

}  // namespace starpipe
