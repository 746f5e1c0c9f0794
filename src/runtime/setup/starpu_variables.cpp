// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/starpu_variables.hpp"

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "starpipe/base/require.hpp"

namespace starpipe::runtime {
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
    "LIMIT_MIN_SUBMITTED_TASKS LIMIT_OPENCL_#_MEM LIMIT_OPENCL_MEM MAIN_THREAD_BIND MAIN_THREAD_COREID "
    "MAIN_THREAD_CPUID MAX_MEMORY_USE MAX_PRIO MAX_WORKERSIZE MEMORY_STATS MINIMUM_AVAILABLE_MEM "
    "MINIMUM_CLEAN_BUFFERS MIN_PRIO MIN_WORKERSIZE MPI_CACHE MPI_CACHE_STATS MPI_COOP_SENDS "
    "MPI_DEBUG_LEVEL_MAX MPI_DEBUG_LEVEL_MIN MPI_DRIVER_CALL_FREQUENCY MPI_DRIVER_TASK_FREQUENCY "
    "MPI_EARLYDATA_ALLOCATE MPI_GPUDIRECT MPI_MASTER_NODE MPI_MEM_THROTTLE "
    "MPI_MS_MULTIPLE_THREAD MPI_NDETACHED_SEND MPI_NOBIND MPI_NREADY_PROCESS MPI_PRIORITIES MPI_PSM2 "
    "MPI_RECV_WAIT_FINALIZE MPI_REDUX_ARITY_THRESHOLD MPI_STATS MPI_THREAD_COREID MPI_THREAD_CPUID "
    "MPI_THREAD_MULTIPLE_SEND MPI_TRACE_SYNC_CLOCKS NCPU NCPUS NCUDA NHIP NMAX_FPGA NMPIMSTHREADS "
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
    "SCHED_BETA SCHED_GAMMA WINDOW_TIME_SIZE ";

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

// Whether the text is a list of numbers of at most nine digits, with blanks between them. `ranges`: the list
// may also have ranges ("4-7", "4-"), and commas between its parts.
bool is_list(std::string_view text, bool ranges) {
  bool has_number = false;
  const auto skip = [&text](auto&& is_skipped) {
    std::size_t count = 0;
    while (count < text.size() && is_skipped(text[count])) ++count;
    text.remove_prefix(count);
    return count;
  };
  const auto is_blank = [](char c) { return c == ' '; };
  constexpr std::size_t most_digits = 9;
  for (skip(is_blank); !text.empty(); skip(is_blank)) {
    const std::size_t digits = skip(is_digit);
    if (digits == 0 || digits > most_digits) return false;
    has_number = true;
    if (ranges && text.starts_with('-')) {
      text.remove_prefix(1);
      if (skip(is_digit) > most_digits) return false;
    }
    if (ranges && text.starts_with(',')) {
      text.remove_prefix(1);
    } else if (!text.empty() && !is_blank(text.front())) {
      return false;
    }
  }
  return has_number;
}

// If `value` is refused: words that say which values the variable may have. Nothing if it is accepted.
std::optional<std::string_view> expected(std::string_view name, const std::string& value) {
  if (name == "WORKERS_CPUID" || name == "WORKERS_COREID") {
    if (!is_list(value, true)) return "numbers of cores, such as '0 2 4-7'";
  } else if (name == "WORKERS_CUDAID") {
    if (!is_list(value, false)) return "numbers of GPUs with blanks between them, such as '0 1'";
  } else if (name == "NTHREADS_PER_CORE") {  // the hardware has a limit, and StarPU aborts above it
    if (value != "1") return "1 (starpipe chooses the cores of its workers)";
  } else if (name == "RESERVE_NCPU") {
    if (value != "0") return "0 (starpipe chooses the cores of its workers)";
  } else if (name == "DISABLE_KERNELS") {
    if (value != "0") return "0 (without kernels nothing is trained)";
  } else if (name ==
             "MPI_DRIVER_CALL_FREQUENCY") {  // workers would poll for messages, and none would run tasks
    if (value != "0") return "0 (StarPU-MPI's thread polls for messages)";
  } else if (name == "MPI_FAKE_RANK" || name == "MPI_FAKE_SIZE") {
    return "it to be unset (starpipe runs on real ranks)";
  } else if (is_one_of(name, real_numbers)) {
    if (!is_real(value)) return "a number";
  } else if (is_one_of(name, whole_numbers) || is_one_of(with_placeholders(name), whole_numbers)) {
    if (!is_whole(value)) return "a whole number, at least 0";
  }
  return std::nullopt;
}

}  // namespace

void check_starpu_variables() {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t end_of_name = text.find('=');
    if (!text.starts_with(prefix) || end_of_name == std::string_view::npos) continue;
    const std::string value(text.substr(end_of_name + 1));
    const auto wanted = expected(text.substr(prefix.size(), end_of_name - prefix.size()), value);
    require_input(!wanted, text.substr(0, end_of_name),
                  fmt::format("expected {}, got '{}'", wanted.value_or(""), value));
  }
}

}  // namespace starpipe::runtime
