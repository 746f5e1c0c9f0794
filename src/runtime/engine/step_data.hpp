// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <starpu.h>

#include "model/weights.hpp"
#include "runtime/engine/data_use.hpp"
#include "runtime/engine/received_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/gpu_buffers.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/host_buffers.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Unregisters a StarPU data handle. `keep_value`: StarPU copies the value back to the host memory that the
/// handle was registered with.
struct Unregister {
  bool keep_value = false;
  void operator()(starpu_data_handle_t handle) const;
};
using Handle = std::unique_ptr<std::remove_pointer_t<starpu_data_handle_t>, Unregister>;

/// The host's access to a datum, for as long as this lives: no task uses the datum meanwhile. It ends with an
/// exception, too. Otherwise StarPU would wait for its end indefinitely when the datum is unregistered.
class Acquired {
 public:
  /// Waits for the tasks that use the datum. `name`: for messages.
  Acquired(starpu_data_handle_t handle, starpu_data_access_mode mode, std::string_view name)
      : handle_(handle) {
    require(starpu_data_acquire(handle, mode), "StarPU", mode == STARPU_R ? "reading" : "writing", name);
  }
  ~Acquired() { starpu_data_release(handle_); }
  Acquired(const Acquired&) = delete;
  Acquired& operator=(const Acquired&) = delete;

 private:
  starpu_data_handle_t handle_;
};

/// Ends the lock of pages of host memory.
struct Unpin {
  std::size_t bytes = 0;
  void operator()(float* memory) const { starpu_memory_unpin(memory, bytes); }
};
using PinnedMemory = std::unique_ptr<float, Unpin>;

/// The objects that all parts of a step refer to; they must outlive the parts.
struct StepContext {
  const Session& session;
  const plan::Schedule& schedule;
  const model::Network& network;
  const TaskGraph& graph;
  const RankTasks& tasks;        ///< of this rank
  const ReceivedData& received;  ///< of this rank; empty where nothing computes
};

/// Owns the data of a step on this rank: StarPU's handles, the host memory behind those that last over the
/// steps, and the scratch memory of the stages. Fills inputs and targets, keeps losses, and drops copies;
/// RankTasks and FetchedCopies know when. Data of different micro-batches share handles as `slots` says. The
/// thread that submits the step calls all of it, except `drop_fetched`, which the workers on GPUs call.
class StepData {
 public:
  /// Registers the data that tasks of this rank touch. `start`: the values of the weights; without it, and
  /// without `training`, no values are computed, and all data lie in one memory, of the largest one's size,
  /// which messages from other ranks write. `window`: the number of the
  /// rank's tasks that are inserted before the first one has to end; nullopt: all. The references must
  /// outlive this.
  ///
  /// `training`: for an evaluation of the weights of a training, whose scratch memory it uses as well. The
  /// evaluation has the placement of the training's F. So `training` has a handle for all weights that tasks
  /// on this rank read.
  StepData(const StepContext& step, const DataSlots& slots, std::optional<int> window,
           const model::StartValues& start, const StepData* training = nullptr);

  /// Returns the mistake that `start` has thrown as InputError; "" if there is none. The steps are of no use
  /// then.
  [[nodiscard]] const std::string& problem() const { return problem_; }

  [[nodiscard]] starpu_data_handle_t handle(std::size_t datum) const { return handles_[slots_.of(datum)]; }
  /// Returns scratch memory that is large enough for a pass, or a norm, on each worker that may run it;
  /// nullptr if the task needs none.
  [[nodiscard]] starpu_data_handle_t scratch(const Task& task) const;
  /// Returns the rank that owns a datum: the rank of its writer.
  [[nodiscard]] int owner(const Datum& datum) const { return step_.session.map().rank_of(datum.worker); }
  [[nodiscard]] bool is_mine(const Datum& datum) const { return step_.session.is_local(datum.worker); }

  /// Fills the inputs and targets of step `step` from `data`, one in each slot, and prepares the values of
  /// the others that the first window's tasks read. nullptr: jobs do not compute, so inputs and targets are
  /// only marked as written. Micro-batches that `data` cannot give are zeros: see `data_problem`. Call it
  /// before the tasks of the step are inserted. `data` must outlive the step.
  void begin_step(int step, const model::Dataset* data);

  /// Asks StarPU to copy weights to the GPUs of this rank whose jobs read them, in the order of these jobs.
  /// Weights are ready when a step begins, so their copies need not wait until a job is. Call it before the
  /// tasks of the step are inserted. Does not wait.
  void fetch_weights() const;

  /// Call it after the insertion of each of the rank's tasks. It acts for jobs on GPUs, where stashes are
  /// copied or made again. Such a job may wait for its stash, and by itself StarPU would copy the job's other
  /// inputs to the GPU only afterwards. This function asks StarPU for them now: for what other workers send,
  /// and for inputs and targets if they are small. What F sends to another rank goes to the host before the
  /// stash does, since the copy of a stash takes much longer. Does not wait.
  void fetch_ahead(const Task& task) const;

  /// Call it before the insertion of each of the rank's tasks, for each datum that the task touches. When
  /// the datum is the next one in its slot, asks StarPU to let the host keep the loss that was there before,
  /// or to let it copy the input's or target's values, as soon as the tasks of the slot's last datum have
  /// ended. Does not wait.
  void prepare(std::size_t datum);

  /// Calls `use` with the values of a datum that this rank owns and that lasts over the steps. Waits for the
  /// tasks that write it. `name`: for messages. What `use` throws is passed on.
  template <class Use>
  void read(std::size_t datum, std::string_view name, Use use) const {
    const Acquired acquired(handle(datum), STARPU_R, name);
    use(std::span<const float>(memory_[slots_.of(datum)].values));
  }

  /// Does the same as `read`, but `use` may change the values. Call it before the first step or between
  /// steps.
  template <class Use>
  void write(std::size_t datum, std::string_view name, Use use) {
    const Acquired acquired(handle(datum), STARPU_RW, name);
    use(memory_of(datum));
  }

  /// Returns the losses that workers of this rank computed in the step, [micro-batch]; 0 for all others.
  /// Waits for the tasks that write them. Call it when all tasks of the step are inserted.
  [[nodiscard]] std::vector<float> losses();

  /// Collective. Returns the reason why some rank could not read a micro-batch in this step, for the first
  /// such micro-batch; an empty string if all were read. Call it when all tasks of the step have ended.
  [[nodiscard]] std::string data_problem() const;

  /// Call it after the insertion of the rank's last task that touches the datum in the step. Frees copies of
  /// other ranks' data and temporaries; owners forget the ranks that they sent the datum to.
  void drop(std::size_t datum) const;

  /// Call it when `task` has ended on its worker, a GPU. Drops the GPU's copies of lasting data of other
  /// workers of this rank that no later task of the step reads there. StarPU would keep them until the
  /// datum is written again. The writer has the value, so nothing is written back. Thread-safe.
  void drop_fetched(const Task& task);

 private:
  // Returns the memory of a datum that lasts over the steps, or that is received into memory of its own; an
  // empty one if StarPU allocates the memory.
  HostMemory host_memory(std::size_t number, const model::StartValues& start);
  // Fills `common_sizes_`.
  void find_common_sizes();
  // Returns the size of the largest datum that tasks of this rank touch.
  [[nodiscard]] std::size_t largest_datum() const;
  HostMemory start_memory(const Datum& datum, const model::StartValues& start);
  void fill(const Datum& datum, const model::StartValues& start, std::span<float> memory) const;
  void take_weights_of_training();
  // `home`: the memory node of `memory`. Without one StarPU allocates memory when it is first written.
  [[nodiscard]] starpu_data_handle_t register_words(std::size_t size, int home = -1,
                                                    std::uintptr_t memory = 0) const;
  void register_datum(std::size_t number, const model::StartValues& start);
  void register_scratch();
  [[nodiscard]] int node(int worker) const { return nodes_[index(worker)]; }

  // A datum that the host fills or keeps once StarPU has granted it. StarPU may grant it on a worker's
  // thread, whose next job then waits. So the values of an input are made before, on the thread that inserts
  // tasks.
  struct Granted {
    StepData* data;
    std::size_t datum;
    std::vector<float> values;  // of an input or a target
  };
  void find_sent();
  // Asks StarPU to copy a datum to a memory node once it is written.
  void fetch(std::size_t datum, int node) const;
  // True if the host of this rank fills the datum before its tasks, or keeps its value after them.
  [[nodiscard]] bool is_for_host(const Datum& datum) const;
  // Notes that the slot of the datum now belongs to it.
  void enter(std::size_t datum);
  static void granted(void* argument) noexcept;
  void request(std::size_t datum, starpu_data_access_mode mode, std::vector<float> values);
  void find_prepared(std::optional<int> window);
  // Writes the values of an input or a target to `out`; nothing if jobs do not compute. Writes zeros if the
  // data set throws, and keeps its message for `data_problem`. So the tasks of the step run as on the other
  // ranks, and all ranks end together after the step.
  void load(std::size_t datum, std::span<float> out);
  // Returns the values of an input or a target, which `begin_step` has prepared, or makes them now.
  [[nodiscard]] std::vector<float> values_of(std::size_t datum);
  void keep_loss(std::size_t datum) {
    losses_[index(step_.graph.data()[datum].microbatch)] = memory_of(datum)[0];
  }
  [[nodiscard]] std::span<float> memory_of(std::size_t datum) { return memory_[slots_.of(datum)].values; }

  KeptHostBuffers kept_buffers_;  // of the handles below, which end first
  StepContext step_;
  const DataSlots& slots_;
  std::vector<int> nodes_;                // StarPU's memory node of each logical worker; -1 on other ranks
  std::vector<bool> early_;               // see `early_inputs`; empty unless GPUs copy stashes
  std::vector<bool> is_for_other_ranks_;  // by datum: an activation of this rank, where stashes are copied
  std::optional<FetchedCopies> fetched_;  // when some workers are GPUs and the worker of each task is known
  HostMemory unused_;                     // of all data where nothing computes; else empty
  std::vector<HostMemory> memory_;        // by slot; empty unless this rank's host provides it
  std::vector<HostMemory> buffers_;       // of ReceivedData
  std::map<std::size_t, std::size_t> common_sizes_;  // by size of a temporary: that of its buffers on GPUs
  std::vector<PinnedMemory> pinned_;                 // the part of them that GPUs copy from and to
  std::string problem_;                              // of the start values
  const StepData* training_;  // lends weights and scratch memory to an evaluation; else nullptr
  std::vector<starpu_data_handle_t> handles_;  // by slot; none where this rank's tasks touch no datum
  std::vector<Handle> own_;                    // the handles that this object has registered
  std::vector<std::size_t> first_for_host_;    // the first datum of each slot that is for the host
  std::vector<std::size_t> prepared_;          // inputs and targets whose values `begin_step` prepares
  std::unordered_map<std::size_t, std::vector<float>> values_;  // of them, until their tasks are inserted
  std::vector<std::size_t> in_slot_;                            // by slot: the datum that was inserted last
  std::vector<float> losses_;                                   // of this step, by micro-batch
  int number_ = 0;
  const model::Dataset* dataset_ = nullptr;     // nullptr if jobs do not compute
  std::map<int, std::string> problems_;         // of this step, by micro-batch
  std::array<std::vector<Handle>, 2> scratch_;  // of cores and of GPUs, by stage
  Handle norm_scratch_;                         // of norms on GPUs
};

}  // namespace starpipe::runtime
