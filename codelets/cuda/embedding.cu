// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/column_sums.cuh"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// The rows of a table: one for each token of the vocabulary, or of a shard of it.
struct Table {
  std::size_t tokens;
  std::size_t first;  ///< token of a shard
  bool is_shard;

  /// The row of a token; `tokens` when the shard does not have it.
  __device__ std::size_t row_of(float id) const {
    return is_shard ? index_in_shard(id, first, tokens) : index_of(id, tokens);
  }
};

/// Each warp computes one row: output[row] = tokens[ids[row]] + positions[row % context]. For an id that is
/// not in the table, tokens[id] counts as 0. `positions` may be null: then no positions are added.
template <class T, int N>
__global__ void forward_rows(std::size_t rows, std::size_t columns, Table table, std::size_t context,
                             const float* __restrict__ ids, const T* __restrict__ tokens,
                             const T* __restrict__ positions, T* __restrict__ output) {
  const std::size_t row = Team<false>::row();
  if (row >= rows) return;
  const std::size_t id = table.row_of(ids[row]);
  const T* const token = id < table.tokens ? tokens + id * columns : nullptr;
  const T* const position = positions == nullptr ? nullptr : positions + row % context * columns;
  for (std::size_t c = std::size_t{Team<false>::lane()} * N; c < columns; c += warp_size * N) {
    Values<N> y = {};
    if (token != nullptr) y = load<N>(token + c);
    if (position != nullptr) {
      const Values<N> at = load<N>(position + c);
      for (int k = 0; k < N; ++k) y[k] += at[k];
    }
    store(output + row * columns + c, y);
  }
}

constexpr unsigned adding_warps = 16;  // warps of a block that adds a token's gradients
// A warp searches this many rows for the token, then adds the gradients of the rows found.
constexpr unsigned rows_searched = 256;

/// The token ids, one per row, as rows of the table.
struct Ids {
  const float* ids;
  Table table;
  __device__ std::size_t at(std::size_t row) const { return table.row_of(ids[row]); }

  /// Searches the rows [first, last), but at most rows_searched of them, for the token. Writes the rows that
  /// have it, relative to `first` and in ascending order, to `found` and returns their number. All lanes of a
  /// warp call it together and share `found`.
  __device__ unsigned find(std::size_t token, std::size_t first, std::size_t last, unsigned* found) const {
    const unsigned lane = threadIdx.x % warp_size;
    float id[rows_searched / warp_size];
#pragma unroll
    for (unsigned i = 0; i < rows_searched / warp_size; ++i) {
      const std::size_t row = first + i * warp_size + lane;
      id[i] = ids[row < last ? row : first];
    }
    unsigned count = 0;
#pragma unroll
    for (unsigned i = 0; i < rows_searched / warp_size; ++i) {
      const bool same = first + i * warp_size + lane < last && table.row_of(id[i]) == token;
      const unsigned lanes = __ballot_sync(all_lanes, same);
      const unsigned before = lanes & ((1u << lane) - 1);
      if (same) found[count + static_cast<unsigned>(__popc(before))] = i * warp_size + lane;
      count += static_cast<unsigned>(__popc(lanes));
    }
    return count;
  }

  /// True if an earlier row has the same token. All threads of a block call it together and get the
  /// same answer.
  __device__ bool seen_before(std::size_t row) const {
    const std::size_t token = at(row);
    bool seen = false;
    each_loaded<8>(
        threadIdx.x, row, blockDim.x, [&](std::size_t r) { return ids[r]; },
        [&](float id) { seen |= table.row_of(id) == token; });
    return __syncthreads_or(seen) != 0;
  }
};

/// Adds to gradients[token] the sum of dy over the rows with this token; one block per token. Each warp sums
/// its share of the rows in ascending order, then the block adds the warps' sums in order of the warps. So
/// the order of the additions is fixed, which atomic additions do not give. blockIdx.x is the token. With
/// `by_row`, for vocabularies larger than the number of rows, blockIdx.x is a row: the block handles the
/// row's token, unless an earlier row has the same token or the table lacks it. blockIdx.y and gridDim.y
/// divide the columns.
template <class T, int N>
__global__ void __launch_bounds__(adding_warps* warp_size)
    add_token_gradients(std::size_t rows, std::size_t columns, Ids ids, bool by_row, const T* __restrict__ dy,
                        float* __restrict__ gradients) {
  constexpr unsigned block_columns = warp_size * N;
  __shared__ unsigned found[adding_warps][rows_searched];
  __shared__ float sums[adding_warps][block_columns];
  const std::size_t token = by_row ? ids.at(blockIdx.x) : blockIdx.x;
  if (by_row && (token == ids.table.tokens || ids.seen_before(blockIdx.x))) return;
  const unsigned warp = threadIdx.x / warp_size;
  const unsigned own = threadIdx.x % warp_size * N;
  const std::size_t share = ceil_div(rows, adding_warps);
  const std::size_t end = (warp + 1) * share < rows ? (warp + 1) * share : rows;
  for (std::size_t start = blockIdx.y * block_columns; start < columns; start += gridDim.y * block_columns) {
    Values<N> sum = {};
    for (std::size_t first = warp * share; first < end; first += rows_searched) {
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
    for (unsigned i = threadIdx.x; i < block_columns && start + i < columns; i += blockDim.x) {
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
        table_{size_option(spec, "vocabulary"), static_cast<std::size_t>(option(spec, "first", 0)),
               spec.options.contains("first")},
        positions_(spec.options.contains("context")),
        context_(size_option(spec, "context", spec.rows)),
        outputs_(size_option(spec, "outputs")) {}

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               FloatView /*scratch*/) const noexcept override {
    keep_input(on, "embedding F", input, stash, rows_ * sizeof(float));
    const T* tokens = parameters.as<T>();
    const T* positions = positions_ ? tokens + table_.tokens * outputs_ : nullptr;
    T* y = output.as<T>();
    with_pack_size<pack_size<T>>(packs_fill_rows() && pack_aligned(tokens, positions, y), [&](auto size) {
      launch(on, "embedding F", warp_per_row(rows_), forward_rows<T, size>, rows_, outputs_, table_, context_,
             input.as<float>(), tokens, positions, y);
    });
  }

  /// Token ids have no gradient: writes zeros.
  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory /*stash*/,
                      ConstMemory /*output_gradient*/, Memory input_gradient,
                      FloatView /*scratch*/) const noexcept override {
    check(cudaMemsetAsync(input_gradient.data(), 0, rows_ * sizeof(float), on.stream), "embedding B");
  }

  void backward_weights(const Context& on, ConstMemory stash, ConstMemory output_gradient,
                        FloatView parameter_gradient, FloatView /*scratch*/) const noexcept override {
    const T* dy = output_gradient.as<T>();
    float* gradients = parameter_gradient.data();
    const Ids ids{stash.as<float>(), table_};
    const bool by_row = table_.tokens > rows_;
    with_pack_size<pack_size<T>>(packs_fill_rows() && pack_aligned(dy), [&](auto size) {
      const dim3 blocks(static_cast<unsigned>(by_row ? rows_ : table_.tokens),
                        by_row ? 1 : static_cast<unsigned>(ceil_div(outputs_, warp_size * size)));
      launch(on, "embedding W", {blocks, dim3(adding_warps * warp_size)}, add_token_gradients<T, size>, rows_,
             outputs_, ids, by_row, dy, gradients);
    });
    if (!positions_) return;
    // The gradients of the positions: sums over the sequences, with a sequence as one row of context_ *
    // outputs_ columns.
    const std::size_t sequence = context_ * outputs_;
    add_column_sums(on, "embedding W", rows_ / context_, sequence, Elements<T>{dy},
                    gradients + table_.tokens * outputs_, {});
  }

 private:
  bool packs_fill_rows() const noexcept { return outputs_ % pack_size<T> == 0; }

  std::size_t rows_;
  Table table_;
  bool positions_;
  std::size_t context_;
  std::size_t outputs_;
};

const bool registered = register_implementation<Embedding>("embedding");

}  // namespace
}  // namespace starpipe::model::cuda
