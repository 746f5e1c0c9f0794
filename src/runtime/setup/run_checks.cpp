// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/run_checks.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <starpu.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/numbers.hpp"
#include "runtime/host/cuda_devices.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

namespace {

void check(bool needs_gpu) {
  if (!built_with_cuda()) {
    throw InputError("runtime.device: cuda: this starpipe was built without CUDA (STARPIPE_WITH_CUDA)");
  }
  if (needs_gpu && cuda_devices().empty()) throw InputError("runtime.device: cuda: no CUDA device found");
}

}  // namespace

void check_device(const Config& config) {
  if (config.runtime.uses_gpus()) check(true);
}

void check_rank_device(const Config& config) {
  if (!config.runtime.uses_gpus()) return;
  check(!config.runtime.is_mixed());
  if (cuda_devices().empty()) return;
  if (const std::string problem = starpu_problem(); !problem.empty()) throw InputError(problem);
}

std::string starpu_problem() {
#ifndef STARPU_NON_BLOCKING_DRIVERS
  return "runtime.device: cuda: StarPU was built with blocking drivers, which wait for the GPU after each "
         "task; run STARPIPE_GPUS=1 scripts/setup and build again, or bring a StarPU without them";
#else
  // StarPU would follow the variable instead of the session's choice of GPUs.
  if (environment("STARPU_WORKERS_CUDAID")) {
    return "STARPU_WORKERS_CUDAID: unset it; starpipe divides the GPUs that CUDA_VISIBLE_DEVICES shows";
  }
  return {};
#endif
}

void check_kernels(const Config& config, const model::Network& network) {
  if (!config.runtime.uses_gpus()) return;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const model::Stage& stage = network.stages[s];
    const bool all = std::ranges::all_of(stage.ops(), [](const model::StageOp& op) {
      return op.layer == nullptr || op.layer->cuda() != nullptr;
    });
    if (all && (stage.loss() == nullptr || stage.loss()->cuda() != nullptr)) continue;
    throw InputError(
        fmt::format("runtime.device: cuda: a layer of stage {} has no CUDA kernels for its shape (attention "
                    "has them for heads of at most 128 columns)",
                    s));
  }
}

namespace {

constexpr std::string_view prefix = "STARPU_";

// The variables that StarPU 1.4 reads as whole numbers. Names lack the prefix; each has a blank before and
// after it, for the search; # stands for any number.
constexpr std::string_view whole_numbers =
    " AUTOHETEROPRIO_FREEZE_GATHERING AUTOHETEROPRIO_ORDERING_INTERVAL "
    "AUTOHETEROPRIO_PRINT_AFTER_ORDERING AUTOHETEROPRIO_PRINT_DATA_ON_UPDATE "
    "AUTOHETEROPRIO_PRIORITY_ORDERING_POLICY AUTOHETEROPRIO_TIME_ESTIMATION_POLICY BACKOFF_MAX "
    "BACKOFF_MIN BUS_CALIBRATE BUS_STATS CALIBRATE CALIBRATE_MINIMUM CATCH_SIGNALS "
    "CHECK_ENTIRE_PLATFORM CODELET_PROFILING COMM_STATS CUDA_ONLY_FAST_ALLOC_OTHER_MEMNODES "
    "CUDA_PIPELINE CUDA_THREAD_PER_DEV CUDA_THREAD_PER_WORKER DATA_LOCALITY_ENFORCE "
    "DISABLE_ASYNCHRONOUS_COPY DISABLE_ASYNCHRONOUS_CUDA_COPY DISABLE_ASYNCHRONOUS_HIP_COPY "
    "DISABLE_ASYNCHRONOUS_MAX_FPGA_COPY DISABLE_ASYNCHRONOUS_MPI_MS_COPY "
    "DISABLE_ASYNCHRONOUS_OPENCL_COPY DISABLE_ASYNCHRONOUS_TCPIP_MS_COPY "
    "DISABLE_PINNING DISK_SWAP_SIZE DISPLAY_BINDINGS ENABLE_CUDA_GPU_GPU_DIRECT ENABLE_MAP "
    "ENERGY_PROFILING EXPECTED_TRANSFER_TIME_WRITEBACK FXT_TRACE GENERATE_TRACE GLOBAL_ARBITER "
    "HETEROPRIO_CODELET_GROUPING_STRATEGY HETEROPRIO_USE_AUTO_CALIBRATION HETEROPRIO_USE_LA "
    "HIP_PIPELINE HIP_THREAD_PER_DEV HIP_THREAD_PER_WORKER HISTORY_MAX_ERROR LIMIT_BANDWIDTH "
    "LIMIT_CPU_MEM LIMIT_CPU_NUMA_#_MEM LIMIT_CPU_NUMA_MEM LIMIT_CUDA_#_MEM LIMIT_CUDA_MEM "
    "LIMIT_HIP_#_MEM LIMIT_HIP_MEM LIMIT_MAX_FPGA_MEM LIMIT_MAX_SUBMITTED_TASKS "
    "LIMIT_MIN_SUBMITTED_TASKS LIMIT_OPENCL_#_MEM LIMIT_OPENCL_MEM MAIN_THREAD_COREID "
    "MAIN_THREAD_CPUID MAX_MEMORY_USE MAX_PRIO MAX_WORKERSIZE MEMORY_STATS MINIMUM_AVAILABLE_MEM "
    "MINIMUM_CLEAN_BUFFERS MIN_PRIO MIN_WORKERSIZE MPI_CACHE MPI_CACHE_STATS MPI_COOP_SENDS "
    "MPI_DEBUG_LEVEL_MAX MPI_DEBUG_LEVEL_MIN MPI_DRIVER_CALL_FREQUENCY MPI_DRIVER_TASK_FREQUENCY "
    "MPI_EARLYDATA_ALLOCATE MPI_GPUDIRECT MPI_MASTER_NODE MPI_MEM_THROTTLE "
    "MPI_MS_MULTIPLE_THREAD MPI_NDETACHED_SEND MPI_NOBIND MPI_NREADY_PROCESS MPI_PRIORITIES MPI_PSM2 "
    "MPI_RECV_WAIT_FINALIZE MPI_REDUX_ARITY_THRESHOLD MPI_STATS MPI_THREAD_COREID MPI_THREAD_CPUID "
    "MPI_THREAD_MULTIPLE_SEND MPI_TRACE_SYNC_CLOCKS NCPU NCUDA NHIP NMAX_FPGA NMPIMSTHREADS "
    "NMPI_MS NOPENCL NTASKS_THRESHOLD NTCPIPMSTHREADS NTCPIP_MS NWORKER_PER_CUDA "
    "NWORKER_PER_HIP OPENCL_ONLY_ON_CPUS OPENCL_ON_CPUS OPENCL_PIPELINE PCI_FLAT "
    "PERF_MODEL_HOMOGENEOUS_CPU PREFETCH SCHED_GRAPH_TEST_DESCENDANTS SCHED_READY "
    "SCHED_SORTED_ABOVE SCHED_SORTED_BELOW SILENT SINGLE_COMBINED_WORKER STATS SUBALLOCATOR "
    "SYNTHESIZE_ARITY_COMBINED_WORKER TARGET_AVAILABLE_MEM TARGET_CLEAN_BUFFERS TASK_BREAK_ON_EXEC "
    "TASK_BREAK_ON_POP TASK_BREAK_ON_PUSH TASK_BREAK_ON_SCHED TASK_PROGRESS TCPIP_MS_MULTIPLE_THREAD "
    "TCPIP_MS_PORT TCPIP_MS_SLAVES TCPIP_USE_LOCAL_SOCKET TRACE_BUFFER_SIZE USE_NUMA WATCHDOG_CRASH "
    "WATCHDOG_DELAY WORKERS_GETBIND WORKERS_NOBIND WORKER_TREE ";

// Those that it reads as real numbers.
constexpr std::string_view real_numbers =
    " EXP_LEN_THRESHOLD HETEROPRIO_AURT_DOT_DIFF_10_NOD_OFFSET "
    "HETEROPRIO_BEST_NODS_SCORE_EXP_SELECTIVITY HETEROPRIO_NOD_TIME_COMBINATION_EXP_SELECTIVITY "
    "HETEROPRIO_NOD_TIME_COMBINATION_NOD_MULTIPLIER HETEROPRIO_URTS_TIME_COMBINATION_EXP_SELECTIVITY "
    "HETEROPRIO_URTS_TIME_COMBINATION_NOD_MULTIPLIER HETEROPRIO_URT_2_ARCH_NEED_MULTIPLIER "
    "HETEROPRIO_URT_2_URT_MULTIPLIER HETEROPRIO_URT_DOT_DIFF_10_ARCH_DIFF_OFFSET "
    "HETEROPRIO_URT_DOT_DIFF_11_ARCH_DIFF_OFFSET HETEROPRIO_URT_DOT_DIFF_11_NOD_OFFSET "
    "HETEROPRIO_URT_DOT_DIFF_2_ARCH_NEED_MULTIPLIER HETEROPRIO_URT_DOT_DIFF_3_ARCH_NEED_MULTIPLIER "
    "HETEROPRIO_URT_DOT_DIFF_4_ARCH_NEED_MULTIPLIER HETEROPRIO_URT_DOT_DIFF_5_ARCH_DIFF_OFFSET "
    "HETEROPRIO_URT_DOT_DIFF_5_NOD_OFFSET HETEROPRIO_URT_DOT_DIFF_9_ARCH_DIFF_OFFSET "
    "HETEROPRIO_URT_DOT_DIFF_9_NOD_OFFSET HETEROPRIO_URT_URT_MULTIPLIER IDLE_POWER SCHED_ALPHA "
    "SCHED_BETA SCHED_GAMMA WATCHDOG_TIMEOUT WINDOW_TIME_SIZE ";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Writes # for each number: "LIMIT_CUDA_0_MEM" becomes "LIMIT_CUDA_#_MEM".
std::string with_placeholders(std::string_view name) {
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && name[i - 1] == '_' && is_digit(name[i]);
    if (!begins) {
      result += name[i];
      continue;
    }
    result += '#';
    while (i + 1 < name.size() && is_digit(name[i + 1])) ++i;
  }
  return result;
}

bool is_one_of(std::string_view name, std::string_view names) {
  return names.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

// StarPU's own way of reading: blanks before the number are fine, and an empty text is 0.
bool is_whole(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text.c_str(), &end, 10);
  return errno == 0 && *end == '\0' && value >= 0 && value <= std::numeric_limits<int>::max();
}

bool is_real(const std::string& text) {
  char* end = nullptr;
  std::strtof(text.c_str(), &end);
  return *end == '\0';
}

// The largest number of a list of numbers of at most nine digits, with blanks between them; nothing when the
// text is no such list. `ranges`: the list may also have ranges ("4-7", "4-"), and commas between its parts.
std::optional<int> largest_of_list(std::string_view text, bool ranges) {
  std::optional<int> largest;
  const auto skip = [&text](auto&& is_skipped) {
    std::size_t count = 0;
    while (count < text.size() && is_skipped(text[count])) ++count;
    text.remove_prefix(count);
    return count;
  };
  const auto is_blank = [](char c) { return c == ' '; };
  // Takes a number; returns how many digits it has.
  const auto take_number = [&] {
    const std::string_view begin = text;
    const std::size_t digits = skip(is_digit);
    int number = 0;
    std::from_chars(begin.data(), begin.data() + digits, number);
    largest = std::max(largest.value_or(0), number);
    return digits;
  };
  constexpr std::size_t max_digits = 9;
  for (skip(is_blank); !text.empty(); skip(is_blank)) {
    const std::size_t digits = take_number();
    if (digits == 0 || digits > max_digits) return std::nullopt;
    if (ranges && text.starts_with('-')) {
      text.remove_prefix(1);
      if (take_number() > max_digits) return std::nullopt;
    }
    if (ranges && text.starts_with(',')) {
      text.remove_prefix(1);
    } else if (!text.empty() && !is_blank(text.front())) {
      return std::nullopt;
    }
  }
  return largest;
}

// If `value` is refused: words that say which values the variable may have. Nothing if it is accepted.
std::optional<std::string_view> expected(std::string_view name, const std::string& value) {
  if (name == "WORKERS_CPUID" || name == "WORKERS_COREID") {
    if (!largest_of_list(value, true)) return "numbers of cores, such as '0 2 4-7'";
  } else if (name == "WORKERS_CUDAID") {
    if (!largest_of_list(value, false)) return "numbers of GPUs with blanks between them, such as '0 1'";
  } else if (name == "NTHREADS_PER_CORE") {  // the hardware has a limit, and StarPU aborts above it
    if (value != "1") return "1 (starpipe chooses the cores of its workers)";
  } else if (name == "MAIN_THREAD_BIND" || name == "RESERVE_NCPU") {  // would take the core of a worker
    if (value != "0") return "0 (starpipe chooses the cores of its workers)";
  } else if (name == "NCPUS") {
    return "it to be unset (STARPU_NCPU is the limit that is kept)";
  } else if (name == "DISABLE_KERNELS") {
    if (value != "0") return "0 (without kernels nothing is trained)";
  } else if (name ==
             "MPI_DRIVER_CALL_FREQUENCY") {  // workers would poll for messages, and none would run tasks
    if (value != "0") return "0 (StarPU-MPI's thread polls for messages)";
  } else if (name == "HOSTNAME") {  // part of the names of files
    if (value.find('/') != std::string::npos) return "a name without '/'";
  } else if (name == "MPI_FAKE_RANK" || name == "MPI_FAKE_SIZE" || name == "MPI_HOSTNAMES") {
    return "it to be unset (starpipe runs on real ranks)";
  } else if (name == "LIMIT_CPU_MEM" || name == "LIMIT_CPU_NUMA_MEM" ||
             with_placeholders(name) == "LIMIT_CPU_NUMA_#_MEM") {
    return "it to be unset (a run that needs more would wait for ever; runtime.memory_limit refuses it)";
  } else if (is_one_of(name, real_numbers)) {
    if (!is_real(value)) return "a number";
  } else if (is_one_of(name, whole_numbers) || is_one_of(with_placeholders(name), whole_numbers)) {
    if (!is_whole(value)) return "a whole number from 0 to 2147483647";
  }
  return std::nullopt;
}

// StarPU would crash when its main thread or its MPI thread is to run on a core that the host does not have,
// and would bind workers to other cores than asked for. Of two variables that name cores in both ways it
// would use one.
void check_cores(const Topology& host) {
  const int pus = host.pus();
  const int cores = host.cores(host.allowed());
  for (const char* threads : {"WORKERS", "MAIN_THREAD", "MPI_THREAD"}) {
    const std::string by_pu = fmt::format("{}{}_CPUID", prefix, threads);
    const std::string by_core = fmt::format("{}{}_COREID", prefix, threads);
    require_input(!environment(by_pu.c_str()) || !environment(by_core.c_str()), by_core,
                  fmt::format("unset it or {}: both say where the same threads run", by_pu));
    for (const auto& [name, count] : {std::pair(by_pu, pus), std::pair(by_core, cores)}) {
      const std::string value = environment(name.c_str()).value_or("");
      const int largest = largest_of_list(value, true).value_or(0);
      require_input(largest < count, name,
                    fmt::format("expected numbers below {}, as this host has {}, got '{}'", count,
                                counted_text(count, name == by_pu ? "hardware thread" : "core"), value));
    }
  }
}

}  // namespace

void check_starpu_variables(const Topology& host) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t end_of_name = text.find('=');
    if (!text.starts_with(prefix) || end_of_name == std::string_view::npos) continue;
    const std::string value(text.substr(end_of_name + 1));
    const auto wanted = expected(text.substr(prefix.size(), end_of_name - prefix.size()), value);
    require_input(!wanted, text.substr(0, end_of_name),
                  fmt::format("expected {}, got '{}'", wanted.value_or(""), value));
  }
  check_cores(host);
}

}  // namespace starpipe::runtime
