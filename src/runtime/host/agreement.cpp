// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/agreement.hpp"

#include <exception>
#include <new>

#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::runtime {

void or_abort(const Mpi& mpi, const std::function<void()>& function) {
  try {
    function();
  } catch (const RunFailure&) {
    throw;
  } catch (const plan::PluginOutOfMemory& error) {
    mpi.abort(error.what());
  } catch (const std::bad_alloc&) {
    mpi.abort("out of memory");
  } catch (const std::exception& error) {
    mpi.abort(error.what());
  }
}

}  // namespace starpipe::runtime
