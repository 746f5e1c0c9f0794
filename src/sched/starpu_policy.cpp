// SPDX-License-Identifier: Apache-2.0
#include "starpipe/sched/starpu_policy.hpp"

#include <array>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <starpu_scheduler.h>

#include "base/environment.hpp"
#include "base/messages.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::sched {
namespace {

// Layout of the packed pointer: bit 0 is always set, bit 1 is set for a job, bit 2 for an n, and bits 3 to 15
// are the worker. A job is in bits 32 to 63, an n in bits 16 to 63.
constexpr std::uint64_t ours_bit = 1;
constexpr std::uint64_t job_bit = 2;
constexpr std::uint64_t n_bit = 4;
constexpr int worker_shift = 3;
constexpr int n_shift = 16;
constexpr int job_shift = 32;

struct SchedData {
  int worker;
  std::optional<plan::JobId> job;
  std::int64_t n = PolicyCore::no_n;
};

std::optional<SchedData> unpack(const starpu_task* task) {
  const auto bits = reinterpret_cast<std::uintptr_t>(task->sched_data);
  if ((bits & ours_bit) == 0) return std::nullopt;
  SchedData data{.worker = static_cast<int>(bits >> worker_shift) & largest_worker, .job = std::nullopt};
  if ((bits & job_bit) != 0) data.job = static_cast<plan::JobId>(bits >> job_shift);
  if ((bits & n_bit) != 0) data.n = static_cast<std::int64_t>(bits) >> n_shift;  // keeps the sign
  return data;
}

std::uint64_t pack_worker(int worker) {
  if (worker < 0 || worker > largest_worker)
    throw std::out_of_range("no worker has the number " + std::to_string(worker));
  return ours_bit | (static_cast<std::uint64_t>(worker) << worker_shift);
}

PolicyCore& core_of(unsigned context) {
  return *static_cast<PolicyCore*>(starpu_sched_ctx_get_policy_data(context));
}

// Returns the first implementation of the task that the worker can run, or nullopt.
std::optional<unsigned> implementation_on(int worker, starpu_task* task) {
  unsigned implementation = 0;
  if (starpu_worker_can_execute_task_first_impl(static_cast<unsigned>(worker), task, &implementation) == 0) {
    return std::nullopt;
  }
  return implementation;
}

bool can_run(void* task, int worker) {
  return implementation_on(worker, static_cast<starpu_task*>(task)).has_value();
}

// Chooses the implementation (StarPU leaves this to policies). Returns false if the worker cannot run the
// task.
bool choose_implementation(starpu_task* task, int worker) {
  const auto implementation = implementation_on(worker, task);
  if (implementation) starpu_task_set_implementation(task, *implementation);
  return implementation.has_value();
}

bool has_own_memory(int worker) {
  const unsigned node = starpu_worker_get_memory_node(static_cast<unsigned>(worker));
  return starpu_node_get_kind(node) != STARPU_CPU_RAM;
}

// True if data that the task reads are on their way to the worker's memory. Data that StarPU has evicted
// again are not: StarPU requests them only when the worker takes the task.
bool awaits_inputs(void* queued, int worker) {
  if (!has_own_memory(worker)) return false;
  const int node = static_cast<int>(starpu_worker_get_memory_node(static_cast<unsigned>(worker)));
  const auto* const task = static_cast<starpu_task*>(queued);
  for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
    const bool is_read = (STARPU_TASK_GET_MODE(task, i) & STARPU_R) != 0;
    const bool has_own_node = task->cl->specific_nodes != 0 &&  // it is not read in the worker's memory
                              STARPU_CODELET_GET_NODE(task->cl, i) != STARPU_SPECIFIC_NODE_LOCAL;
    if (!is_read || has_own_node) continue;
    int is_valid = 0;
    int is_loading = 0;
    int is_requested = 0;
    starpu_data_query_status2(STARPU_TASK_GET_HANDLE(task, i), node, nullptr, &is_valid, &is_loading,
                              &is_requested);
    if (is_valid == 0 && (is_loading != 0 || is_requested != 0)) return true;
  }
  return false;
}

void init_sched(unsigned context) {
  starpu_sched_set_min_priority(INT_MIN);
  starpu_sched_set_max_priority(INT_MAX);
  auto core =
      std::make_unique<PolicyCore>(static_cast<int>(starpu_worker_get_count()), can_run, awaits_inputs);
  starpu_sched_ctx_set_policy_data(context, core.release());  // deinit_sched takes it back
}

void deinit_sched(unsigned context) {
  const std::unique_ptr<PolicyCore> core(&core_of(context));
  starpu_sched_ctx_set_policy_data(context, nullptr);
}

// Begins to fetch the task's inputs to the worker. StarPU would also allocate data that the task only writes,
// such as the stash of F(b+1) while F(b) runs. It skips scratch data, so these data are declared as scratch
// during the call. (A copy of the task with fewer data would not work: StarPU identifies fetches by their
// task.)
void fetch_inputs(starpu_task* task, int worker) {
  std::vector<starpu_data_access_mode> modes;
  for (int i = 0; i < static_cast<int>(STARPU_TASK_GET_NBUFFERS(task)); ++i) {
    const starpu_data_access_mode mode = STARPU_TASK_GET_MODE(task, i);
    modes.push_back((mode & STARPU_R) != 0 ? mode : STARPU_SCRATCH);
  }
  starpu_data_access_mode* const own = std::exchange(task->dyn_modes, modes.data());
  starpu_prefetch_task_input_for(task, static_cast<unsigned>(worker));
  task->dyn_modes = own;
}

void wake(std::optional<int> worker) {
  if (worker) starpu_wake_worker_relax_light(*worker);
}

int push_task(starpu_task* task) {
  PolicyCore& core = core_of(task->sched_ctx);
  const auto data = unpack(task);
  // Without an abort, a task whose placement names a wrong worker would never run. This is a bug of the
  // caller.
  if (data && data->worker >= static_cast<int>(starpu_worker_get_count())) {
    STARPU_ABORT_MSG("task %s names worker %d of %u", starpu_task_get_name(task), data->worker,
                     starpu_worker_get_count());
  }
  if (data && !choose_implementation(task, data->worker)) {
    STARPU_ABORT_MSG("worker %d cannot run task %s", data->worker, starpu_task_get_name(task));
  }
  const int priority = task->priority;
  if (data && has_own_memory(data->worker) && core.fetch_before_push(data->worker, data->job, data->n)) {
    fetch_inputs(task, data->worker);
  }
  // First: once the task is queued, another thread may take and destroy it.
  starpu_push_task_end(task);
  if (data) {
    if (core.push(data->worker, task, data->job, data->n)) starpu_wake_worker_relax_light(data->worker);
    return 0;
  }
  wake(core.push_free(task, priority));
  return 0;
}

// The longest wait of a worker without a task. A push ends the wait at once, but StarPU does not end it for a
// shutdown or for tasks that it gives the worker itself.
constexpr std::chrono::microseconds longest_sleep{1000};

// A free task may run on several kinds of workers: its implementation is chosen for the worker that got it.
starpu_task* pop_from(PolicyCore& core, int worker) {
  auto* const task = static_cast<starpu_task*>(core.pop(worker));
  if (task != nullptr && !unpack(task)) choose_implementation(task, worker);
  return task;
}

starpu_task* pop_task(unsigned context) {
  PolicyCore& core = core_of(context);
  const int worker = static_cast<int>(starpu_worker_get_id_check());
  starpu_task* task = pop_from(core, worker);
  // Drivers of GPUs also pop while a kernel runs, and must notice its end: only CPU workers wait here. On
  // SimGrid StarPU's drivers wait.
  if (task == nullptr && !on_simgrid && starpu_worker_get_type(worker) == STARPU_CPU_WORKER) {
    starpu_worker_relax_on();
    core.wait(worker, longest_sleep);
    starpu_worker_relax_off();
    task = pop_from(core, worker);
  }
  if (task != nullptr) wake(core.start(worker));
  if (has_own_memory(worker)) {
    starpu_worker_relax_on();
    for (const PolicyCore::Task next : core.to_fetch(worker))
      fetch_inputs(static_cast<starpu_task*>(next), worker);
    starpu_worker_relax_off();
  }
  return task;
}

// StarPU calls it for tasks from `pop_task`, and for tasks that it gives the worker itself.
void pre_exec_hook(starpu_task* /*task*/, unsigned context) {
  wake(core_of(context).start(static_cast<int>(starpu_worker_get_id_check())));
}

void post_exec_hook(starpu_task* task, unsigned context) {
  const auto data = unpack(task);
  if (data && data->job) core_of(context).finish(static_cast<int>(starpu_worker_get_id_check()), *data->job);
}

// Returns the file of this library.
std::string own_file() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<void*>(push_task), &found) == 0 || found.dli_fname == nullptr)
    return "libstarpipe_sched.so";
  return found.dli_fname;
}

// Returns why StarPU did not take our policy, by the variables that choose a policy.
std::string why_not_ours() {
  const std::string asked = environment("STARPU_SCHED").value_or("");
  const std::string library = environment("STARPU_SCHED_LIB").value_or("");
  const std::string wanted = "; it must be " + own_file();
  if (asked.empty()) return std::string("STARPU_SCHED is not set; it must be ") + policy_name;
  if (asked != policy_name) return "STARPU_SCHED is '" + asked + "'; it must be " + policy_name;
  if (library.empty()) return "STARPU_SCHED_LIB is not set" + wanted;
  const std::unique_ptr<void, int (*)(void*)> opened(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), dlclose);
  if (opened == nullptr) return std::string("STARPU_SCHED_LIB: ") + dlerror() + wanted;
  return "STARPU_SCHED_LIB is '" + library + "'" + wanted;
}

// Calls a function of the policy for StarPU. StarPU is C, and holds locks: no exception may leave through it.
template <auto function, class... Arguments>
auto for_starpu(Arguments... arguments) noexcept {
  try {
    return function(arguments...);
  } catch (const std::bad_alloc&) {
    print_message("starpipe: out of memory in the scheduling policy\n");
  } catch (const std::exception& error) {
    print_message(std::string("starpipe: the scheduling policy: ") + error.what() + "\n");
  }
  std::abort();
}

}  // namespace

starpu_sched_policy starpipe_policy() {
  starpu_sched_policy policy = {};
  policy.init_sched = for_starpu<init_sched>;
  policy.deinit_sched = for_starpu<deinit_sched>;
  policy.push_task = for_starpu<push_task>;
  policy.pop_task = for_starpu<pop_task>;
  policy.pre_exec_hook = for_starpu<pre_exec_hook>;
  policy.post_exec_hook = for_starpu<post_exec_hook>;
  policy.policy_name = policy_name;
  policy.policy_description = "placement w(s,b,d) and priority n(s,b,d) of a starpipe schedule";
  policy.worker_type = STARPU_WORKER_LIST;  // zero would mean a tree
  return policy;
}

std::vector<std::string> known_policies() {
  std::vector<std::string> names = {policy_name};
  for (starpu_sched_policy** policy = starpu_sched_get_predefined_policies(); *policy != nullptr; ++policy) {
    names.emplace_back((*policy)->policy_name);
  }
  return names;
}

starpu_sched_policy* policy_of_starpu(std::string_view name) {
  for (starpu_sched_policy** policy = starpu_sched_get_predefined_policies(); *policy != nullptr; ++policy) {
    if ((*policy)->policy_name == name) return *policy;
  }
  return nullptr;
}

PolicyCore* active_policy_core() {
  const starpu_sched_policy* policy = starpu_sched_get_sched_policy();
  if (policy == nullptr || policy->push_task != starpipe_policy().push_task) return nullptr;
  return &core_of(0);
}

PolicyCore& require_active_policy() {
  if (starpu_is_initialized() == 0) throw std::logic_error("require_active_policy: StarPU does not run");
  if (PolicyCore* const core = active_policy_core()) return *core;
  const std::string running = starpu_sched_get_sched_policy()->policy_name;
  if (running == policy_name) {
    throw InputError("STARPU_SCHED_LIB is another copy of the library than the program's, which is " +
                     own_file());
  }
  throw InputError("StarPU runs the policy '" + running + "', not '" + policy_name + "': " + why_not_ours());
}

void* pack_sched_data(int worker, std::optional<plan::JobId> job) {
  std::uint64_t bits = pack_worker(worker);
  if (job) bits |= job_bit | (static_cast<std::uint64_t>(*job) << job_shift);
  return reinterpret_cast<void*>(bits);
}

void* pack_pinned(int worker, std::int64_t n) {
  if (n < smallest_n || n > largest_n) {
    throw std::out_of_range("n = " + std::to_string(n) + " is outside of " + std::to_string(smallest_n) +
                            " .. " + std::to_string(largest_n));
  }
  return reinterpret_cast<void*>(pack_worker(worker) | n_bit | (static_cast<std::uint64_t>(n) << n_shift));
}

}  // namespace starpipe::sched

// The symbols that StarPU looks up in the library that STARPU_SCHED_LIB names.

// StarPU asks here first, also for its own policies. An unknown name ends the process: StarPU would run
// `lws`.
extern "C" starpu_sched_policy* starpu_get_sched_lib_policy(const char* name) {
  namespace sched = starpipe::sched;
  static starpu_sched_policy policy = sched::starpipe_policy();
  if (std::string_view(name) == sched::policy_name) return &policy;
  if (std::string_view(name) == "help" || sched::policy_of_starpu(name) != nullptr) return nullptr;
  starpipe::print_message("starpipe: no scheduling policy '" + starpipe::one_line(name) +
                          "': StarPU has none, and " + sched::own_file() + " has '" + sched::policy_name +
                          "'\n");
  std::exit(2);
}

extern "C" starpu_sched_policy** starpu_get_sched_lib_policies() {
  static std::array policies = {starpu_get_sched_lib_policy(starpipe::sched::policy_name),
                                static_cast<starpu_sched_policy*>(nullptr)};
  return policies.data();
}
