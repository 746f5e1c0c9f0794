// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/gpu_division.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "runtime/host/link.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// For fewer workers than GPUs: the run of `count` neighbours that are nearest to each other, the first of
// equal ones.
std::vector<Device> nearest(const std::vector<Device>& gpus, std::size_t count) {
  if (gpus.size() <= count) return gpus;
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t first = 0; first + count <= gpus.size(); ++first) {
    double far = 0;
    for (std::size_t a = first; a < first + count; ++a) {
      for (std::size_t b = a + 1; b < first + count; ++b) far += 1 / link_between(gpus[a], gpus[b]).bandwidth;
    }
    if (far >= least) continue;
    least = far;
    best = first;
  }
  const auto begin = gpus.begin() + static_cast<std::ptrdiff_t>(best);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

auto near_order(const Device& gpu) { return std::tie(gpu.numa, gpu.bridges, gpu.pci); }

}  // namespace

std::vector<std::vector<Device>> divide_gpus(std::span<const RankWithGpus> ranks) {
  std::vector<std::vector<Device>> by_rank(ranks.size());
  std::vector<bool> done(ranks.size(), false);
  for (std::size_t first = 0; first < ranks.size(); ++first) {
    if (done[first]) continue;
    std::vector<Device> gpus = ranks[first].visible;
    std::ranges::sort(gpus, {}, near_order);
    std::vector<std::size_t> sharing;
    std::size_t workers = 0;
    for (std::size_t rank = first; rank < ranks.size(); ++rank) {
      std::vector<Device> theirs = ranks[rank].visible;
      std::ranges::sort(theirs, {}, near_order);
      if (!std::ranges::equal(theirs, gpus, {}, &Device::pci, &Device::pci)) continue;
      sharing.push_back(rank);
      workers += index(ranks[rank].workers);
    }
    gpus = nearest(gpus, workers);
    std::size_t next = 0;
    for (const std::size_t rank : sharing) {
      done[rank] = true;
      // The rank's own numbers: CUDA numbers the GPUs that a process sees.
      for (int i = 0; i < ranks[rank].workers && !gpus.empty(); ++i, ++next) {
        const std::size_t at = next * gpus.size() / workers;
        by_rank[rank].push_back(*std::ranges::find(ranks[rank].visible, gpus[at].pci, &Device::pci));
      }
      std::ranges::stable_sort(by_rank[rank], {}, &Device::number);
    }
  }
  return by_rank;
}

}  // namespace starpipe::runtime
