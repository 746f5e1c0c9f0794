// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <exception>
#include <sstream>
#include <string>

#include <CLI/CLI.hpp>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/files.hpp"
#include "base/messages.hpp"
#include "base/signals.hpp"
#include "cli/commands/subcommand.hpp"
#include "cli/processes/processes.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/version.hpp"

namespace {

constexpr int exit_failure = 1;
constexpr int exit_bad_input = 2;

// The loader calls it before the constructors of shared libraries, which start threads.
[[gnu::used, gnu::section(".preinit_array")]] void (*const before_libraries)() noexcept = []() noexcept {
  starpipe::runtime::note_cores();
  starpipe::open_closed_streams();
  if (!starpipe::runtime::has_room_to_load_products()) {
    starpipe::write_text(STDERR_FILENO,
                         "starpipe: out of memory: OpenBLAS with OpenMP needs 288 MiB to start\n");
    syscall(SYS_exit_group, exit_failure);
  }
  starpipe::note_ignored_signals();
};

bool ranks_work_together = false;

/// Prints one line on standard error. Before MPI has started it also ends the job, since the other ranks
/// would wait for this one.
int report(const std::string& message, int exit_code) {
  const std::string line = starpipe::one_line(message);
  if (ranks_work_together && !starpipe::runtime::mpi_has_started())
    starpipe::runtime::end_before_mpi(line, exit_code);
  starpipe::print_message("starpipe: " + line + "\n");
  return exit_code;
}

/// Returns the message for wrong use. CLI11 complains of a missing subcommand even if a word was given in its
/// place: that word is named instead.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string path = "starpipe";
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  std::string message = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && at->get_require_subcommand_min() > 0) {
    const auto rest = app.remaining(true);
    if (!rest.empty()) {
      message =
          (rest.front().starts_with('-') ? "unknown option '" : "unknown subcommand '") + rest.front() + "'";
    }
  }
  return message + " (see " + path + " --help)";
}

int run(int argc, char** argv) {
  starpipe::require_registrations();
  CLI::App app{
      "starpipe trains deep networks as task graphs on StarPU. A schedule is two functions of a job: its\n"
      "placement (the worker that computes it and the worker that holds its weights) and its priority.\n"
      "Predict a schedule's run, run it, compare the two."};
  app.name("starpipe");
  app.set_version_flag("--version", "starpipe " + std::string(starpipe::version));
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  starpipe schedule show 1f1b --workers 4 --microbatches 8\n"
      "  starpipe search --workers 4 --microbatches 8 --chunks 2 --memory-limit 6 --budget 1\n"
      "  starpipe simulate experiments/quickstart.yaml --set schedule.name=gpipe\n"
      "  starpipe train experiments/quickstart.yaml --report report.json --timeline timeline.svg\n"
      "\n"
      "Each subcommand has --help. Exit status: 0 success, 1 failure, 2 wrong use or bad input,\n"
      "75 ended by SIGTERM with a checkpoint to continue from, 128 + N ended by signal N.");

  const starpipe::cli::Action action = starpipe::cli::add_subcommands(app);
  const auto note_ranks = [&app] {
    ranks_work_together =
        starpipe::runtime::launcher_rank() && starpipe::cli::ranks_of(app) != starpipe::cli::Ranks::alone;
  };
  try {
    app.parse(argc, argv);
    note_ranks();
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    app.exit(help, text);
    if (starpipe::cli::prints_usage(app)) starpipe::print(text.view());
    return 0;
  } catch (const CLI::ParseError& error) {
    note_ranks();
    return report(usage_message(app, error), exit_bad_input);
  }
  if (starpipe::cli::ranks_of(app) == starpipe::cli::Ranks::watched) {
    if (const auto status = starpipe::runtime::watch_over_rank()) return *status;
  } else {
    starpipe::unblock_ending_signals();
  }
  try {
    const int status = action();
    starpipe::runtime::note_end_of_work();
    return status;
  } catch (const starpipe::InputError& error) {
    // With MPI all ranks find the same mistake.
    if (!starpipe::runtime::mpi_has_started() || starpipe::cli::prints_usage(app)) throw;
    return exit_bad_input;
  }
}

}  // namespace

// A plug-in that calls _exit or _Exit would end a run as a success without a result. A program's symbols come
// before the symbols of all libraries, so plug-ins call these functions.
extern "C" void _exit(int status) {
  starpipe::cli::end_if_plugin_exits();
  for (;;) syscall(SYS_exit_group, status);
}
extern "C" void _Exit(int status) noexcept { _exit(status); }

// OpenBLAS asks this for its number of threads when it is loaded, and would start one for each core. All
// products here use one thread. Where memory is short, a thread of OpenBLAS would wait for its buffer, and
// fork for the thread, indefinitely. (The environment cannot be changed before OpenBLAS reads it.)
extern "C" int openblas_num_threads_env() { return 1; }

int main(int argc, char** argv) {
  // Before MPI starts, a launcher takes the end of a rank for a normal one, and the other ranks would wait
  // for this one. So a signal waits until a parent can ask the launcher to end the job.
  const bool launched = starpipe::runtime::launcher_rank().has_value();
  (launched ? starpipe::hold_signals_to_end_on : starpipe::end_on_signals)(
      "starpipe:", starpipe::runtime::signal_line_pause_ms());
  try {
    // A file that may not grow further (ulimit -f) is then an error of the write, with one line.
    std::signal(SIGXFSZ, SIG_IGN);
    starpipe::runtime::restore_cores();
    starpipe::runtime::choose_product_kernels();
    starpipe::cli::report_plugin_crashes();
    return run(argc, argv);
  } catch (const starpipe::EndedBySignal& error) {
    return report(error.what(), starpipe::status_of_signal(error.signal()));
  } catch (const starpipe::InputError& error) {
    return report(error.what(), exit_bad_input);
  } catch (const starpipe::plan::PluginOutOfMemory& error) {
    return report(error.what(), exit_failure);
  } catch (const std::bad_alloc&) {
    return report("out of memory", exit_failure);
  } catch (const std::exception& error) {
    return report(error.what(), exit_failure);
  }
}
