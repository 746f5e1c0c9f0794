// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/core_claims.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/host/hardware.hpp"
#include "base/messages.hpp"

namespace starpipe::runtime {

CoreClaims::~CoreClaims() { release(); }

bool CoreClaims::claim(unsigned pu) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte.
  const std::string name = fmt::format("starpipe.core.{}", pu);
  std::ranges::copy(name, std::begin(address.sun_path) + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0)
    throw std::system_error(errno, std::generic_category(), "cannot make a socket to claim a core");
  sockets_.push_back(socket);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the system's interface
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;
  if (errno == EADDRINUSE) return false;
  throw std::system_error(errno, std::generic_category(), "cannot claim a core");
}

void CoreClaims::release() {
  for (const int socket : sockets_) close(socket);
  sockets_.clear();
}

CoreClaims claim_cores(const Mpi& mpi, CoreShare& share) {
  CoreClaims claims;
  std::string line;
  for (const unsigned number : share.worker_pus) {
    const unsigned pu = Topology::host().system_number(number);
    if (claims.claim(pu)) continue;
    line = fmt::format(
        "starpipe: another run of starpipe has bound a worker to PU {} of {}; the workers of rank {} have no "
        "cores of their own, and both runs may be slower",
        pu, find_hardware().machine, mpi.rank());
    claims.release();
    share.worker_pus.clear();
    break;
  }
  line = mpi.first_problem(line);
  if (mpi.rank() == 0 && !line.empty()) print_message(line + "\n");
  return claims;
}

}  // namespace starpipe::runtime
