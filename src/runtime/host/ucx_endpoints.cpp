// SPDX-License-Identifier: Apache-2.0
// Over TCP, the two directions of a pair of ranks take turns under UCX's rendezvous: a rank's permission to
// send waits behind the data that this rank is sending on the same connection. Messages that are sent eagerly
// need no permission. In shared memory and on InfiniBand the rendezvous is better, since it saves a copy.
//
// UCX up to 1.13 has one threshold for all endpoints, UCX_RNDV_THRESH. While it is `auto`, sends with a
// certain flag have a threshold of their own, UCX_RNDV_SEND_NBR_THRESH. StartedMpi sets the latter, and our
// ucp_tag_send_nbx adds the flag where the endpoint is TCP. A user's UCX_RNDV_THRESH holds for both.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/host/mpi.hpp"
#include "runtime/host/ucx.hpp"

namespace starpipe::runtime {
namespace {

struct Endpoints {
  std::mutex mutex;
  std::set<const void*> over_tcp;
  std::set<std::string> texts;  // of all to other ranks
};
Endpoints endpoints;

void note_endpoint(void* endpoint) {
  static auto* const print =
      reinterpret_cast<void (*)(void*, std::FILE*)>(dlsym(RTLD_DEFAULT, "ucp_ep_print_info"));
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = print == nullptr ? nullptr : open_memstream(&text, &size);
  if (stream == nullptr) return;
  print(endpoint, stream);
  std::fclose(stream);
  const UcxEndpoint read = read_endpoint({text, size});
  std::free(text);  // NOLINT(cppcoreguidelines-no-malloc): open_memstream's
  const std::scoped_lock lock(endpoints.mutex);
  // UCX may give a new endpoint the address of an earlier one.
  endpoints.over_tcp.erase(endpoint);
  if (read.is_self) return;
  if (read.is_tcp) endpoints.over_tcp.insert(endpoint);
  if (!read.text.empty()) endpoints.texts.insert(read.text);
}

bool is_over_tcp(const void* endpoint) {
  const std::scoped_lock lock(endpoints.mutex);
  return endpoints.over_tcp.contains(endpoint);
}

// The first fields of ucp_request_param_t, which the bits 0 to 6 of the mask announce.
struct SendParameters {
  std::uint32_t mask;
  std::uint32_t flags;
  std::array<void*, 5> pointers;
  std::uint64_t memory_type;
};
constexpr std::uint32_t later_fields = 0xFF80;
constexpr std::uint32_t fast_completion = 1U << 17U;  // UCP_OP_ATTR_FLAG_FAST_CMPL

}  // namespace

UcxEndpoint read_endpoint(std::string_view info) {
  // A lane: "# lane[0]:  2:tcp/e2.0 md[1] -> md[1]/tcp/sysdev[255] rma_bw#0 am am_bw#0 wireup". Messages use
  // the lane "am"; large ones in shared memory also other lanes.
  UcxEndpoint endpoint;
  std::map<std::string, std::set<std::string>, std::less<>> kinds;
  for (std::size_t begin = 0; begin < info.size();) {
    const std::size_t end = std::min(info.find('\n', begin), info.size());
    const std::string line = std::string(info.substr(begin, end - begin)) + ' ';
    begin = end + 1;
    const std::size_t lane = line.find("lane[");
    if (lane == std::string::npos) continue;
    const std::size_t name = line.find(':', line.find(':', lane) + 1) + 1;
    const std::size_t slash = line.find('/', name);
    if (name == 0 || slash == std::string::npos) continue;
    const std::string transport = line.substr(name, slash - name);
    std::string device = line.substr(slash + 1, line.find(' ', slash) - slash - 1);
    device.resize(std::min(device.rfind('.'), device.size()));  // the number of a path
    const bool carries_messages = line.find(" am ") != std::string::npos;
    if (transport == "self") endpoint.is_self = true;
    if (transport == "tcp" && carries_messages) endpoint.is_tcp = true;
    if (transport == "tcp") {
      if (carries_messages) kinds["TCP"].insert(device);
    } else if (device == "memory") {
      kinds["shared memory"].insert(transport);
    } else {
      kinds[transport].insert(device);
    }
  }
  for (const auto& [kind, parts] : kinds)
    endpoint.text +=
        fmt::format("{}{} ({})", endpoint.text.empty() ? "" : ", ", kind, fmt::join(parts, ", "));
  return endpoint;
}

std::string transports() {
  const std::scoped_lock lock(endpoints.mutex);
  return fmt::format("{}", fmt::join(endpoints.texts, "; "));
}

bool sends_over_tcp() {
  const std::scoped_lock lock(endpoints.mutex);
  return !endpoints.over_tcp.empty();
}

}  // namespace starpipe::runtime

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

// Its status is one byte, which `int` passes on.
int ucp_ep_create(void* worker, const void* parameters, void** endpoint) {
  static auto* const create = starpipe::runtime::replaced(ucp_ep_create, "ucp_ep_create");
  const int status = create(worker, parameters, endpoint);
  if ((status & 0xFF) == 0) starpipe::runtime::note_endpoint(*endpoint);
  return status;
}

void* ucp_tag_send_nbx(void* endpoint, const void* buffer, std::size_t count, std::uint64_t tag,
                       const void* parameters) {
  using namespace starpipe::runtime;
  static auto* const send = replaced(ucp_tag_send_nbx, "ucp_tag_send_nbx");
  SendParameters own{};
  std::memcpy(&own.mask, parameters, sizeof own.mask);
  if ((own.mask & later_fields) != 0 || !is_over_tcp(endpoint))
    return send(endpoint, buffer, count, tag, parameters);
  std::memcpy(&own, parameters, sizeof own);
  own.mask |= fast_completion;
  return send(endpoint, buffer, count, tag, &own);
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
