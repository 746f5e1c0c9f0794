// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe {

/// The rounds of a test with random input. A round takes ten times as long under the address sanitizer, and
/// one of them is enough to find a fault of memory there: it does a fifth of them.
constexpr int rounds(int all) {
#ifdef __SANITIZE_ADDRESS__
  return (all + 4) / 5;
#else
  return all;
#endif
}

}  // namespace starpipe
