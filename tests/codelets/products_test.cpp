// SPDX-License-Identifier: Apache-2.0
// Matrix products on a core, by each of their implementations.
#include "codelets/cpu/products.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <limits>
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
constexpr Sizes all_sizes[] = {{512, 384, 128}, {128, 512, 96}, {64, 192, 32}, {64, 32, 192}, {33, 65, 17},
                               {1, 257, 33},    {257, 1, 33},   {5, 3, 1},     {1, 1, 1},     {7, 300, 401}};

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

}  // namespace
}  // namespace starpipe::model::cpu
