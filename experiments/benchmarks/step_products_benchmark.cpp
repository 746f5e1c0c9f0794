// SPDX-License-Identifier: Apache-2.0
// The matrix products of F and BW of a GPT or an MLP alone, with the sizes that the layers on cores have: no
// bias, no other loops, no tasks. Each of two threads computes whole micro-batches, as the workers of ddp do.
// All products of a thread share three arrays, which stay in caches, so the result is an upper bound. Prints
// tokens per second of both threads together, the median of several times. cpu.py compares training with it.
//
//   step_products_benchmark fp32|bf16 LAYERS HIDDEN CONTEXT SEQUENCES
//   step_products_benchmark --mlp fp32|bf16 LAYERS HIDDEN 1 SAMPLES
#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "aligned_floats.hpp"
#include "codelets/cpu/products.hpp"

namespace starpipe::model::cpu {
namespace {

constexpr std::size_t vocabulary = 256;
constexpr std::size_t head_size = 64;
constexpr std::size_t block = 64;  // queries whose scores are computed together

struct Shape {
  std::string precision;
  std::size_t layers, hidden, context, sequences;
  bool mlp;  ///< linear layers only, all of them hidden x hidden, and one more behind them
};

/// The products of one micro-batch, in the order of a step, with memory of their own.
class Products {
 public:
  /// Throws std::runtime_error if there are no products in bf16 here.
  explicit Products(const Shape& shape) : bf16_(shape.precision == "bf16") {
    const std::size_t rows = shape.context * shape.sequences;
    const std::size_t h = shape.hidden;
    if (shape.mlp) {
      for (std::size_t layer = 0; layer <= shape.layers; ++layer) add_linear(rows, h, h, layer > 0);
    } else {
      for (std::size_t layer = 0; layer < shape.layers; ++layer) add_block(shape);
      add_linear(rows, h, vocabulary);
    }
    const std::size_t largest =
        std::max({rows * 4 * h, 4 * h * h, h * vocabulary, rows * vocabulary, shape.context * block});
    for (int i = 0; i < 3; ++i) arrays_.emplace_back(largest, 0.01f);
    scratch_.emplace(scratch_size_);
  }

  Products(const Products&) = delete;  // its products point to it
  Products& operator=(const Products&) = delete;

  void compute() {
    for (const auto& product : products_) product();
  }

 private:
  using Operand = Bf16Sizes::Operand;
  using To = Bf16Sizes::To;

  void add(std::size_t m, std::size_t n, std::size_t k, Operand a, Operand b, std::size_t c_stride, To to) {
    if (bf16_) {
      const auto product = Bf16Product::prepare({m, n, k, a, b, c_stride, to});
      if (!product) throw std::runtime_error("this processor or library has no products in bf16");
      scratch_size_ = std::max(scratch_size_, product->scratch_size());
      products_.emplace_back([this, product = *product] {
        product(operand(0), operand(1), nullptr, arrays_[2].data(), {scratch_->data(), scratch_->size()});
      });
    } else {
      products_.emplace_back([=, this] {
        multiply(
            m, n, k, {arrays_[0].data(), a.stride, a.transposed}, {arrays_[1].data(), b.stride, b.transposed},
            to == To::added_to_floats ? Result::is_added : Result::replaces, arrays_[2].data(), c_stride);
      });
    }
  }

  void add_block(const Shape& shape) {
    const std::size_t rows = shape.context * shape.sequences;
    const std::size_t h = shape.hidden;
    const std::size_t heads = h / head_size;
    add_linear(rows, h, 3 * h);
    for (std::size_t i = 0; i < shape.sequences * heads; ++i) add_head(shape.context, 3 * h, h);
    add_linear(rows, h, h);
    add_linear(rows, h, 4 * h);
    add_linear(rows, 4 * h, h);
  }

  /// The first layer of an MLP has no gradient of its input.
  void add_linear(std::size_t rows, std::size_t in, std::size_t out, bool input_gradient = true) {
    add(rows, out, in, {in}, {out}, out, To::bf16);
    if (input_gradient) add(rows, in, out, {out}, {out, true}, in, To::bf16);
    add(in, out, rows, {in, true}, {out}, out, To::added_to_floats);
  }

  /// A head of a sequence: F's two products, and B's five.
  void add_head(std::size_t context, std::size_t in, std::size_t out) {
    for (std::size_t first = 0; first < context; first += block) {
      const std::size_t queries = std::min(block, context - first);
      const std::size_t keys = first + queries;
      for (int pass = 0; pass < 2; ++pass) add(queries, keys, head_size, {in}, {in, true}, keys, To::floats);
      add(queries, head_size, keys, {keys}, {in}, out, To::bf16);
      add(keys, head_size, queries, {keys, true}, {out}, head_size, To::added_to_floats);
      add(queries, keys, head_size, {out}, {in, true}, keys, To::floats);
      add(queries, head_size, keys, {keys}, {in}, in, To::bf16);
      add(keys, head_size, queries, {keys, true}, {in}, head_size, To::added_to_floats);
    }
  }

  const Bf16* operand(std::size_t array) { return Memory(arrays_[array].data(), 1).as<Bf16>(); }

  bool bf16_;
  std::vector<AlignedFloats> arrays_;
  std::size_t scratch_size_ = 0;
  std::optional<AlignedFloats> scratch_;
  std::vector<std::function<void()>> products_;
};

double tokens_per_second(const Shape& shape) {
  constexpr int times = 7;
  constexpr int threads = 2;
  std::array<double, times> seconds{};
  std::barrier together(threads);
  std::array<Products, threads> products = {Products(shape), Products(shape)};
  const auto work = [&](std::size_t thread) {
    products[thread].compute();
    for (double& time : seconds) {
      together.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      for (int microbatch = 0; microbatch < 4; ++microbatch) products[thread].compute();
      together.arrive_and_wait();
      if (thread == 0) time = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  };
  std::jthread other(work, 1);
  work(0);
  other.join();
  std::ranges::nth_element(seconds, seconds.begin() + times / 2);
  return static_cast<double>(threads * 4 * shape.context * shape.sequences) / seconds[times / 2];
}

}  // namespace
}  // namespace starpipe::model::cpu

int main(int argc, char** argv) {
  starpipe::model::cpu::Shape shape{};
  CLI::App command("The rate of the matrix products of a step on two cores, without anything else.");
  command.add_flag("--mlp", shape.mlp, "Of an MLP; the default is a GPT");
  command.add_option("precision", shape.precision)->required()->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_option("layers", shape.layers)->required()->check(CLI::PositiveNumber);
  command.add_option("hidden", shape.hidden, "A multiple of 64")->required()->check(CLI::PositiveNumber);
  command.add_option("context", shape.context)->required()->check(CLI::PositiveNumber);
  command.add_option("sequences", shape.sequences, "Of a micro-batch")
      ->required()
      ->check(CLI::PositiveNumber);
  try {
    command.parse(argc, argv);
    if (shape.hidden % starpipe::model::cpu::head_size != 0)
      throw std::runtime_error("hidden: not a multiple of 64");
    fmt::print("{:.0f}\n", starpipe::model::cpu::tokens_per_second(shape));
    return 0;
  } catch (const CLI::ParseError& error) {
    return command.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "step_products_benchmark: {}\n", error.what());
    return 2;
  }
}
