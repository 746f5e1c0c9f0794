// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "base/files.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "base/signals.hpp"
#include "cli/processes/processes.hpp"
#include "cli/study/study.hpp"
#include "runtime/host/topology.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int poll_ms = 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Returns a duration as text: "40 s", "3 min", "1 h 20 min".
std::string time_left_text(double seconds) {
  const auto minutes = static_cast<std::int64_t>(seconds / 60);
  if (minutes < 1) return fmt::format("{:.0f} s", seconds);
  if (minutes < 60) return fmt::format("{} min", minutes);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

/// For the child of a run: all that it prints goes to the file.
void print_to(const std::filesystem::path& log) {
  const int input = ::open("/dev/null", O_RDONLY);
  const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (output < 0) _exit(1);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::close(input);
  ::close(output);
}

/// A place for a run: one share of this host's cores, or no particular cores.
struct Place {
  std::string cores;  ///< hwloc's list of PUs; empty: not bound
  int max_workers = 0;
  bool busy = false;
};

/// A run under way.
struct ActiveRun {
  std::size_t run;
  std::size_t place;
  RunLock lock;
  std::vector<std::string> command;
  Clock::time_point start;
  ChildProcess process;
};

class Runner {
 public:
  Runner(const Study& study, std::span<const StudyRun> runs, const StudyOptions& options)
      : study_(study), runs_(runs), options_(options), config_text_(read_file(study.config)) {
    make_places();
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const RunState state = outcome(r).state;
      if (state == RunState::done) {
        ++counts_.done_before;
      } else if (state == RunState::failed && !options.retry) {
        ++counts_.failed_before;
      } else {
        (fits(r) ? waiting_ : alone_).push_back(r);
      }
    }
    to_run_ = waiting_.size() + alone_.size();
  }

  StudyCounts run() {
    const HeldSignals held;
    while (!waiting_.empty() || !alone_.empty() || !active_.empty()) {
      start_runs();
      show_progress();
      pollfd wanted{held.descriptor(), POLLIN, 0};
      ::poll(&wanted, 1, poll_ms);
      held.check();
      end_runs();
    }
    progress_.clear();
    return counts_;
  }

 private:
  void make_places() {
    const bool divided = options_.jobs > 1 && options_.local && takes_devices(study_.command);
    if (!divided) {
      places_.resize(index(options_.jobs));
      return;
    }
    const runtime::Topology& host = runtime::Topology::host();
    const std::string all = host.binding();
    if (host.cores(all) < options_.jobs) {
      throw InputError(fmt::format("--jobs: {} runs at a time need a core each, and there are {}",
                                   options_.jobs, counted_text(host.cores(all), "core")));
    }
    const std::vector<runtime::RankOnHost> shares(index(options_.jobs), {.binding = all});
    for (std::size_t p = 0; p < shares.size(); ++p) {
      const std::string cores = host.share(shares, p).binding;
      places_.push_back({.cores = cores, .max_workers = host.cores(cores)});
    }
  }

  [[nodiscard]] RunOutcome outcome(std::size_t run) const {
    return read_outcome(study_, folder_of(runs_[run], options_.folder));
  }

  /// True if the run fits into any place.
  [[nodiscard]] bool fits(std::size_t run) const {
    return places_.front().cores.empty() || std::ranges::any_of(places_, [&](const Place& place) {
             return runs_[run].workers <= place.max_workers;
           });
  }

  void start_runs() {
    while (!waiting_.empty()) {
      const auto place = std::ranges::find_if(places_, [&](const Place& p) {
        return !p.busy && (p.cores.empty() || runs_[waiting_.front()].workers <= p.max_workers);
      });
      if (place == places_.end()) return;
      const std::size_t run = waiting_.front();
      waiting_.pop_front();
      start(run, static_cast<std::size_t>(place - places_.begin()), place->cores);
    }
    while (active_.empty() && !alone_.empty()) {
      const std::size_t run = alone_.front();
      alone_.pop_front();
      start(run, 0, "");
    }
  }

  void start(std::size_t run, std::size_t place, const std::string& cores) {
    const std::filesystem::path folder = folder_of(runs_[run], options_.folder);
    RunLock lock = lock_run(folder);
    if (!lock) {
      ++counts_.elsewhere;
      return;
    }
    // Another sweep may have run it since this one began.
    const RunState state = outcome(run).state;
    if (state == RunState::done || (state == RunState::failed && !options_.retry)) {
      ++counts_.elsewhere;
      return;
    }
    prepare_folder(folder, config_text_);
    std::vector<std::string> command = command_of(study_, runs_[run], options_, config_of(folder));
    const auto ending = study_.command == "sim" ? ChildProcess::Ending::ask : ChildProcess::Ending::kill;
    ChildProcess process(
        [&] {
          if (!cores.empty()) runtime::Topology::host().bind(cores);
          print_to(log_of(folder));
          become_program(command);
        },
        ending);
    places_[place].busy = true;
    active_.push_back({run, place, std::move(lock), std::move(command), Clock::now(), std::move(process)});
  }

  void end_runs() {
    for (auto active = active_.begin(); active != active_.end();) {
      const std::optional<int> status = active->process.status();
      if (!status) {
        ++active;
        continue;
      }
      const std::string failure = how_it_failed(*status);
      const std::filesystem::path folder = folder_of(runs_[active->run], options_.folder);
      record_end(folder, active->command, failure, seconds_since(active->start));
      ++(read_outcome(study_, folder).state == RunState::done ? counts_.done : counts_.failed);
      places_[active->place].busy = false;
      active = active_.erase(active);
    }
  }

  void show_progress() const {
    if (!progress_.on_terminal() || active_.empty()) return;
    const int ended = counts_.done + counts_.failed;
    const auto left = static_cast<double>(to_run_ - index(ended) - index(counts_.elsewhere));
    std::string text = fmt::format("[{}/{}", ended + counts_.elsewhere, to_run_);
    if (counts_.failed > 0) text += fmt::format(", {} failed", counts_.failed);
    if (ended > 0) text += fmt::format(", {} left", time_left_text(seconds_since(start_) / ended * left));
    text += fmt::format("] {}", runs_[active_.front().run].title);
    if (active_.size() > 1) text += fmt::format(" and {} more", active_.size() - 1);
    progress_.show(text);
  }

  const Study& study_;
  std::span<const StudyRun> runs_;
  const StudyOptions& options_;
  std::string config_text_;
  std::vector<Place> places_;
  std::deque<std::size_t> waiting_;  // runs, in order
  std::deque<std::size_t> alone_;    // runs that fit into no place
  std::list<ActiveRun> active_;
  std::size_t to_run_ = 0;
  StudyCounts counts_;
  ProgressLine progress_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

void take_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::path mark = folder / "runs";
  if (std::filesystem::exists(folder, error) && !std::filesystem::exists(mark, error)) {
    if (!std::filesystem::is_directory(folder, error))
      throw InputError(fmt::format("-o: {} is not a folder", folder.string()));
    if (!std::filesystem::is_empty(folder, error))
      throw InputError(fmt::format("-o: {} holds other things than results of a study", folder.string()));
  }
  std::filesystem::create_directories(mark, error);
  if (error) throw InputError(fmt::format("-o: cannot write {}: {}", folder.string(), error.message()));
}

std::vector<std::string> command_of(const Study& study, const StudyRun& run, const StudyOptions& options,
                                    const std::filesystem::path& config) {
  std::vector<std::string> command;
  if (run.ranks > 1) {
    command = options.launcher;
    command.push_back(std::to_string(run.ranks));
  }
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  const auto arguments = arguments_of(study, run, config, folder_of(run, options.folder));
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

StudyCounts run_study(const Study& study, std::span<const StudyRun> runs, const StudyOptions& options) {
  return Runner(study, runs, options).run();
}

}  // namespace starpipe::cli
