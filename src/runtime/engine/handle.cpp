// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/handle.hpp"

namespace starpipe::runtime {

Handle::~Handle() {
  if (handle_ == nullptr) return;
  if (keep_value_) {
    starpu_data_unregister(handle_);
  } else {
    starpu_data_unregister_no_coherency(handle_);
  }
}

}  // namespace starpipe::runtime
