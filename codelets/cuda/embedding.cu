// SPDX-License-Identifier: Apache-2.0
// codelets/cpu/embedding.cpp on a GPU.
#include "codelets/cuda/kernels/column_sums.cuh"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "model/arithmetic.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// Each warp computes one row: output[row] = tokens[ids[row]] + positions[row % count], where `count` is the
/// number of rows of a sequence. For an id that is not in the table, tokens[id] counts as 0. `ids` may be
/// null: then the row itself is the id. `positions` begins with the position of a sequence's first row, or is
/// null: then no positions are added.
template <class T, int N>
__global__ void forward_rows(std::size_t rows, std::size_t columns, TokenRange table, std::size_t count,
                             const float* __restrict__ ids, const T* __restrict__ tokens,
                             const T* __restrict__ positions, T* __restrict__ output) {
  const std::size_t row = Team<false>::row();
  if (row >= rows) return;
  const std::size_t id = ids == nullptr ? row : table.row_of(ids[row]);
  const T* const token = id < table.count ? tokens + id * columns : nullptr;
  const T* const position = positions == nullptr ? nullptr : positions + row % count * columns;
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
  TokenRange table;
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
  if (by_row && (token == ids.table.count || ids.seen_before(blockIdx.x))) return;
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

template <class T>
class Embedding final : public CudaLayer {
 public:
  explicit Embedding(const LayerSpec& spec)
      : CudaLayer(spec),
        table_(token_range(spec, size_option(spec, "vocabulary"))),
        positions_(spec.options.contains("context")),
        sequence_(positions_ ? sequence_rows(spec) : SequenceRows{.count = spec.rows}),
        outputs_(size_option(spec, "outputs")) {}

  void forward(const Context& on, const Forward& pass) const noexcept override {
    keep_input(on, "embedding F", pass.input, pass.stash, rows_ * sizeof(float));
    const T* tokens = pass.parameters.as<T>();
    const T* positions = positions_ ? tokens + (table_.count + sequence_.first) * outputs_ : nullptr;
    T* y = pass.output.as<T>();
    with_pack_size<pack_size<T>>(packs_fill_rows() && pack_aligned(tokens, positions, y), [&](auto size) {
      launch(on, "embedding F", warp_per_row(rows_), forward_rows<T, size>, rows_, outputs_, table_,
             sequence_.count, pass.input.as<float>(), tokens, positions, y);
    });
  }

  /// Token ids have no gradient: writes zeros.
  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    check(cudaMemsetAsync(pass.input_gradient.data(), 0, rows_ * sizeof(float), on.stream), "embedding B");
  }

  void backward_weights(const Context& on, const Weights& pass) const noexcept override {
    const T* dy = pass.output_gradient.as<T>();
    float* gradients = pass.parameter_gradient.data();
    const Ids ids{pass.stash.as<float>(), table_};
    const bool by_row = table_.count > rows_;
    with_pack_size<pack_size<T>>(packs_fill_rows() && pack_aligned(dy), [&](auto size) {
      const dim3 blocks(static_cast<unsigned>(by_row ? rows_ : table_.count),
                        by_row ? 1 : static_cast<unsigned>(ceil_div(outputs_, warp_size * size)));
      launch(on, "embedding W", {blocks, dim3(adding_warps * warp_size)}, add_token_gradients<T, size>, rows_,
             outputs_, ids, by_row, dy, gradients);
    });
    if (!positions_) return;
    // The gradients of the positions: sums over the sequences, with a sequence as one row of sequence_.count
    // * outputs_ columns.
    add_column_sums(on, "embedding W", rows_ / sequence_.count, sequence_.count * outputs_, Elements<T>{dy},
                    gradients + (table_.count + sequence_.first) * outputs_, {});
  }

 private:
  bool packs_fill_rows() const noexcept { return outputs_ % pack_size<T> == 0; }

  TokenRange table_;
  bool positions_;
  SequenceRows sequence_;
  std::size_t outputs_;
};

template <class T>
class Positions final : public CudaLayer {
 public:
  explicit Positions(const LayerSpec& spec) : CudaLayer(spec), sequence_(sequence_rows(spec)) {}

  void forward(const Context& on, const Forward& pass) const noexcept override {
    const T* x = pass.input.as<T>();
    const T* positions = pass.parameters.as<T>() + sequence_.first * columns_;
    T* y = pass.output.as<T>();
    const bool packs = columns_ % pack_size<T> == 0 && pack_aligned(x, positions, y);
    const TokenRange all_rows = {0, rows_};
    with_pack_size<pack_size<T>>(packs, [&](auto size) {
      launch(on, "positions F", warp_per_row(rows_), forward_rows<T, size>, rows_, columns_, all_rows,
             sequence_.count, static_cast<const float*>(nullptr), x, positions, y);
    });
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    check(cudaMemcpyAsync(pass.input_gradient.data(), pass.output_gradient.data(),
                          rows_ * columns_ * sizeof(T), cudaMemcpyDeviceToDevice, on.stream),
          "positions B");
  }

  /// Sums over the sequences, with a sequence as one row of sequence_.count * columns_ columns.
  void backward_weights(const Context& on, const Weights& pass) const noexcept override {
    add_column_sums(on, "positions W", rows_ / sequence_.count, sequence_.count * columns_,
                    Elements<T>{pass.output_gradient.as<T>()},
                    pass.parameter_gradient.data() + sequence_.first * columns_, {});
  }

 private:
  SequenceRows sequence_;
};

const bool registered[] = {register_implementation<Embedding>("embedding"),
                           register_implementation<Positions>("positions")};

}  // namespace
}  // namespace starpipe::model::cuda
