// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/device/keep_input.hpp"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// A warp a row.
template <class T, int N>
__global__ void forward_rows(std::size_t rows, std::size_t columns, std::size_t vocabulary,
                             std::size_t context, const float* __restrict__ ids, const T* __restrict__ tokens,
                             const T* __restrict__ positions, T* __restrict__ output) {
  const std::size_t row = Team<false>::row();
  if (row >= rows) return;
  const T* const token = tokens + index_of(ids[row], vocabulary) * columns;
  const T* const position = positions + row % context * columns;
  for (std::size_t c = std::size_t{Team<false>::lane()} * N; c < columns; c += kWarp * N) {
    Values<N> y = load<N>(token + c);
    const Values<N> at = load<N>(position + c);
    for (int k = 0; k < N; ++k) y[k] += at[k];
    store(output + row * columns + c, y);
  }
}

constexpr unsigned kWarps = 16;        // of a block that adds a token's gradients
constexpr unsigned kRowsToFind = 256;  // by a warp, before it adds them

/// Where token ids are in the input.
struct Ids {
  const float* ids;
  std::size_t vocabulary;
  __device__ std::size_t at(std::size_t row) const { return index_of(ids[row], vocabulary); }

  /// Of [first, last), the rows with the token, in order, as distances from the first; their number. By a
  /// warp.
  __device__ unsigned find(std::size_t token, std::size_t first, std::size_t last, unsigned* found) const {
    const unsigned lane = threadIdx.x % kWarp;
    float id[kRowsToFind / kWarp];
#pragma unroll
    for (unsigned i = 0; i < kRowsToFind / kWarp; ++i) {
      const std::size_t row = first + i * kWarp + lane;
      id[i] = ids[row < last ? row : first];
    }
    unsigned count = 0;
#pragma unroll
    for (unsigned i = 0; i < kRowsToFind / kWarp; ++i) {
      const bool same = first + i * kWarp + lane < last && index_of(id[i], vocabulary) == token;
      const unsigned lanes = __ballot_sync(kAllLanes, same);
      const unsigned before = lanes & ((1u << lane) - 1);
      if (same) found[count + static_cast<unsigned>(__popc(before))] = i * kWarp + lane;
      count += static_cast<unsigned>(__popc(lanes));
    }
    return count;
  }

  /// Whether a row before this one has its token. By the block, in which all get the same answer.
  __device__ bool seen_before(std::size_t row) const {
    const std::size_t token = at(row);
    bool seen = false;
    each_loaded<8>(
        threadIdx.x, row, blockDim.x, [&](std::size_t r) { return ids[r]; },
        [&](float id) { seen |= index_of(id, vocabulary) == token; });
    return __syncthreads_or(seen) != 0;
  }
};

/// A block a token: each warp adds the rows of its share that have the token, in their order, then the warps'
/// sums are added in turn. Atomic additions would have another order in each run. The token is the block's
/// number or, with by_row, that of the row of this number, unless an earlier row has it: with more tokens
/// than rows, most have none.
template <class T, int N>
__global__ void __launch_bounds__(kWarps* kWarp)
    add_token_gradients(std::size_t rows, std::size_t columns, Ids ids, bool by_row, const T* __restrict__ dy,
                        float* __restrict__ gradients) {
  constexpr unsigned kColumns = kWarp * N;
  __shared__ unsigned found[kWarps][kRowsToFind];
  __shared__ float sums[kWarps][kColumns];
  if (by_row && ids.seen_before(blockIdx.x)) return;
  const std::size_t token = by_row ? ids.at(blockIdx.x) : blockIdx.x;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned own = threadIdx.x % kWarp * N;
  const std::size_t share = parts(rows, kWarps);
  const std::size_t end = (warp + 1) * share < rows ? (warp + 1) * share : rows;
  for (std::size_t start = blockIdx.y * kColumns; start < columns; start += gridDim.y * kColumns) {
    Values<N> sum = {};
    for (std::size_t first = warp * share; first < end; first += kRowsToFind) {
      const unsigned count = ids.find(token, first, end, found[warp]);
      __syncwarp();
      if (start + own < columns) {
        each_loaded<8>(
            0, count, 1,
            [&](std::size_t i) {
              return load_pack<N>(dy + (first + found[warp][i]) * columns + start + own);
            },
            [&](const Pack<T, N>& loaded) {
              const Values<N> x = floats(loaded);
              for (int k = 0; k < N; ++k) sum[k] += x[k];
            });
      }
      __syncwarp();
    }
    for (int k = 0; k < N; ++k) sums[warp][own + static_cast<unsigned>(k)] = sum[k];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kColumns && start + i < columns; i += blockDim.x) {
      float total = 0;
      for (const auto& of_warp : sums) total += of_warp[i];
      gradients[token * columns + start + i] += total;
    }
    __syncthreads();
  }
}

/// codelets/cpu/embedding.cpp on a GPU.
template <class T>
class Embedding final : public CudaLayer {
 public:
  explicit Embedding(const LayerSpec& spec)
      : rows_(spec.rows),
        vocabulary_(size_option(spec, "vocabulary")),
        context_(size_option(spec, "context")),
        outputs_(size_option(spec, "outputs")) {}

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    keep_input(on, "embedding F", input, stash, rows_ * sizeof(float));
    const T* tokens = parameters.as<T>();
    const T* positions = tokens + vocabulary_ * outputs_;
    T* y = output.as<T>();
    with_packs<kPack<T>>(whole_packs() && begin_packs(tokens, positions, y), [&](auto size) {
      launch(on, "embedding F", warp_rows(rows_), forward_rows<T, size>, rows_, outputs_, vocabulary_,
             context_, input.as<float>(), tokens, positions, y);
    });
  }

  /// Token ids have no gradient: zero.
  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory /*stash*/,
                      ConstMemory /*output_gradient*/, Memory input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    check(cudaMemsetAsync(input_gradient.data(), 0, rows_ * sizeof(float), on.stream), "embedding B");
  }

  void backward_weights(const Context& on, ConstMemory stash, ConstMemory output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> /*scratch*/) const noexcept override {
    const T* dy = output_gradient.as<T>();
    float* gradients = parameter_gradient.data();
    const Ids ids{stash.as<float>(), vocabulary_};
    const bool by_row = vocabulary_ > rows_;
    with_packs<kPack<T>>(whole_packs() && begin_packs(dy), [&](auto size) {
      const dim3 blocks(static_cast<unsigned>(by_row ? rows_ : vocabulary_),
                        by_row ? 1 : static_cast<unsigned>(parts(outputs_, kWarp * size)));
      launch(on, "embedding W", {blocks, dim3(kWarps * kWarp)}, add_token_gradients<T, size>, rows_, outputs_,
             ids, by_row, dy, gradients);
    });
    // Of the positions: over the sequences.
    const std::size_t sequence = context_ * outputs_;
    sum_rows(on, "embedding W", rows_ / context_, sequence, Elements<T>{dy},
             gradients + vocabulary_ * outputs_, {});
  }

 private:
  bool whole_packs() const noexcept { return outputs_ % kPack<T> == 0; }  // in each row

  std::size_t rows_;
  std::size_t vocabulary_;
  std::size_t context_;
  std::size_t outputs_;
};

const bool registered = register_cuda_layer("embedding", [](const LayerSpec& spec, Precision precision) {
  return make_twin<CudaLayer, Embedding>(precision, spec);
});

}  // namespace
}  // namespace starpipe::model::cuda
