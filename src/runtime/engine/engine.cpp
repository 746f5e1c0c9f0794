// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "runtime/session/clock.hpp"
#include "sched/starpu_policy.hpp"
#include "starpipe/plan/simulate/reductions.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

void require(int status, std::string_view what, std::string_view name) {
  if (status == 0) return;
  throw std::runtime_error(fmt::format("StarPU: {} failed for {} (error {})", what, name, status));
}

std::string name_of(const Task& task, const plan::Schedule& schedule) {
  if (task.job) return plan::to_string(schedule.job(*task.job));
  return fmt::format("{}({})", to_string(task.kind), task.stage);
}

// StarPU's mode for an access. Accumulating tasks share the datum, as readers would: they all run on the
// worker that owns it, one after the other, so StarPU need not order them, and must not: with an exclusive
// mode it would grant the datum to a job that the discipline then refuses, and the job it waits for would
// never get it. `close` takes the datum for itself and so orders the sum's readers after them.
// So with STARPU_WORKER_ORDER. Policies that may use any worker of the rank refuse nothing, and StarPU
// serialises the sums.
starpu_data_access_mode mode_of(Access access, bool on_its_worker) {
  switch (access) {
    case Access::read:
      return STARPU_R;
    case Access::write:
      return STARPU_W;
    case Access::update:
      return STARPU_RW;
    case Access::accumulate:
      return on_its_worker ? STARPU_R : static_cast<starpu_data_access_mode>(STARPU_RW | STARPU_COMMUTE);
  }
  return STARPU_RW;
}

/// Collective. The records of all ranks, by rank, on rank 0; nothing on the others.
template <class Record>
std::vector<Record> gather_on_root(const Mpi& mpi, std::span<const Record> mine) {
  const int bytes = static_cast<int>(mine.size_bytes());
  std::vector<int> sizes(static_cast<std::size_t>(mpi.ranks()));
  MPI_Gather(&bytes, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, mpi.comm());
  std::vector<int> offsets(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), offsets.begin() + 1);
  std::vector<Record> all(static_cast<std::size_t>(offsets.back()) / sizeof(Record));
  MPI_Gatherv(mine.data(), bytes, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE, 0,
              mpi.comm());
  return all;
}

// Jobs add to an accumulator as StarPU's readers do (mode_of), so it would drop the sum on a GPU whose memory
// is full, and take the copy in main memory for as good. It never evicts from a node that a datum is to be
// written through to; nothing else follows from that where all writers are on this node.
void keep_on_node(starpu_data_handle_t handle, int node) { starpu_data_set_wt_mask(handle, 1U << node); }

}  // namespace

Handle::~Handle() {
  if (handle_ == nullptr) return;
  if (keep_value_) {
    starpu_data_unregister(handle_);
  } else {
    starpu_data_unregister_no_coherency(handle_);
  }
}

Engine::Engine(const Session& session, const plan::Schedule& schedule, const model::Network& network,
               const model::OptimizerConfig& optimizer, const std::vector<std::vector<float>>& parameters,
               const RuntimeConfig& config, const plan::Costs* emulated)
    : session_(session),
      schedule_(schedule),
      network_(network),
      graph_(schedule, network, optimizer),
      context_{&graph_, &network, &optimizer, 1.0F / static_cast<float>(schedule.microbatches()), 0},
      meter_(graph_, schedule.workers(),
             [&] {
               std::vector<bool> local(static_cast<std::size_t>(schedule.workers()));
               for (int w = 0; w < schedule.workers(); ++w)
                 local[static_cast<std::size_t>(w)] = session.is_local(w);
               return local;
             }()),
      nodes_(session.memory_nodes()),
      device_meters_(nodes_),
      clock_offset_(measure_clock_offset(session.mpi().comm())),
      expected_(static_cast<std::size_t>(schedule.stages()) * 4, std::numeric_limits<double>::quiet_NaN()),
      next_order_(starpu_worker_get_count(), 1),
      emulated_(emulated) {
  const bool keeps_order = session.core() != nullptr || session.choice().binding == Binding::order;
  if (keeps_order && schedule.discipline() == plan::Discipline::ordered)
    window_ = static_cast<unsigned>(config.window);
  if (emulated != nullptr) devices_.emplace();
  // Where a policy chooses the worker, nobody knows before where to send.
  const bool placed = session.core() != nullptr || session.choice().binding != Binding::none;
  if (emulated != nullptr && emulated->prefetch && emulated->alpha > 0 && placed)
    links_.emplace(emulated->alpha);
  for (const Task& task : graph_.tasks()) {
    arguments_.push_back({this, &task});
    names_.push_back(name_of(task, schedule));
  }
  if (placed && session.on_gpus()) fetched_.emplace(graph_, nodes_);
  choose_local_tasks();
  register_data(parameters);
  watchdog_ =
      std::jthread([this, timeout = config.timeout](const std::stop_token& stop) { watch(stop, timeout); });
}

Engine::~Engine() { starpu_task_wait_for_all(); }

// A rank inserts a task when it runs it or owns one of its inputs. That is StarPU-MPI's own rule, less
// "or may hold a cached copy of a datum it writes": we drop every copy after its last reader in the step,
// before the next write.
void Engine::choose_local_tasks() {
  last_use_.assign(graph_.data().size(), never);
  for (std::size_t t = 0; t < graph_.tasks().size(); ++t) {
    const Task& task = graph_.tasks()[t];
    const bool mine =
        session_.is_local(task.worker) || std::ranges::any_of(task.data, [&](const DataAccess& access) {
          return access.access == Access::read && rank_of(graph_.data()[access.datum]) == rank();
        });
    if (!mine) continue;
    for (const DataAccess& access : task.data) last_use_[access.datum] = local_tasks_.size();
    local_tasks_.push_back(t);
  }
}

std::vector<float> Engine::start_value(const Datum& datum,
                                       const std::vector<std::vector<float>>& parameters) const {
  const auto s = static_cast<std::size_t>(datum.stage);
  if (datum.kind == DataKind::master) return parameters[s];
  if (datum.kind == DataKind::weights) return model::rounded_weights(network_.stages[s], parameters[s]);
  return std::vector<float>(datum.size, 0.0F);
}

void Engine::register_data(const std::vector<std::vector<float>>& parameters) {
  memory_.resize(graph_.data().size());
  handles_.resize(graph_.data().size());
  for (std::size_t d = 0; d < graph_.data().size(); ++d) {
    if (last_use_[d] == never) continue;
    const Datum& datum = graph_.data()[d];
    starpu_data_handle_t handle = nullptr;
    const bool from_host = rank_of(datum) == rank() && !is_temporary(datum.kind);
    if (from_host) {
      memory_[d] = start_value(datum, parameters);
      if (session_.on_gpus()) pinned_.emplace_back(memory_[d]);
      starpu_vector_data_register(&handle, STARPU_MAIN_RAM,
                                  reinterpret_cast<std::uintptr_t>(memory_[d].data()),
                                  static_cast<std::uint32_t>(datum.size), sizeof(float));
    } else {
      starpu_vector_data_register(&handle, -1, 0, static_cast<std::uint32_t>(datum.size), sizeof(float));
    }
    handles_[d] = Handle(handle, from_host);
    if (const auto node = nodes_[static_cast<std::size_t>(datum.worker)];
        fetched_ && datum.kind == DataKind::weight_gradient && node > FetchedCopies::main_memory) {
      keep_on_node(handle, node);
    }
    starpu_data_set_coordinates(handle, 2, datum.stage, datum.microbatch);
    starpu_mpi_data_register(handle, static_cast<starpu_mpi_tag_t>(d), rank_of(datum));
  }
  for (const bool on_gpu : {false, true}) {
    for (const model::Stage& stage : network_.stages) {
      const std::size_t size = std::max<std::size_t>(1, scratch_size(schedule_, stage, on_gpu));
      starpu_data_handle_t handle = nullptr;
      starpu_vector_data_register(&handle, -1, 0, static_cast<std::uint32_t>(size), sizeof(float));
      scratch_[on_gpu ? 1 : 0].emplace_back(handle, false);
    }
  }
}

// Emulated jobs compute nothing, but StarPU remembers who read a datum until it is written: without a write
// a step, its memory would grow with the steps.
void Engine::fill_inputs(int step, const model::Dataset& data) {
  for (std::size_t d = 0; d < graph_.data().size(); ++d) {
    const Datum& datum = graph_.data()[d];
    if (memory_[d].empty() || (datum.kind != DataKind::input && datum.kind != DataKind::target)) continue;
    require(starpu_data_acquire(handles_[d].get(), STARPU_W), "acquiring", "the input");
    if (emulated_ == nullptr && datum.kind == DataKind::input)
      model::load_input(data, network_.stages[static_cast<std::size_t>(datum.stage)], step, datum.microbatch,
                        network_.source_index(datum.stage), memory_[d]);
    if (emulated_ == nullptr && datum.kind == DataKind::target)
      data.target(step, datum.microbatch, memory_[d]);
    starpu_data_release(handles_[d].get());
  }
}

// What the task waits for on emulated links. Like simulate, each datum goes once to each worker that reads
// it, and gradients are reduced in no time.
std::vector<starpu_task*> Engine::arrivals(const Task& task) {
  std::vector<starpu_task*> tasks;
  if (!links_ || !task.job) return tasks;
  for (const DataAccess& access : task.data) {
    const Datum& datum = graph_.data()[access.datum];
    if (access.access != Access::read || datum.worker == task.worker) continue;
    if (datum.kind == DataKind::loss) continue;  // it is only waited for
    const starpu_data_handle_t handle = handles_[access.datum].get();
    const int reader = session_.map().rank_of(task.worker);
    if (rank_of(datum) != reader) {
      require(starpu_mpi_get_data_on_node_detached(MPI_COMM_WORLD, handle, reader, nullptr, nullptr),
              "sending", "a datum");
    }
    if (reader != rank()) continue;
    starpu_task*& arrival = sent_[{access.datum, task.worker}];
    if (arrival == nullptr) arrival = links_->send(handle);
    tasks.push_back(arrival);
  }
  return tasks;
}

// Where the policy chooses among cores and GPUs, what the kind that needs more needs.
starpu_data_handle_t Engine::scratch_of(const Task& task) const {
  const auto stage = static_cast<std::size_t>(task.stage);
  bool gpu = nodes_[static_cast<std::size_t>(task.worker)] > FetchedCopies::main_memory;
  const bool chosen = session_.core() == nullptr && session_.choice().binding == Binding::none;
  if (chosen && session_.on_gpus() && std::ranges::count(nodes_, FetchedCopies::main_memory) > 0) {
    const model::Stage& what = network_.stages[stage];
    gpu = scratch_size(schedule_, what, true) > scratch_size(schedule_, what, false);
  }
  return scratch_[gpu ? 1 : 0][stage].get();
}

void Engine::insert(std::size_t task_number) {
  const Task& task = graph_.tasks()[task_number];
  const bool ours = session_.core() != nullptr;
  const Binding binding = session_.choice().binding;
  std::vector<starpu_data_descr> data;
  data.reserve(task.data.size() + 1);
  for (const DataAccess& access : task.data)
    data.push_back({handles_[access.datum].get(), mode_of(access.access, ours || binding != Binding::none)});
  if (is_pass(task.kind)) data.push_back({scratch_of(task), STARPU_SCRATCH});

  // Jobs of small n first; what is no job is waited for by jobs, or by the end of the step.
  int priority = std::numeric_limits<int>::max();
  if (task.job) priority = -static_cast<int>(schedule_.rank(*task.job));
  void* sched_data = nullptr;
  if (ours && session_.is_local(task.worker)) {
    sched_data = sched::pack_sched_data(session_.starpu_worker(task.worker), task.job);
  }
  int worker = -1;
  unsigned order = 0;
  if (binding != Binding::none && session_.is_local(task.worker)) {
    worker = session_.starpu_worker(task.worker);
    if (task.job && binding == Binding::order) order = next_order_[static_cast<std::size_t>(worker)]++;
  }
  void (*const epilogue)(void*) = session_.on_gpus() ? finished_on_gpu : nullptr;
  std::vector<starpu_task*> awaited = arrivals(task);
  std::unique_lock<std::mutex> held;
  if (!awaited.empty()) held = links_->hold();
  const int status = starpu_mpi_task_insert(
      MPI_COMM_WORLD, &codelet(task.kind), STARPU_EXECUTE_ON_NODE, session_.map().rank_of(task.worker),
      STARPU_DATA_MODE_ARRAY, data.data(), static_cast<int>(data.size()), STARPU_CL_ARGS_NFREE,
      &arguments_[task_number], sizeof(TaskArgument), STARPU_PRIORITY, priority, STARPU_TASK_SCHED_DATA,
      sched_data, STARPU_EXECUTE_ON_WORKER, worker, STARPU_WORKER_ORDER, order, STARPU_NAME,
      names_[task_number].c_str(), STARPU_EPILOGUE_CALLBACK, epilogue, STARPU_TASK_DEPS_ARRAY,
      static_cast<int>(awaited.size()), awaited.data(), 0);
  require(status, "inserting", names_[task_number]);
}

// After the last task of this rank that touches a datum in the step: copies of what other ranks own are
// freed, and so are temporaries; owners forget whom they sent it to.
void Engine::drop(std::size_t datum) {
  const starpu_data_handle_t handle = handles_[datum].get();
  starpu_mpi_cache_flush(MPI_COMM_WORLD, handle);
  const Datum& what = graph_.data()[datum];
  if (rank_of(what) == rank() && is_temporary(what.kind)) starpu_data_invalidate_submit(handle);
}

// The copies that a GPU fetched of what lasts, from another worker of this rank: StarPU would keep them until
// the owner writes again. Other copies are there as well, so nothing is written back.
void Engine::drop_fetched(const Task& task) {
  if (!fetched_) return;
  const int node = nodes_[static_cast<std::size_t>(task.worker)];
  for (const std::size_t datum : fetched_->unread_after(task))
    starpu_data_evict_from_node(handles_[datum].get(), static_cast<unsigned>(node));
}

// Tasks are inserted in an order in which they could run one after the other, on all ranks the same, and a
// worker keeps to it. So the first task that has not finished anywhere waits for none that is still to be
// inserted, and there is always one less.
void Engine::wait_for_room() const {
  if (window_ == 0 || static_cast<unsigned>(starpu_task_nsubmitted()) < window_) return;
  require(starpu_task_wait_for_n_submitted(window_ / 2), "waiting", "the submission window");
}

void Engine::submit() {
  for (std::size_t i = 0; i < local_tasks_.size(); ++i) {
    const std::size_t t = local_tasks_[i];
    wait_for_room();
    insert(t);
    for (const DataAccess& access : graph_.tasks()[t].data) {
      if (last_use_[access.datum] == i) drop(access.datum);
    }
  }
}

StepResult Engine::run_step(int step, const model::Dataset& data) {
  StepResult result;
  context_.step = step;
  step_ = step;
  running_ = true;  // from here the watchdog counts: any wait for other ranks may be one without end
  meter_.reset();
  if (fetched_) fetched_->reset();
  if (session_.core() != nullptr) session_.core()->begin(schedule_, session_.logical_workers());
  fill_inputs(step, data);
  // Ranks that start together have timelines that start together.
  session_.mpi().barrier();
  const double start = clock_seconds();
  starpu_iteration_push(static_cast<unsigned long>(step));  // for traces
  submit();
  starpu_iteration_pop();
  result.submission = clock_seconds() - start;
  require(starpu_mpi_wait_for_all(MPI_COMM_WORLD), "waiting", "all tasks");
  device_meters_.end_step();
  session_.mpi().barrier();  // so that what follows waits for nobody
  result.seconds = clock_seconds() - start;
  if (links_) {
    links_->clear();
    sent_.clear();
  }
  learn_times();
  if (emulated_ == nullptr) read_losses(result.losses);
  gather(result);
  running_ = false;
  return result;
}

void Engine::read_losses(std::vector<float>& losses) {
  std::vector<float> mine(static_cast<std::size_t>(schedule_.microbatches()), 0.0F);
  losses.resize(mine.size());
  for (std::size_t d = 0; d < graph_.data().size(); ++d) {
    const Datum& datum = graph_.data()[d];
    if (datum.kind != DataKind::loss || rank_of(datum) != rank()) continue;
    require(starpu_data_acquire(handles_[d].get(), STARPU_R), "acquiring", "the loss");
    mine[static_cast<std::size_t>(datum.microbatch)] = memory_[d].front();
    starpu_data_release(handles_[d].get());
  }
  // One rank has each loss, the others zero, so the sum is exact.
  MPI_Allreduce(mine.data(), losses.data(), static_cast<int>(mine.size()), MPI_FLOAT, MPI_SUM,
                session_.mpi().comm());
}

void Engine::gather(StepResult& result) {
  std::vector<JobRecord> mine = meter_.jobs();
  for (JobRecord& job : mine) {
    job.start += clock_offset_;
    job.end += clock_offset_;
  }
  result.jobs = gather_on_root(session_.mpi(), std::span<const JobRecord>(mine));
  const WorkerMap& map = session_.map();
  std::vector<WorkerRecord> local;  // by place, as they are gathered
  for (int i = 0; i < map.count(rank()); ++i) {
    local.push_back(meter_.workers()[static_cast<std::size_t>(map.worker(map.first(rank()) + i))]);
  }
  const auto places = gather_on_root(session_.mpi(), std::span<const WorkerRecord>(local));
  result.workers.clear();
  for (std::size_t w = 0; w < places.size(); ++w) {
    result.workers.push_back(places[static_cast<std::size_t>(map.place(static_cast<int>(w)))]);
  }
}

// Of the parameters the floats, wherever they are.
std::vector<std::vector<float>> Engine::gather_data(DataKind wanted) {
  const MPI_Comm comm = session_.mpi().comm();
  std::vector<std::vector<float>> all(network_.stages.size());
  for (std::size_t s = 0; s < all.size(); ++s) {
    if (network_.stages[s].parameter_size() == 0) continue;
    const int holder = plan::weight_holders(schedule_, static_cast<int>(s)).front();
    const bool is_master = wanted == DataKind::weights && network_.stages[s].has_master();
    const DataKind kind = is_master ? DataKind::master : wanted;
    const auto is_wanted = [&](const Datum& datum) {
      return datum.kind == kind && datum.stage == static_cast<int>(s) && datum.worker == holder;
    };
    const auto d =
        static_cast<std::size_t>(std::ranges::find_if(graph_.data(), is_wanted) - graph_.data().begin());
    const int owner = rank_of(graph_.data()[d]);
    const int count = static_cast<int>(graph_.data()[d].size);
    if (rank() == owner) {
      require(starpu_data_acquire(handles_[d].get(), STARPU_R), "acquiring", "a stage's parameters");
      if (rank() == 0) {
        all[s] = memory_[d];
      } else {
        MPI_Send(memory_[d].data(), count, MPI_FLOAT, 0, static_cast<int>(s), comm);
      }
      starpu_data_release(handles_[d].get());
    } else if (rank() == 0) {
      all[s].resize(graph_.data()[d].size);
      MPI_Recv(all[s].data(), count, MPI_FLOAT, owner, static_cast<int>(s), comm, MPI_STATUS_IGNORE);
    }
  }
  return all;
}

std::vector<std::vector<float>> Engine::parameters() { return gather_data(DataKind::weights); }
std::vector<std::vector<float>> Engine::gradients() { return gather_data(DataKind::weight_gradient); }

std::vector<DeviceMemory> Engine::device_memory() const {
  std::vector<DeviceMemory> mine = session_.device_memory();
  device_meters_.write_to(mine);
  return gather_on_root(session_.mpi(), std::span<const DeviceMemory>(mine));
}

std::uint64_t Engine::bytes_sent_by_starpu() const {
  std::vector<std::size_t> sent(static_cast<std::size_t>(session_.mpi().ranks()), 0);
  starpu_mpi_comm_stats_retrieve(sent.data());
  return std::accumulate(sent.begin(), sent.end(), std::uint64_t{0});
}

// StarPU and MPI wait without end for a rank that is gone or stuck; this does not.
void Engine::watch(const std::stop_token& stop, double timeout) {
  auto last_progress = std::chrono::steady_clock::now();
  std::uint64_t seen = 0;
  std::unique_lock lock(watch_mutex_);
  while (!stop.stop_requested()) {
    watch_wake_.wait_for(lock, stop, std::chrono::milliseconds(200), [] { return false; });
    const auto now = std::chrono::steady_clock::now();
    if (const std::uint64_t count = finished_; count != seen || !running_) {
      seen = count;
      last_progress = now;
    }
    if (std::chrono::duration<double>(now - last_progress).count() < timeout) continue;
    session_.mpi().abort(
        fmt::format("no job finished for {} s in step {} (runtime.timeout): a rank is lost or stuck", timeout,
                    step_.load()));
  }
}

}  // namespace starpipe::runtime
