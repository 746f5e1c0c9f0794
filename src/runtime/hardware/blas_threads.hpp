// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::runtime {

/// One thread for each call of OpenBLAS during this object's lifetime; then as many as before. The number is
/// the whole process's. Not thread-safe.
class OneBlasThread {
 public:
  OneBlasThread();
  ~OneBlasThread();
  OneBlasThread(const OneBlasThread&) = delete;
  OneBlasThread& operator=(const OneBlasThread&) = delete;

 private:
  int before_;
};

}  // namespace starpipe::runtime
