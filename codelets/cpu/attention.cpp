// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "codelets/cpu/math.hpp"
#include "codelets/cpu/products.hpp"
#include "model/full_width.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using cpu::multiply;
using cpu::Result;

/// Queries whose scores are computed together. Blocks bound the scratch, and no block computes scores of keys
/// later than its last query.
constexpr std::size_t block_rows = 64;

/// Causal self-attention with several heads, of which neighbouring ones may share a head of keys and values
/// (grouped queries: Ainslie et al., arXiv 2305.13245). Input: rows [q | k | v] of heads, kv_heads and
/// kv_heads heads; output: rows of `heads` heads. All heads have the same number of columns, their size;
/// scores are scaled by 1 / sqrt(size). Options: heads, context; kv_heads, which divides heads (default:
/// heads). The stash is q, k, v, and one log-sum-exp per row and head, laid out as [sequence][head][row]. It
/// grows linearly with the context, as B computes the probabilities again (Dao et al., arXiv 2205.14135).
class Attention final : public Layer {
 public:
  explicit Attention(const LayerSpec& spec) : Layer(spec) {
    check_options(spec, {"heads", "context"}, {"kv_heads"});
    heads_ = size_option(spec, "heads");
    kv_heads_ = size_option(spec, "kv_heads", heads_);
    context_ = size_option(spec, "context");
    check_fit(spec, heads_ % kv_heads_ == 0, "heads are not a multiple of kv_heads");
    check_fit(spec, columns_ % (heads_ + 2 * kv_heads_) == 0,
              "columns are not (heads + 2 x kv_heads) x a head's size");
    check_fit(spec, rows_ % context_ == 0, "rows are not whole sequences");
    size_ = columns_ / (heads_ + 2 * kv_heads_);
    scale_ = 1.0f / std::sqrt(static_cast<float>(size_));
  }

  std::size_t output_columns() const override { return heads_ * size_; }
  bool keeps_input() const override { return true; }
  std::size_t statistics_size() const override { return rows_ * heads_; }
  std::size_t scratch_size() const override { return 2 * std::min(block_rows, context_) * context_; }
  double flops() const override {
    // Two products for each pair of a query and a key that it sees, and 20 operations for the exponential.
    const double pairs = static_cast<double>(rows_) * (static_cast<double>(context_) + 1) / 2;
    return pairs * static_cast<double>(heads_) * (4.0 * static_cast<double>(size_) + 20.0);
  }

  void forward(const Forward& pass) const noexcept override {
    cpu::keep_input(pass.input, pass.stash);
    const std::size_t stride = columns_;
    const std::size_t out_stride = output_columns();
    for (std::size_t sequence = 0; sequence < rows_ / context_; ++sequence) {
      for (std::size_t head = 0; head < heads_; ++head) {
        const HeadOffsets at = offsets(sequence, head);
        const float* q = pass.input.data() + at.q;
        const float* k = pass.input.data() + at.k;
        const float* v = pass.input.data() + at.v;
        float* out = pass.output.data() + at.output;
        float* log_sum = pass.stash.data() + at.log_sum;
        for (std::size_t first = 0; first < context_; first += block_rows) {
          const std::size_t queries = std::min(block_rows, context_ - first);
          const std::size_t keys = first + queries;  // later keys are masked for the whole block
          float* scores = pass.scratch.data();
          multiply(queries, keys, size_, {q + first * stride, stride}, {k, stride, true}, Result::replaces,
                   scores, keys);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              log_sum[first + i] = softmax(scores + i * keys, first + i + 1, keys);
          });
          multiply(queries, size_, keys, {scores, keys}, {v, stride}, Result::replaces,
                   out + first * out_stride, out_stride);
        }
      }
    }
  }

  void backward_input(const Backward& pass) const noexcept override {
    const std::size_t stride = columns_;
    const std::size_t out_stride = output_columns();
    const std::size_t blocks = ceil_div(context_, block_rows);
    for (std::size_t sequence = 0; sequence < rows_ / context_; ++sequence) {
      for (std::size_t head = 0; head < heads_; ++head) {
        const HeadOffsets at = offsets(sequence, head);
        const float* q = pass.stash.data() + at.q;
        const float* k = pass.stash.data() + at.k;
        const float* v = pass.stash.data() + at.v;
        float* dq = pass.input_gradient.data() + at.q;
        float* dk = pass.input_gradient.data() + at.k;
        float* dv = pass.input_gradient.data() + at.v;
        const float* dout = pass.output_gradient.data() + at.output;
        const float* log_sum = pass.stash.data() + at.log_sum;
        const bool first_of_group = head % (heads_ / kv_heads_) == 0;
        // The last block comes first: its queries see every key, so in a group's first head it writes all of
        // dk and dv. The other blocks and heads add to them.
        for (std::size_t block = blocks; block-- > 0;) {
          const std::size_t first = block * block_rows;
          const std::size_t queries = std::min(block_rows, context_ - first);
          const std::size_t keys = first + queries;
          const Result result = first_of_group && block + 1 == blocks ? Result::replaces : Result::is_added;
          float* p = pass.scratch.data();
          float* ds = p + queries * keys;
          multiply(queries, keys, size_, {q + first * stride, stride}, {k, stride, true}, Result::replaces, p,
                   keys);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i) {
              float* row = p + i * keys;
              const std::size_t seen = first + i + 1;
              const float shift = log_sum[first + i];
              for (std::size_t j = 0; j < seen; ++j) row[j] = cpu::exp_of(scale_ * row[j] - shift);
              std::fill(row + seen, row + keys, 0.0f);
            }
          });
          const float* dy = dout + first * out_stride;
          multiply(keys, size_, queries, {p, keys, true}, {dy, out_stride}, result, dv, stride);
          multiply(queries, keys, size_, {dy, out_stride}, {v, stride, true}, Result::replaces, ds, keys);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i) {
              const float* row = p + i * keys;
              float* drow = ds + i * keys;
              const float mean = cpu::sum_of(first + i + 1, [=](std::size_t j) { return row[j] * drow[j]; });
              for (std::size_t j = 0; j < keys; ++j) drow[j] = scale_ * row[j] * (drow[j] - mean);
            }
          });
          multiply(queries, size_, keys, {ds, keys}, {k, stride}, Result::replaces, dq + first * stride,
                   stride);
          multiply(keys, size_, queries, {ds, keys, true}, {q + first * stride, stride}, result, dk, stride);
        }
      }
    }
  }

 private:
  /// Offsets of a sequence's head in the arrays.
  struct HeadOffsets {
    std::size_t q, k, v;  ///< in the input
    std::size_t output;
    std::size_t log_sum;  ///< in the stash
  };
  HeadOffsets offsets(std::size_t sequence, std::size_t head) const noexcept {
    const std::size_t start = sequence * context_ * columns_;
    const std::size_t k = heads_ + head / (heads_ / kv_heads_);
    return {start + head * size_, start + k * size_, start + (k + kv_heads_) * size_,
            (sequence * context_ * heads_ + head) * size_,
            rows_ * columns_ + (sequence * heads_ + head) * context_};
  }

  /// Replaces the first `seen` of a row's `keys` products of query and key by the softmax of their scores,
  /// scale_ times the product, and the masked rest by 0. Returns the log-sum-exp of the first `seen` scores.
  float softmax(float* row, std::size_t seen, std::size_t keys) const noexcept {
    const float top = scale_ * cpu::max_of(row, seen);
    for (std::size_t j = 0; j < seen; ++j) row[j] = cpu::exp_of(scale_ * row[j] - top);
    const float sum = cpu::sum_of(seen, [row](std::size_t j) { return row[j]; });
    const float scale = 1.0f / sum;
    for (std::size_t j = 0; j < seen; ++j) row[j] *= scale;
    std::fill(row + seen, row + keys, 0.0f);
    return top + std::log(sum);
  }

  std::size_t heads_ = 0;
  std::size_t kv_heads_ = 0;
  std::size_t context_ = 0;
  std::size_t size_ = 0;  ///< columns of one head
  float scale_ = 0;
};

const bool registered = register_layer<Attention>("attention");

}  // namespace
}  // namespace starpipe::model
