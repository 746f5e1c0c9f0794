// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/agreement.hpp"

#include <exception>
#include <new>

namespace starpipe::runtime {

void or_abort(const Mpi& mpi, const std::function<void()>& function) {
  try {
    function();
  } catch (const RunFailure&) {
    throw;
  } catch (const std::bad_alloc&) {
    mpi.abort("out of memory");
  } catch (const std::exception& error) {
    mpi.abort(error.what());
  }
}

}  // namespace starpipe::runtime
