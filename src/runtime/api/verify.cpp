// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/verify.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "model/weights.hpp"
#include "runtime/api/training.hpp"
#include "runtime/host/mpi.hpp"
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
double additions_of(const Trainer& trainer) {
  std::size_t rows = 0;
  for (const model::Stage& stage : trainer.network().stages) rows = std::max(rows, stage.rows());
  return static_cast<double>(rows) * trainer.schedule().whole_microbatches();
}

// Returns the network with fp32 passes: differences of a loss say nothing about coarser ones.
model::Network fp32_network(const Trainer& trainer) {
  const model::Network& network = trainer.network();
  if (network.config.precision == model::Precision::fp32) return network;
  model::ModelConfig config = network.config;
  config.precision = model::Precision::fp32;
  return model::build_network(config, network.microbatch_size, network.whole_stages(),
                              trainer.config().schedule.cuts);
}

// Values that another framework has computed, on rank 0.
struct FileValues {
  std::optional<model::SetValues> gradients = {};
  std::optional<model::SetValues> weights = {};
};

FileValues read_files(const model::Network& network, const VerifyRequest& request) {
  FileValues files;
  if (const auto& file = request.against_gradients)
    files.gradients = model::load_weights(*file, network, model::FileContents::gradients);
  if (const auto& file = request.against_weights)
    files.weights = model::load_weights(*file, network, model::FileContents::weights);
  return files;
}

// `other_kernels`: see rounding_tolerance.
double tolerance_of(const Trainer& trainer, const VerifyRequest& request, bool other_kernels) {
  return request.tolerance.value_or(
      rounding_tolerance(trainer.network().config.precision, other_kernels, additions_of(trainer)));
}

StepComparison comparison_of(const Trainer& trainer, const VerifyRequest& request, model::SetValues start) {
  // Shards and slices add up the same products in another order, as a GPU's kernels do.
  const bool other_kernels = trainer.config().runtime.uses_gpus() || !trainer.network().parts.empty() ||
                             !trainer.network().slices.empty();
  return {trainer.network(),
          *trainer.training().agreed().experiment.data,
          trainer.schedule().whole_microbatches(),
          optimizer_of(trainer.config()),
          std::move(start),
          tolerance_of(trainer, request, other_kernels)};
}

// Adds what is compared after the last step.
void finish(StepComparison& comparison, const Trainer& trainer, const VerifyRequest& request,
            const FileValues& files, const model::SetValues& start,
            const std::function<void(const std::string&)>& progress) {
  // Another framework has kernels of its own, as a GPU has.
  if (files.weights)
    comparison.add_file_weights(start, *files.weights, weights_tolerance,
                                tolerance_of(trainer, request, true));
  if (!request.derivatives) return;
  const int microbatches = std::min(max_derivative_microbatches, trainer.schedule().whole_microbatches());
  const model::Dataset& data = *trainer.training().agreed().experiment.data;
  std::size_t parameters = 0;
  for (const model::ParameterSet& set : trainer.network().sets()) parameters += set.parameters.size();
  std::size_t begun = 0;
  const auto begin = [&](const std::string& parameter) {
    progress(fmt::format("finite differences {}/{}  {}", ++begun, parameters, parameter));
  };
  comparison.add(model::check_derivatives(fp32_network(trainer), data, start, microbatches, begin),
                 microbatches);
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
  config.checkpoint = {};
  // Nothing is evaluated, so the file of validation need not be there.
  config.evaluate = {};
  config.data.validation.clear();
  return config;
}

Verification verify(const Runtime& runtime, Trainer& trainer, const VerifyRequest& request,
                    const std::function<void(const std::string&)>& progress) {
  const bool is_root = runtime.rank() == 0;
  const AgreedRun& agreed = trainer.training().agreed();
  require_reference_memory(runtime.mpi(), trainer.network(), agreed.memory, agreed.locations);
  const FileValues files =
      runtime.agree([&] { return is_root ? read_files(trainer.network(), request) : FileValues(); });
  const int steps = request.steps.value_or(std::min(usual_steps, trainer.config().training.steps));
  const model::SetValues start = trainer.weights();
  std::optional<StepComparison> comparison;
  if (is_root) comparison.emplace(comparison_of(trainer, request, start));
  for (int number = 0; number < steps; ++number) {
    if (is_root) progress(fmt::format("step {}/{}", number + 1, steps));
    const Step step = trainer.step();
    const model::SetValues gradients = trainer.gradients();
    model::SetValues parameters = trainer.weights();
    runtime.agree([&] {  // no rank takes the others' waiting for a hang
      if (!comparison) return;
      progress(fmt::format("step {}/{}, computed sequentially", number + 1, steps));
      comparison->add(step, gradients, std::move(parameters));
      if (number == 0 && files.gradients)
        comparison->add_file_gradients(gradients, *files.gradients, tolerance_of(trainer, request, true));
    });
  }
  Verification found = runtime.agree([&] {
    if (!comparison) return Verification();
    finish(*comparison, trainer, request, files, start, progress);
    return Verification{.schedule = trainer.schedule().name(),
                        .workers = trainer.schedule().workers(),
                        .steps = steps,
                        .figures = comparison->json(),
                        .table = comparison->table(),
                        .problem = comparison->problem()};
  });
  found.problem = runtime.mpi().first_problem(found.problem);
  return found;
}

}  // namespace starpipe::runtime
