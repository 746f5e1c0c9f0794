// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "codelets/cpu/attention.hpp"
#include "codelets/cpu/products.hpp"
#include "model/full_width.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cpu {
namespace {

/// The keys and values of one head, of all slices up to the layer's own, are gathered in the scratch. So each
/// block of queries takes one product for all of its keys, as without slices.
class SlicedAttention final : public Layer {
 public:
  explicit SlicedAttention(const LayerSpec& spec) : Layer(spec), sequence_(sequence_rows(spec)) {
    check_options(spec, {"heads", "context", "positions"}, {"kv_heads", "first_position"});
    heads_ = size_option(spec, "heads");
    kv_heads_ = size_option(spec, "kv_heads", heads_);
    check_fit(spec, heads_ % kv_heads_ == 0, "heads are not a multiple of kv_heads");
    check_fit(spec, columns_ % (heads_ + 2 * kv_heads_) == 0,
              "columns are not (heads + 2 x kv_heads) x a head's size");
    size_ = columns_ / (heads_ + 2 * kv_heads_);
    scores_ = {1.0f / std::sqrt(static_cast<float>(size_))};
  }

  std::size_t output_columns() const override { return heads_ * size_; }
  std::size_t statistics_size() const override { return rows_ * heads_; }
  std::size_t stash_size() const override { return q_size() + statistics_size(); }
  std::size_t keys_values_size() const override { return rows_ * kv_columns(); }
  std::size_t earlier_keys_values_size() const override {
    return sequences() * sequence_.first * kv_columns();
  }
  std::size_t scratch_size() const override { return 2 * block_size() + 4 * seen() * size_; }
  double flops() const override {
    // As in attention.cpp, for the keys of the slices before and half of its own.
    const double keys = static_cast<double>(sequence_.first) + (static_cast<double>(sequence_.count) + 1) / 2;
    const double pairs = static_cast<double>(rows_) * keys;
    return pairs * static_cast<double>(heads_) * (4.0 * static_cast<double>(size_) + 20.0);
  }

  void forward(const Forward& pass) const noexcept override {
    keep(pass.input.data(), pass.stash.data(), pass.own_keys_values.data());
    float* const p = pass.scratch.data();
    const Head<float> kv = gathered_at(p + 2 * block_size());
    for_each_group([&](std::size_t sequence, std::size_t group) {
      std::size_t first = 0;
      for (const ConstFloatView slice : pass.keys_values)
        first += gather(slice.data(), slice.size(), sequence, group, first, kv);
      gather(pass.own_keys_values.data(), keys_values_size(), sequence, group, first, kv);
      for_each_block(sequence, group, [&](const Block& of) {
        const float* q = pass.input.data() + of.row * columns_ + of.column;
        multiply(of.queries, of.keys, size_, {q, columns_}, {kv.k, size_, true}, Result::replaces, p,
                 of.keys);
        float* const log_sums = pass.stash.data() + q_size() + of.statistics;
        at_full_width([&] {
          for (std::size_t i = 0; i < of.queries; ++i)
            log_sums[i] = scores_.softmax(p + i * of.keys, of.seen(i), of.keys);
        });
        multiply(of.queries, size_, of.keys, {p, of.keys}, {kv.v, size_}, Result::replaces,
                 pass.output.data() + of.row * output_columns() + of.column, output_columns());
      });
    });
  }

  void backward_input(const Backward& pass) const noexcept override {
    float* const p = pass.scratch.data();
    float* const ds = p + block_size();
    const Head<float> kv = gathered_at(ds + block_size());
    const Head<float> d = gathered_at(kv.k + 2 * seen() * size_);
    for_each_group([&](std::size_t sequence, std::size_t group) {
      std::size_t first = 0;
      for (const ConstFloatView slice : pass.keys_values)
        first += gather(slice.data(), slice.size(), sequence, group, first, kv);
      std::fill_n(d.k, 2 * seen() * size_, 0.0f);  // d.v lies behind d.k
      for_each_block(sequence, group, [&](const Block& of) {
        const Matrix q = {pass.stash.data() + of.row * output_columns() + of.column, output_columns()};
        const Matrix dy = {pass.output_gradient.data() + of.row * output_columns() + of.column,
                           output_columns()};
        multiply(of.queries, of.keys, size_, q, {kv.k, size_, true}, Result::replaces, p, of.keys);
        const float* const log_sums = pass.stash.data() + q_size() + of.statistics;
        at_full_width([&] {
          for (std::size_t i = 0; i < of.queries; ++i)
            scores_.softmax_again(p + i * of.keys, of.seen(i), of.keys, log_sums[i]);
        });
        multiply(of.keys, size_, of.queries, {p, of.keys, true}, dy, Result::is_added, d.v, size_);
        multiply(of.queries, of.keys, size_, dy, {kv.v, size_, true}, Result::replaces, ds, of.keys);
        at_full_width([&] {
          for (std::size_t i = 0; i < of.queries; ++i)
            scores_.differentiate(p + i * of.keys, ds + i * of.keys, of.seen(i), of.keys);
        });
        multiply(of.queries, size_, of.keys, {ds, of.keys}, {kv.k, size_}, Result::replaces,
                 pass.input_gradient.data() + of.row * columns_ + of.column, columns_);
        multiply(of.keys, size_, of.queries, {ds, of.keys, true}, q, Result::is_added, d.k, size_);
      });
      give(pass, pass.keys_values, pass.input_gradient.data(), sequence, group, d);
    });
  }

  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    keep(pass.input.as<Bf16>(), pass.stash.as<Bf16>(), pass.own_keys_values.as<Bf16>());
    const Bf16Scratch scratch = divide(pass.scratch);
    float* const all_sums = pass.stash.subspan(statistics_at()).as<float>();
    for_each_group([&](std::size_t sequence, std::size_t group) {
      std::size_t first = 0;
      for (const ConstMemory slice : pass.keys_values)
        first += gather(slice.as<Bf16>(), 2 * slice.size(), sequence, group, first, scratch.kv);
      gather(pass.own_keys_values.as<Bf16>(), keys_values_size(), sequence, group, first, scratch.kv);
      for_each_block(sequence, group, [&](const Block& of) {
        const std::size_t queries = products_[of.number].queries;
        const std::size_t keys = products_[of.number].keys;
        const Bf16Products& products = products_[of.number].products;
        products.scores(pass.input.as<Bf16>() + of.row * columns_ + of.column, scratch.kv.k, nullptr,
                        scratch.p, scratch.products);
        at_full_width([&] {
          for (std::size_t i = 0; i < queries; ++i)
            all_sums[of.statistics + i] = scores_.softmax(scratch.p + i * keys, of.seen(i), keys);
          round_row(scratch.p, queries * keys, scratch.rounded);
        });
        products.output(scratch.rounded, scratch.kv.v, nullptr,
                        pass.output.as<Bf16>() + of.row * output_columns() + of.column, scratch.products);
      });
    });
  }

  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept override {
    const Bf16Scratch scratch = divide(pass.scratch);
    const float* const all_sums = pass.stash.subspan(statistics_at()).as<float>();
    for_each_group([&](std::size_t sequence, std::size_t group) {
      std::size_t first = 0;
      for (const ConstMemory slice : pass.keys_values)
        first += gather(slice.as<Bf16>(), 2 * slice.size(), sequence, group, first, scratch.kv);
      std::fill_n(scratch.d.k, 2 * seen() * size_, 0.0f);
      for_each_block(sequence, group, [&](const Block& of) {
        const std::size_t queries = products_[of.number].queries;
        const std::size_t keys = products_[of.number].keys;
        const Bf16Products& products = products_[of.number].products;
        const Bf16* const q = pass.stash.as<Bf16>() + of.row * output_columns() + of.column;
        const Bf16* const dy = pass.output_gradient.as<Bf16>() + of.row * output_columns() + of.column;
        products.scores_of_stash(q, scratch.kv.k, nullptr, scratch.p, scratch.products);
        at_full_width([&] {
          for (std::size_t i = 0; i < queries; ++i)
            scores_.softmax_again(scratch.p + i * keys, of.seen(i), keys, all_sums[of.statistics + i]);
          round_row(scratch.p, queries * keys, scratch.rounded);
        });
        products.dv(scratch.rounded, dy, nullptr, scratch.d.v, scratch.products);
        products.dscores(dy, scratch.kv.v, nullptr, scratch.ds, scratch.products);
        at_full_width([&] {
          for (std::size_t i = 0; i < queries; ++i)
            scores_.differentiate(scratch.p + i * keys, scratch.ds + i * keys, of.seen(i), keys);
          round_row(scratch.ds, queries * keys, scratch.rounded);
        });
        products.dq(scratch.rounded, scratch.kv.k, nullptr,
                    pass.input_gradient.as<Bf16>() + of.row * columns_ + of.column, scratch.products);
        products.dk(scratch.rounded, q, nullptr, scratch.d.k, scratch.products);
      });
      give(pass, pass.keys_values, pass.input_gradient.as<Bf16>(), sequence, group, scratch.d);
    });
  }

 private:
  [[nodiscard]] std::size_t sequences() const noexcept { return rows_ / sequence_.count; }
  /// Returns the keys that the last query sees.
  [[nodiscard]] std::size_t seen() const noexcept { return sequence_.first + sequence_.count; }
  [[nodiscard]] std::size_t kv_columns() const noexcept { return 2 * kv_heads_ * size_; }
  [[nodiscard]] std::size_t q_size() const noexcept { return rows_ * output_columns(); }
  [[nodiscard]] std::size_t block_size() const noexcept {
    return std::min(query_block, sequence_.count) * seen();
  }
  [[nodiscard]] std::size_t statistics_at() const noexcept { return words(Precision::bf16, q_size()); }

  /// The keys and values of a head, or their gradients: seen() rows of size_ columns each.
  template <class Number>
  struct Head {
    Number* k;
    Number* v;
  };
  template <class Number>
  Head<Number> gathered_at(Number* place) const noexcept {
    return {place, place + seen() * size_};
  }

  /// A block of queries of a head.
  struct Block {
    std::size_t number;      ///< in the sequence
    std::size_t row;         ///< the first query's, among the layer's rows
    std::size_t column;      ///< of the head's q and output
    std::size_t statistics;  ///< place of the first query's log-sum-exp
    std::size_t queries;
    std::size_t keys;        ///< that the last query sees
    std::size_t first_seen;  ///< keys that the first query sees

    [[nodiscard]] std::size_t seen(std::size_t query) const { return first_seen + query; }
  };

  /// Calls f(sequence, number of the group of heads that share keys and values).
  template <class Function>
  void for_each_group(Function&& f) const noexcept {
    for (std::size_t sequence = 0; sequence < sequences(); ++sequence) {
      for (std::size_t group = 0; group < kv_heads_; ++group) f(sequence, group);
    }
  }
  template <class Function>
  void for_each_block(std::size_t sequence, std::size_t group, Function&& f) const noexcept {
    const std::size_t heads = heads_ / kv_heads_;
    const std::size_t count = sequence_.count;
    for (std::size_t head = group * heads; head < (group + 1) * heads; ++head) {
      for (std::size_t first = 0; first < count; first += query_block) {
        const std::size_t queries = std::min(query_block, count - first);
        f(Block{.number = first / query_block,
                .row = sequence * count + first,
                .column = head * size_,
                .statistics = (sequence * heads_ + head) * count + first,
                .queries = queries,
                .keys = sequence_.first + first + queries,
                .first_seen = sequence_.first + first + 1});
      }
    }
  }

  /// Keeps q in the stash, and k and v apart from it.
  template <class Number>
  void keep(const Number* input, Number* stash, Number* keys_values) const noexcept {
    for (std::size_t row = 0; row < rows_; ++row) {
      const Number* in = input + row * columns_;
      std::copy_n(in, output_columns(), stash + row * output_columns());
      std::copy_n(in + output_columns(), kv_columns(), keys_values + row * kv_columns());
    }
  }

  /// Copies the keys and values of a slice, which has `count` numbers, to rows [first, ...) of `to`. Returns
  /// the number of rows.
  template <class Number>
  std::size_t gather(const Number* slice, std::size_t count, std::size_t sequence, std::size_t group,
                     std::size_t first, Head<Number> to) const noexcept {
    const std::size_t rows = count / sequences() / kv_columns();
    for (std::size_t row = 0; row < rows; ++row) {
      const Number* from = slice + (sequence * rows + row) * kv_columns() + group * size_;
      std::copy_n(from, size_, to.k + (first + row) * size_);
      std::copy_n(from + kv_heads_ * size_, size_, to.v + (first + row) * size_);
    }
    return rows;
  }

  /// Gives the gradients of a head's keys and values away: those of the slices before to the slice before,
  /// and its own to the layer's input. Both with what the slice after has handed back.
  template <class Pass, class Views, class Number>
  void give(const Pass& pass, const Views& slices, Number* input_gradient, std::size_t sequence,
            std::size_t group, Head<float> d) const noexcept {
    constexpr bool is_bf16 = sizeof(Number) == sizeof(Bf16);
    const bool is_last = pass.keys_values_gradient.empty();
    std::size_t first = 0;
    for (std::size_t s = 0; s < slices.size(); ++s) {
      const bool is_own = s + 1 == slices.size();
      const std::size_t rows =
          is_own ? sequence_.count : (is_bf16 ? 2 : 1) * slices[s].size() / sequences() / kv_columns();
      for (std::size_t row = 0; row < rows; ++row) {
        // [slice][sequence][row][k | v]
        const std::size_t place =
            (sequences() * first + sequence * rows + row) * kv_columns() + group * size_;
        for (const bool is_v : {false, true}) {
          const float* const mine = (is_v ? d.v : d.k) + (first + row) * size_;
          const std::size_t at = place + (is_v ? kv_heads_ * size_ : 0);
          const float* const handed = is_last ? nullptr : pass.keys_values_gradient.data() + at;
          if (!is_own) {
            float* const to = pass.earlier_gradient.data() + at;
            for (std::size_t c = 0; c < size_; ++c) to[c] = mine[c] + (is_last ? 0.0f : handed[c]);
            continue;
          }
          Number* const to = input_gradient + (sequence * rows + row) * columns_ + output_columns() +
                             group * size_ + (is_v ? kv_heads_ * size_ : 0);
          for (std::size_t c = 0; c < size_; ++c) to[c] = mine[c] + (is_last ? 0.0f : handed[c]);
        }
      }
      first += rows;
    }
  }

  /// The products of the passes on bf16 for a block of queries.
  struct Bf16Products {
    Bf16Product scores, scores_of_stash, output, dv, dscores, dq, dk;
  };
  struct Bf16Block {
    std::size_t queries;
    std::size_t keys;  ///< the first so many; keys later than a query are masked
    Bf16Products products;
  };
  /// The scratch of the passes on bf16: as in fp32, and the probabilities and gradients of scores rounded for
  /// the products that read them.
  struct Bf16Scratch {
    float* p;
    float* ds;
    Bf16* rounded;
    Head<Bf16> kv;
    Head<float> d;
    FloatView products;
  };

  /// Returns the floats of scratch without those of the products.
  [[nodiscard]] std::size_t own_scratch_size() const noexcept {
    return 2 * block_size() + ceil_div(block_size(), 2) + 3 * seen() * size_;
  }
  [[nodiscard]] Bf16Scratch divide(FloatView scratch) const noexcept {
    float* const p = scratch.data();
    float* const rounded = p + 2 * block_size();
    float* const kv = rounded + ceil_div(block_size(), 2);
    const FloatView rest = scratch.subspan(own_scratch_size());
    return {p,
            p + block_size(),
            Memory(scratch).subspan(2 * block_size()).as<Bf16>(),
            gathered_at(Memory(scratch).subspan(static_cast<std::size_t>(kv - p)).as<Bf16>()),
            gathered_at(kv + seen() * size_),
            rest};
  }

  [[nodiscard]] std::optional<Bf16Products> prepare_block(std::size_t queries, std::size_t keys) const {
    using To = Bf16Sizes::To;
    const std::size_t out = output_columns();
    const auto product = [](std::size_t m, std::size_t n, std::size_t k, Bf16Sizes::Operand a,
                            Bf16Sizes::Operand b, std::size_t c_stride, To to) {
      return Bf16Product::prepare({m, n, k, a, b, c_stride, to});
    };
    const auto scores = product(queries, keys, size_, {columns_}, {size_, true}, keys, To::floats);
    const auto of_stash = product(queries, keys, size_, {out}, {size_, true}, keys, To::floats);
    const auto output = product(queries, size_, keys, {keys}, {size_}, out, To::bf16);
    const auto dv = product(keys, size_, queries, {keys, true}, {out}, size_, To::added_to_floats);
    const auto dq = product(queries, size_, keys, {keys}, {size_}, columns_, To::bf16);
    if (!scores || !of_stash || !output || !dv || !dq) return std::nullopt;
    return Bf16Products{*scores, *of_stash, *output, *dv, *of_stash, *dq, *dv};  // dy and q have one layout
  }

  std::optional<std::size_t> prepare_bf16() override {
    const std::size_t blocks = ceil_div(sequence_.count, query_block);
    // As in attention.cpp: numbers of keys are rounded up, to few of them.
    const std::size_t keys_step = query_block * ceil_div(blocks, 16);
    std::map<std::pair<std::size_t, std::size_t>, std::optional<Bf16Products>> prepared;
    std::size_t largest = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t first = block * query_block;
      const std::size_t queries = std::min(query_block, sequence_.count - first);
      const std::size_t own = std::min(sequence_.count, ceil_div(first + queries, keys_step) * keys_step);
      const std::size_t keys = sequence_.first + own;
      auto& products = prepared[{queries, keys}];
      if (!products) products = prepare_block(queries, keys);
      if (!products) return std::nullopt;
      for (const Bf16Product* product :
           {&products->scores, &products->scores_of_stash, &products->output, &products->dv, &products->dq})
        largest = std::max(largest, product->scratch_size());
      products_.push_back({queries, keys, *products});
    }
    return own_scratch_size() + largest;
  }

  SequenceRows sequence_;
  std::size_t heads_ = 0;
  std::size_t kv_heads_ = 0;
  std::size_t size_ = 0;  ///< columns of one head
  AttentionScores scores_;
  std::vector<Bf16Block> products_;  ///< of the passes on bf16, for each block of queries
};

}  // namespace

std::unique_ptr<Layer> make_sliced_attention(const LayerSpec& spec) {
  return std::make_unique<SlicedAttention>(spec);
}

}  // namespace starpipe::model::cpu
