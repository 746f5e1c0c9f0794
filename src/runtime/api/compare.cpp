// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/compare.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.hpp"
#include "base/messages.hpp"
#include "plan/drawing/timeline_svg.hpp"
#include "runtime/api/comparison_output.hpp"
#include "runtime/api/run_on_ranks.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/setup/expected_costs.hpp"

namespace starpipe::runtime {
namespace {

void repeat(const AgreedRun& run, ComparedPolicy& policy) {
  const Experiment& experiment = run.experiment;
  Measurement measurement(experiment.schedule, costs_by_flops(experiment.network), experiment.emulated);
  std::vector<double> submissions;
  int skipped = 0;
  {
    const Session session(run.mpi, run.map, run.share, policy.choice, run.gpus);
    policy.ran = session.policy();
    or_abort(run.mpi, [&] {
      Engine engine = make_engine(session, run);
      or_abort(run.mpi, [&] {
        for (int step = 0; step < run.config.training.steps; ++step) {
          measurement.begin_step();
          StepResult result = engine.run_step(step, *experiment.data);
          if (step == 1) submissions.clear();  // step 0 warmed up
          submissions.push_back(result.submission);
          if (result.skipped_for) ++skipped;
          if (run.mpi.rank() == 0) measurement.end_step(std::move(result));
        }
        require_finite_weights(run, engine);
      });
    });
  }  // the engine's tables and those of the simulations below are as large as the step: not both at once
  if (run.mpi.rank() != 0) return;
  std::ranges::sort(submissions);
  plan::ComparedRun compared = measurement.compared();
  const double makespan = compared.measured.timeline.makespan;
  policy.repetitions.push_back({makespan, std::move(compared.measured), std::move(compared.costs),
                                submissions[submissions.size() / 2], skipped});
}

// Needs no ranks, so that mistakes are found before data are read or cores are bound.
std::vector<ComparedPolicy> find_policies(const Config& config, const Comparison& comparison) {
  std::vector<ComparedPolicy> policies;
  for (const std::string& name : comparison.policies) {
    if (std::ranges::any_of(policies, [&](const ComparedPolicy& p) { return p.choice.name == name; })) {
      throw InputError(fmt::format("--policies: '{}' is named twice", name));
    }
    policies.emplace_back().choice = find_policy(name, "--policies");
  }
  for (const std::string& key : keys_of_policies(config)) {
    const std::vector<std::string> without = policies_without(key, comparison.policies);
    if (without.size() == comparison.policies.size()) {
      throw InputError(fmt::format("{}: does not apply to any of --policies {}", key,
                                   fmt::join(comparison.policies, ",")));
    }
    // It takes the schedule's order away from this policy, which then keeps no limit either.
    if (key == "schedule.dynamic" && !without.empty())
      throw InputError(
          fmt::format("{}: does not apply to {}; give --policies without it", key, fmt::join(without, ", ")));
  }
  return policies;
}

// Collective. Throws InputError on every rank when rank 0 cannot write an output.
void require_outputs(const std::vector<AgreedRun>& runs, const Comparison& comparison) {
  const Mpi& mpi = runs.front().mpi;
  agree(mpi, [&] {
    std::size_t jobs = 0;  // of the timeline: predicted, and under each policy
    for (const AgreedRun& run : runs)
      jobs += run.experiment.schedule.job_count() * (1 + comparison.policies.size());
    if (comparison.timeline) plan::require_drawable(jobs);
    if (mpi.rank() == 0) {
      if (comparison.output) require_writable("--output", *comparison.output);
      if (comparison.timeline) require_writable("--timeline", *comparison.timeline);
      if (comparison.html) require_writable("--html", *comparison.html);
    }
    return true;
  });
}

// Runs every schedule under every policy, in an order that each repetition shuffles anew.
void repeat_all(const Comparison& comparison, std::vector<ComparedSchedule>& schedules) {
  const ProgressLine progress;
  std::mt19937_64 random(comparison.seed);  // the same order on every rank
  const std::size_t policies = comparison.policies.size();
  std::vector<std::size_t> order(schedules.size() * policies);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const bool root = schedules.front().run->mpi.rank() == 0;
  for (int repetition = 0; repetition < comparison.repetitions; ++repetition) {
    std::ranges::shuffle(order, random);
    for (const std::size_t pair : order) {
      ComparedSchedule& compared = schedules[pair / policies];
      ComparedPolicy& policy = compared.policies[pair % policies];
      if (root) {
        progress.show(fmt::format("repetition {}/{}  {}{}", repetition + 1, comparison.repetitions,
                                  comparison.schedules.empty() ? "" : compared.schedule().name() + "  ",
                                  policy.choice.name));
      }
      repeat(*compared.run, policy);
    }
  }
  if (root) progress.clear();
}

RankRequest comparison_request(const Comparison& comparison) {
  RankRequest request("compare");
  request.add("--policies", fmt::format("{}", fmt::join(comparison.policies, ",")));
  request.add("--schedules", fmt::format("{}", fmt::join(comparison.schedules, ",")));
  request.add("--repetitions", std::to_string(comparison.repetitions));
  request.add("--seed", std::to_string(comparison.seed));
  request.add_flag("--json", comparison.json);
  request.add("--output", comparison.output);
  request.add("--timeline", comparison.timeline);
  request.add("--html", comparison.html);
  return request;
}

}  // namespace

int compare(const std::function<Config()>& configure, const Comparison& comparison) {
  std::vector<double> stage_shares(1, 1.0);
  std::vector<ComparedPolicy> policies;
  const auto configure_all = [&] {
    Config config = configure();
    policies = find_policies(config, comparison);
    if (comparison.schedules.empty()) return std::vector{std::move(config)};
    std::vector<Config> configs;
    stage_shares.clear();
    for (OtherSchedule& other : with_schedules(config, comparison.schedules)) {
      configs.push_back(std::move(other.config));
      stage_shares.push_back(other.stage_share);
    }
    return configs;
  };
  return run_on_ranks(comparison_request(comparison), configure_all, [&](const std::vector<AgreedRun>& runs) {
    for (const ComparedPolicy& policy : policies)
      check_shared_links(runs.front().config.runtime, policy.choice, runs.front().mpi.ranks());
    require_outputs(runs, comparison);
    std::vector<ComparedSchedule> schedules;
    for (std::size_t s = 0; s < runs.size(); ++s) schedules.push_back({&runs[s], stage_shares[s], policies});
    repeat_all(comparison, schedules);
    if (runs.front().mpi.rank() == 0) write_outputs(comparison, schedules);
  });
}

}  // namespace starpipe::runtime
