// SPDX-License-Identifier: Apache-2.0
#include "codelets/cpu/attention.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "codelets/cpu/math.hpp"
#include "codelets/cpu/products.hpp"
#include "model/full_width.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using cpu::Bf16Product;
using cpu::Bf16Sizes;
using cpu::multiply;
using cpu::Result;

constexpr std::size_t block_rows = cpu::query_block;

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
    scores_ = {1.0f / std::sqrt(static_cast<float>(size_))};
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
        float* log_sum = pass.stash.data() + rows_ * columns_ + at.statistics;
        for (std::size_t first = 0; first < context_; first += block_rows) {
          const std::size_t queries = std::min(block_rows, context_ - first);
          const std::size_t keys = first + queries;  // later keys are masked for the whole block
          float* scores = pass.scratch.data();
          multiply(queries, keys, size_, {q + first * stride, stride}, {k, stride, true}, Result::replaces,
                   scores, keys);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              log_sum[first + i] = scores_.softmax(scores + i * keys, first + i + 1, keys);
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
        const float* log_sum = pass.stash.data() + rows_ * columns_ + at.statistics;
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
            for (std::size_t i = 0; i < queries; ++i)
              scores_.softmax_again(p + i * keys, first + i + 1, keys, log_sum[first + i]);
          });
          const float* dy = dout + first * out_stride;
          multiply(keys, size_, queries, {p, keys, true}, {dy, out_stride}, result, dv, stride);
          multiply(queries, keys, size_, {dy, out_stride}, {v, stride, true}, Result::replaces, ds, keys);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              scores_.differentiate(p + i * keys, ds + i * keys, first + i + 1, keys);
          });
          multiply(queries, size_, keys, {ds, keys}, {k, stride}, Result::replaces, dq + first * stride,
                   stride);
          multiply(keys, size_, queries, {ds, keys, true}, {q + first * stride, stride}, result, dk, stride);
        }
      }
    }
  }

  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    cpu::keep_input(pass.input, pass.stash);
    const Bf16Scratch scratch = divide(pass.scratch);
    float* const log_sums = pass.stash.subspan(statistics_at()).as<float>();
    for (std::size_t sequence = 0; sequence < rows_ / context_; ++sequence) {
      for (std::size_t head = 0; head < heads_; ++head) {
        const HeadOffsets at = offsets(sequence, head);
        const auto* const in = pass.input.as<Bf16>();
        Bf16* const out = pass.output.as<Bf16>() + at.output;
        for (std::size_t block = 0; block < products_.size(); ++block) {
          const std::size_t queries = products_[block].queries;
          const std::size_t keys = products_[block].keys;
          const Bf16Products& products = products_[block].products;
          const std::size_t first = block * block_rows;
          products.scores(in + at.q + first * columns_, in + at.k, nullptr, scratch.p, scratch.products);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              log_sums[at.statistics + first + i] =
                  scores_.softmax(scratch.p + i * keys, first + i + 1, keys);
            cpu::round_row(scratch.p, queries * keys, scratch.rounded);
          });
          products.output(scratch.rounded, in + at.v, nullptr, out + first * output_columns(),
                          scratch.products);
        }
      }
    }
  }

  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept override {
    const Bf16Scratch scratch = divide(pass.scratch);
    const float* const log_sums = pass.stash.subspan(statistics_at()).as<float>();
    const std::size_t group = heads_ / kv_heads_;
    for (std::size_t sequence = 0; sequence < rows_ / context_; ++sequence) {
      for (std::size_t head = 0; head < heads_; ++head) {
        const HeadOffsets at = offsets(sequence, head);
        const auto* const in = pass.stash.as<Bf16>();
        Bf16* const gradient = pass.input_gradient.as<Bf16>();
        if (head % group == 0) std::fill_n(scratch.dk, 2 * context_ * size_, 0.0f);  // dv lies behind dk
        for (std::size_t block = 0; block < products_.size(); ++block) {
          const std::size_t queries = products_[block].queries;
          const std::size_t keys = products_[block].keys;
          const Bf16Products& products = products_[block].products;
          const std::size_t first = block * block_rows;
          const Bf16* const q = in + at.q + first * columns_;
          const Bf16* const dy = pass.output_gradient.as<Bf16>() + at.output + first * output_columns();
          products.scores(q, in + at.k, nullptr, scratch.p, scratch.products);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              scores_.softmax_again(scratch.p + i * keys, first + i + 1, keys,
                                    log_sums[at.statistics + first + i]);
            cpu::round_row(scratch.p, queries * keys, scratch.rounded);
          });
          products.dv(scratch.rounded, dy, nullptr, scratch.dv, scratch.products);
          products.dscores(dy, in + at.v, nullptr, scratch.ds, scratch.products);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              scores_.differentiate(scratch.p + i * keys, scratch.ds + i * keys, first + i + 1, keys);
            cpu::round_row(scratch.ds, queries * keys, scratch.rounded);
          });
          products.dq(scratch.rounded, in + at.k, nullptr, gradient + at.q + first * columns_,
                      scratch.products);
          products.dk(scratch.rounded, q, nullptr, scratch.dk, scratch.products);
        }
        if (head % group != group - 1) continue;
        at_full_width([&] {
          for (std::size_t i = 0; i < context_; ++i) {
            cpu::round_row(scratch.dk + i * size_, size_, gradient + at.k + i * columns_);
            cpu::round_row(scratch.dv + i * size_, size_, gradient + at.v + i * columns_);
          }
        });
      }
    }
  }

 private:
  /// Offsets of a sequence's head in the arrays.
  struct HeadOffsets {
    std::size_t q, k, v;  ///< in the input
    std::size_t output;
    std::size_t statistics;  ///< in the log-sum-exps
  };
  HeadOffsets offsets(std::size_t sequence, std::size_t head) const noexcept {
    const std::size_t start = sequence * context_ * columns_;
    const std::size_t k = heads_ + head / (heads_ / kv_heads_);
    return {start + head * size_, start + k * size_, start + (k + kv_heads_) * size_,
            (sequence * context_ * heads_ + head) * size_, (sequence * heads_ + head) * context_};
  }

  /// The products of the passes on bf16 for a block of queries.
  struct Bf16Products {
    Bf16Product scores, output, dv, dscores, dq, dk;
  };
  struct Bf16Block {
    std::size_t queries;
    std::size_t keys;  ///< the first so many; keys later than a query are masked
    Bf16Products products;
  };
  /// The scratch of the passes on bf16. Probabilities and the gradients of scores are queries x keys of a
  /// block, first as floats, then rounded for the products that read them.
  struct Bf16Scratch {
    float* p;
    float* ds;
    Bf16* rounded;
    float* dk;  ///< of a group's head of keys and values: context x size
    float* dv;
    FloatView products;
  };

  /// Returns the floats of scratch without those of the products.
  std::size_t own_scratch_size() const noexcept {
    const std::size_t block = std::min(block_rows, context_) * context_;
    return 2 * block + ceil_div(block, 2) + 2 * context_ * size_;
  }
  Bf16Scratch divide(FloatView scratch) const noexcept {
    const std::size_t block = std::min(block_rows, context_) * context_;
    const Memory rounded = Memory(scratch).subspan(2 * block);
    float* const dk = rounded.as<float>() + ceil_div(block, 2);
    return {scratch.data(),        scratch.data() + block,
            rounded.as<Bf16>(),    dk,
            dk + context_ * size_, scratch.subspan(own_scratch_size())};
  }

  std::optional<Bf16Products> prepare_block(std::size_t queries, std::size_t keys) const {
    using To = Bf16Sizes::To;
    const std::size_t in = columns_;
    const std::size_t out = output_columns();
    const auto scores = Bf16Product::prepare({queries, keys, size_, {in}, {in, true}, keys, To::floats});
    const auto output = Bf16Product::prepare({queries, size_, keys, {keys}, {in}, out, To::bf16});
    const auto dv =
        Bf16Product::prepare({keys, size_, queries, {keys, true}, {out}, size_, To::added_to_floats});
    const auto dscores = Bf16Product::prepare({queries, keys, size_, {out}, {in, true}, keys, To::floats});
    const auto dq = Bf16Product::prepare({queries, size_, keys, {keys}, {in}, in, To::bf16});
    const auto dk =
        Bf16Product::prepare({keys, size_, queries, {keys, true}, {in}, size_, To::added_to_floats});
    if (!scores || !output || !dv || !dscores || !dq || !dk) return std::nullopt;
    return Bf16Products{*scores, *output, *dv, *dscores, *dq, *dk};
  }

  std::optional<std::size_t> prepare_bf16() override {
    const std::size_t blocks = ceil_div(context_, block_rows);
    // Each number of keys needs products of its own. So numbers of keys are rounded up, to at most 16 of
    // them.
    const std::size_t keys_step = block_rows * ceil_div(blocks, 16);
    std::map<std::pair<std::size_t, std::size_t>, std::optional<Bf16Products>> prepared;
    std::size_t largest = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t first = block * block_rows;
      const std::size_t queries = std::min(block_rows, context_ - first);
      const std::size_t keys = std::min(context_, ceil_div(first + queries, keys_step) * keys_step);
      auto& products = prepared[{queries, keys}];
      if (!products) products = prepare_block(queries, keys);
      if (!products) return std::nullopt;
      const auto& [scores, output, dv, dscores, dq, dk] = *products;
      for (const Bf16Product* product : {&scores, &output, &dv, &dscores, &dq, &dk})
        largest = std::max(largest, product->scratch_size());
      products_.push_back({queries, keys, *products});
    }
    return own_scratch_size() + largest;
  }

  /// Returns the word of a stash in bf16 at which the log-sum-exps begin.
  std::size_t statistics_at() const noexcept { return words(Precision::bf16, rows_ * columns_); }

  std::size_t heads_ = 0;
  std::size_t kv_heads_ = 0;
  std::size_t context_ = 0;
  std::size_t size_ = 0;  ///< columns of one head
  cpu::AttentionScores scores_;
  std::vector<Bf16Block> products_;  ///< of the passes on bf16, for each block of queries
};

const bool registered = register_layer("attention", [](const LayerSpec& spec) -> std::unique_ptr<Layer> {
  if (spec.options.contains("positions")) return cpu::make_sliced_attention(spec);
  return std::make_unique<Attention>(spec);
});

}  // namespace
}  // namespace starpipe::model
