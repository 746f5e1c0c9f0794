// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_data.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "base/environment.hpp"
#include "base/numbers.hpp"
#include "model/bf16.hpp"
#include "model/data/slice_rows.hpp"
#include "runtime/engine/data_sizes.hpp"
#include "runtime/engine/kernels.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {
namespace {

/// A copy that StarPU was asked to make. The callback that releases the copy also deletes this object.
struct RequestedCopy {
  starpu_data_handle_t handle;
  int node;
};

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

// Protects an accumulator on a GPU. Jobs that add to it access it as StarPU's readers do (step_run.cpp). So
// StarPU takes the old copy in main memory for the same value, and would drop the sum on the GPU when the
// GPU's memory is full. StarPU never evicts a datum from a node in the datum's write-through mask. The mask
// has no other effect here, since all tasks that write the datum run on this node.
void keep_on_node(starpu_data_handle_t handle, int node) { starpu_data_set_wt_mask(handle, 1U << node); }

// StarPU counts words in 32 bits. `check_data_sizes` refuses a run with larger data before it starts.
std::uint32_t starpu_words(std::size_t size) {
  if (size > max_datum_words) throw std::length_error("a datum is too large for StarPU");
  return static_cast<std::uint32_t>(size);
}

// Locks pages of host memory, so that copies between the memory and a GPU need not wait for each other.
// Returns an empty pointer if that is impossible.
PinnedMemory pin(std::span<float> memory) {
  const bool pinned = starpu_memory_pin(memory.data(), memory.size_bytes()) == 0;
  return {pinned ? memory.data() : nullptr, Unpin{memory.size_bytes()}};
}

}  // namespace

StepData::StepData(const StepContext& step, const DataSlots& slots, std::optional<int> window,
                   const model::StartValues& start, const StepData* training)
    : step_(step),
      slots_(slots),
      nodes_(step.session.memory_nodes()),
      memory_(slots.count()),
      training_(training),
      handles_(slots.count()),
      in_slot_(slots.count(), none) {
  if (training_ != nullptr) take_weights_of_training();
  if (!on_simgrid && !start && training_ == nullptr) unused_ = unused_memory(largest_datum());
  if (step_.session.knows_workers() && step_.session.on_gpus()) fetched_.emplace(step_.graph, nodes_);
  if (step_.session.on_gpus()) find_common_sizes();
  for (const std::size_t largest : step_.received.buffers) {
    buffers_.push_back(start_memory(step_.graph.data()[largest], start));
    if (step_.session.on_gpus()) pinned_.push_back(pin(buffers_.back().values));
  }
  for (std::size_t d = 0; d < step_.graph.data().size(); ++d) {
    if (step_.tasks.last_use[d] == RankTasks::unused || handle(d) != nullptr) continue;
    register_datum(d, start);
    if (is_for_host(step_.graph.data()[d])) first_for_host_.push_back(d);
  }
  find_prepared(window);
  find_sent();
  if (training_ == nullptr && !unused_.owner) register_scratch();
}

// GpuBuffers keeps a freed buffer for later data of the same size. So each size takes as much memory as its
// data ever took at once. Stashes of two stages may differ a little: the first stage's have token ids. They
// get buffers of one size, at most 1/64 too large.
void StepData::find_common_sizes() {
  constexpr std::size_t parts = 64;
  std::set<std::size_t, std::greater<>> sizes;
  for (std::size_t d = 0; d < step_.graph.data().size(); ++d) {
    const Datum& datum = step_.graph.data()[d];
    if (is_temporary(datum.kind) && step_.tasks.last_use[d] != RankTasks::unused) sizes.insert(datum.size);
  }
  std::size_t larger = 0;
  for (const std::size_t size : sizes) {
    if (larger < size || larger - size > size / parts) larger = size;
    common_sizes_[size] = larger;
  }
}

std::size_t StepData::largest_datum() const {
  std::size_t largest = 0;
  for (std::size_t d = 0; d < step_.graph.data().size(); ++d) {
    if (step_.tasks.last_use[d] != RankTasks::unused) largest = std::max(largest, step_.graph.data()[d].size);
  }
  return largest;
}

// Weights of other ranks that this rank's steps do not touch get a handle of their own: the rank inserts
// tasks that read them elsewhere, since it owns the loss that they read.
void StepData::take_weights_of_training() {
  for (std::size_t d = 0; d < step_.graph.data().size(); ++d) {
    const Datum& datum = step_.graph.data()[d];
    if (datum.kind != DataKind::weights || step_.tasks.last_use[d] == RankTasks::unused) continue;
    const auto trained = training_->step_.graph.find(DataKind::weights, datum.stage, datum.worker);
    if (trained) handles_[slots_.of(d)] = training_->handle(*trained);
    if (handle(d) == nullptr && is_mine(datum))
      throw std::logic_error("the training has no handle for weights of this rank");
  }
}

// Finds the inputs and targets that the first window's tasks read, except the first datum of each slot, whose
// values `begin_step` writes into its memory.
void StepData::find_prepared(std::optional<int> window) {
  const std::vector<std::uint32_t>& tasks = step_.tasks.tasks;
  const std::size_t count = window ? std::min(index(*window), tasks.size()) : tasks.size();
  std::vector<bool> seen(step_.graph.data().size());
  for (const std::size_t d : first_for_host_) seen[d] = true;
  for (const std::size_t task : std::span(tasks).first(count)) {
    for (const DataAccess& access : step_.graph.tasks()[task].data) {
      const Datum& datum = step_.graph.data()[access.datum];
      if (!is_for_host(datum) || datum.kind == DataKind::loss || seen[access.datum]) continue;
      seen[access.datum] = true;
      prepared_.push_back(access.datum);
    }
  }
}

HostMemory StepData::start_memory(const Datum& datum, const model::StartValues& start) {
  if (on_simgrid) return unused_memory(datum.size);
  try {
    HostMemory memory = zero_memory(datum.size);
    if (start && is_mine(datum) && (datum.kind == DataKind::weights || datum.kind == DataKind::master))
      fill(datum, start, memory.values);
    return memory;
  } catch (const InputError& error) {
    problem_ = error.what();
  } catch (const std::bad_alloc&) {
    problem_ =
        fmt::format("stage {}: this host has no memory for its {}, {}", stage_to_name(datum, step_.graph),
                    to_string(datum.kind), bytes_text(datum.size * sizeof(float)));
  }
  return unused_memory(datum.size);
}

HostMemory StepData::host_memory(std::size_t number, const model::StartValues& start) {
  const Datum& datum = step_.graph.data()[number];
  if (unused_.owner) return {unused_.owner, unused_.values.first(datum.size)};
  const bool lasts = is_mine(datum) ? !is_temporary(datum.kind) : step_.received.weights.contains(number);
  if (lasts) return start_memory(datum, start);
  if (datum.kind == DataKind::gradient_segment && is_mine(datum) && !on_simgrid && !step_.session.on_gpus()) {
    const GradientSegment& segment = step_.graph.segment(number);
    const HostMemory& gradient = memory_[slots_.of(segment.from)];
    return {gradient.owner, gradient.values.subspan(segment.first, datum.size)};
  }
  const auto received = step_.received.turns.find(number);
  if (received == step_.received.turns.end()) return {};
  const HostMemory& buffer = buffers_[received->second.buffer];
  return {buffer.owner, buffer.values.first(datum.size)};
}

void StepData::fill(const Datum& datum, const model::StartValues& start, std::span<float> memory) const {
  const std::size_t set = index(datum.stage);
  const model::Precision precision = step_.network.stages.front().precision();
  const bool rounds = datum.kind != DataKind::master && precision == model::Precision::bf16;
  std::vector<float> values;  // of one parameter, so that not the whole set is there twice
  model::for_each_parameter(
      set, step_.graph.parameters()[set].sizes, [&](const model::SetParameter& of, std::size_t size) {
        if (!rounds) {
          start(of, memory.subspan(of.first, size));
          return;
        }
        values.resize(std::max(values.size(), size));
        const std::span<float> own = std::span(values).first(size);
        start(of, own);
        model::Bf16* const rounded = model::Memory(memory).as<model::Bf16>() + of.first;
        model::round_to_bf16(own, model::Memory(rounded, model::words(precision, size)));
      });
}

starpu_data_handle_t StepData::register_words(std::size_t size, int home, std::uintptr_t memory) const {
  if (step_.session.on_gpus()) {
    const auto common = memory == 0 ? common_sizes_.find(size) : common_sizes_.end();
    const std::size_t buffer = common == common_sizes_.end() ? size : common->second;
    return GpuBuffers::register_words(home, memory, starpu_words(size), starpu_words(buffer));
  }
  starpu_data_handle_t handle = nullptr;
  starpu_vector_data_register(&handle, home, memory, starpu_words(size), sizeof(float));
  return handle;
}

void StepData::register_datum(std::size_t number, const model::StartValues& start) {
  const Datum& datum = step_.graph.data()[number];
  const std::size_t slot = slots_.of(number);
  starpu_data_handle_t handle = nullptr;
  memory_[slot] = host_memory(number, start);
  if (memory_[slot].owner) {
    const std::span<float> memory = memory_[slot].values;
    if (step_.session.on_gpus() && !step_.received.turns.contains(number)) pinned_.push_back(pin(memory));
    handle = register_words(datum.size, STARPU_MAIN_RAM, reinterpret_cast<std::uintptr_t>(memory.data()));
  } else {
    handle = register_words(datum.size);
  }
  own_.emplace_back(handle, Unregister{.keep_value = is_mine(datum) && !is_temporary(datum.kind)});
  handles_[slot] = handle;
  if (fetched_ && datum.kind == DataKind::weight_gradient && node(datum.worker) > FetchedCopies::main_memory)
    keep_on_node(handle, node(datum.worker));
  const std::size_t tag = slot + (training_ == nullptr ? 0 : training_->slots_.count());
  starpu_mpi_data_register_comm(handle, static_cast<starpu_mpi_tag_t>(tag), owner(datum),
                                step_.session.mpi().starpu_comm());
}

void StepData::register_scratch() {
  norm_scratch_.reset(register_words(std::max<std::size_t>(1, norm_scratch_size(step_.graph))));
  for (const bool on_gpu : {false, true}) {
    for (int stage = 0; stage < step_.schedule.stages(); ++stage) {
      const std::size_t size = std::max<std::size_t>(
          1, scratch_size(step_.schedule, step_.network, stage, on_gpu, step_.graph.rules()));
      scratch_[on_gpu ? 1 : 0].emplace_back(register_words(size));
    }
  }
}

starpu_data_handle_t StepData::scratch(const Task& task) const {
  if (training_ != nullptr) return training_->scratch(task);
  if (unused_.owner) return nullptr;
  const std::size_t stage = index(task.stage);
  bool gpu = node(task.worker) > FetchedCopies::main_memory;
  if (task.kind == TaskKind::norm)
    return gpu || (!step_.session.knows_workers() && step_.session.on_gpus()) ? norm_scratch_.get() : nullptr;
  if (!is_pass(task.kind)) return nullptr;
  // The policy may choose a core or a GPU: take the larger of the two needs.
  if (!step_.session.knows_workers() && step_.session.on_gpus() &&
      std::ranges::count(nodes_, FetchedCopies::main_memory) > 0) {
    gpu = scratch_size(step_.schedule, step_.network, task.stage, true, step_.graph.rules()) >
          scratch_size(step_.schedule, step_.network, task.stage, false, step_.graph.rules());
  }
  return scratch_[gpu ? 1 : 0][stage].get();
}

void StepData::begin_step(int step, const model::Dataset* data) {
  if (fetched_) fetched_->reset();
  number_ = step;
  dataset_ = data;
  losses_.assign(index(step_.schedule.microbatches()), 0.0F);
  problems_.clear();
  for (const std::size_t d : first_for_host_) {
    enter(d);
    if (step_.graph.data()[d].kind == DataKind::loss) continue;
    // Also where jobs do not compute: StarPU remembers the readers of a datum until the next write, so
    // without a write per step its memory would grow with the steps.
    const Acquired acquired(handle(d), STARPU_W, "the input");
    load(d, memory_of(d));
  }
  values_.clear();
  if (dataset_ == nullptr) return;
  for (const std::size_t d : prepared_) {
    values_[d].resize(step_.graph.data()[d].size);
    load(d, values_[d]);
  }
}

bool StepData::is_for_host(const Datum& datum) const {
  return (is_from_host(datum.kind) || datum.kind == DataKind::loss) && is_mine(datum);
}

void StepData::enter(std::size_t datum) {
  in_slot_[slots_.of(datum)] = datum;
  const Datum& entered = step_.graph.data()[datum];
  starpu_data_set_coordinates(handle(datum), 2, entered.stage, entered.microbatch);  // for traces
}

void StepData::prepare(std::size_t datum) {
  const Datum& next = step_.graph.data()[datum];
  const std::size_t before = in_slot_[slots_.of(datum)];
  if (before == datum) return;
  enter(datum);
  if (!is_for_host(next)) return;
  if (next.kind != DataKind::loss) {
    request(datum, STARPU_W, values_of(datum));
  } else if (dataset_ != nullptr) {
    request(before, STARPU_R, {});
  }
}

std::vector<float> StepData::values_of(std::size_t datum) {
  if (const auto prepared = values_.extract(datum)) return std::move(prepared.mapped());
  if (dataset_ == nullptr) return {};
  std::vector<float> values(step_.graph.data()[datum].size);
  load(datum, values);
  return values;
}

void StepData::request(std::size_t datum, starpu_data_access_mode mode, std::vector<float> values) {
  auto argument = std::make_unique<Granted>(Granted{this, datum, std::move(values)});
  require(starpu_data_acquire_cb(handle(datum), mode, granted, argument.get()), "StarPU", "reaching",
          to_string(step_.graph.data()[datum].kind));
  static_cast<void>(argument.release());  // `granted` takes it
}

// StarPU calls it on the thread that ends the last earlier task on the handle, or within `request`.
void StepData::granted(void* argument) noexcept {
  const std::unique_ptr<const Granted> grant(static_cast<const Granted*>(argument));
  StepData& data = *grant->data;
  if (data.step_.graph.data()[grant->datum].kind == DataKind::loss) {
    data.keep_loss(grant->datum);
  } else {
    std::ranges::copy(grant->values, data.memory_of(grant->datum).begin());
  }
  starpu_data_release(data.handle(grant->datum));
}

void StepData::load(std::size_t datum, std::span<float> out) {
  if (dataset_ == nullptr) return;
  const Datum& of = step_.graph.data()[datum];
  try {
    const auto load = of.kind == DataKind::input ? model::load_input_rows : model::load_target_rows;
    load(*dataset_, step_.network, of.stage, number_, of.microbatch, out);
  } catch (const std::exception& error) {  // a program's data set may throw any exception
    std::ranges::fill(out, 0.0F);
    problems_.try_emplace(of.microbatch, error.what());
  } catch (...) {
    std::ranges::fill(out, 0.0F);
    problems_.try_emplace(of.microbatch, "the data set threw an exception that is not a std::exception");
  }
}

std::string StepData::data_problem() const {
  if (problems_.empty()) return step_.session.mpi().first_problem("");
  const auto& [microbatch, problem] = *problems_.begin();
  return step_.session.mpi().first_problem(problem, microbatch);
}

std::vector<float> StepData::losses() {
  for (const std::size_t first : first_for_host_) {
    if (step_.graph.data()[first].kind != DataKind::loss) continue;
    const std::size_t last = in_slot_[slots_.of(first)];
    if (dataset_ == nullptr) continue;
    read(last, "the loss", [&](std::span<const float>) { keep_loss(last); });
  }
  return losses_;
}

void StepData::drop(std::size_t datum) const {
  if (slots_.continues(datum)) return;
  starpu_mpi_cache_flush(step_.session.mpi().starpu_comm(), handle(datum));
  if (unused_.owner) return;
  const Datum& dropped = step_.graph.data()[datum];
  // An input or a target is dropped if a GPU reads it, since the GPU then has a copy. The host fills the
  // datum again before its next use.
  const bool is_copied =
      is_from_host(dropped.kind) && fetched_ && node(dropped.worker) > FetchedCopies::main_memory;
  if (is_mine(dropped) && (is_temporary(dropped.kind) || is_copied))
    starpu_data_invalidate_submit(handle(datum));
}

void StepData::fetch_weights() const {
  if (!fetched_) return;
  int priority = 0;
  for (const auto& [datum, node] : fetched_->weights()) {
    require(starpu_data_prefetch_on_node_prio(handle(datum), static_cast<unsigned>(node), 1, --priority),
            "StarPU", "fetching", "weights");
  }
}

void StepData::find_sent() {
  if (!step_.session.moves_stashes()) return;
  early_ = early_inputs(step_.graph);
  is_for_other_ranks_.resize(step_.graph.data().size(), false);
  for (const std::uint32_t number : step_.tasks.tasks) {
    const Task& task = step_.graph.tasks()[number];
    if (step_.session.is_local(task.worker)) continue;
    for (const DataAccess& access : task.data) {
      const Datum& datum = step_.graph.data()[access.datum];
      if (datum.kind == DataKind::activation && is_mine(datum)) is_for_other_ranks_[access.datum] = true;
    }
  }
}

void StepData::fetch_ahead(const Task& task) const {
  const plan::Schedule& schedule = step_.schedule;
  if (!fetched_ || !task.job || is_stash_copy(task.kind) || !step_.session.is_local(task.worker)) return;
  if (!schedule.copies() && !schedule.recomputes()) return;
  const int to = node(task.worker);
  if (to <= FetchedCopies::main_memory) return;
  for (const DataAccess& access : task.data) {
    const Datum& datum = step_.graph.data()[access.datum];
    const bool is_sent = datum.kind == DataKind::activation || datum.kind == DataKind::gradient;
    if (is_sent && access.access == Access::read && datum.worker != task.worker) fetch(access.datum, to);
    if (!early_.empty() && early_[access.datum]) fetch(access.datum, to);
    const bool is_written = access.access != Access::read && !is_for_other_ranks_.empty();
    if (is_written && is_for_other_ranks_[access.datum]) fetch(access.datum, FetchedCopies::main_memory);
  }
}

void StepData::fetch(std::size_t datum, int node) const {
  const auto release = [](void* argument) {
    const std::unique_ptr<RequestedCopy> copy(static_cast<RequestedCopy*>(argument));
    starpu_data_release_on_node(copy->handle, copy->node);
  };
  auto copy = std::make_unique<RequestedCopy>(RequestedCopy{handle(datum), node});
  require(starpu_data_acquire_on_node_cb(handle(datum), node, STARPU_R, release, copy.release()), "StarPU",
          "fetching", to_string(step_.graph.data()[datum].kind));
}

void StepData::drop_fetched(const Task& task) {
  if (!fetched_) return;
  for (const std::size_t datum : fetched_->unread_after(task))
    starpu_data_evict_from_node(handle(datum), static_cast<unsigned>(node(task.worker)));
}

void Unregister::operator()(starpu_data_handle_t handle) const {
  if (keep_value) {
    starpu_data_unregister(handle);
  } else {
    starpu_data_unregister_no_coherency(handle);
  }
}

}  // namespace starpipe::runtime
