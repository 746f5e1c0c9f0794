// SPDX-License-Identifier: Apache-2.0
// Products in fp32 by oneDNN's dnnl_sgemm, which versions 2 and 3 have. It keeps nothing between calls.
#include <exception>
#include <new>

#include <oneapi/dnnl/dnnl.h>

#include "codelets/cpu/products.hpp"

// OpenMP's functions, from the library that oneDNN calls; null if oneDNN is built without threads.
extern "C" {
int omp_get_max_threads() __attribute__((weak));
void omp_set_num_threads(int number) __attribute__((weak));
}

namespace starpipe::model::cpu {
namespace {

/// During this object's lifetime OpenMP uses one thread for each parallel region of the calling thread,
/// whatever OMP_NUM_THREADS says. OpenMP counts threads for each calling thread, so other threads are not
/// affected.
class OneThread {
 public:
  OneThread() noexcept {
    if (omp_set_num_threads == nullptr) return;
    before_ = omp_get_max_threads();
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 1;
};

}  // namespace

void multiply(std::size_t m, std::size_t n, std::size_t k, Matrix a, Matrix b, Result result, float* c,
              std::size_t c_stride) noexcept {
  const auto i = [](std::size_t value) { return static_cast<dnnl_dim_t>(value); };
  const auto layout = [](Matrix of) { return of.transposed ? 'T' : 'N'; };
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(layout(a), layout(b), i(m), i(n), i(k), 1, a.data, i(a.stride), b.data, i(b.stride),
                 result == Result::is_added ? 1.0f : 0.0f, c, i(c_stride));
  if (status == dnnl_success) return;
  // oneDNN packs the operands into memory of malloc. A run's handler says which task had none.
  const std::new_handler handler = std::get_new_handler();
  if (status == dnnl_out_of_memory && handler != nullptr) handler();
  std::terminate();
}

}  // namespace starpipe::model::cpu
