// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace starpipe::plan {

/// The largest sizes that users may ask for, on the command line and in Python: larger ones would only fill
/// the memory, or never end.
namespace size_limits {

inline constexpr int workers = 1 << 16;
inline constexpr int microbatches = 1 << 20;
inline constexpr int stages = 1 << 16;
inline constexpr int units = 4096;  ///< of a model that is partitioned
inline constexpr int search_workers = 1 << 10;
inline constexpr int search_microbatches = 1 << 16;
inline constexpr int search_chunks = 64;
inline constexpr int periodic_stages = 1 << 12;
inline constexpr int periodic_repetitions = 16;  ///< micro-batches of a pattern

/// Stages times micro-batches: of all schedules that one command makes, of a schedule that is searched for,
/// and of one that repeats a periodic pattern.
inline constexpr std::int64_t pairs = 20'000'000;
inline constexpr std::int64_t search_pairs = 2'000'000;
inline constexpr std::int64_t periodic_pairs = 2'000'000;

}  // namespace size_limits

/// Throws InputError, beginning with `key`, when `stages` times `microbatches` is above `most`.
void require_few_jobs(std::string_view key, std::int64_t stages, std::int64_t microbatches,
                      std::int64_t most = size_limits::pairs);

}  // namespace starpipe::plan
