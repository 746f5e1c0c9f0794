// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::runtime {

/// During this object's lifetime each call of OpenBLAS uses one thread. The destructor restores the previous
/// number. The setting is one of the whole process. Not thread-safe.
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
