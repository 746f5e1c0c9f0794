// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace starpipe::model {

/// Writes mean + deviation * number i to out[i - first], for each i of [first, first + out.size()). Number i
/// is standard normal and depends only on the key and on i, so any thread or rank makes any part of the
/// array. Its bits do not depend on the compiler, the processor or the C library: only sums, products,
/// quotients and square roots are computed, which IEEE 754 defines exactly. Thread-safe.
void normal_numbers(std::uint64_t key, std::size_t first, double mean, double deviation,
                    std::span<float> out);

/// Code that does the same with instructions of one kind.
using NormalNumbers = decltype(&normal_numbers);
/// Returns the codes that this processor can run, fastest last. `normal_numbers` runs the last one.
std::span<const NormalNumbers> normal_numbers_codes();

}  // namespace starpipe::model
