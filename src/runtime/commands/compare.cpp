// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/commands/compare.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/commands/run_on_ranks.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/report/report.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/numbers.hpp"
#include "starpipe/base/progress.hpp"
#include "starpipe/base/table.hpp"
#include "starpipe/plan/drawing/timeline_svg.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/plan/formats/reordering_json.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/setup/expected_costs.hpp"
#include "starpipe/runtime/setup/partition_choice.hpp"

namespace starpipe::runtime {
namespace {

struct Repetition {
  double makespan;         // of the median step, seconds
  plan::RecordedStep run;  // the median step
  plan::Costs costs;
  double submission;  // of the median step, seconds
};

struct ComparedPolicy {
  PolicyChoice choice;
  std::string ran;  // StarPU's name of the policy that ran
  std::vector<Repetition> repetitions;

  [[nodiscard]] std::vector<double> makespans() const {
    std::vector<double> all;
    for (const Repetition& r : repetitions) all.push_back(r.makespan);
    std::ranges::sort(all);
    return all;
  }
  [[nodiscard]] double median() const { return makespans()[repetitions.size() / 2]; }
  [[nodiscard]] const Repetition& median_repetition() const {
    return *std::ranges::find(repetitions, median(), &Repetition::makespan);
  }
  [[nodiscard]] const plan::RecordedStep& median_run() const { return median_repetition().run; }
};

std::uint64_t most_bytes(const plan::Timeline& timeline) {
  return *std::ranges::max_element(timeline.peak_stash_bytes);
}

int most_stashes(const plan::Timeline& timeline) { return *std::ranges::max_element(timeline.peak_stashes); }

std::uint64_t bytes_moved(const plan::Timeline& timeline) {
  std::uint64_t bytes = 0;
  for (const plan::Transfers& to : timeline.received) bytes += to.total().bytes;
  return bytes;
}

std::string ran_as(const ComparedPolicy& policy) {
  switch (policy.choice.control) {
    case StarpuControl::none:
      break;
    case StarpuControl::on_worker:
      return policy.ran + ", bound to workers";
    case StarpuControl::worker_order:
      return policy.ran + ", bound and ordered";
  }
  return policy.ran;
}

void repeat(const AgreedRun& run, ComparedPolicy& policy) {
  const Session session(run.mpi, run.map, run.share, policy.choice, run.gpus);
  policy.ran = session.policy();
  or_abort(run.mpi, [&] {
    Engine engine = make_engine(session, run);
    or_abort(run.mpi, [&] {
      const Experiment& experiment = run.experiment;
      Measurement measurement(experiment.schedule, costs_by_flops(experiment.network), experiment.emulated);
      std::vector<double> submissions;
      for (int step = 0; step < run.config.training.steps; ++step) {
        const StepResult result = engine.run_step(step, *experiment.data);
        if (step == 1) submissions.clear();  // step 0 warmed up
        submissions.push_back(result.submission);
        if (run.mpi.rank() == 0) measurement.add(result);
      }
      require_finite_weights(run, engine);
      std::ranges::sort(submissions);
      if (run.mpi.rank() != 0) return;
      plan::ComparedRun compared = measurement.compared();
      const double makespan = compared.measured.timeline.makespan;
      policy.repetitions.push_back({makespan, std::move(compared.measured), std::move(compared.costs),
                                    submissions[submissions.size() / 2]});
    });
  });
}

nlohmann::ordered_json to_json(const ComparedPolicy& policy) {
  const plan::Timeline& timeline = policy.median_run().timeline;
  std::vector<double> makespans;  // in the order of the repetitions
  for (const Repetition& r : policy.repetitions) makespans.push_back(r.makespan);
  return {{"policy", policy.choice.name},
          {"ran", policy.ran},
          {"makespan", policy.median()},
          {"makespans", makespans},
          {"submission", policy.median_repetition().submission},
          {"bubble_fraction", timeline.bubble_fraction},
          {"peak_activations", timeline.peak_stashes},
          {"peak_activation_bytes", timeline.peak_stash_bytes},
          {"bytes_moved", bytes_moved(timeline)}};
}

std::string comparison_table(const plan::Timeline& predicted, const std::vector<ComparedPolicy>& policies) {
  constexpr std::array columns = {TableColumn{Align::left, 16},  TableColumn{Align::right, 10},
                                  TableColumn{Align::right, 16}, TableColumn{Align::right, 7},
                                  TableColumn{Align::right, 8},  TableColumn{Align::right, 12},
                                  TableColumn{Align::right, 12}, TableColumn{Align::left}};
  std::vector<TableRow> rows = {
      {"policy", "makespan", "min .. max", "bubble", "stashes", "stash bytes", "moved", "policy that ran"}};
  const auto add = [&](const std::string& name, const std::string& spread, double makespan,
                       const plan::Timeline& timeline, const std::string& ran) {
    rows.push_back({name, fmt::format("{:.2f} ms", makespan * 1e3), spread,
                    percent_text(timeline.bubble_fraction), std::to_string(most_stashes(timeline)),
                    bytes_text(most_bytes(timeline)), bytes_text(bytes_moved(timeline)), ran});
  };
  add("(prediction)", "", predicted.makespan, predicted, "");
  for (const ComparedPolicy& policy : policies) {
    const auto makespans = policy.makespans();
    add(policy.choice.name, fmt::format("{:.2f} .. {:.2f}", makespans.front() * 1e3, makespans.back() * 1e3),
        policy.median(), policy.median_run().timeline, ran_as(policy));
  }
  return table_text(rows, columns) +
         "Medians. Stashes, stash bytes: the largest of a worker. Moved: bytes that all workers received.\n";
}

void write_outputs(const AgreedRun& run, const Comparison& comparison,
                   const std::vector<ComparedPolicy>& policies) {
  const plan::Schedule& schedule = run.experiment.schedule;
  // The prediction uses the durations of the first policy, which is starpipe by default.
  const plan::Timeline predicted = plan::simulate(schedule, policies.front().median_repetition().costs);
  nlohmann::ordered_json report = report_head(run.config, run.partition, run.locations);
  report["repetitions"] = comparison.repetitions;
  report["seed"] = comparison.seed;
  report["emulated"] = run.experiment.emulated.has_value();
  if (run.experiment.reordering) report["reordered"] = plan::reordering_json(*run.experiment.reordering);
  report["predicted"] = {{"makespan", predicted.makespan},
                         {"bubble_fraction", predicted.bubble_fraction},
                         {"peak_activations", predicted.peak_stashes},
                         {"peak_activation_bytes", predicted.peak_stash_bytes},
                         {"bytes_moved", bytes_moved(predicted)}};
  for (const ComparedPolicy& policy : policies) report["policies"].push_back(to_json(policy));
  if (comparison.json) {
    print(plan::json_text(report));
  } else {
    print(fmt::format("{} on {}, {}; {} of {}\n{}{}\n{}", schedule.name(),
                      counted_text(schedule.workers(), "worker"), counted_text(run.mpi.ranks(), "rank"),
                      counted_text(comparison.repetitions, "repetition"),
                      counted_text(run.config.training.steps, "step"), describe_partition(run.partition),
                      plan::describe_reordering(schedule.name(), run.experiment.reordering),
                      comparison_table(predicted, policies)));
  }
  if (comparison.output) write_file("--output", *comparison.output, plan::json_text(report));
  if (!comparison.timeline) return;
  std::vector<plan::SvgRun> runs = {{"predicted", &schedule, &predicted}};
  for (const ComparedPolicy& policy : policies) {
    const plan::RecordedStep& measured = policy.median_run();
    runs.push_back({policy.choice.name, &measured.as_run, &measured.timeline});
  }
  write_file("--timeline", *comparison.timeline, plan::timeline_svg(runs, {.unit = "s"}));
}

std::vector<ComparedPolicy> find_policies(const AgreedRun& run, const Comparison& comparison) {
  return agree(run.mpi, [&] {
    if (run.mpi.rank() == 0) {
      if (comparison.output) require_writable("--output", *comparison.output);
      if (comparison.timeline) require_writable("--timeline", *comparison.timeline);
    }
    std::vector<ComparedPolicy> policies;
    for (const std::string& name : comparison.policies) {
      if (std::ranges::any_of(policies, [&](const ComparedPolicy& p) { return p.choice.name == name; })) {
        throw InputError(fmt::format("--policies: '{}' is named twice", name));
      }
      policies.emplace_back().choice = find_policy(name, "--policies");
    }
    if (run.config.runtime.window != RuntimeConfig().window &&
        std::ranges::none_of(comparison.policies, uses_window)) {
      throw InputError(fmt::format("runtime.window: does not apply to any of --policies {}",
                                   fmt::join(comparison.policies, ",")));
    }
    return policies;
  });
}

}  // namespace

int compare(const std::function<Config()>& configure, const Comparison& comparison) {
  return run_on_ranks(configure, [&](const AgreedRun& run) {
    std::vector<ComparedPolicy> policies = find_policies(run, comparison);
    const bool root = run.mpi.rank() == 0;
    const ProgressLine progress;
    std::mt19937_64 random(comparison.seed);  // the same order on every rank
    std::vector<std::size_t> order(policies.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int repetition = 0; repetition < comparison.repetitions; ++repetition) {
      std::ranges::shuffle(order, random);
      for (const std::size_t p : order) {
        if (root) {
          progress.show(fmt::format("repetition {}/{}  {}", repetition + 1, comparison.repetitions,
                                    policies[p].choice.name));
        }
        repeat(run, policies[p]);
      }
    }
    if (!root) return;
    progress.clear();
    write_outputs(run, comparison, policies);
  });
}

}  // namespace starpipe::runtime
