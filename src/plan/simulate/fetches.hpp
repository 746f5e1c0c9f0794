// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// An input of a job that lies on another worker.
struct Fetch {
  enum class Kind : std::uint8_t {
    activation,
    stash,
    gradient_stash,
    gradient,
    keys_values,
    keys_values_gradient,
    weights
  };
  Kind kind;
  JobId producer;  ///< for weights: the holder
  int stage;       ///< for weights that stages share: the number of stages plus the set's number
  int from;        ///< worker
  std::uint64_t bytes;
};

/// The inputs that the jobs of a schedule read from other workers. Copies of stashes are none of them. The
/// references must outlive this.
class Fetches {
 public:
  Fetches(const Schedule& schedule, const Costs& costs) : schedule_(schedule), costs_(costs) {
    for (const SharedWeights& shared : costs.shared)
      holders_.emplace_back(schedule, schedule, shared.stages.front());
  }

  /// Calls f(Fetch) for each input of `id` that lies on another worker.
  template <class Function>
  void for_each(JobId id, Function&& f) const {
    const Job job = schedule_.job(id);
    if (is_copy(job.pass)) return;
    const Placement at = schedule_.placement(id);
    const StageSizes& size = costs_.size(job);
    const auto from = [&](JobId producer, Fetch::Kind kind, std::uint64_t bytes) {
      const int worker = schedule_.compute(producer);
      if (worker != at.compute) f(Fetch{kind, producer, job.stage, worker, bytes});
    };
    const JobId stash_maker = schedule_.stash_maker(job.stage, job.microbatch);
    if (job.pass == Pass::F || id == stash_maker) {
      for (const int p : schedule_.graph().pred(job.stage)) {
        from(schedule_.forward(p, job.microbatch), Fetch::Kind::activation,
             costs_.size(p, job.microbatch).activation);
      }
    } else {
      from(stash_maker, Fetch::Kind::stash, size.stash);
    }
    if (gives_input_gradient(job.pass) || (job.pass == Pass::R && schedule_.recomputes_late())) {
      for (const int s : schedule_.graph().succ(job.stage)) {
        from(schedule_.backward(s, job.microbatch), Fetch::Kind::gradient, size.gradient);
      }
    }
    if (job.pass == Pass::W)
      from(schedule_.backward(job.stage, job.microbatch), Fetch::Kind::gradient_stash, size.gradient_stash);
    if (schedule_.slices() > 1 && size.has_keys_values) for_each_of_slices(job, from);
    for_each_of_weights(id, f);
  }

  /// Does the same for weights alone.
  template <class Function>
  void for_each_of_weights(JobId id, Function&& f) const {
    const Job job = schedule_.job(id);
    const auto [holder, worker] = schedule_.placement(id);
    if (job.pass == Pass::W || is_copy(job.pass)) return;
    const StageSizes& size = costs_.size(job.stage);
    if (holder != worker && size.has_weights)
      f(Fetch{Fetch::Kind::weights, static_cast<JobId>(holder), job.stage, holder, size.weights});
    for (std::size_t k = 0; k < holders_.size(); ++k) {
      if (!std::ranges::binary_search(costs_.shared[k].stages, job.stage)) continue;
      const int from = holders_[k].of(id);
      if (from == worker) continue;
      f(Fetch{Fetch::Kind::weights, static_cast<JobId>(from), schedule_.stages() + static_cast<int>(k), from,
              costs_.shared[k].weights});
    }
  }

  [[nodiscard]] bool any_of_weights(JobId id) const {
    bool any = false;
    for_each_of_weights(id, [&any](const Fetch&) { any = true; });
    return any;
  }

  /// Names the copy that `worker` gets, and that all its readers there use; returns nullopt for a datum that
  /// has one reader.
  [[nodiscard]] std::optional<std::uint64_t> copy(const Fetch& fetch, int worker) const {
    if (fetch.kind == Fetch::Kind::gradient_stash) return std::nullopt;
    // A stage that adds its inputs computes one gradient, which all stages before it read. Any other stage
    // computes one for each stage before it. Only B of that stage reads it, and R if R is late.
    const bool is_of_stage =
        fetch.kind == Fetch::Kind::gradient && !costs_.size(schedule_.job(fetch.producer).stage).adds_inputs;
    if (is_of_stage && !schedule_.recomputes_late()) return std::nullopt;
    // A holder may send the weights of several stages, so these need their stage too.
    const bool needs_stage = is_of_stage || fetch.kind == Fetch::Kind::weights;
    const auto stage = needs_stage ? static_cast<std::uint64_t>(fetch.stage) : 0;
    const auto workers = static_cast<std::uint64_t>(schedule_.workers());
    const auto producers = static_cast<std::uint64_t>(schedule_.id_count()) + workers;
    const std::uint64_t datum = static_cast<std::uint64_t>(fetch.kind) * producers + fetch.producer;
    return (datum * workers + static_cast<std::uint64_t>(worker)) *
               (index(schedule_.stages()) + holders_.size()) +
           stage;
  }

 private:
  // Calls from() for what a job reads of slices: the keys and values of the slices before, for B also of its
  // own slice, and for B the gradients of the slice after.
  template <class From>
  void for_each_of_slices(const Job& job, From&& from) const {
    const auto [s, b, pass] = job;
    const bool is_backward = gives_input_gradient(pass);
    if (pass != Pass::F && !is_backward) return;
    for (int earlier = b - schedule_.slice(b); earlier < b + (is_backward ? 1 : 0); ++earlier)
      from(schedule_.forward(s, earlier), Fetch::Kind::keys_values, costs_.size(s, earlier).keys_values);
    if (is_backward && !schedule_.is_last_slice(b))
      from(schedule_.backward(s, b + 1), Fetch::Kind::keys_values_gradient,
           costs_.handed_back(schedule_, s, b));
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<SharedHolders> holders_;  // of Costs::shared
};

/// Calls f(JobId) for every job that must end before `id` starts, and for each earlier job whose result `id`
/// reads: the stash for W, the activations of preceding stages for R, and keys and values of slices before.
template <class Function>
void for_each_producer(const Schedule& schedule, JobId id, Function&& f) {
  schedule.for_each_pred(id, f);
  const Job job = schedule.job(id);
  if (job.pass == Pass::W) f(schedule.stash_maker(job.stage, job.microbatch));
  if (job.pass == Pass::R) {
    for (const int stage : schedule.graph().pred(job.stage)) f(schedule.forward(stage, job.microbatch));
  }
  if (job.pass != Pass::F && !gives_input_gradient(job.pass)) return;
  // F of the slice before is among those above for F.
  const int end = job.microbatch - (job.pass == Pass::F ? 1 : 0);
  for (int b = job.microbatch - schedule.slice(job.microbatch); b < end; ++b)
    f(schedule.forward(job.stage, b));
}

}  // namespace starpipe::plan
