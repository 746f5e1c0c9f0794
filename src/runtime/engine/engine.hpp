// SPDX-License-Identifier: Apache-2.0
// The engine: a step's task graph on StarPU and StarPU-MPI.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <starpu.h>

#include "runtime/engine/delay_line.hpp"
#include "runtime/engine/emulated_devices.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/session.hpp"
#include "runtime/step/fetched_copies.hpp"
#include "runtime/step/kernels.hpp"
#include "runtime/step/meter.hpp"
#include "runtime/step/task_graph.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::runtime {

/// A StarPU data handle and its end.
class Handle {
 public:
  Handle() = default;
  /// Takes over a registered handle. `keep_value`: bring the value back to its home at the end.
  Handle(starpu_data_handle_t handle, bool keep_value) : handle_(handle), keep_value_(keep_value) {}
  ~Handle();
  Handle(Handle&& other) noexcept : handle_(other.handle_), keep_value_(other.keep_value_) {
    other.handle_ = nullptr;
  }
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(keep_value_, other.keep_value_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  [[nodiscard]] starpu_data_handle_t get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  starpu_data_handle_t handle_ = nullptr;
  bool keep_value_ = false;
};

/// A step as it ran.
struct StepResult {
  std::vector<float> losses;          ///< by micro-batch; on every rank; none of emulated jobs
  double seconds = 0;                 ///< from submission to the last update, this rank's clock
  double submission = 0;              ///< the part of it in which this rank's tasks were inserted
  std::vector<JobRecord> jobs;        ///< all ranks' jobs, on rank 0's clock; on rank 0 only
  std::vector<WorkerRecord> workers;  ///< by logical worker; on rank 0 only
};

/// Trains one network under one schedule. All member functions are collective: every rank of the session
/// calls them in the same order. Not thread-safe.
///
/// Each rank inserts the tasks that it runs or whose input it owns. A rank holds memory for what it owns
/// and, for as long as its tasks read it, for what it received: copies are dropped after their last reader
/// in the step (activations and fetched weights alike).
class Engine {
 public:
  /// `parameters`: start values of each stage, on every rank. `config`: `timeout` and `window`. `emulated`:
  /// waits of these lengths instead of kernels and transfers; nothing is computed then. References and
  /// `emulated` must outlive the engine.
  Engine(const Session& session, const plan::Schedule& schedule, const model::Network& network,
         const model::OptimizerConfig& optimizer, const std::vector<std::vector<float>>& parameters,
         const RuntimeConfig& config, const plan::Costs* emulated = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One optimizer step, number `step` from 0. Returns when all ranks are done.
  StepResult run_step(int step, const model::Dataset& data);

  /// By stage, from its first holder; on rank 0 only. Parameters after the last step, and the mean weight
  /// gradient of the last step.
  [[nodiscard]] std::vector<std::vector<float>> parameters();
  [[nodiscard]] std::vector<std::vector<float>> gradients();

  /// What this run has taken of the memory of all ranks' GPUs so far; on rank 0 only.
  [[nodiscard]] std::vector<DeviceMemory> device_memory() const;

  [[nodiscard]] const TaskGraph& graph() const { return graph_; }

  /// Bytes that StarPU-MPI says this rank has sent since it started. All zero when its statistics are off
  /// (STARPU_MPI_STATS=0).
  [[nodiscard]] std::uint64_t bytes_sent_by_starpu() const;

 private:
  // What a StarPU task brings to its kernel, and its kernel to what follows.
  struct TaskArgument {
    Engine* engine;
    const Task* task;
    int worker = -1;   // the logical one that runs it
    double start = 0;  // when its kernels could start
  };

  // The memory of a task on the worker that calls.
  struct TaskMemory {
    std::vector<model::Memory> data;
    model::Memory scratch;
  };
  static const TaskMemory& memory_of(const Task& task, void** buffers);

  static void run_on_cpu(void** buffers, void* argument) noexcept;
  static void run_on_gpu(void** buffers, void* argument) noexcept;
  static void finished_on_gpu(void* argument);
  static starpu_codelet& codelet(TaskKind kind);

  static double expected_microseconds(starpu_task* task, unsigned worker, unsigned implementation);
  void learn_times();
  [[nodiscard]] static std::size_t slot(const plan::Job& job) {
    return static_cast<std::size_t>(job.stage) * 4 + static_cast<std::size_t>(job.pass);
  }

  void choose_local_tasks();
  [[nodiscard]] std::vector<float> start_value(const Datum& datum,
                                               const std::vector<std::vector<float>>& parameters) const;
  void register_data(const std::vector<std::vector<float>>& parameters);
  void fill_inputs(int step, const model::Dataset& data);
  void submit();
  void wait_for_room() const;
  [[nodiscard]] starpu_data_handle_t scratch_of(const Task& task) const;
  void insert(std::size_t task_number);
  std::vector<starpu_task*> arrivals(const Task& task);
  EmulatedDevices::Span emulate(const Task& task, int received);
  void drop(std::size_t datum);
  void drop_fetched(const Task& task);
  void read_losses(std::vector<float>& losses);
  void gather(StepResult& result);
  std::vector<std::vector<float>> gather_data(DataKind wanted);
  [[nodiscard]] int rank_of(const Datum& datum) const { return session_.map().rank_of(datum.worker); }
  [[nodiscard]] int rank() const { return session_.mpi().rank(); }
  void watch(const std::stop_token& stop, double timeout);

  const Session& session_;
  const plan::Schedule& schedule_;
  const model::Network& network_;
  TaskGraph graph_;
  KernelContext context_;
  Meter meter_;
  std::vector<int> nodes_;                // StarPU's memory nodes, by logical worker; -1 on other ranks
  std::optional<FetchedCopies> fetched_;  // where workers are known before and some are on GPUs
  DeviceMeters device_meters_;
  double clock_offset_;  // to add to our clock for rank 0's

  std::vector<std::size_t> local_tasks_;        // that this rank inserts
  std::vector<std::size_t> last_use_;           // by datum: index into local_tasks_; none if unused here
  std::vector<TaskArgument> arguments_;         // by task
  std::vector<std::string> names_;              // by task
  std::vector<std::vector<float>> memory_;      // by datum: what the host provides
  std::vector<PinnedMemory> pinned_;            // what of it GPUs copy from and to
  std::vector<Handle> handles_;                 // by datum
  std::array<std::vector<Handle>, 2> scratch_;  // of cores and of GPUs, by stage

  std::vector<double> expected_;      // microseconds of each stage and pass; NaN before the first
  unsigned window_ = 0;               // most tasks in flight, unless 0
  std::vector<unsigned> next_order_;  // for STARPU_WORKER_ORDER, by StarPU worker

  const plan::Costs* emulated_;
  std::optional<EmulatedDevices> devices_;                    // emulated
  std::optional<DelayLine> links_;                            // emulated, with prefetch
  std::map<std::pair<std::size_t, int>, starpu_task*> sent_;  // by datum and worker, of this step

  std::atomic<std::uint64_t> finished_ = 0;
  std::atomic<bool> running_ = false;
  std::atomic<int> step_ = 0;  // for the watchdog's message
  std::mutex watch_mutex_;
  std::condition_variable_any watch_wake_;
  std::jthread watchdog_;  // last: it uses the rest
};

}  // namespace starpipe::runtime
