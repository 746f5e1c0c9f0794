// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/commands/compare.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/commands/distributed.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/report/report.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/plan/formats/formats.hpp"
#include "starpipe/plan/formats/timeline_svg.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/setup/profile.hpp"

namespace starpipe::runtime {
namespace {

struct Repetition {
  double makespan;  // seconds, median step
  MeasuredRun run;  // that step
  plan::Costs costs;
  double submission;  // seconds, median step
};

struct Contender {
  PolicyChoice choice;
  std::string ran;  // StarPU's word
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
  [[nodiscard]] const MeasuredRun& median_run() const { return median_repetition().run; }
};

std::uint64_t most_bytes(const plan::Timeline& timeline) {
  return *std::ranges::max_element(timeline.peak_activation_bytes);
}

int most_stashes(const plan::Timeline& timeline) {
  return *std::ranges::max_element(timeline.peak_activations);
}

std::uint64_t bytes_moved(const plan::Timeline& timeline) {
  std::uint64_t bytes = 0;
  for (const plan::Transfers& to : timeline.received) {
    bytes += to.activations.bytes + to.stashes.bytes + to.gradients.bytes + to.weights.bytes +
             to.weight_gradients.bytes;
  }
  return bytes;
}

std::string ran_as(const Contender& contender) {
  switch (contender.choice.binding) {
    case Binding::none:
      break;
    case Binding::worker:
      return contender.ran + ", bound to workers";
    case Binding::order:
      return contender.ran + ", bound and ordered";
  }
  return contender.ran;
}

void repeat(const Assignment& job, Contender& contender) {
  const Session session(job.mpi, job.map, job.share, contender.choice, job.gpus);
  contender.ran = session.policy();
  or_abort(job.mpi, [&] {
    Engine engine = make_engine(session, job);
    or_abort(job.mpi, [&] {
      const Experiment& experiment = job.experiment;
      Measurement measurement(experiment.schedule, experiment.network.sizes(), experiment.emulated);
      std::vector<double> submissions;
      for (int step = 0; step < job.config.training.steps; ++step) {
        const StepResult result = engine.run_step(step, *experiment.data);
        if (step == 1) submissions.clear();  // the first one warmed up
        submissions.push_back(result.submission);
        if (job.mpi.rank() == 0) measurement.add(result);
      }
      std::ranges::sort(submissions);
      if (job.mpi.rank() != 0) return;
      MeasuredRun run = measurement.measured();
      const double makespan = run.timeline.makespan;
      contender.repetitions.push_back(
          {makespan, std::move(run), measurement.costs(), submissions[submissions.size() / 2]});
    });
  });
}

nlohmann::ordered_json to_json(const Contender& contender) {
  const plan::Timeline& timeline = contender.median_run().timeline;
  std::vector<double> makespans;  // in the order of the repetitions
  for (const Repetition& r : contender.repetitions) makespans.push_back(r.makespan);
  return {{"policy", contender.choice.name},
          {"ran", contender.ran},
          {"makespan", contender.median()},
          {"makespans", makespans},
          {"submission", contender.median_repetition().submission},
          {"bubble_fraction", timeline.bubble_fraction},
          {"peak_activations", timeline.peak_activations},
          {"peak_activation_bytes", timeline.peak_activation_bytes},
          {"bytes_moved", bytes_moved(timeline)}};
}

std::string table(const plan::Timeline& predicted, const std::vector<Contender>& contenders) {
  constexpr std::string_view row = "{:<16}{:>12}{:>18}{:>9}{:>10}{:>14}{:>14}  {}\n";
  std::string text = fmt::format(fmt::runtime(row), "policy", "makespan", "min .. max", "bubble", "stashes",
                                 "stash bytes", "moved", "policy that ran");
  const auto line = [&](const std::string& name, const std::string& spread, double makespan,
                        const plan::Timeline& timeline, const std::string& ran) {
    text += fmt::format(fmt::runtime(row), name, fmt::format("{:.2f} ms", makespan * 1e3), spread,
                        fmt::format("{:.1f} %", timeline.bubble_fraction * 100), most_stashes(timeline),
                        plan::bytes_text(most_bytes(timeline)), plan::bytes_text(bytes_moved(timeline)), ran);
  };
  line("(prediction)", "", predicted.makespan, predicted, "");
  for (const Contender& contender : contenders) {
    const auto makespans = contender.makespans();
    line(contender.choice.name,
         fmt::format("{:.2f} .. {:.2f}", makespans.front() * 1e3, makespans.back() * 1e3), contender.median(),
         contender.median_run().timeline, ran_as(contender));
  }
  return text +
         "Medians; stashes and their bytes: the most that one worker held; moved: received by all workers.\n";
}

void write_outputs(const Assignment& job, const Comparison& comparison,
                   const std::vector<Contender>& contenders) {
  const plan::Schedule& schedule = job.experiment.schedule;
  // With the durations of the first policy's jobs, which is ours unless the user asks otherwise.
  const plan::Timeline predicted = plan::simulate(schedule, contenders.front().median_repetition().costs);
  nlohmann::ordered_json report = report_head(job.config, job.places);
  report["repetitions"] = comparison.repetitions;
  report["seed"] = comparison.seed;
  report["emulated"] = job.experiment.emulated.has_value();
  report["predicted"] = {{"makespan", predicted.makespan},
                         {"bubble_fraction", predicted.bubble_fraction},
                         {"peak_activations", predicted.peak_activations},
                         {"peak_activation_bytes", predicted.peak_activation_bytes},
                         {"bytes_moved", bytes_moved(predicted)}};
  for (const Contender& contender : contenders) report["policies"].push_back(to_json(contender));
  if (comparison.json) {
    print(plan::json_text(report));
  } else {
    print(fmt::format("{} on {} workers, {} ranks; {} repetitions of {} steps\n{}\n{}", schedule.name(),
                      schedule.workers(), job.mpi.ranks(), comparison.repetitions, job.config.training.steps,
                      describe_partition(job.config), table(predicted, contenders)));
  }
  if (comparison.output) write_file("--output", *comparison.output, plan::json_text(report));
  if (!comparison.timeline) return;
  std::vector<plan::SvgRun> runs = {{"predicted", &schedule, &predicted}};
  for (const Contender& contender : contenders) {
    const MeasuredRun& run = contender.median_run();
    runs.push_back({contender.choice.name, &run.schedule, &run.timeline});
  }
  write_file("--timeline", *comparison.timeline, plan::timeline_svg(runs, {.unit = "s"}));
}

std::vector<Contender> find_contenders(const Assignment& job, const Comparison& comparison) {
  return agree(job.mpi, [&] {
    if (job.mpi.rank() == 0) {
      if (comparison.output) require_writable("--output", *comparison.output);
      if (comparison.timeline) require_writable("--timeline", *comparison.timeline);
    }
    std::vector<Contender> contenders;
    for (const std::string& name : comparison.policies) {
      if (std::ranges::any_of(contenders, [&](const Contender& c) { return c.choice.name == name; })) {
        throw InputError(fmt::format("--policies: '{}' is named twice", name));
      }
      contenders.emplace_back().choice = find_policy(name, "--policies");
    }
    return contenders;
  });
}

}  // namespace

int compare(const std::function<Config()>& configure, const Comparison& comparison) {
  return run_on_ranks(configure, [&](const Assignment& job) {
    std::vector<Contender> contenders = find_contenders(job, comparison);
    const bool root = job.mpi.rank() == 0;
    const bool terminal = isatty(STDERR_FILENO) == 1;
    std::mt19937_64 random(comparison.seed);  // the same order on every rank
    std::vector<std::size_t> order(contenders.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int repetition = 0; repetition < comparison.repetitions; ++repetition) {
      std::ranges::shuffle(order, random);
      for (const std::size_t c : order) {
        if (root && terminal) {
          fmt::print(stderr, "\r\033[Krepetition {}/{}  {}", repetition + 1, comparison.repetitions,
                     contenders[c].choice.name);
          std::fflush(stderr);
        }
        repeat(job, contenders[c]);
      }
    }
    if (!root) return;
    if (terminal) fmt::print(stderr, "\r\033[K");
    write_outputs(job, comparison, contenders);
  });
}

}  // namespace starpipe::runtime
