// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <dlfcn.h>

namespace starpipe::runtime {

/// Returns UCX's function of this name. Our library has functions with names of UCX's functions. They take
/// the place of UCX's own, since a library of the program comes before the libraries of its libraries when
/// symbols are looked up.
template <class Function>
Function* replaced(Function& /*ours*/, const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  // UCX that the program has loaded by dlopen, as Open MPI does, is not in the order of the libraries.
  if (void* const library = found == nullptr ? dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD) : nullptr)
    found = dlsym(library, name);
  return reinterpret_cast<Function*>(found);
}

/// The transport of an endpoint, which is UCX's connection to another rank.
struct UcxEndpoint {
  bool is_self = false;  ///< it leads to this rank itself
  bool is_tcp = false;
  std::string text;  ///< for people: "TCP (eth0)"
};

/// Reads the text that `ucp_ep_print_info` writes.
UcxEndpoint read_endpoint(std::string_view info);

/// Returns true if this thread's polls of UCX have found something since the last call. A poll may find no
/// more than one message. False where MPI does not use UCX.
bool found_by_ucx();

}  // namespace starpipe::runtime
