// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/host/device.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// Which device runs which worker, so that workers that send each other much are near: the assignment with
/// the least `link_seconds`. Returns, by worker, an index into `devices`; each device carries one worker.
/// Worker w gets a device of the kind of device w, core or GPU, and device w itself unless another assignment
/// is better: the result is never worse than the order given.
///
/// Up to `exact_mapping` workers the result is optimal; beyond, it is improved from several starts within a
/// fixed number of tries. Deterministic.
std::vector<int> map_workers(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

inline constexpr std::size_t exact_mapping = 9;

}  // namespace starpipe::runtime
