// SPDX-License-Identifier: Apache-2.0
// In the place of cuda_devices.cpp on SimGrid. A simulated cluster says itself how many GPUs a rank has, and
// the GPUs have no driver.
#include "runtime/host/cuda_devices.hpp"

namespace starpipe::runtime {

void use_gpu(int /*gpu*/) {}
std::uint64_t gpu_bytes_in_use(int /*gpu*/) { return 0; }
bool built_with_cuda() { return false; }
std::vector<std::string> cuda_devices() { return {}; }
std::vector<Device> visible_gpus() { return {}; }

}  // namespace starpipe::runtime
