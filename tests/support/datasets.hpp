// SPDX-License-Identifier: Apache-2.0
// Data for the networks of tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "model/data/make_dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe {

/// Random features and targets for a `dag_network`.
class Noise : public model::Dataset {
 public:
  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    fill(step, microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    fill(step, microbatch, -1, out);
  }
  [[nodiscard]] std::vector<std::uint64_t> offsets(int /*step*/, int /*microbatch*/) const override {
    return {};
  }
  [[nodiscard]] std::string sample_word() const override { return "samples"; }
  [[nodiscard]] std::size_t samples_per_microbatch() const override { return 1; }

 private:
  static void fill(int step, int microbatch, int branch, std::span<float> out) {
    std::mt19937 bits(static_cast<unsigned>(step * 1000 + microbatch * 10 + branch + 1));
    for (float& value : out) value = static_cast<float>(bits() % 2000) / 1000.0F - 1.0F;
  }
};

/// Other data, as they are. A test overrides what it changes or watches.
class OtherData : public model::Dataset {
 public:
  explicit OtherData(const model::Dataset& data) : data_(data) {}
  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    data_.input(step, microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    data_.target(step, microbatch, out);
  }
  [[nodiscard]] std::vector<std::uint64_t> offsets(int step, int microbatch) const override {
    return data_.offsets(step, microbatch);
  }
  [[nodiscard]] std::string sample_word() const override { return data_.sample_word(); }
  [[nodiscard]] std::size_t samples_per_microbatch() const override { return data_.samples_per_microbatch(); }

 private:
  const model::Dataset& data_;
};

/// Data that the network reads: noise for a `dag_network`, a text for a language model, otherwise made up.
inline std::unique_ptr<model::Dataset> data_for(const model::Network& network, int microbatches = 1) {
  if (network.config.kind == "dag") return std::make_unique<Noise>();
  const bool text = network.config.kind != "mlp";
  return model::make_dataset({text ? "text" : "synthetic", text ? STARPIPE_TEST_TEXT : ""}, network.config,
                             {microbatches, network.microbatch_size}, 1);
}

}  // namespace starpipe
