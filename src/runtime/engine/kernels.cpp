// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"

#ifdef STARPIPE_WITH_CUDA
#include <starpu.h>
#include <starpu_cublas_v2.h>

#include "codelets/cuda/backend/stream_backend.hpp"
#endif

namespace starpipe::runtime {
namespace {

// The memory of a job, sorted by its role in the stage. Each worker thread has one such object, so that the
// vectors keep their capacity and jobs do not allocate.
struct JobData {
  model::ConstMemory own_weights;
  std::vector<model::ConstMemory> shared_weights;
  std::vector<model::ConstMemory> inputs;
  model::ConstMemory target;
  model::Memory output;
  model::Memory stash;
  model::Memory gradient_stash;
  model::Memory own_gradient;
  std::vector<model::Memory> shared_gradients;
  std::vector<model::ConstMemory> output_gradients;
  std::vector<model::Memory> input_gradients;
  std::vector<model::ConstMemory> keys_values;
  model::Memory own_keys_values;
  model::ConstMemory keys_values_gradient;
  model::Memory earlier_gradient;

  [[nodiscard]] model::ConstParameters weights() const { return {own_weights, shared_weights}; }
  [[nodiscard]] model::ParameterGradients weight_gradient() const { return {own_gradient, shared_gradients}; }

  void sort(const TaskGraph& graph, const Task& task, std::span<const model::Memory> data) {
    own_weights = target = keys_values_gradient = {};
    output = stash = gradient_stash = own_gradient = own_keys_values = earlier_gradient = {};
    shared_weights.clear();
    shared_gradients.clear();
    inputs.clear();
    output_gradients.clear();
    input_gradients.clear();
    keys_values.clear();
    for (std::size_t i = 0; i < data.size(); ++i) {
      const auto put = [&](bool is_single, auto& single, auto& several) {
        if (is_single) {
          single = data[i];
        } else {
          several.emplace_back(data[i]);
        }
      };
      const bool reads = task.data[i].access == Access::read;
      const Datum& datum = graph.data()[task.data[i].datum];
      const bool is_own = datum.stage == task.stage;  // else of a shared set, in the order of Stage::shared()
      switch (datum.kind) {
        case DataKind::weights:
          put(is_own, own_weights, shared_weights);
          break;
        case DataKind::input:
          inputs.emplace_back(data[i]);
          break;
        case DataKind::activation:
          put(!reads, output, inputs);
          break;
        case DataKind::target:
          target = data[i];
          break;
        case DataKind::loss:
          if (!reads) output = data[i];
          break;
        case DataKind::stash:
          stash = data[i];
          break;
        case DataKind::gradient:
          if (reads) {
            output_gradients.emplace_back(data[i]);
          } else {
            input_gradients.push_back(data[i]);
          }
          break;
        case DataKind::gradient_stash:
          gradient_stash = data[i];
          break;
        case DataKind::keys_values:
          put(!reads, own_keys_values, keys_values);
          break;
        case DataKind::keys_values_gradient:
          if (reads) {
            keys_values_gradient = data[i];
          } else {
            earlier_gradient = data[i];
          }
          break;
        case DataKind::weight_gradient:
          put(is_own, own_gradient, shared_gradients);
          break;
        case DataKind::master:
        case DataKind::optimizer_state:
        case DataKind::verdict:
        case DataKind::end_of_pass:
        case DataKind::gradient_segment:
          break;  // no pass uses them
      }
    }
  }
};

void run_job(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
             model::Memory scratch, float* found, const model::Backend& backend) {
  thread_local JobData job;
  job.sort(*context.graph, task, data);
  const model::Stage& stage = context.network->stage(task.stage, task.microbatch);
  // A slice weighs as much as it has of the rows.
  const float share = static_cast<float>(stage.rows()) /
                      static_cast<float>(context.network->stages[index(task.stage)].rows());
  switch (task.kind) {
    case TaskKind::F:
    case TaskKind::R:  // it has no output
      stage.forward(job.weights(), job.inputs, job.target, job.output, job.stash, scratch, backend,
                    {job.keys_values, job.own_keys_values});
      break;
    case TaskKind::W:
      stage.backward_weights(job.stash, job.gradient_stash, job.weight_gradient(), scratch, backend);
      break;
    default:  // B or BW: only BW's data have the gradient of the weights
      stage.backward(
          {.parameters = job.weights(),
           .stash = job.stash,
           .output_gradients = job.output_gradients,
           .loss_scale = context.loss_scale * share,
           .input_gradients = job.input_gradients,
           .gradient_stash = job.gradient_stash,
           .parameter_gradient = job.weight_gradient(),
           .scratch = scratch,
           .found = found,
           .slice = {job.keys_values, job.keys_values_gradient.floats(), job.earlier_gradient.floats()}},
          backend);
      break;
  }
}

// Looks at what the pass has written for other stages. Stage has looked at gradients for W. Nothing looks at
// F's stash: it mixes formats, and a bad number in it shows in the output. The norm looks at gradients of
// weights, once a step.
void find_nonfinite(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                    float& found, const model::Backend& backend) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    const Datum& datum = context.graph->data()[task.data[i].datum];
    if (task.data[i].access == Access::read) continue;
    const auto stage = [&]() -> const model::Stage& {
      return context.network->stage(datum.stage, datum.microbatch);
    };
    switch (datum.kind) {
      case DataKind::activation:
      case DataKind::gradient:  // both have the size of the stage's output
        backend.find_nonfinite(stage().output_precision(), data[i], stage().rows() * stage().output_columns(),
                               found);
        break;
      case DataKind::loss:
        backend.find_nonfinite(model::Precision::fp32, data[i], 1, found);
        break;
      case DataKind::keys_values_gradient:
        backend.find_nonfinite(model::Precision::fp32, data[i], datum.size, found);
        break;
      default:
        break;
    }
  }
}

void run_reduction(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                   const model::Backend& backend) {
  const bool sends = task.kind == TaskKind::segment;
  const model::Memory segment = data[sends ? 1 : 0];
  const std::size_t first = context.graph->segment(task.data[sends ? 1 : 0].datum).first;
  const model::Memory words = data[sends ? 0 : 1].subspan(first, segment.size());
  if (task.kind == TaskKind::add) {
    backend.add(model::Precision::fp32, words, segment, words);
  } else if (segment.data() != words.data()) {  // a core sends from the gradient's own memory
    backend.copy(sends ? words : segment, sends ? segment : words);
  }
}

void run_norm(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
              model::Memory scratch, const model::Backend& backend) {
  const SetParameters& parameters = context.graph->parameters()[index(task.stage)];
  const std::span<double> sums = Verdict(data[1]).sums().subspan(parameters.first, parameters.sizes.size());
  backend.sum_squares(data[0].floats(), parameters.sizes, sums, scratch);
}

void run_optimize(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                  const model::Backend& backend) {
  const auto of = [&](DataKind kind) {
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (context.graph->data()[task.data[i].datum].kind == kind) return data[i];
    }
    return model::Memory{};
  };
  model::Update update = {.number = context.updates + 1,
                          .learning_rate = context.learning_rate,
                          .ranges = context.graph->parameters()[index(task.stage)].ranges};
  if (const model::Memory known = of(DataKind::verdict); !known.empty()) {
    const Verdict verdict(known);
    if (context.graph->rules().can_skip && verdict.skips()) return;
    update.scale = model::clip_scale(context.optimizer->clip, verdict.norm());
  }
  const std::span<float> weights = of(DataKind::weights).floats();
  const std::span<float> master = of(DataKind::master).floats();
  backend.update(*context.optimizer, update, of(DataKind::weight_gradient).floats(),
                 master.empty() ? weights : master, of(DataKind::optimizer_state).floats());
  if (!master.empty()) backend.round(master, weights);
}

}  // namespace

std::size_t scratch_size(const plan::Schedule& schedule, const model::Network& network, int stage,
                         bool on_gpu, const StepRules& rules) {
  const bool without_stash = schedule.recomputes() || schedule.forward_only() || rules.evaluated > 0;
  std::size_t words = 0;
  for (int slice = 0; slice < schedule.slices(); ++slice) {
    const model::Stage& of_slice = network.stage(stage, slice);
    words = std::max(
        words, without_stash ? of_slice.scratch_size_without_stash(on_gpu) : of_slice.scratch_size(on_gpu));
  }
  return words;
}

std::size_t norm_scratch_size(const TaskGraph& graph) {
  std::size_t words = 0;
  for (const SetParameters& parameters : graph.parameters())
    words = std::max(words, model::norm_scratch_words(parameters.sizes));
  return words;
}

void run_kernel(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                model::Memory scratch, float* found, const model::Backend& backend) noexcept {
  switch (task.kind) {
    case TaskKind::zero:
      backend.zero(data[0]);
      break;
    case TaskKind::close:
      break;  // it only orders accesses to the accumulator
    case TaskKind::segment:
    case TaskKind::add:
    case TaskKind::copy:
      run_reduction(context, task, data, backend);
      break;
    case TaskKind::judge:
      Verdict(data[0]).begin(context.graph->rules().can_skip && found != nullptr && *found != 0);
      break;
    case TaskKind::norm:
      run_norm(context, task, data, scratch, backend);
      break;
    case TaskKind::merge:
      Verdict(data[1]).merge(Verdict(data[0]));
      break;
    case TaskKind::optimize:
      run_optimize(context, task, data, backend);
      break;
    case TaskKind::F:
    case TaskKind::B:
    case TaskKind::W:
    case TaskKind::BW:
    case TaskKind::R:
      run_job(context, task, data, scratch, found, backend);
      if (found != nullptr) find_nonfinite(context, task, data, *found, backend);
      break;
    case TaskKind::O:
    case TaskKind::L:
      break;  // class StashFile copies
  }
}

#ifdef STARPIPE_WITH_CUDA

void run_kernel_on_stream(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                          model::Memory scratch, float* found) noexcept {
  // cuBLAS documents that its handles are cuBLASLt's too, by this cast.
  const model::cuda::StreamBackend backend(
      {starpu_cuda_get_local_stream(), reinterpret_cast<cublasLtHandle_t>(starpu_cublas_get_local_handle())});
  run_kernel(context, task, data, scratch, found, backend);
}

#else

void run_kernel_on_stream(const KernelContext& /*context*/, const Task& /*task*/,
                          std::span<const model::Memory> /*data*/, model::Memory /*scratch*/,
                          float* /*found*/) noexcept {
  std::abort();
}

#endif

void Verdict::begin(bool found) const noexcept {
  std::ranges::fill(entries_, 0.0);
  entries_.back() = found ? 1 : 0;
}

void Verdict::merge(const Verdict& other) const noexcept {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i] == 0) entries_[i] = other.entries_[i];
  }
}

bool Verdict::skips() const noexcept { return entries_.back() != 0 || !std::isfinite(norm()); }

double Verdict::norm() const noexcept { return model::gradient_norm(sums()); }

}  // namespace starpipe::runtime
