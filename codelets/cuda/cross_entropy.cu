// SPDX-License-Identifier: Apache-2.0
// codelets/cpu/cross_entropy.cpp on a GPU: of whole logits, and of logits in shards of the vocabulary.
#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/losses.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// One team per row: losses[row] = log-sum-exp(x) - x[label], and gradient = (softmax(x) - one-hot(label)) /
/// rows.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    forward_rows(std::size_t rows, std::size_t columns, const T* __restrict__ input,
                 const float* __restrict__ labels, T* __restrict__ gradient, float* __restrict__ losses) {
  using Team = cuda::Team<PerBlock>;
  const std::size_t row = Team::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const auto [top, sum] = exp_sum_of_row<T, PerBlock, N>(x, columns);
  const std::size_t label = index_of(labels[row], columns);
  const float n = static_cast<float>(rows);
  const float scale = 1.0f / (sum * n);
  each_pack<T, PerBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int count = decltype(size)::value;
    Values<count> p = load<count>(x + column);
    for (int k = 0; k < count; ++k) {
      p[k] = expf(p[k] - top) * scale;
      if (column + static_cast<unsigned>(k) == label) p[k] -= 1.0f / n;
    }
    store(gradient + row * columns + column, p);
  });
  if (Team::lane() == 0) losses[row] = (top - static_cast<float>(x[label])) + logf(sum);
}

template <class T>
class CrossEntropy final : public GradientLoss<T> {
 public:
  CrossEntropy(std::size_t rows, std::size_t columns) : GradientLoss<T>("cross_entropy B", rows, columns) {}

  void forward(const Context& on, ConstMemory input, ConstFloatView target, Memory stash, FloatView mean,
               FloatView scratch) const noexcept override {
    const T* x = input.as<T>();
    T* gradient = stash.as<T>();
    // A row of x need not begin at a pack. With both arrays aligned, though, a row of x and the same row of
    // the gradient are equally far from a pack, and each_pack() finds packs in both.
    const bool aligned = pack_aligned(x, gradient);
    with_teams<T>(this->rows_, this->columns_, aligned, [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "cross_entropy F", grid, forward_rows<T, per_block, size>, this->rows_, this->columns_, x,
             target.data(), gradient, scratch.data());
    });
    this->mean_of_rows(on, "cross_entropy F", scratch, mean);
  }
};

/// One team per row: logarithms[row] = log-sum-exp(x), and the row of the output is this number and the logit
/// of the row's label, or 0 where the shard does not have the label.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    forward_shard(std::size_t rows, std::size_t columns, std::size_t first, const T* __restrict__ input,
                  const float* __restrict__ labels, float* __restrict__ logarithms,
                  float* __restrict__ output) {
  using Team = cuda::Team<PerBlock>;
  const std::size_t row = Team::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const auto [top, sum] = exp_sum_of_row<T, PerBlock, N>(x, columns);
  if (Team::lane() != 0) return;
  const std::size_t label = index_in_shard(labels[row], first, columns);
  const float logarithm = top + logf(sum);
  logarithms[row] = logarithm;
  output[2 * row] = logarithm;
  output[2 * row + 1] = label < columns ? static_cast<float>(x[label]) : 0.0f;
}

/// One team per row: dx = dl * exp(x - logarithm), and at the label also dt, where dl and dt are the
/// gradients of the two numbers of the row.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    backward_shard(std::size_t rows, std::size_t columns, std::size_t first, const T* __restrict__ input,
                   const float* __restrict__ labels, const float* __restrict__ logarithms,
                   const float* __restrict__ output_gradient, T* __restrict__ input_gradient) {
  const std::size_t row = Team<PerBlock>::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const float logarithm = logarithms[row];
  const float of_logarithm = output_gradient[2 * row];
  const float of_logit = output_gradient[2 * row + 1];
  const std::size_t label = index_in_shard(labels[row], first, columns);
  each_pack<T, PerBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int count = decltype(size)::value;
    Values<count> v = load<count>(x + column);
    for (int k = 0; k < count; ++k) {
      v[k] = of_logarithm * expf(v[k] - logarithm);
      if (column + static_cast<unsigned>(k) == label) v[k] += of_logit;
    }
    store(input_gradient + row * columns + column, v);
  });
}

template <class T>
class PartialCrossEntropy final : public CudaLayer {
 public:
  explicit PartialCrossEntropy(const LayerSpec& spec)
      : rows_(spec.rows),
        columns_(spec.columns),
        first_(static_cast<std::size_t>(option(spec, "first", 0))) {}

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               FloatView /*scratch*/) const noexcept override {
    keep_input(on, "partial_cross_entropy F", input, stash, rows_ * columns_ * sizeof(T));
    const T* x = input.as<T>();
    float* logarithms = floats_behind<T>(stash, rows_ * columns_);
    with_teams<T>(rows_, columns_, pack_aligned(x), [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "partial_cross_entropy F", grid, forward_shard<T, per_block, size>, rows_, columns_, first_,
             x, static_cast<const float*>(logarithms + rows_), logarithms, output.as<float>());
    });
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      FloatView /*scratch*/) const noexcept override {
    const T* x = stash.as<T>();
    T* dx = input_gradient.as<T>();
    const float* logarithms = floats_behind<T>(stash, rows_ * columns_);
    with_teams<T>(rows_, columns_, pack_aligned(x, dx), [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "partial_cross_entropy B", grid, backward_shard<T, per_block, size>, rows_, columns_, first_,
             x, logarithms + rows_, logarithms, output_gradient.as<float>(), dx);
    });
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
  std::size_t first_;
};

/// One warp per row of pairs (l, t): losses[row] = log-sum-exp(l) - sum(t), and gradient = softmax(l) / rows
/// for each l and -1 / rows for each t.
template <class T>
__global__ void forward_pairs(std::size_t rows, std::size_t pairs, const T* __restrict__ input,
                              T* __restrict__ gradient, float* __restrict__ losses) {
  const std::size_t row = Team<false>::row();
  const unsigned lane = Team<false>::lane();
  if (row >= rows) return;
  const T* const x = input + row * 2 * pairs;
  float largest = -INFINITY;
  float logit = 0;
  for (std::size_t p = lane; p < pairs; p += warp_size) {
    largest = fmaxf(largest, static_cast<float>(x[2 * p]));
    logit += static_cast<float>(x[2 * p + 1]);
  }
  const float top = warp_max(largest);
  float own = 0;
  for (std::size_t p = lane; p < pairs; p += warp_size) own += expf(static_cast<float>(x[2 * p]) - top);
  const float sum = warp_sum(own);
  const float target = warp_sum(logit);
  const float n = static_cast<float>(rows);
  for (std::size_t p = lane; p < pairs; p += warp_size) {
    T* const of_pair = gradient + row * 2 * pairs + 2 * p;
    of_pair[0] = static_cast<T>(expf(static_cast<float>(x[2 * p]) - top) / (sum * n));
    of_pair[1] = static_cast<T>(-1.0f / n);
  }
  if (lane == 0) losses[row] = (top - target) + logf(sum);
}

template <class T>
class JoinedCrossEntropy final : public GradientLoss<T> {
 public:
  JoinedCrossEntropy(std::size_t rows, std::size_t columns)
      : GradientLoss<T>("joined_cross_entropy B", rows, columns) {}

  void forward(const Context& on, ConstMemory input, ConstFloatView /*target*/, Memory stash, FloatView mean,
               FloatView scratch) const noexcept override {
    launch(on, "joined_cross_entropy F", warp_per_row(this->rows_), forward_pairs<T>, this->rows_,
           this->columns_ / 2, input.as<T>(), stash.as<T>(), scratch.data());
    this->mean_of_rows(on, "joined_cross_entropy F", scratch, mean);
  }
};

const bool registered[] = {register_loss_implementation<CrossEntropy>("cross_entropy"),
                           register_implementation<PartialCrossEntropy>("partial_cross_entropy"),
                           register_loss_implementation<JoinedCrossEntropy>("joined_cross_entropy")};

}  // namespace
}  // namespace starpipe::model::cuda
