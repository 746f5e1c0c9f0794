// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include <sched.h>

#include "model/random.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {
namespace {

// Returns a tensor's own key, from the seed and its name.
std::uint64_t key_of(const Parameter& parameter, std::uint64_t seed) {
  std::vector<std::uint32_t> words;
  for (const char c : parameter.name) words.push_back(static_cast<unsigned char>(c));
  return generator(seed, words)();
}

// Calls work(0), ..., work(count - 1), each once, on as many threads as this one may use cores.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool is_known = sched_getaffinity(0, sizeof cores, &cores) == 0;
  const std::size_t threads = std::min(count, index(is_known ? CPU_COUNT(&cores) : 1));
  std::atomic<std::size_t> next = 0;
  const auto take_all = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  try {
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back(take_all);
  } catch (const std::system_error&) {  // the system allows no further thread: fewer share the work
  }
  take_all();
}

// A run of neighbouring numbers that have a place in a tensor.
struct DrawnRun {
  const Parameter* parameter;
  std::uint64_t key;
  std::size_t first;  // in the tensor
  std::span<float> values;
};

// The runs of a parameter, cut so that threads share the work.
void add_runs(const Parameter& parameter, std::uint64_t seed, std::span<float> own,
              std::vector<DrawnRun>& runs) {
  constexpr std::size_t max_run = std::size_t{1} << 16U;
  const std::uint64_t key = key_of(parameter, seed);
  parameter.piece.for_each_run(own.size(), [&](std::size_t from, std::size_t to, std::size_t count) {
    for (std::size_t at = 0; at < count; at += max_run)
      runs.push_back({&parameter, key, from + at, own.subspan(to + at, std::min(max_run, count - at))});
  });
}

}  // namespace

void initial_parameters(std::span<const Parameter> parameters, std::uint64_t seed, std::span<float> values) {
  std::vector<DrawnRun> runs;
  for (const Parameter& parameter : parameters) {
    const std::span<float> own = values.first(parameter.size());
    values = values.subspan(own.size());
    if (parameter.deviation == 0) {
      std::ranges::fill(own, static_cast<float>(parameter.mean));
    } else {
      add_runs(parameter, seed, own, runs);
    }
  }
  in_parallel(runs.size(), [&](std::size_t r) {
    const auto& [parameter, key, first, out] = runs[r];
    normal_numbers(key, first, parameter->mean, parameter->deviation, out);
  });
}

std::vector<float> initial_parameters(std::span<const Parameter> parameters, std::uint64_t seed) {
  std::size_t size = 0;
  for (const Parameter& parameter : parameters) size += parameter.size();
  std::vector<float> values(size);
  initial_parameters(parameters, seed, values);
  return values;
}

}  // namespace starpipe::model
