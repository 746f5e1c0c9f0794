// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_data.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include <starpu_mpi.h>

#include "runtime/step/kernels.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Protects an accumulator on a GPU. Jobs that add to it access it as StarPU's readers do (submitter.cpp), so
// to StarPU the old copy in main memory is as good as the sum on the GPU: it would drop the sum when the
// GPU's memory runs full. It never evicts a datum from a node in the datum's write-through mask. The mask has
// no other effect here, since all tasks that write it run on this node.
void keep_on_node(starpu_data_handle_t handle, int node) { starpu_data_set_wt_mask(handle, 1U << node); }

// StarPU counts words in 32 bits. `check_data_sizes` refuses a run with larger data before it starts.
std::uint32_t starpu_words(std::size_t size) {
  if (size > std::numeric_limits<std::uint32_t>::max())
    throw std::length_error("a datum is too large for StarPU");
  return static_cast<std::uint32_t>(size);
}

// Memory that StarPU allocates when it is first written.
starpu_data_handle_t register_words(std::size_t size) {
  starpu_data_handle_t handle = nullptr;
  starpu_vector_data_register(&handle, -1, 0, starpu_words(size), sizeof(float));
  return handle;
}

}  // namespace

StepData::StepData(const Session& session, const plan::Schedule& schedule, const model::Network& network,
                   const TaskGraph& graph, const RankTasks& tasks,
                   std::span<const std::vector<float>> parameters)
    : session_(session),
      schedule_(schedule),
      network_(network),
      graph_(graph),
      nodes_(session.memory_nodes()),
      memory_(graph.data().size()),
      handles_(graph.data().size()) {
  if (session.knows_workers() && session.on_gpus()) fetched_.emplace(graph, nodes_);
  for (std::size_t d = 0; d < graph.data().size(); ++d) {
    if (tasks.last_use[d] != RankTasks::unused) register_datum(d, parameters);
  }
  register_scratch();
}

std::vector<float> StepData::start_value(const Datum& datum,
                                         std::span<const std::vector<float>> parameters) const {
  const std::size_t s = index(datum.stage);
  if (datum.kind == DataKind::master) return parameters[s];
  if (datum.kind == DataKind::weights) return model::rounded_weights(network_.stages[s], parameters[s]);
  return std::vector<float>(datum.size, 0.0F);
}

void StepData::register_datum(std::size_t number, std::span<const std::vector<float>> parameters) {
  const Datum& datum = graph_.data()[number];
  starpu_data_handle_t handle = nullptr;
  const bool from_host = is_mine(datum) && !is_temporary(datum.kind);
  if (from_host) {
    std::vector<float>& memory = memory_[number];
    memory = start_value(datum, parameters);
    if (session_.on_gpus()) pinned_.emplace_back(memory);
    starpu_vector_data_register(&handle, STARPU_MAIN_RAM, reinterpret_cast<std::uintptr_t>(memory.data()),
                                starpu_words(datum.size), sizeof(float));
  } else {
    handle = register_words(datum.size);
  }
  handles_[number] = Handle(handle, from_host);
  if (fetched_ && datum.kind == DataKind::weight_gradient && node(datum.worker) > FetchedCopies::main_memory)
    keep_on_node(handle, node(datum.worker));
  starpu_data_set_coordinates(handle, 2, datum.stage, datum.microbatch);
  starpu_mpi_data_register(handle, static_cast<starpu_mpi_tag_t>(number), owner(datum));
}

void StepData::register_scratch() {
  for (const bool on_gpu : {false, true}) {
    for (const model::Stage& stage : network_.stages) {
      const std::size_t size = std::max<std::size_t>(1, scratch_size(schedule_, stage, on_gpu));
      scratch_[on_gpu ? 1 : 0].emplace_back(register_words(size), false);
    }
  }
}

starpu_data_handle_t StepData::scratch(const Task& task) const {
  const std::size_t stage = index(task.stage);
  bool gpu = node(task.worker) > FetchedCopies::main_memory;
  // The policy may choose a core or a GPU: take the larger of the two needs.
  if (!session_.knows_workers() && session_.on_gpus() &&
      std::ranges::count(nodes_, FetchedCopies::main_memory) > 0) {
    gpu = scratch_size(schedule_, network_.stages[stage], true) >
          scratch_size(schedule_, network_.stages[stage], false);
  }
  return scratch_[gpu ? 1 : 0][stage].get();
}

// Emulated jobs compute nothing, but StarPU remembers the readers of a datum until the next write: without a
// write a step, its memory would grow with the steps.
void StepData::begin_step(int step, const model::Dataset* data) {
  if (fetched_) fetched_->reset();
  for (std::size_t d = 0; d < graph_.data().size(); ++d) {
    const Datum& datum = graph_.data()[d];
    std::vector<float>& memory = memory_[d];
    if (memory.empty() || (datum.kind != DataKind::input && datum.kind != DataKind::target)) continue;
    require(starpu_data_acquire(handle(d), STARPU_W), "StarPU", "writing", "the input");
    if (data != nullptr && datum.kind == DataKind::input) {
      model::load_input(*data, network_.stages[index(datum.stage)], step, datum.microbatch,
                        network_.source_index(datum.stage), memory);
    }
    if (data != nullptr && datum.kind == DataKind::target) data->target(step, datum.microbatch, memory);
    starpu_data_release(handle(d));
  }
}

void StepData::drop(std::size_t datum) const {
  starpu_mpi_cache_flush(MPI_COMM_WORLD, handle(datum));
  const Datum& dropped = graph_.data()[datum];
  if (is_mine(dropped) && is_temporary(dropped.kind)) starpu_data_invalidate_submit(handle(datum));
}

void StepData::drop_fetched(const Task& task) {
  if (!fetched_) return;
  for (const std::size_t datum : fetched_->unread_after(task))
    starpu_data_evict_from_node(handle(datum), static_cast<unsigned>(node(task.worker)));
}

}  // namespace starpipe::runtime
