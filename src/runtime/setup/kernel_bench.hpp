// SPDX-License-Identifier: Apache-2.0
// What `profile` runs layers on, without StarPU.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "starpipe/model/backend.hpp"

namespace starpipe::runtime {

/// A core, or a stream of the current GPU.
class ProfileDevice {
 public:
  virtual ~ProfileDevice() = default;
  [[nodiscard]] virtual const model::Backend& backend() const = 0;
  [[nodiscard]] virtual bool is_gpu() const = 0;
  /// Zeros in the device's memory, which the device must outlive. Throws std::runtime_error when there is too
  /// little.
  [[nodiscard]] virtual std::shared_ptr<float> allocate(std::size_t size) const = 0;
  /// From memory of the host; equal sizes.
  virtual void fill(std::span<float> to, std::span<const float> from) const = 0;
  /// Until all that the backend was asked for is done.
  virtual void wait() const = 0;
};

/// "cpu" or "cuda"; check_device has found one.
std::unique_ptr<ProfileDevice> make_profile_device(const std::string& kind);

/// Floats of a device.
class DeviceVector {
 public:
  DeviceVector() = default;
  DeviceVector(const ProfileDevice& device, std::size_t size) : memory_(device.allocate(size)), size_(size) {}
  DeviceVector(const ProfileDevice& device, std::span<const float> values)
      : DeviceVector(device, values.size()) {
    device.fill(*this, values);
  }
  operator std::span<float>() { return {memory_.get(), size_}; }
  operator std::span<const float>() const { return {memory_.get(), size_}; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::shared_ptr<float> memory_;
  std::size_t size_ = 0;
};

}  // namespace starpipe::runtime
