// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <span>

#include "codelets/cuda/kernels/attention_bf16_backward.cuh"
#include "codelets/cuda/kernels/attention_bf16_forward.cuh"
#include "codelets/cuda/kernels/attention_fp32.cuh"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "starpipe/base/index.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// The kernels in fp32 for heads of at most D columns. Each block has `rows` rows of a head, `threads`
/// threads, and a number of floats of shared memory.
template <int D>
struct Fp32Kernels {
  using Element = float;
  static constexpr std::size_t rows = attention::tile_rows;
  static constexpr unsigned threads = default_threads;
  static constexpr std::size_t forward_shared = attention::forward_shared<D>;
  static constexpr std::size_t queries_shared = attention::backward_shared<D>;
  static constexpr std::size_t keys_shared = attention::backward_shared<D>;
  static constexpr auto forward = attention::forward<D>;
  static constexpr auto backward_queries = attention::backward_queries<D>;
  template <class Gradient>  // float
  static constexpr auto backward_keys = attention::backward_keys<D>;
};

/// The same in bf16, on tensor cores.
template <int D>
struct TensorCoreKernels : attention::bf16::Tiles<D> {
  using Element = Bf16;
  static constexpr unsigned threads = attention::bf16::block_threads;
  static constexpr auto forward = attention::bf16::forward<D>;
  static constexpr auto backward_queries = attention::bf16::backward_queries<D>;
  template <class Gradient>
  static constexpr auto backward_keys = attention::bf16::backward_keys<D, Gradient>;
};

/// Launches the kernels of attention, of whole sequences and of slices of them. codelets/cpu/attention.cpp
/// says what they compute.
template <class Kernels>
class Launches {
 public:
  using T = typename Kernels::Element;
  template <class Element>
  using Rows = attention::Rows<Element>;

  /// `rows`: of all sequences.
  Launches(std::size_t rows, const attention::Shape& shape)
      : shape_(shape), sequences_(rows / size_of(shape.queries)) {}

  [[nodiscard]] const attention::Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t sequences() const noexcept { return sequences_; }
  /// Returns the floats that B's kernel of queries leaves for its kernel of keys: a delta for each row and
  /// query head.
  [[nodiscard]] std::size_t deltas() const noexcept {
    return sequences_ * size_of(shape_.queries) * size_of(shape_.heads);
  }

  /// Writes the output and the log-sum-exps.
  void forward(const Context& on, Rows<const T> q, Rows<const T> kv, T* y, float* log_sums) const noexcept {
    launch(on, "attention F", grid(shape_.queries, shape_.heads, Kernels::forward_shared), Kernels::forward,
           shape_in(q.first, kv.first, y), q, kv, y, log_sums);
  }
  /// Writes the gradients dq and dkv.
  template <class Gradient>
  void backward(const Context& on, Rows<const T> q, Rows<const T> kv, const float* log_sums, const T* dy,
                Rows<T> dq, Rows<Gradient> dkv, float* deltas) const noexcept {
    const attention::Shape shape = shape_in(q.first, kv.first, dy, dq.first, dkv.first);
    launch(on, "attention B", grid(shape.queries, shape.heads, Kernels::queries_shared),
           Kernels::backward_queries, shape, q, kv, log_sums, dy, dq, deltas);
    launch(on, "attention B", grid(shape.keys, shape.heads / shape.group, Kernels::keys_shared),
           Kernels::template backward_keys<Gradient>, shape, q, kv, log_sums,
           static_cast<const float*>(deltas), dy, dkv);
  }

 private:
  static std::size_t size_of(int count) noexcept { return static_cast<std::size_t>(count); }
  /// Returns the grid of a kernel in which each block has some of a head's `rows`. `heads`: of queries, or of
  /// keys for the keys' kernel.
  [[nodiscard]] Grid grid(int rows, int heads, std::size_t shared) const noexcept {
    return {dim3(static_cast<unsigned>(sequences_) * static_cast<unsigned>(heads),
                 static_cast<unsigned>(ceil_div(size_of(rows), std::size_t{Kernels::rows}))),
            dim3(Kernels::threads), shared};
  }
  /// Returns the shape of a pass on these arrays, which says whether they are aligned.
  template <class... Pointers>
  [[nodiscard]] attention::Shape shape_in(Pointers... arrays) const noexcept {
    attention::Shape shape = shape_;
    shape.aligned = shape.size % 8 == 0 && pack_aligned(arrays...);
    return shape;
  }

  attention::Shape shape_;
  std::size_t sequences_;
};

/// Attention of whole sequences, on a GPU's stream.
template <class Kernels>
class WholeAttention final : public CudaLayer {
  using T = typename Kernels::Element;

 public:
  WholeAttention(const LayerSpec& spec, const attention::Shape& shape)
      : CudaLayer(spec), kernels_(rows_, shape) {}

  std::size_t scratch_size() const override { return kernels_.deltas(); }

  void forward(const Context& on, const Forward& pass) const noexcept override {
    const std::size_t count = rows_ * columns_;
    keep_input(on, "attention F", pass.input, pass.stash, count * sizeof(T));
    const T* qkv = pass.input.as<T>();
    kernels_.forward(on, {qkv, columns_}, {qkv + kernels_.shape().hidden, columns_}, pass.output.as<T>(),
                     floats_behind<T>(pass.stash, count));
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    const T* qkv = pass.stash.as<T>();
    T* const dqkv = pass.input_gradient.as<T>();
    const std::size_t hidden = kernels_.shape().hidden;
    kernels_.template backward<T>(
        on, {qkv, columns_}, {qkv + hidden, columns_}, floats_behind<T>(pass.stash, rows_ * columns_),
        pass.output_gradient.as<T>(), {dqkv, columns_}, {dqkv + hidden, columns_}, pass.scratch.data());
  }

 private:
  Launches<Kernels> kernels_;
};

/// Copies an array to rows, for for_each(): N elements at a time. A row gets `width` elements, and the next
/// row begins `stride` elements behind it.
template <class T, int N>
struct SpreadRows {
  const T* from;
  T* to;
  std::size_t width;
  std::size_t stride;
  __device__ void operator()(std::size_t pack) const {
    const std::size_t i = pack * N;
    store_pack(to + i / width * stride + i % width, load_pack<N>(from + i));
  }
};

/// Writes the gradients of a slice's keys and values, for for_each(): N numbers at a time. They are the sums
/// of `mine` and of what the slice after has `handed` back, which may be null. Of each sequence `mine` has
/// `of_sequence` numbers of the slice, and the next sequence begins `stride_of_sequence` numbers behind it. A
/// row of `to` gets `width` numbers, and the next row begins `stride` numbers behind it.
template <class To, int N>
struct GiveGradients {
  const float* mine;
  std::size_t of_sequence;
  std::size_t stride_of_sequence;
  const float* handed;
  To* to;
  std::size_t width;
  std::size_t stride;
  __device__ void operator()(std::size_t pack) const {
    const std::size_t i = pack * N;
    Values<N> sum = load<N>(mine + i / of_sequence * stride_of_sequence + i % of_sequence);
    if (handed != nullptr) {
      const Values<N> more = load<N>(handed + i);
      for (int k = 0; k < N; ++k) sum[k] += more[k];
    }
    store(to + i / width * stride + i % width, sum);
  }
};

/// Attention of slices of the sequences; codelets/cpu/sliced_attention.cpp has the same arrays. The keys and
/// values of all slices up to the layer's own are gathered in the scratch, [sequence][key][k | v].
template <class Kernels>
class SlicedAttention final : public CudaLayer {
  using T = typename Kernels::Element;

 public:
  SlicedAttention(const LayerSpec& spec, const attention::Shape& shape)
      : CudaLayer(spec), kernels_(rows_, shape), hidden_(shape.hidden) {}

  /// Counts the gathered keys and values, their gradients in floats, and the deltas.
  std::size_t scratch_size() const override {
    return words_of<T>(gathered_size()) + gathered_size() + kernels_.deltas();
  }

  void forward(const Context& on, const Forward& pass) const noexcept override {
    const T* const input = pass.input.as<T>();
    T* const own = pass.own_keys_values.as<T>();
    copy_columns(on, input, pass.stash.as<T>(), hidden_);
    copy_columns(on, input + hidden_, own, kv_columns());
    T* const gathered = Memory(pass.scratch).as<T>();
    const std::size_t first = gather_all(on, pass.keys_values, gathered);
    gather(on, own, rows_ * kv_columns(), first, gathered);
    kernels_.forward(on, {input, columns_}, {gathered, kv_columns()}, pass.output.as<T>(),
                     floats_behind<T>(pass.stash, rows_ * hidden_));
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    T* const gathered = Memory(pass.scratch).as<T>();
    float* const dkv = floats_behind<T>(Memory(pass.scratch), gathered_size());
    T* const dx = pass.input_gradient.as<T>();
    gather_all(on, pass.keys_values, gathered);
    kernels_.template backward<float>(on, {pass.stash.as<T>(), hidden_}, {gathered, kv_columns()},
                                      floats_behind<T>(pass.stash, rows_ * hidden_),
                                      pass.output_gradient.as<T>(), {dx, columns_}, {dkv, kv_columns()},
                                      dkv + gathered_size());
    const auto handed = [&](std::size_t at) {
      return pass.keys_values_gradient.empty() ? nullptr : pass.keys_values_gradient.data() + at;
    };
    std::size_t first = 0;
    for (const ConstMemory slice : pass.keys_values.first(pass.keys_values.size() - 1)) {
      const std::size_t count = numbers(slice);
      const std::size_t at = kernels_.sequences() * first;
      give(on, dkv + first, count, handed(at), pass.earlier_gradient.data() + at, count, count);
      first += count / kernels_.sequences();
    }
    give(on, dkv + first, rows_ * kv_columns(), handed(kernels_.sequences() * first), dx + hidden_,
         kv_columns(), columns_);
  }

 private:
  [[nodiscard]] std::size_t kv_columns() const noexcept {
    const attention::Shape& shape = kernels_.shape();
    return 2 * static_cast<std::size_t>(shape.heads / shape.group * shape.size);
  }
  /// Returns how many numbers the keys and values of a sequence have, up to the layer's own.
  [[nodiscard]] std::size_t of_sequence() const noexcept {
    return static_cast<std::size_t>(kernels_.shape().keys) * kv_columns();
  }
  [[nodiscard]] std::size_t gathered_size() const noexcept { return kernels_.sequences() * of_sequence(); }
  static std::size_t numbers(ConstMemory slice) noexcept { return slice.size() * sizeof(float) / sizeof(T); }

  /// Copies `columns` of the layer's input to rows that have no others.
  void copy_columns(const Context& on, const T* from, T* to, std::size_t columns) const noexcept {
    check(cudaMemcpy2DAsync(to, columns * sizeof(T), from, columns_ * sizeof(T), columns * sizeof(T), rows_,
                            cudaMemcpyDeviceToDevice, on.stream),
          "attention F");
  }

  /// Copies the keys and values of a slice, `count` numbers, behind the `first` numbers of each sequence.
  /// Returns how many the slice has for each.
  std::size_t gather(const Context& on, const T* from, std::size_t count, std::size_t first,
                     T* gathered) const noexcept {
    const std::size_t width = count / kernels_.sequences();
    T* const to = gathered + first;
    const bool packs = kv_columns() % pack_size<T> == 0 && pack_aligned(from, to);
    with_pack_size<pack_size<T>>(packs, [&](auto size) {
      for_each(on, "attention", count / size, SpreadRows<T, size>{from, to, width, of_sequence()});
    });
    return width;
  }

  /// Does the same for several slices, from the first number on. Returns how many they have for each
  /// sequence.
  std::size_t gather_all(const Context& on, std::span<const ConstMemory> slices, T* gathered) const noexcept {
    std::size_t first = 0;
    for (const ConstMemory slice : slices)
      first += gather(on, slice.as<T>(), numbers(slice), first, gathered);
    return first;
  }

  /// Launches GiveGradients for a slice of `count` numbers.
  template <class To>
  void give(const Context& on, const float* mine, std::size_t count, const float* handed, To* to,
            std::size_t width, std::size_t stride) const noexcept {
    const std::size_t each = count / kernels_.sequences();
    const bool packs =
        kv_columns() % pack_size<To> == 0 && columns_ % pack_size<To> == 0 && pack_aligned(mine, handed, to);
    with_pack_size<pack_size<To>>(packs, [&](auto size) {
      for_each(on, "attention B", count / size,
               GiveGradients<To, size>{mine, each, of_sequence(), handed, to, width, stride});
    });
  }

  Launches<Kernels> kernels_;
  std::size_t hidden_;
};

template <class Kernels>
std::shared_ptr<const CudaLayer> of_sequences(const LayerSpec& spec, const attention::Shape& shape,
                                              bool is_slice) {
  if (is_slice) return std::make_shared<SlicedAttention<Kernels>>(spec, shape);
  return std::make_shared<WholeAttention<Kernels>>(spec, shape);
}

/// Returns the layer with the smallest D that holds a head; null for heads wider than 128, whose tiles would
/// not fit the shared memory of every GPU.
template <template <int> class Kernels>
std::shared_ptr<const CudaLayer> of_width(const LayerSpec& spec, const attention::Shape& shape,
                                          bool is_slice) {
  if (shape.size <= 32) return of_sequences<Kernels<32>>(spec, shape, is_slice);
  if (shape.size <= 64) return of_sequences<Kernels<64>>(spec, shape, is_slice);
  if (shape.size <= 128) return of_sequences<Kernels<128>>(spec, shape, is_slice);
  return nullptr;
}

std::shared_ptr<const CudaLayer> make(const LayerSpec& spec, Precision precision) {
  constexpr std::size_t max_tiles = 65535;  // CUDA's limit on blocks in a grid's second dimension
  const std::size_t heads = size_option(spec, "heads");
  const std::size_t kv_heads = size_option(spec, "kv_heads", heads);
  const SequenceRows sequence = sequence_rows(spec);
  const std::size_t keys = sequence.first + sequence.count;
  const std::size_t size = spec.columns / (heads + 2 * kv_heads);
  if (ceil_div(keys, attention::tile_rows) > max_tiles) return nullptr;
  const attention::Shape shape = {.queries = static_cast<int>(sequence.count),
                                  .keys = static_cast<int>(keys),
                                  .heads = static_cast<int>(heads),
                                  .group = static_cast<int>(heads / kv_heads),
                                  .size = static_cast<int>(size),
                                  .scale = 1.0f / std::sqrt(static_cast<float>(size)),
                                  .hidden = heads * size};
  return precision == Precision::bf16 ? of_width<TensorCoreKernels>(spec, shape, sequence.is_slice)
                                      : of_width<Fp32Kernels>(spec, shape, sequence.is_slice);
}

const bool registered = register_cuda_layer("attention", make);

}  // namespace
}  // namespace starpipe::model::cuda
