// SPDX-License-Identifier: Apache-2.0
// codelets/cpu/losses.cpp on a GPU.
#include <cfloat>

#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "model/arithmetic.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// mean = (values[0] + ... + values[rows - 1]) / divisor. For a grid of one block of default_threads: the
/// order of summation is fixed. Sums are in double, as on the CPU.
__global__ void sum_of_rows(std::size_t rows, const float* values, double divisor, float* mean) {
  __shared__ double sums[default_threads];
  double sum = 0;
#pragma unroll 8
  for (std::size_t r = threadIdx.x; r < rows; r += default_threads) sum += static_cast<double>(values[r]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = default_threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *mean = static_cast<float>(sums[0] / divisor);
}

struct Scaled {
  float factor;
  __device__ void operator()(float x, float& y) const { y = x * factor; }
};

/// A loss whose stash has the shape of the input and is its gradient.
template <class T>
class GradientLoss : public CudaLoss {
 public:
  void backward_input(const Context& on, const LossBackward& pass) const noexcept override {
    for_each_element<T>(on, backward_name_, rows_ * columns_, Scaled{pass.scale}, pass.stash.as<T>(),
                        Out{pass.input_gradient.as<T>()});
  }

 protected:
  /// `backward_name`: of the B pass, for messages.
  GradientLoss(const char* backward_name, std::size_t rows, std::size_t columns)
      : CudaLoss(rows, columns), backward_name_(backward_name) {}

  /// Enqueues mean = sum(losses) / (rows * columns). Does nothing if `mean` is empty: F of the micro-batch
  /// was not asked for the loss.
  void mean_of_rows(const Context& on, const char* name, FloatView losses, FloatView mean,
                    std::size_t columns = 1) const noexcept {
    if (mean.empty()) return;
    launch(on, name, {dim3(1), dim3(default_threads)}, sum_of_rows, rows_,
           static_cast<const float*>(losses.data()), static_cast<double>(rows_ * columns), mean.data());
  }

 private:
  const char* backward_name_;
};

/// The largest element of a row, and the sum of exp(x - largest) over the row.
struct ExpSum {
  float top;
  float sum;
};

/// Returns the ExpSum of the row x, in every thread of the team. Reads the row once.
template <class T, bool PerBlock, int N>
__device__ ExpSum exp_sum_of_row(const T* x, std::size_t columns) {
  OnlineSoftmax own;
  each_pack<T, PerBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int count = decltype(size)::value;
    const Values<count> v = load<count>(x + column);
    float top = -FLT_MAX;  // not -infinity: a difference of two infinities would be NaN
    for (int k = 0; k < count; ++k) top = fmaxf(top, v[k]);
    own.raise(top);
    for (int k = 0; k < count; ++k) own.sum += expf(v[k] - own.top);
  });
  const float top = Team<PerBlock>::max(own.top);
  return {top, Team<PerBlock>::sum(own.sum * expf(own.top - top))};
}

/// One warp per row: errors = input - target, and squares[row] = the sum of the row's squared errors.
template <class T, int N>
__global__ void squared_errors(std::size_t rows, std::size_t columns, const T* __restrict__ input,
                               const float* __restrict__ target, T* __restrict__ errors,
                               float* __restrict__ squares) {
  const std::size_t row = Team<false>::row();
  const unsigned lane = Team<false>::lane();
  if (row >= rows) return;
  float sum = 0;
  for (std::size_t column = std::size_t{lane} * N; column < columns; column += warp_size * N) {
    const std::size_t i = row * columns + column;
    Values<N> error = load<N>(input + i);
    const Values<N> wanted = load<N>(target + i);
    for (int k = 0; k < N; ++k) {
      error[k] -= wanted[k];
      sum += error[k] * error[k];
    }
    store(errors + i, error);
  }
  sum = warp_sum(sum);
  if (lane == 0) squares[row] = sum;
}

template <class T>
class MeanSquaredError final : public GradientLoss<T> {
 public:
  MeanSquaredError(std::size_t rows, std::size_t columns) : GradientLoss<T>("mse B", rows, columns) {}

  void forward(const Context& on, const LossForward& pass) const noexcept override {
    const T* x = pass.input.as<T>();
    T* errors = pass.stash.as<T>();
    const bool packs = this->columns_ % pack_size<T> == 0 && pack_aligned(x, pass.target.data(), errors);
    with_pack_size<pack_size<T>>(packs, [&](auto size) {
      launch(on, "mse F", warp_per_row(this->rows_), squared_errors<T, size>, this->rows_, this->columns_, x,
             pass.target.data(), errors, pass.scratch.data());
    });
    this->mean_of_rows(on, "mse F", pass.scratch, pass.mean, this->columns_);
  }

  void backward_input(const Context& on, const LossBackward& pass) const noexcept override {
    LossBackward scaled = pass;
    scaled.scale = 2.0f * pass.scale / static_cast<float>(this->rows_ * this->columns_);
    GradientLoss<T>::backward_input(on, scaled);
  }
};

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
  const auto exponentials = exp_sum_of_row<T, PerBlock, N>(x, columns);
  const float top = exponentials.top;
  const float sum = exponentials.sum;
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

  void forward(const Context& on, const LossForward& pass) const noexcept override {
    const T* x = pass.input.as<T>();
    T* gradient = pass.stash.as<T>();
    // A row of x need not begin at a pack. With both arrays aligned, though, a row of x and the same row of
    // the gradient are equally far from a pack, and each_pack() finds packs in both.
    const bool aligned = pack_aligned(x, gradient);
    with_teams<T>(this->rows_, this->columns_, aligned, [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "cross_entropy F", grid, forward_rows<T, per_block, size>, this->rows_, this->columns_, x,
             pass.target.data(), gradient, pass.scratch.data());
    });
    this->mean_of_rows(on, "cross_entropy F", pass.scratch, pass.mean);
  }
};

/// One team per row: logarithms[row] = log-sum-exp(x), and the row of the output is this number and the logit
/// of the row's label, or 0 where the shard does not have the label.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    forward_shard(std::size_t rows, std::size_t columns, TokenRange tokens, const T* __restrict__ input,
                  const float* __restrict__ labels, float* __restrict__ logarithms,
                  float* __restrict__ output) {
  using Team = cuda::Team<PerBlock>;
  const std::size_t row = Team::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const auto [top, sum] = exp_sum_of_row<T, PerBlock, N>(x, columns);
  if (Team::lane() != 0) return;
  const std::size_t label = tokens.row_of(labels[row]);
  const float logarithm = top + logf(sum);
  logarithms[row] = logarithm;
  output[2 * row] = logarithm;
  output[2 * row + 1] = label < columns ? static_cast<float>(x[label]) : 0.0f;
}

/// One team per row: dx = dl * exp(x - logarithm), and at the label also dt, where dl and dt are the
/// gradients of the two numbers of the row.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    backward_shard(std::size_t rows, std::size_t columns, TokenRange tokens, const T* __restrict__ input,
                   const float* __restrict__ labels, const float* __restrict__ logarithms,
                   const float* __restrict__ output_gradient, T* __restrict__ input_gradient) {
  const std::size_t row = Team<PerBlock>::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const float logarithm = logarithms[row];
  const float of_logarithm = output_gradient[2 * row];
  const float of_logit = output_gradient[2 * row + 1];
  const std::size_t label = tokens.row_of(labels[row]);
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
      : CudaLayer(spec), tokens_(token_range(spec, spec.columns)) {}

  void forward(const Context& on, const Forward& pass) const noexcept override {
    keep_input(on, "partial_cross_entropy F", pass.input, pass.stash, rows_ * columns_ * sizeof(T));
    const T* x = pass.input.as<T>();
    float* logarithms = floats_behind<T>(pass.stash, rows_ * columns_);
    with_teams<T>(rows_, columns_, pack_aligned(x), [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "partial_cross_entropy F", grid, forward_shard<T, per_block, size>, rows_, columns_, tokens_,
             x, static_cast<const float*>(logarithms + rows_), logarithms, pass.output.as<float>());
    });
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    const T* x = pass.stash.as<T>();
    T* dx = pass.input_gradient.as<T>();
    const float* logarithms = floats_behind<T>(pass.stash, rows_ * columns_);
    with_teams<T>(rows_, columns_, pack_aligned(x, dx), [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "partial_cross_entropy B", grid, backward_shard<T, per_block, size>, rows_, columns_,
             tokens_, x, logarithms + rows_, logarithms, pass.output_gradient.as<float>(), dx);
    });
  }

 private:
  TokenRange tokens_;
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

  void forward(const Context& on, const LossForward& pass) const noexcept override {
    launch(on, "joined_cross_entropy F", warp_per_row(this->rows_), forward_pairs<T>, this->rows_,
           this->columns_ / 2, pass.input.as<T>(), pass.stash.as<T>(), pass.scratch.data());
    this->mean_of_rows(on, "joined_cross_entropy F", pass.scratch, pass.mean);
  }
};

const bool registered[] = {register_loss_implementation<MeanSquaredError>("mse"),
                           register_loss_implementation<CrossEntropy>("cross_entropy"),
                           register_implementation<PartialCrossEntropy>("partial_cross_entropy"),
                           register_loss_implementation<JoinedCrossEntropy>("joined_cross_entropy")};

}  // namespace
}  // namespace starpipe::model::cuda
