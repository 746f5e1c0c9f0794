// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/data/make_dataset.hpp"

#include "model/data/synthetic.hpp"
#include "model/data/text.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {

std::unique_ptr<Dataset> make_dataset(const DataConfig& data, const ModelConfig& model, int microbatch_size,
                                      std::uint64_t seed) {
  const std::string& needed = find_network(model.kind).data;
  if (data.kind != needed) {
    throw InputError("data.kind: " + data.kind + " does not fit model.kind " + model.kind + ", which needs " +
                     needed);
  }
  if (data.kind != text_data) return make_synthetic_dataset(model, microbatch_size, seed);
  if (data.path.empty()) throw InputError("data.path: is needed for data.kind text");
  return make_text_dataset(data.path, index(option(model, "context")), microbatch_size, seed);
}

}  // namespace starpipe::model
