// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// Cosines and sines of the angles, [row of a sequence][pair]. B has the sines of the angles back.
struct Turns {
  float* cosines;
  float* sines;
};

/// Fills the turns, for for_each().
struct FillTurns {
  Turns turns;
  std::size_t first;  // position of the first row of a sequence
  std::size_t half;   // pairs of a head
  double theta;
  double direction;  // 1, or -1 to turn back
  __device__ void operator()(std::size_t i) const {
    const std::size_t position = first + i / half;
    const std::size_t pair = i % half;
    const double frequency = pow(theta, -static_cast<double>(pair) / static_cast<double>(half));
    const double angle = direction * static_cast<double>(position) * frequency;
    turns.cosines[i] = static_cast<float>(cos(angle));
    turns.sines[i] = static_cast<float>(sin(angle));
  }
};

struct RowShape {
  std::size_t count;  // rows of a sequence
  unsigned columns;
  unsigned heads;
  unsigned half;  // pairs of a head
};

/// One block per row: turns the pairs of the heads, and copies the columns behind them.
template <class T, int N>
__global__ void __launch_bounds__(default_threads)
    turn_rows(RowShape shape, Turns turns, const T* __restrict__ from, T* __restrict__ to) {
  const std::size_t start = std::size_t{blockIdx.x} * shape.columns;
  const std::size_t first_turn = blockIdx.x % shape.count * shape.half;
  const unsigned pairs = shape.heads * shape.half;
  for (unsigned i = threadIdx.x * N; i < pairs; i += blockDim.x * N) {
    const unsigned c = i % shape.half;
    const std::size_t left = start + i / shape.half * 2 * shape.half + c;
    const std::size_t right = left + shape.half;
    Values<N> a = load<N>(from + left);
    Values<N> b = load<N>(from + right);
    const Values<N> cosine = load<N>(turns.cosines + first_turn + c);
    const Values<N> sine = load<N>(turns.sines + first_turn + c);
    for (int k = 0; k < N; ++k) {
      const float x = a[k];
      a[k] = x * cosine[k] - b[k] * sine[k];
      b[k] = b[k] * cosine[k] + x * sine[k];
    }
    store(to + left, a);
    store(to + right, b);
  }
  for (unsigned c = 2 * pairs + threadIdx.x * N; c < shape.columns; c += blockDim.x * N) {
    store_pack(to + start + c, load_pack<N>(from + start + c));
  }
}

/// codelets/cpu/rotary.cpp on a GPU.
template <class T>
class Rotary final : public CudaLayer {
 public:
  explicit Rotary(const LayerSpec& spec)
      : CudaLayer(spec),
        sequence_(sequence_rows(spec)),
        theta_(option(spec, "theta", 0)),
        shape_{sequence_.count, static_cast<unsigned>(spec.columns),
               static_cast<unsigned>(size_option(spec, "heads")),
               static_cast<unsigned>(size_option(spec, "size") / 2)} {}

  std::size_t scratch_size() const override { return 2 * shape_.count * shape_.half; }

  void forward(const Context& on, const Forward& pass) const noexcept override {
    turn(on, "rotary F", 1, pass.input.as<T>(), pass.output.as<T>(), pass.scratch.data());
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    turn(on, "rotary B", -1, pass.output_gradient.as<T>(), pass.input_gradient.as<T>(), pass.scratch.data());
  }

 private:
  void turn(const Context& on, const char* name, double direction, const T* from, T* to,
            float* scratch) const noexcept {
    const std::size_t count = shape_.count * shape_.half;
    const Turns turns{scratch, scratch + count};
    for_each(on, name, count, FillTurns{turns, sequence_.first, shape_.half, theta_, direction});
    const bool whole_packs = shape_.half % pack_size<T> == 0 && shape_.columns % pack_size<T> == 0;
    with_pack_size<pack_size<T>>(whole_packs && pack_aligned(from, to, scratch), [&](auto size) {
      launch(on, name, block_per_row(rows_, default_threads), turn_rows<T, size>, shape_, turns, from, to);
    });
  }

  SequenceRows sequence_;
  double theta_;
  RowShape shape_;
};

const bool registered = register_implementation<Rotary>("rotary");

}  // namespace
}  // namespace starpipe::model::cuda
