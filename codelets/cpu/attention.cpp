// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
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

/// Queries whose scores are computed together. Blocks bound the scratch, and a block computes few scores of
/// keys later than its last query: in fp32 none.
constexpr std::size_t block_rows = 64;

/// Causal self-attention with several heads, of which neighbouring ones may share a head of keys and values
/// (grouped queries: Ainslie et al., arXiv 2305.13245). Input: rows [q | k | v] of heads, kv_heads and
/// kv_heads heads; output: rows of `heads` heads. All heads have the same number of columns, their size;
/// scores are scaled by 1 / sqrt(size). Options: heads, context; kv_heads, which divides heads (default:
/// heads). The stash is q, k, v, and one log-sum-exp per row and head, laid out as [sequence][head][row]. It
/// grows linearly with the context, as B computes the probabilities again (Dao et al., arXiv 2205.14135).
///
/// A slice of the context (sequence_rows) also sees the keys and values of the slices before. Those of a
/// slice are rows [k | v], which F copies: so the stash is q and the log-sum-exps.
class Attention final : public Layer {
 public:
  explicit Attention(const LayerSpec& spec) : Layer(spec), sequence_(sequence_rows(spec)) {
    check_options(spec, {"heads", "context"}, {"kv_heads", "first_position", "positions"});
    heads_ = size_option(spec, "heads");
    kv_heads_ = size_option(spec, "kv_heads", heads_);
    context_ = sequence_.count;
    check_fit(spec, heads_ % kv_heads_ == 0, "heads are not a multiple of kv_heads");
    check_fit(spec, columns_ % (heads_ + 2 * kv_heads_) == 0,
              "columns are not (heads + 2 x kv_heads) x a head's size");
    size_ = columns_ / (heads_ + 2 * kv_heads_);
    scale_ = 1.0f / std::sqrt(static_cast<float>(size_));
  }

  std::size_t output_columns() const override { return heads_ * size_; }
  bool keeps_input() const override { return !sequence_.is_slice; }
  std::size_t statistics_size() const override { return rows_ * heads_; }
  std::size_t stash_size() const override { return kept_size() + statistics_size(); }
  std::size_t keys_values_size() const override {
    return sequence_.is_slice ? rows_ * 2 * kv_heads_ * size_ : 0;
  }
  std::size_t earlier_keys_values_size() const override {
    return sequence_.is_slice ? sequences() * sequence_.first * 2 * kv_heads_ * size_ : 0;
  }
  std::size_t scratch_size() const override {
    return 2 * std::min(block_rows, context_) * (sequence_.first + context_);
  }
  double flops() const override {
    // Two products for each pair of a query and a key that it sees, and 20 operations for the exponential.
    const double seen = static_cast<double>(sequence_.first) + (static_cast<double>(context_) + 1) / 2;
    const double pairs = static_cast<double>(rows_) * seen;
    return pairs * static_cast<double>(heads_) * (4.0 * static_cast<double>(size_) + 20.0);
  }

  void forward(const Forward& pass) const noexcept override {
    if (sequence_.is_slice) {
      keep_slice(pass);
    } else {
      cpu::keep_input(pass.input, pass.stash);
    }
    const std::size_t stride = columns_;
    const std::size_t out_stride = output_columns();
    for (std::size_t sequence = 0; sequence < sequences(); ++sequence) {
      for (std::size_t head = 0; head < heads_; ++head) {
        const HeadOffsets at = offsets(sequence, head);
        const float* q = pass.input.data() + at.q;
        float* out = pass.output.data() + at.output;
        float* log_sum = pass.stash.data() + kept_size() + at.statistics;
        for (std::size_t first = 0; first < context_; first += block_rows) {
          const std::size_t queries = std::min(block_rows, context_ - first);
          const std::size_t seen = first + queries;  // later keys are masked for the whole block
          const std::size_t keys = sequence_.first + seen;
          float* scores = pass.scratch.data();
          const auto for_each_part = [&](auto&& f) {
            for_each_slice(pass.keys_values, sequence, head, f);
            f(sequence_.is_slice
                  ? slice_part(pass.own_keys_values, sequence, head, sequence_.first, seen)
                  : KeyPart{pass.input.data() + at.k, pass.input.data() + at.v, stride, 0, seen});
          };
          for_each_part([&](const KeyPart& part) {
            multiply(queries, part.rows, size_, {q + first * stride, stride}, {part.k, part.stride, true},
                     Result::replaces, scores + part.first, keys);
          });
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              log_sum[first + i] = softmax(scores + i * keys, sequence_.first + first + i + 1, keys);
          });
          for_each_part([&](const KeyPart& part) {
            multiply(queries, size_, part.rows, {scores + part.first, keys}, {part.v, part.stride},
                     part.first == 0 ? Result::replaces : Result::is_added, out + first * out_stride,
                     out_stride);
          });
        }
      }
    }
  }

  void backward_input(const Backward& pass) const noexcept override {
    const std::size_t stride = columns_;
    const std::size_t q_stride = sequence_.is_slice ? output_columns() : columns_;
    const std::size_t out_stride = output_columns();
    const std::size_t blocks = ceil_div(context_, block_rows);
    begin_earlier_gradient(pass);
    for (std::size_t sequence = 0; sequence < sequences(); ++sequence) {
      for (std::size_t head = 0; head < heads_; ++head) {
        const HeadOffsets at = offsets(sequence, head);
        const float* q = pass.stash.data() + (sequence_.is_slice ? at.output : at.q);
        float* dq = pass.input_gradient.data() + at.q;
        const float* dout = pass.output_gradient.data() + at.output;
        const float* log_sum = pass.stash.data() + kept_size() + at.statistics;
        const bool first_of_group = head % (heads_ / kv_heads_) == 0;
        // The last block comes first: its queries see every key, so in a group's first head it writes all of
        // dk and dv. The other blocks and heads add to them.
        for (std::size_t block = blocks; block-- > 0;) {
          const std::size_t first = block * block_rows;
          const std::size_t queries = std::min(block_rows, context_ - first);
          const std::size_t seen = first + queries;
          const std::size_t keys = sequence_.first + seen;
          const Result own_result =
              first_of_group && block + 1 == blocks ? Result::replaces : Result::is_added;
          float* p = pass.scratch.data();
          float* ds = p + queries * keys;
          // Calls f(part, gradients of its keys and values, their stride, how products give them).
          const auto for_each_part = [&](auto&& f) {
            float* dk = pass.input_gradient.data() + at.k;
            float* dv = pass.input_gradient.data() + at.v;
            if (!sequence_.is_slice) {
              const KeyPart all = {pass.stash.data() + at.k, pass.stash.data() + at.v, stride, 0, seen};
              return f(all, dk, dv, stride, own_result);
            }
            for_each_slice(pass.keys_values.first(pass.keys_values.size() - 1), sequence, head,
                           [&](const KeyPart& part) {
                             float* of_part =
                                 pass.earlier_gradient.data() + place_in_all(part, sequence, head);
                             f(part, of_part, of_part + kv_columns(), 2 * kv_columns(), Result::is_added);
                           });
            f(slice_part(pass.keys_values.back(), sequence, head, sequence_.first, seen), dk, dv, stride,
              own_result);
          };
          for_each_part([&](const KeyPart& part, float*, float*, std::size_t, Result) {
            multiply(queries, part.rows, size_, {q + first * q_stride, q_stride}, {part.k, part.stride, true},
                     Result::replaces, p + part.first, keys);
          });
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              softmax_again(p + i * keys, sequence_.first + first + i + 1, keys, log_sum[first + i]);
          });
          const float* dy = dout + first * out_stride;
          for_each_part([&](const KeyPart& part, float*, float* dv, std::size_t d_stride, Result result) {
            multiply(part.rows, size_, queries, {p + part.first, keys, true}, {dy, out_stride}, result, dv,
                     d_stride);
            multiply(queries, part.rows, size_, {dy, out_stride}, {part.v, part.stride, true},
                     Result::replaces, ds + part.first, keys);
          });
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              differentiate(p + i * keys, ds + i * keys, sequence_.first + first + i + 1, keys);
          });
          for_each_part([&](const KeyPart& part, float* dk, float*, std::size_t d_stride, Result result) {
            multiply(queries, size_, part.rows, {ds + part.first, keys}, {part.k, part.stride},
                     part.first == 0 ? Result::replaces : Result::is_added, dq + first * stride, stride);
            multiply(part.rows, size_, queries, {ds + part.first, keys, true},
                     {q + first * q_stride, q_stride}, result, dk, d_stride);
          });
        }
      }
    }
    if (!pass.keys_values_gradient.empty()) add_handed_back(pass);
  }

  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    cpu::keep_input(pass.input, pass.stash);
    const Bf16Scratch scratch = divide(pass.scratch);
    float* const log_sums = pass.stash.subspan(statistics_at()).as<float>();
    for (std::size_t sequence = 0; sequence < sequences(); ++sequence) {
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
              log_sums[at.statistics + first + i] = softmax(scratch.p + i * keys, first + i + 1, keys);
            round(scratch.p, queries * keys, scratch.rounded);
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
    for (std::size_t sequence = 0; sequence < sequences(); ++sequence) {
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
              softmax_again(scratch.p + i * keys, first + i + 1, keys, log_sums[at.statistics + first + i]);
            round(scratch.p, queries * keys, scratch.rounded);
          });
          products.dv(scratch.rounded, dy, nullptr, scratch.dv, scratch.products);
          products.dscores(dy, in + at.v, nullptr, scratch.ds, scratch.products);
          at_full_width([&] {
            for (std::size_t i = 0; i < queries; ++i)
              differentiate(scratch.p + i * keys, scratch.ds + i * keys, first + i + 1, keys);
            round(scratch.ds, queries * keys, scratch.rounded);
          });
          products.dq(scratch.rounded, in + at.k, nullptr, gradient + at.q + first * columns_,
                      scratch.products);
          products.dk(scratch.rounded, q, nullptr, scratch.dk, scratch.products);
        }
        if (head % group != group - 1) continue;
        at_full_width([&] {
          for (std::size_t i = 0; i < context_; ++i) {
            round(scratch.dk + i * size_, size_, gradient + at.k + i * columns_);
            round(scratch.dv + i * size_, size_, gradient + at.v + i * columns_);
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

  [[nodiscard]] std::size_t sequences() const noexcept { return rows_ / context_; }
  [[nodiscard]] std::size_t kv_columns() const noexcept { return kv_heads_ * size_; }
  /// Returns the numbers of q, k and v in the stash, of a slice those of q.
  [[nodiscard]] std::size_t kept_size() const noexcept {
    return rows_ * (sequence_.is_slice ? output_columns() : columns_);
  }
  /// Returns the place of a head of keys among the columns [k | v].
  [[nodiscard]] std::size_t kv_head_column(std::size_t head) const noexcept {
    return head / (heads_ / kv_heads_) * size_;
  }

  /// Keys and values of one head: of this slice, or of one before.
  struct KeyPart {
    const float* k;
    const float* v;
    std::size_t stride;
    std::size_t first;  ///< position of the first key
    std::size_t rows;
  };
  /// Returns the first `seen` keys and values of a slice, `all` of whose sequences lie one behind the other.
  KeyPart slice_part(ConstFloatView all, std::size_t sequence, std::size_t head, std::size_t first,
                     std::size_t seen) const noexcept {
    const float* k = all.data() + sequence * (all.size() / sequences()) + kv_head_column(head);
    return {k, k + kv_columns(), 2 * kv_columns(), first, seen};
  }
  /// Calls f(KeyPart) for each of the slices.
  template <class Function>
  void for_each_slice(std::span<const ConstFloatView> slices, std::size_t sequence, std::size_t head,
                      Function&& f) const noexcept {
    std::size_t first = 0;
    for (const ConstFloatView slice : slices) {
      const std::size_t rows = slice.size() / sequences() / (2 * kv_columns());
      f(slice_part(slice, sequence, head, first, rows));
      first += rows;
    }
  }
  /// Returns the place of a slice's keys among those of all slices.
  std::size_t place_in_all(const KeyPart& part, std::size_t sequence, std::size_t head) const noexcept {
    return (sequences() * part.first + sequence * part.rows) * 2 * kv_columns() + kv_head_column(head);
  }

  /// Keeps q in the stash, and k and v apart from it.
  void keep_slice(const Forward& pass) const noexcept {
    const std::size_t q_columns = output_columns();
    for (std::size_t row = 0; row < rows_; ++row) {
      const float* in = pass.input.data() + row * columns_;
      std::copy_n(in, q_columns, pass.stash.data() + row * q_columns);
      std::copy_n(in + q_columns, 2 * kv_columns(), pass.own_keys_values.data() + row * 2 * kv_columns());
    }
  }
  /// The gradient of the slices before begins with what the slices after have added.
  void begin_earlier_gradient(const Backward& pass) const noexcept {
    if (pass.keys_values_gradient.empty()) {
      std::ranges::fill(pass.earlier_gradient, 0.0f);
    } else {
      std::ranges::copy(pass.keys_values_gradient.first(pass.earlier_gradient.size()),
                        pass.earlier_gradient.begin());
    }
  }
  /// Adds what the slices after have handed back of this slice's keys and values.
  void add_handed_back(const Backward& pass) const noexcept {
    const float* const own = pass.keys_values_gradient.data() + earlier_keys_values_size();
    const std::size_t count = 2 * kv_columns();
    at_full_width([&] {
      for (std::size_t row = 0; row < rows_; ++row) {
        float* const gradient = pass.input_gradient.data() + row * columns_ + output_columns();
        for (std::size_t c = 0; c < count; ++c) gradient[c] += own[row * count + c];
      }
    });
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
    if (sequence_.is_slice) return std::nullopt;
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

  static void round(const float* __restrict from, std::size_t count, Bf16* __restrict to) noexcept {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
  }

  /// Returns the word of a stash in bf16 at which the log-sum-exps begin.
  std::size_t statistics_at() const noexcept { return words(Precision::bf16, rows_ * columns_); }

  /// Replaces the first `seen` of a row's `keys` products of query and key by the softmax of their scores,
  /// scale_ times the product, and the masked rest by 0. Returns the log-sum-exp of the first `seen` scores.
  float softmax(float* row, std::size_t seen, std::size_t keys) const noexcept {
    const float scale = scale_;  // a local constant: for the compiler, a row may alias the member
    const float top = scale * cpu::max_of(row, seen);
    for (std::size_t j = 0; j < seen; ++j) row[j] = cpu::exp_of(scale * row[j] - top);
    const float sum = cpu::sum_of(seen, [row](std::size_t j) { return row[j]; });
    const float share = 1.0f / sum;
    for (std::size_t j = 0; j < seen; ++j) row[j] *= share;
    std::fill(row + seen, row + keys, 0.0f);
    return top + std::log(sum);
  }

  /// Replaces a row's products of query and key by the softmax, from the log-sum-exp that F has kept.
  void softmax_again(float* row, std::size_t seen, std::size_t keys, float log_sum) const noexcept {
    const float scale = scale_;
    for (std::size_t j = 0; j < seen; ++j) row[j] = cpu::exp_of(scale * row[j] - log_sum);
    std::fill(row + seen, row + keys, 0.0f);
  }

  /// Replaces the gradient of a row's probabilities p by the gradient of its products of query and key.
  void differentiate(const float* p, float* gradient, std::size_t seen, std::size_t keys) const noexcept {
    const float mean = cpu::sum_of(seen, [=](std::size_t j) { return p[j] * gradient[j]; });
    const float scale = scale_;
    for (std::size_t j = 0; j < keys; ++j) gradient[j] = scale * p[j] * (gradient[j] - mean);
  }

  SequenceRows sequence_;
  std::size_t heads_ = 0;
  std::size_t kv_heads_ = 0;
  std::size_t context_ = 0;  ///< rows of a sequence
  std::size_t size_ = 0;     ///< columns of one head
  float scale_ = 0;
  std::vector<Bf16Block> products_;  ///< of the passes on bf16, for each block of queries
};

const bool registered = register_layer<Attention>("attention");

}  // namespace
}  // namespace starpipe::model
