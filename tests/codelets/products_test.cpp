// SPDX-License-Identifier: Apache-2.0
// Matrix products on a core, by each of their implementations.
#include "codelets/cpu/products.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "model/gradients.hpp"

extern "C" {
int omp_get_max_threads() __attribute__((weak));
void omp_set_num_threads(int number) __attribute__((weak));
}

namespace starpipe::model::cpu {
namespace {

using Floats = std::vector<float>;
using testing::random_floats;

struct Sizes {
  std::size_t m, n, k;
};

// Of layers, of attention's blocks, and odd ones.
constexpr Sizes all_sizes[] = {{512, 384, 128}, {128, 512, 96}, {64, 192, 32}, {64, 32, 192},
                               {33, 65, 17},    {1, 257, 33},   {257, 1, 33},  {5, 3, 1},
                               {1, 1, 1},       {7, 300, 401},  {48, 80, 2500}};

/// A product in arrays with room around their matrices.
struct Product {
  static constexpr float outside = 77;

  Sizes sizes;
  bool a_transposed, b_transposed;
  Result result;
  std::size_t room = 3;  ///< of a row, behind it
  std::size_t a_stride = (a_transposed ? sizes.m : sizes.k) + room;
  std::size_t b_stride = (b_transposed ? sizes.k : sizes.n) + room;
  std::size_t c_stride = sizes.n + room;
  Floats a = random_floats((a_transposed ? sizes.k : sizes.m) * a_stride, 1);
  Floats b = random_floats((b_transposed ? sizes.n : sizes.k) * b_stride, 2);

  /// Computes the product with operands and result `offset` floats behind an aligned address. Returns C with
  /// the room of its rows.
  [[nodiscard]] Floats compute(std::size_t offset = 0, float start = 0.5f) const {
    const auto moved = [offset](const Floats& values) {
      Floats result(offset);
      result.insert(result.end(), values.begin(), values.end());
      return result;
    };
    const Floats moved_a = moved(a);
    const Floats moved_b = moved(b);
    Floats c(offset + sizes.m * c_stride, outside);
    for (std::size_t i = 0; i < sizes.m; ++i) std::fill_n(c.data() + offset + i * c_stride, sizes.n, start);
    multiply(sizes.m, sizes.n, sizes.k, {moved_a.data() + offset, a_stride, a_transposed},
             {moved_b.data() + offset, b_stride, b_transposed}, result, c.data() + offset, c_stride);
    return {c.begin() + static_cast<std::ptrdiff_t>(offset), c.end()};
  }

  [[nodiscard]] double exact(std::size_t i, std::size_t j, float start = 0.5f) const {
    double sum = result == Result::is_added ? start : 0;
    for (std::size_t l = 0; l < sizes.k; ++l) {
      sum += static_cast<double>(a_transposed ? a[l * a_stride + i] : a[i * a_stride + l]) *
             static_cast<double>(b_transposed ? b[j * b_stride + l] : b[l * b_stride + j]);
    }
    return sum;
  }
};

std::vector<Product> products() {
  std::vector<Product> all;
  for (const Sizes& sizes : all_sizes) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) {
        for (const Result result : {Result::replaces, Result::is_added}) all.push_back({sizes, a, b, result});
      }
    }
  }
  return all;
}

TEST(Products, AreThoseOfTheirDefinition) {
  for (const Product& product : products()) {
    const auto [m, n, k] = product.sizes;
    SCOPED_TRACE(::testing::Message()
                 << m << " x " << n << " x " << k << ", transposed " << product.a_transposed
                 << product.b_transposed << ", added " << (product.result == Result::is_added));
    const Floats c = product.compute();
    double worst = 0;
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j)
        worst = std::max(worst, std::abs(c[i * product.c_stride + j] - product.exact(i, j)));
      for (std::size_t j = n; j < product.c_stride; ++j)
        ASSERT_EQ(c[i * product.c_stride + j], Product::outside) << "behind a row";
    }
    EXPECT_LT(worst, 1e-6 * (4 + 4 * std::sqrt(static_cast<double>(k))));
  }
}

TEST(Products, ReadNothingThatTheyReplace) {
  for (const Sizes& sizes : all_sizes) {
    const Product product{sizes, false, true, Result::replaces};
    EXPECT_EQ(product.compute(0, std::numeric_limits<float>::quiet_NaN()), product.compute());
  }
}

// Data of a run lie at other addresses under another schedule, on other ranks and after a resume.
TEST(Products, HaveTheSameBitsAtAllAddresses) {
  for (const Product& product : products()) {
    const Floats c = product.compute();
    for (const std::size_t offset : {1UL, 2UL, 3UL, 4UL, 7UL, 8UL, 15UL, 16UL, 1023UL})
      EXPECT_EQ(product.compute(offset), c)
          << product.sizes.m << " x " << product.sizes.n << " x " << product.sizes.k << ", offset " << offset;
  }
}

std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// Each worker has a core. OMP_NUM_THREADS, or the number of cores, is the number that a new thread starts
// with, as if it had called omp_set_num_threads.
TEST(Products, UseTheCallingThreadOnly) {
  if (omp_set_num_threads == nullptr) GTEST_SKIP() << "the library is built without OpenMP";
  const Product product{{512, 512, 512}, false, false, Result::replaces};
  const Floats alone = product.compute();
  std::thread([&] {
    const std::ptrdiff_t before = thread_count();
    omp_set_num_threads(4);
    EXPECT_EQ(product.compute(), alone);
    EXPECT_EQ(thread_count(), before);
    EXPECT_EQ(omp_get_max_threads(), 4) << "the caller's number stays";
  }).join();
}

std::vector<Bf16> rounded(const Floats& values) {
  std::vector<Bf16> result(values.size());
  std::ranges::copy(values, result.begin());
  return result;
}

template <class Number>
void expect_same_bits(const std::vector<Number>& a, const std::vector<Number>& b, const std::string& where) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  EXPECT_TRUE(std::ranges::equal(a, b, {}, bits, bits)) << "other bits " << where;
}

/// The same product of operands that are rounded to bf16.
struct RoundedProduct {
  Product exact;
  Bf16Sizes::To to;
  bool with_bias;
  std::vector<Bf16> a = rounded(exact.a);
  std::vector<Bf16> b = rounded(exact.b);
  std::vector<Bf16> bias = rounded(random_floats(exact.sizes.n, 3));
  std::optional<Bf16Product> product = Bf16Product::prepare({.m = exact.sizes.m,
                                                             .n = exact.sizes.n,
                                                             .k = exact.sizes.k,
                                                             .a = {exact.a_stride, exact.a_transposed},
                                                             .b = {exact.b_stride, exact.b_transposed},
                                                             .c_stride = exact.c_stride,
                                                             .to = to,
                                                             .bias = with_bias});

  RoundedProduct(const Product& of, Bf16Sizes::To c, bool biased) : exact(of), to(c), with_bias(biased) {
    std::ranges::copy(a, exact.a.begin());
    std::ranges::copy(b, exact.b.begin());
  }

  /// Returns C with the room of its rows. `offset`: of all data, in their elements, behind an aligned
  /// address.
  template <class Number>
  [[nodiscard]] std::vector<Number> compute(std::size_t offset = 0, float start = 0.5f) const {
    const auto moved = [offset](const std::vector<Bf16>& values) {
      std::vector<Bf16> result(offset);
      result.insert(result.end(), values.begin(), values.end());
      return result;
    };
    const auto moved_a = moved(a);
    const auto moved_b = moved(b);
    const auto moved_bias = moved(bias);
    std::vector<Number> c(offset + exact.sizes.m * exact.c_stride);
    std::ranges::fill(c, Product::outside);
    for (std::size_t i = 0; i < exact.sizes.m; ++i) {
      for (std::size_t j = 0; j < exact.sizes.n; ++j) c[offset + i * exact.c_stride + j] = start;
    }
    Floats scratch(offset + product->scratch_size(), std::numeric_limits<float>::quiet_NaN());
    (*product)(moved_a.data() + offset, moved_b.data() + offset,
               with_bias ? moved_bias.data() + offset : nullptr, c.data() + offset,
               FloatView(scratch).subspan(offset));
    return {c.begin() + static_cast<std::ptrdiff_t>(offset), c.end()};
  }

  template <class Number>
  void check() const {
    const auto [m, n, k] = exact.sizes;
    SCOPED_TRACE(::testing::Message()
                 << m << " x " << n << " x " << k << ", transposed " << exact.a_transposed
                 << exact.b_transposed << ", to " << static_cast<int>(to) << ", bias " << with_bias);
    const std::vector<Number> c = compute<Number>();
    const double one_sum = 1e-6 * (4 + 4 * std::sqrt(static_cast<double>(k)));
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const double wanted = exact.exact(i, j) + (with_bias ? static_cast<float>(bias[j]) : 0.0f);
        const double rounding = to == Bf16Sizes::To::bf16 ? std::abs(wanted) / 256 : 0;
        ASSERT_NEAR(static_cast<float>(c[i * exact.c_stride + j]), wanted, one_sum + rounding);
      }
      for (std::size_t j = n; j < exact.c_stride; ++j)
        ASSERT_EQ(static_cast<float>(c[i * exact.c_stride + j]), Product::outside) << "behind a row";
    }
    for (const std::size_t offset : {1UL, 2UL, 3UL, 8UL, 31UL}) {
      expect_same_bits(compute<Number>(offset), c, "at offset " + std::to_string(offset));
    }
    if (to != Bf16Sizes::To::added_to_floats)
      expect_same_bits(compute<Number>(0, std::numeric_limits<float>::quiet_NaN()), c, "where C was NaN");
  }
};

// Layers have matrices without room behind their rows, for which oneDNN has other kernels.
TEST(Bf16Products, AreThoseOfTheirDefinitionAtAllAddresses) {
  using To = Bf16Sizes::To;
  const Product small{{1, 1, 1}, false, false, Result::replaces};
  if (!RoundedProduct(small, To::bf16, false).product)
    GTEST_SKIP() << "this processor or library has no products in bf16";
  for (Product product : products()) {
    const bool added = product.result == Result::is_added;
    for (const std::size_t room : {0UL, 3UL}) {
      product = {product.sizes, product.a_transposed, product.b_transposed, product.result, room};
      for (const To to : {To::bf16, To::floats, To::added_to_floats}) {
        if (added != (to == To::added_to_floats)) continue;
        for (const bool with_bias : {false, true}) {
          const RoundedProduct rounded(product, to, with_bias && to == To::bf16);
          ASSERT_TRUE(rounded.product)
              << product.sizes.m << " x " << product.sizes.n << " x " << product.sizes.k;
          to == To::bf16 ? rounded.check<Bf16>() : rounded.check<float>();
        }
      }
    }
  }
}

TEST(Bf16Products, UseTheCallingThreadOnly) {
  if (omp_set_num_threads == nullptr) GTEST_SKIP() << "the library is built without OpenMP";
  std::thread([] {
    omp_set_num_threads(4);
    const RoundedProduct product({{512, 512, 512}, false, false, Result::replaces}, Bf16Sizes::To::bf16,
                                 false);
    if (!product.product) GTEST_SKIP() << "this processor or library has no products in bf16";
    const std::ptrdiff_t before = thread_count();
    (void)product.compute<Bf16>();
    EXPECT_EQ(thread_count(), before);
    EXPECT_EQ(omp_get_max_threads(), 4) << "the caller's number stays";
  }).join();
}

}  // namespace
}  // namespace starpipe::model::cpu
