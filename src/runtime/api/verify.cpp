// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/verify.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "model/weights.hpp"
#include "runtime/api/agreed_run.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

constexpr int usual_steps = 3;
// The number of micro-batches for finite differences. One is too few: a layer may be right with its values
// only.
constexpr int max_derivative_microbatches = 4;
// Relative to the change of the weights, for another framework's file: rounding grows from step to step
// there.
constexpr double weights_tolerance = 0.01;

// A stage's gradient adds up the rows of all micro-batches.
double additions_of(const Experiment& experiment) {
  std::size_t rows = 0;
  for (const model::Stage& stage : experiment.network.stages) rows = std::max(rows, stage.rows());
  return static_cast<double>(rows) * experiment.schedule.microbatches();
}

// The network with fp32 passes: differences of a loss say nothing about coarser ones.
model::Network fp32_network(const AgreedRun& run) {
  const model::Network& network = run.experiment.network;
  if (network.config.precision == model::Precision::fp32) return network;
  model::ModelConfig config = network.config;
  config.precision = model::Precision::fp32;
  return model::build_network(config, network.microbatch_size, network.whole_stages(),
                              run.config.schedule.cuts);
}

// Values that another framework has computed, on rank 0.
struct FileValues {
  std::optional<model::SetValues> gradients = {};
  std::optional<model::SetValues> weights = {};
};

// Another framework has kernels of its own, as a GPU has.
double file_tolerance(const AgreedRun& run, const VerifyRequest& request) {
  const Experiment& experiment = run.experiment;
  return request.tolerance.value_or(rounding_tolerance(experiment.network.config.precision,
                                                       /*other_kernels=*/true, additions_of(experiment)));
}

// Collective.
Verification compare_steps(const AgreedRun& run, const VerifyRequest& request, const FileValues& files,
                           Engine& engine, const std::function<void(const std::string&)>& progress) {
  const Experiment& experiment = run.experiment;
  const int steps = request.steps.value_or(std::min(usual_steps, run.config.training.steps));
  std::optional<StepComparison> comparison;
  if (run.mpi.rank() == 0) {
    // Shards add up the same products in another order, as a GPU's kernels do.
    const bool has_other_kernels = run.config.runtime.uses_gpus() || !experiment.network.parts.empty();
    const double usual =
        rounding_tolerance(experiment.network.config.precision, has_other_kernels, additions_of(experiment));
    comparison.emplace(experiment.network, *experiment.data, experiment.schedule.microbatches(),
                       optimizer_of(run.config), run.parameters, request.tolerance.value_or(usual));
  }
  for (int step = 0; step < steps; ++step) {
    const StepResult result = engine.run_step(step, *experiment.data);
    const auto gradients = engine.gradients();
    auto parameters = engine.parameters();
    if (comparison) {
      progress(fmt::format("step {}/{}", step + 1, steps));
      comparison->add(step, result, gradients, std::move(parameters));
      if (step == 0 && files.gradients)
        comparison->add_file_gradients(gradients, *files.gradients, file_tolerance(run, request));
    }
    run.mpi.barrier();  // between steps no rank takes the others' waiting for a hang
  }
  Verification found;
  if (comparison) {
    if (files.weights) {
      comparison->add_file_weights(run.parameters, *files.weights, weights_tolerance,
                                   file_tolerance(run, request));
    }
    if (request.derivatives) {
      progress("finite differences");
      const int microbatches = std::min(max_derivative_microbatches, experiment.schedule.microbatches());
      comparison->add(
          model::check_derivatives(fp32_network(run), *experiment.data, run.parameters, microbatches),
          microbatches);
    }
    found = {.schedule = experiment.schedule.name(),
             .workers = experiment.schedule.workers(),
             .steps = steps,
             .figures = comparison->json(),
             .table = comparison->table(),
             .problem = comparison->problem()};
  }
  run.mpi.barrier();
  found.problem = run.mpi.first_problem(found.problem);
  return found;
}

}  // namespace

Config config_to_verify(Config config, const VerifyRequest& request) {
  if (config.runtime.emulate) {
    throw InputError("runtime.emulate: verify compares values, and emulated runs compute none");
  }
  if (request.steps && *request.steps > config.training.steps) {
    throw InputError(fmt::format("--steps: {}, but the run has {} (training.steps)", *request.steps,
                                 counted_text(config.training.steps, "step")));
  }
  // Nothing is evaluated, so the file of validation need not be there.
  config.evaluate = {};
  config.data.validation.clear();
  return config;
}

Verification verify(const Mpi& mpi, Config config, const VerifyRequest& request,
                    const std::function<void()>& check,
                    const std::function<void(const std::string&)>& progress) {
  const AgreedRuns agreed = agree_on_runs(mpi, {std::move(config)});
  const AgreedRun& run = agreed.runs.front();
  FileValues files;
  const auto policy = agree(mpi, [&] {
    if (mpi.rank() == 0) {
      check();
      const model::Network& network = run.experiment.network;
      if (const auto& file = request.against_gradients)
        files.gradients = model::load_weights(*file, network, model::FileContents::gradients);
      if (const auto& file = request.against_weights)
        files.weights = model::load_weights(*file, network, model::FileContents::weights);
    }
    return configured_policy(run.config);
  });
  Verification found;
  const Session session(mpi, run.map, run.share, policy, run.gpus);
  or_abort(mpi, [&] {
    Engine engine = make_engine(session, run);
    or_abort(mpi, [&] { found = compare_steps(run, request, files, engine, progress); });
  });
  return found;
}

}  // namespace starpipe::runtime
