// SPDX-License-Identifier: Apache-2.0
#include "plan/search/shift_pattern.hpp"

#include <algorithm>
#include <cmath>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

/// The busiest worker's mean duration of a job, and its time for one micro-batch.
struct Scale {
  double job = 1;
  double microbatch = 1;
};

Scale scale_of(const Instance& instance) {
  Scale scale{0, 0};
  for (const auto& stages : instance.stages_of) {
    double time = 0;
    for (const int s : stages)
      time += instance.time[0][index(s)] + instance.time[1][index(s)] + instance.time[2][index(s)];
    if (time > scale.microbatch) scale = {time / static_cast<double>(3 * stages.size()), time};
  }
  return scale.microbatch > 0 ? scale : Scale{};
}

/// True if `s` is the last stage of its chunk: after it, the chain turns back or starts again at worker 0.
bool ends_chunk(const Instance& instance, int s) { return (s + 1) % instance.workers == 0; }

/// Sets the due times along the chain; `step(pass, stage)` is the time from a pass of a stage to the next
/// pass.
template <class Step>
void lay_chain(ShiftPattern& pattern, const Instance& instance, Step&& step) {
  double time = 0;
  for (int s = 0; s < instance.stages; ++s) {
    pattern.forward.push_back(time);
    time += step(0, s);
  }
  pattern.backward.resize(index(instance.stages));
  for (int s = instance.stages - 1; s >= 0; --s) {
    pattern.backward[index(s)] = time;
    time += step(1, s);
  }
}

/// Returns a pattern with the real durations and transfers, and the same wait at each stage of a chunk.
ShiftPattern timed_pattern(const Instance& instance, Random& random, const Scale& scale) {
  ShiftPattern pattern;
  pattern.period = scale.microbatch * random.uniform(0.9, 1.4);
  const double share = random.uniform(0, 1);
  const double max = share * share * 6 * scale.job;
  const int chunks = ceil_div(instance.stages, instance.workers);
  std::array<std::vector<double>, 2> wait;
  std::array<std::vector<double>, 2> turn;
  for (const std::size_t pass : {0U, 1U}) {
    for (int c = 0; c < chunks; ++c) {
      wait[pass].push_back(random.uniform(0, max));
      turn[pass].push_back(random.uniform(0, 2 * max));
    }
  }
  lay_chain(pattern, instance, [&](int pass, int s) {
    const auto p = index(pass);
    const auto chunk = index(s / instance.workers);
    const bool at_turn = pass == 0 ? ends_chunk(instance, s) : s % instance.workers == 0;
    const double lag = pass == 0 ? instance.forward_lag[index(s)]
                       : s > 0   ? instance.backward_lag[index(s - 1)]
                                 : 0;
    return instance.time[p][index(s)] + lag + (at_turn ? turn[p][chunk] : wait[p][chunk]);
  });
  return pattern;
}

/// Returns a pattern with passes of length one and whole distances, as in Controllable Memory, appendix A.
/// Distances may differ between the first workers and the others. In most patterns B mirrors F.
ShiftPattern grid_pattern(const Instance& instance, Random& random) {
  ShiftPattern pattern;
  const int chunks = ceil_div(instance.stages, instance.workers);
  pattern.period = 3 * chunks;
  const int split = random.chance(0.5) ? instance.workers : random.between(1, instance.workers);
  const int max = random.chance(0.5) ? 2 : 4;
  const bool mirrored = random.chance(0.75);
  std::array<std::vector<std::array<int, 2>>, 2> distance;
  std::array<std::vector<int>, 2> turn;
  for (const std::size_t pass : {0U, 1U}) {
    for (int c = 0; c < chunks; ++c) {
      distance[pass].push_back({random.between(1, max), random.between(1, max)});
      turn[pass].push_back(random.between(1, 2 * max));
    }
  }
  if (mirrored) std::reverse_copy(distance[0].begin(), distance[0].end(), distance[1].begin());
  lay_chain(pattern, instance, [&](int pass, int s) {
    const auto p = index(pass);
    const auto chunk = index(s / instance.workers);
    const int to = pass == 0 ? s + 1 : s - 1;
    if (pass == 0 ? ends_chunk(instance, s) : s % instance.workers == 0) return turn[p][chunk];
    if (to >= instance.stages) return turn[p][chunk];
    const int first = std::min(instance.worker_of[index(s)], instance.worker_of[index(to)]);
    return distance[p][chunk][first < split ? 0 : 1];
  });
  return pattern;
}

/// Shifts F of `stage` and of all later stages; B of all stages as well, unless `forward_only`.
void shift_from_forward(ShiftPattern& pattern, std::size_t stage, double shift, bool forward_only) {
  for (std::size_t s = stage; s < pattern.forward.size(); ++s) pattern.forward[s] += shift;
  if (forward_only) return;
  for (double& due : pattern.backward) due += shift;
}

/// Shifts B of `stage` and of all stages whose B comes later.
void shift_from_backward(ShiftPattern& pattern, std::size_t stage, double shift) {
  for (std::size_t s = 0; s <= stage; ++s) pattern.backward[s] += shift;
}

/// Changes the period, or a distance within groups.
void change_distances(ShiftPattern& pattern, Random& random) {
  if (random.chance(0.5)) {
    pattern.period *= random.uniform(0.97, 1.03);
  } else {
    (random.chance(0.5) ? pattern.forward_spacing : pattern.backward_spacing) *= random.uniform(0.8, 1.2);
  }
}

/// Changes a rule for when workers leave the order of the due times.
void change_rules(ShiftPattern& pattern, const Instance& instance, Random& random) {
  switch (random.below(5)) {
    case 0:
      pattern.weight_gap = random.uniform(0, 1.2);
      break;
    case 1:
      pattern.forward_gap = random.uniform(0, 2);
      break;
    case 2:
      pattern.backward_gap = random.uniform(0, 2);
      break;
    case 3:
      pattern.weight_backlog = random.chance(0.5) ? 1 << 30 : random.between(0, 2 * instance.stages);
      break;
    default:
      pattern.weights_before_early = random.chance(0.5);
      pattern.spare = random.chance(0.5) ? 0 : random.uniform(0, 1);
  }
}

}  // namespace

ShiftPattern random_pattern(const Instance& instance, Random& random) {
  const Scale scale = scale_of(instance);
  ShiftPattern pattern =
      random.chance(0.5) ? grid_pattern(instance, random) : timed_pattern(instance, random, scale);
  if (random.chance(0.5)) {
    const int passes = 3 * (instance.stages + instance.workers - 1) / instance.workers;
    const auto spacing = [&] {
      return random.chance(0.5) ? static_cast<double>(random.between(1, passes)) / passes
                                : random.uniform(0.1, 1);
    };
    pattern.group = random.between(2, random.chance(0.5) ? 4 : std::max(4, instance.workers));
    pattern.forward_spacing = spacing();
    pattern.backward_spacing = random.chance(0.5) ? pattern.forward_spacing : spacing();
  }
  pattern.forward_gap = random.uniform(0, 2);
  pattern.backward_gap = random.uniform(0, 1.5);
  pattern.weight_gap = random.uniform(0, 1.2);
  if (random.chance(0.5)) pattern.weight_backlog = random.between(0, 2 * instance.stages);
  pattern.weights_before_early = random.chance(0.5);
  if (random.chance(0.33)) pattern.spare = random.uniform(0, 1);
  return pattern;
}

ShiftPattern serial_pattern(const Instance& instance) {
  ShiftPattern pattern;
  lay_chain(pattern, instance, [](int, int) { return 1; });
  pattern.period = 3 * instance.stages;
  return pattern;
}

void mutate(ShiftPattern& pattern, const Instance& instance, Random& random) {
  const int passes = 3 * (instance.stages + instance.workers - 1) / instance.workers;
  for (int changes = random.between(1, 3); changes > 0; --changes) {
    const double size = 3 * pattern.period / passes * std::pow(10, random.uniform(-2, 0.7));
    const double shift = random.uniform(-size, size);
    const std::size_t stage = random.below(index(instance.stages));
    switch (random.below(10)) {
      case 0:
      case 1:
        pattern.forward[stage] += shift;
        break;
      case 2:
      case 3:
        pattern.backward[stage] += shift;
        break;
      case 4:
      case 5:
        shift_from_forward(pattern, stage, shift, random.chance(0.5));
        break;
      case 6:
      case 7:
        shift_from_backward(pattern, stage, shift);
        break;
      case 8:
        change_distances(pattern, random);
        break;
      default:
        change_rules(pattern, instance, random);
    }
  }
}

}  // namespace starpipe::plan
