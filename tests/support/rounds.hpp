// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe {

/// A test that tries many inputs runs every tenth of them under a sanitizer, where each takes several times
/// as long, and all of them elsewhere.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int round_stride = 10;
#else
inline constexpr int round_stride = 1;
#endif

/// The number of rounds that a test with random input runs, out of `all`.
constexpr int rounds(int all) { return (all + round_stride - 1) / round_stride; }

}  // namespace starpipe
