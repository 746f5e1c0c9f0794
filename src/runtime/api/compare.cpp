// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/compare.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/api/training.hpp"
#include "runtime/engine/step_run.hpp"
#include "runtime/report/report.hpp"

namespace starpipe::runtime {
namespace {

void repeat(const AgreedRun& run, ComparedPolicy& policy) {
  std::vector<double> submissions;
  int skipped = 0;
  std::optional<Measurement> measurement;
  {
    Training training(run, policy.choice);
    for (int number = 0; number < run.config.training.steps; ++number) {
      const Step step = training.step();
      if (number == 1) submissions.clear();  // step 0 warmed up
      submissions.push_back(step.submission);
      if (step.skipped) ++skipped;
    }
    or_abort(run.mpi, [&] { require_finite_weights(run, training.engine()); });
    policy.ran = training.session().policy();
    measurement.emplace(training.take_measurement());
  }  // frees the engine's tables: they and the tables of the simulations below are each as large as the step
  if (run.mpi.rank() != 0) return;
  std::ranges::sort(submissions);
  plan::ComparedRun compared = measurement->compared();
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

// Runs every schedule under every policy, in an order that each repetition shuffles anew.
void repeat_all(const Mpi& mpi, const Comparison& comparison, std::vector<ComparedSchedule>& schedules,
                const CompareProgress& progress) {
  std::mt19937_64 random(comparison.seed);  // the same order on every rank
  const std::size_t policies = comparison.policies.size();
  std::vector<std::size_t> order(schedules.size() * policies);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int repetition = 0; repetition < comparison.repetitions; ++repetition) {
    std::ranges::shuffle(order, random);
    for (const std::size_t pair : order) {
      ComparedSchedule& compared = schedules[pair / policies];
      ComparedPolicy& policy = compared.policies[pair % policies];
      if (mpi.rank() == 0) progress(repetition, compared, policy.choice);
      repeat(*compared.run, policy);
    }
  }
}

}  // namespace

std::vector<OtherSchedule> configs_to_compare(const Config& config, const Comparison& comparison) {
  find_policies(config, comparison);
  if (comparison.schedules.empty()) return {{.config = config}};
  return with_schedules(config, comparison.schedules);
}

ComparedRuns compare(const Mpi& mpi, std::vector<OtherSchedule> configs, const Comparison& comparison,
                     const CompareCheck& check, const CompareProgress& progress) {
  const std::vector<ComparedPolicy> policies = find_policies(configs.front().config, comparison);
  std::vector<Config> of_runs;
  for (OtherSchedule& other : configs) of_runs.push_back(std::move(other.config));
  ComparedRuns compared{.agreed = agree_on_runs(mpi, std::move(of_runs)), .schedules = {}};
  const std::vector<AgreedRun>& runs = compared.agreed.runs;
  const std::vector<LeftOut>& left_out = compared.agreed.left_out;
  for (auto one = left_out.rbegin(); one != left_out.rend(); ++one)
    configs.erase(configs.begin() + static_cast<std::ptrdiff_t>(one->config));
  for (const ComparedPolicy& policy : policies)
    check_shared_links(runs.front().config.runtime, policy.choice, mpi.ranks());
  agree(mpi, [&] {
    check(runs);
    for (const AgreedRun& run : runs) {
      for (const ComparedPolicy& policy : policies) check_homes(run.experiment.schedule, policy.choice);
    }
    return true;
  });
  for (std::size_t s = 0; s < runs.size(); ++s)
    compared.schedules.push_back({&runs[s], configs[s].stage_share, policies});
  repeat_all(mpi, comparison, compared.schedules, progress);
  return compared;
}

int ComparedPolicy::skipped() const {
  int count = 0;
  for (const Repetition& repetition : repetitions) count += repetition.skipped;
  return count;
}

std::vector<double> ComparedPolicy::makespans() const {
  std::vector<double> all;
  for (const Repetition& r : repetitions) all.push_back(r.makespan);
  std::ranges::sort(all);
  return all;
}

const Repetition& ComparedPolicy::median_repetition() const {
  return *std::ranges::find(repetitions, median(), &Repetition::makespan);
}

}  // namespace starpipe::runtime
