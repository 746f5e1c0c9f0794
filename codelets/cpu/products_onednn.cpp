// SPDX-License-Identifier: Apache-2.0
// Products in fp32 by oneDNN's dnnl_sgemm, which versions 2 and 3 have; it keeps nothing between calls.
// Products in bf16 by its primitive `matmul`.
#include <exception>
#include <new>
#include <string_view>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

#include "codelets/cpu/products.hpp"

// OpenMP's functions, from the library that oneDNN calls; null if oneDNN is built without threads.
extern "C" {
int omp_get_max_threads() __attribute__((weak));
void omp_set_num_threads(int number) __attribute__((weak));
}

namespace starpipe::model::cpu {
namespace {

/// During this object's lifetime OpenMP uses one thread for each parallel region of the calling thread,
/// whatever OMP_NUM_THREADS says. OpenMP counts threads for each calling thread, so other threads are not
/// affected.
class OneThread {
 public:
  OneThread() noexcept {
    if (omp_set_num_threads == nullptr) return;
    before_ = omp_get_max_threads();
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 1;
};

// Ends the program. If memory is short, a run's handler says first which task had none.
[[noreturn]] void end(bool out_of_memory) {
  const std::new_handler handler = std::get_new_handler();
  if (out_of_memory && handler != nullptr) handler();
  std::terminate();
}

// Never destroyed: threads may still compute while the program ends.
const dnnl::engine& cpu_engine() {
  static const auto& engine =
      *new dnnl::engine(dnnl::engine::kind::cpu, 0);  // NOLINT(cppcoreguidelines-owning-memory)
  return engine;
}

dnnl::memory::desc matrix(std::size_t rows, std::size_t columns, std::size_t stride, bool transposed,
                          dnnl::memory::data_type type) {
  const auto i = [](std::size_t value) { return static_cast<dnnl_dim_t>(value); };
  return {dnnl::memory::dims{i(rows), i(columns)}, type,
          transposed ? dnnl::memory::dims{1, i(stride)} : dnnl::memory::dims{i(stride), 1}};
}

}  // namespace

void multiply(std::size_t m, std::size_t n, std::size_t k, Matrix a, Matrix b, Result result, float* c,
              std::size_t c_stride) noexcept {
  const auto i = [](std::size_t value) { return static_cast<dnnl_dim_t>(value); };
  const auto layout = [](Matrix of) { return of.transposed ? 'T' : 'N'; };
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(layout(a), layout(b), i(m), i(n), i(k), 1, a.data, i(a.stride), b.data, i(b.stride),
                 result == Result::is_added ? 1.0f : 0.0f, c, i(c_stride));
  if (status != dnnl_success) end(status == dnnl_out_of_memory);  // operands are packed into memory of malloc
}

struct Bf16Product::Prepared {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive{description};
};

std::optional<Bf16Product> Bf16Product::prepare(const Bf16Sizes& of) {
  using Type = dnnl::memory::data_type;
  const auto has = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  if ((has & dnnl_cpu_isa_avx512_core_bf16) != dnnl_cpu_isa_avx512_core_bf16) return std::nullopt;

  const OneThread one_thread;  // a primitive keeps the number of threads for which it is made
  const auto a = matrix(of.m, of.k, of.a.stride, of.a.transposed, Type::bf16);
  const auto b = matrix(of.k, of.n, of.b.stride, of.b.transposed, Type::bf16);
  const auto c =
      matrix(of.m, of.n, of.c_stride, false, of.to == Bf16Sizes::To::bf16 ? Type::bf16 : Type::f32);
  const auto bias = of.bias ? matrix(1, of.n, of.n, false, Type::bf16) : dnnl::memory::desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (of.to == Bf16Sizes::To::added_to_floats) {
    dnnl::post_ops after;
    after.append_sum(1);
    attributes.set_post_ops(after);
  }
#if DNNL_VERSION_MAJOR < 3
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, bias, c), attributes, cpu_engine(),
                                                 /*allow_empty=*/true);
#else
  const dnnl::matmul::primitive_desc description(cpu_engine(), a, b, bias, c, attributes,
                                                 /*allow_empty=*/true);
#endif
  if (!description || std::string_view(description.impl_info_str()).starts_with("ref")) return std::nullopt;
  const std::size_t scratch_bytes = description.scratchpad_desc().get_size();
  return Bf16Product(std::make_shared<Prepared>(Prepared{description}),
                     (scratch_bytes + sizeof(float) - 1) / sizeof(float));
}

void Bf16Product::operator()(const Bf16* a, const Bf16* b, const Bf16* bias, void* c,
                             FloatView scratch) const noexcept try {
  const OneThread one_thread;
  const auto& of = prepared_->description;
  // A memory object of oneDNN wants a pointer to writable data, also for an operand.
  const auto read = [](const dnnl::memory::desc& description, const Bf16* data) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
    return dnnl::memory(description, cpu_engine(), const_cast<Bf16*>(data));
  };
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, read(of.src_desc(), a)},
      {DNNL_ARG_WEIGHTS, read(of.weights_desc(), b)},
      {DNNL_ARG_DST, dnnl::memory(of.dst_desc(), cpu_engine(), c)},
      {DNNL_ARG_SCRATCHPAD, dnnl::memory(of.scratchpad_desc(), cpu_engine(), scratch.data())}};
  if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, read(of.bias_desc(), bias));
  thread_local dnnl::stream stream(cpu_engine());
  prepared_->primitive.execute(stream, arguments);
} catch (const dnnl::error& error) {
  end(error.status == dnnl_out_of_memory);
} catch (const std::bad_alloc&) {
  end(true);
}

}  // namespace starpipe::model::cpu
