// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/evaluate.hpp"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/numbers.hpp"
#include "plan/formats/json_value.hpp"
#include "runtime/api/run_on_ranks.hpp"
#include "runtime/engine/evaluation.hpp"
#include "runtime/report/report.hpp"
#include "runtime/session/session.hpp"

namespace starpipe::runtime {
namespace {

nlohmann::ordered_json evaluation_json(const AgreedRun& run, const Session& session,
                                       const EvaluationResult& result) {
  const model::Dataset& data = *run.experiment.validation;
  const std::uint64_t samples = data.samples_per_microbatch() * result.losses.size();
  return {{"schedule", run.experiment.schedule.name()},
          {"workers", run.experiment.schedule.workers()},
          {"policy", {{"requested", session.choice().name}, {"ran", session.policy()}}},
          {"parameters", run.experiment.network.parameter_count()},
          {"microbatches", result.losses.size()},
          {data.sample_word(), samples},
          {"loss", result.loss},
          {"losses", result.losses},
          {"seconds", result.seconds},
          {data.sample_word() + "_per_second", static_cast<double>(samples) / result.seconds}};
}

void show(const AgreedRun& run, const EvaluateOutputs& outputs, const Session& session,
          const EvaluationResult& result) {
  const nlohmann::ordered_json json = evaluation_json(run, session, result);
  if (outputs.report) {
    nlohmann::ordered_json report = report_head(run.config, run.partition, run.locations);
    report.update(json);
    write_file("--report", *outputs.report, plan::json_text(report));
  }
  print(outputs.json ? plan::json_text(json)
                     : evaluation_text(result.loss, static_cast<int>(result.losses.size())) + "\n");
}

}  // namespace

int evaluate(const std::function<Config()>& configure, const EvaluateOutputs& outputs) {
  RankRequest request("evaluate");
  request.add_flag("--json", outputs.json);
  request.add("--report", outputs.report);
  return run_on_ranks(
      request, [&] { return std::vector{configure()}; },
      [&](const std::vector<AgreedRun>& runs) {
        const AgreedRun& run = runs.front();
        const auto policy = agree(run.mpi, [&] {
          if (run.mpi.rank() == 0 && outputs.report) require_writable("--report", *outputs.report);
          return configured_policy(run.config);
        });
        const Session session(run.mpi, run.map, run.share, policy, run.gpus);
        or_abort(run.mpi, [&] {
          const Experiment& e = run.experiment;
          const int microbatches = step_rules(run.config, e.schedule.microbatches()).evaluated;
          Evaluator evaluator(session, e.schedule, e.network, run.parameters, run.config.runtime,
                              microbatches);
          or_abort(run.mpi, [&] {
            const EvaluationResult result = evaluator.run(*e.validation);
            if (run.config.training.nonfinite == NonFinitePolicy::stop)
              require_finite_losses(result, std::nullopt);
            if (run.mpi.rank() == 0) show(run, outputs, session, result);
          });
        });
      });
}

bool evaluation_is_due(const Config& config, const Experiment& experiment, int steps) {
  if (!experiment.validation) return false;
  return steps == 0 || steps == config.training.steps ||
         (config.evaluate.every && steps % *config.evaluate.every == 0);
}

EvaluationRecord evaluate_between_steps(Engine& engine, const Experiment& experiment, int steps) {
  const EvaluationResult result = engine.evaluate(steps, *experiment.validation);
  return {.step = steps,
          .loss = result.loss,
          .microbatches = static_cast<int>(result.losses.size()),
          .seconds = result.seconds};
}

std::string evaluation_text(double loss, int microbatches) {
  return fmt::format("evaluation  loss {}{} ({} micro-batch{})", loss_text(loss),
                     std::isfinite(loss) ? "" : ", which is not finite", microbatches,
                     microbatches == 1 ? "" : "es");
}

}  // namespace starpipe::runtime
