// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/dataset.hpp"

namespace starpipe::model {

void load_input(const Dataset& data, const Stage& source, int step, int microbatch, int branch,
                FloatView out) {
  if (source.reads_ids() || source.precision() != Precision::bf16) {
    data.input(step, microbatch, branch, out);
    return;
  }
  std::vector<float> features(source.rows() * source.input_columns()[0]);
  data.input(step, microbatch, branch, features);
  round_to_bf16(features, out);
}

}  // namespace starpipe::model
