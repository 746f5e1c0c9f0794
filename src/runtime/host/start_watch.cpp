// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/start_watch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "base/numbers.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/host/mpi.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Ranks take turns, so that one line appears. Later ones have the last turn together.
constexpr std::ptrdiff_t max_turn = 10;

// A launcher may still start ranks of this host, so one that is not there counts as ended after this time.
constexpr seconds time_to_appear{4};

// The name of the thread that waits while MPI starts in a rank. The other ranks read it, also where the rank
// runs as another user, whose environment they may not read.
constexpr std::string_view thread_name = "start MPI ";

struct Process {
  pid_t parent = 0;
  std::string name;  // at most its first 15 characters
};

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  std::errc ignored{};
  return parse_number<Number>(text, ignored);
}

// Calls `use` with the number of each entry of the folder that is a number.
void for_each_number(const std::filesystem::path& folder, const std::function<void(pid_t)>& use) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (const auto number = number_of<pid_t>(entry->path().filename().native())) use(*number);
  }
}

using Processes = std::map<pid_t, Process>;

// Returns the processes of this host that have not ended.
Processes processes_of_host() {
  Processes found;
  for_each_number("/proc", [&](pid_t id) {
    // "ID (NAME) STATE PARENT ...", where a name may have brackets and blanks
    const std::string line = readable_part(fmt::format("/proc/{}/stat", id));
    const std::size_t begin = line.find('('), end = line.rfind(')');
    if (end == std::string::npos || line.size() < end + 5 || line[end + 2] == 'Z') return;
    const std::size_t parent = end + 4;
    found[id] = {
        number_of<pid_t>(std::string_view(line).substr(parent, line.find(' ', parent) - parent)).value_or(0),
        line.substr(begin + 1, end - begin - 1)};
  });
  return found;
}

// Returns the process that the launcher has started for the rank of process `id`, which is this process or an
// ancestor of it; 0 if there is none. Processes with the launcher's own name help it, or are not a rank yet.
pid_t started_for(const Processes& processes, pid_t id, pid_t launcher) {
  constexpr int max_depth = 100;  // processes that ended while others were read could form a circle
  const auto helper = processes.find(launcher);
  auto at = processes.find(id);
  for (int depth = 0; depth < max_depth && at != processes.end(); ++depth) {
    if (at->second.parent == launcher)
      return helper != processes.end() && at->second.name == helper->second.name ? 0 : at->first;
    at = processes.find(at->second.parent);
  }
  return 0;
}

// Returns the rank in a process's environment; nullopt if there is none, or it may not be read.
std::optional<int> rank_of(pid_t process) {
  const std::string variables = '\0' + readable_part(fmt::format("/proc/{}/environ", process));
  for (const std::string_view name : {"PMI_RANK=", "PMIX_RANK=", "SLURM_PROCID="}) {
    const std::size_t at = variables.find('\0' + std::string(name));
    if (at != std::string::npos) return number_of<int>(variables.c_str() + at + 1 + name.size());
  }
  return std::nullopt;
}

// Returns the place of this rank among the ranks of its host, by the launcher's variables.
int place_on_host() {
  const auto place = environment_number("MPI_LOCALRANKID");
  return place ? *place : environment_number("SLURM_LOCALID").value_or(0);
}

// Returns the ranks that the launcher has started on this host, by its own variables; empty if they do not
// say.
std::set<int> launched_here() {
  std::set<int> ranks;
  if (const auto count = environment_number("MPI_LOCALNRANKS"), place = environment_number("MPI_LOCALRANKID");
      count && place) {
    for (int i = 0; i < *count; ++i) ranks.insert(launcher_rank().value_or(0) - *place + i);
  } else if (const auto list = environment("SLURM_GTIDS")) {
    for (std::size_t begin = 0; begin < list->size();) {
      const std::size_t end = std::min(list->find(',', begin), list->size());
      if (const auto rank = number_of<int>(std::string_view(*list).substr(begin, end - begin)))
        ranks.insert(*rank);
      begin = end + 1;
    }
  }
  return ranks;
}

// The ranks of this host, as its processes show them.
struct RanksHere {
  std::set<int> waiting = {};              // they start MPI, as this rank does
  std::map<int, std::string> others = {};  // ranks that do not, with the names of their processes
  std::set<int> unseen = {};               // ranks that the launcher has started, but no process shows
  std::size_t ended = 0;                   // ranks whose process has ended
  bool all = true;                         // false if the launcher has ranks on other hosts, too
};

RanksHere ranks_here() {
  const std::optional<pid_t> launcher = launcher_of_host();
  if (!launcher) return {};
  RanksHere here{.unseen = launched_here()};
  const std::size_t launched = here.unseen.size();
  here.all = number_of<std::size_t>(environment("PMI_SIZE").value_or("")).value_or(launched) == launched;
  const Processes processes = processes_of_host();
  std::map<pid_t, std::optional<int>> ranks;  // by the process that the launcher has started for the rank
  for (const auto& [id, process] : processes) {
    const pid_t started = started_for(processes, id, *launcher);
    if (started == 0) continue;
    std::optional<int>& rank = ranks[started];
    for_each_number(fmt::format("/proc/{}/task", id), [&rank, &here, process = id](pid_t thread) {
      const std::string name = readable_part(fmt::format("/proc/{}/task/{}/comm", process, thread));
      if (!name.starts_with(thread_name)) return;
      rank = number_of<int>(
          std::string_view(name).substr(thread_name.size(), name.size() - thread_name.size() - 1));
      here.waiting.insert(rank.value_or(-1));
    });
  }
  for (auto& [started, rank] : ranks) {
    if (!rank) rank = rank_of(started);
    if (!rank) continue;
    here.unseen.erase(*rank);
    if (!here.waiting.contains(*rank)) here.others[*rank] = processes.at(started).name;
  }
  here.ended = launched - std::min(launched, ranks.size());
  return here;
}

// Does not name the ranks that have ended if they are placed in another order, or if the rank of another
// user's process is unknown.
std::string reason_of_end(const RanksHere& here) {
  const std::string who =
      here.unseen.size() == here.ended
          ? fmt::format("rank{} {}", here.ended == 1 ? "" : "s", fmt::join(here.unseen, ", "))
          : counted_text(static_cast<int>(here.ended), "rank") + " of this host";
  return fmt::format("{} {} ended before MPI has started", who, here.ended == 1 ? "has" : "have");
}

std::string reason_of_limit(const RanksHere& here, milliseconds limit) {
  std::vector<std::string> known;
  for (const auto& [rank, name] : here.others) known.push_back(fmt::format("rank {} runs {}", rank, name));
  if (known.empty() && !here.all && here.unseen.empty()) known.emplace_back("the ranks of this host have");
  return fmt::format("not all ranks have started MPI within {}{}{}{}", limit, known.empty() ? "" : " (",
                     fmt::join(known, ", "), known.empty() ? "" : ")");
}

// Returns a hash of the variables that MPICH reads. Hydra sets those of CH3 for each host.
std::uint64_t hash_of_mpich_variables() {
  std::set<std::string_view> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("MPIR_CVAR_") && !text.starts_with("MPIR_CVAR_CH3_")) found.insert(text);
  }
  std::uint64_t hash = hash_start;
  for (const std::string_view text : found) hash = hash_of(text, hash);
  return hash;
}

}  // namespace

std::optional<int> rank_with_other_variables() {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  struct Found {
    std::uint64_t hash = 0;
    std::int64_t differs = -1;  // a rank below this one in the tree
  };
  Found own{.hash = hash_of_mpich_variables()};
  Found other;
  MPI_Request request = MPI_REQUEST_NULL;
  for (int bit = 1; bit < ranks; bit *= 2) {
    if ((rank & bit) != 0) {
      MPI_Isend(&own, sizeof own, MPI_BYTE, rank - bit, 0, MPI_COMM_WORLD, &request);
      wait_for(request);
      return std::nullopt;
    }
    if (rank + bit >= ranks) continue;
    MPI_Irecv(&other, sizeof other, MPI_BYTE, rank + bit, 0, MPI_COMM_WORLD, &request);
    wait_for(request);
    if (own.differs < 0) own.differs = other.hash == own.hash ? other.differs : rank + bit;
  }
  return own.differs < 0 ? std::nullopt : std::optional(static_cast<int>(own.differs));
}

bool has_ranks_of_other_users() {
  const std::optional<pid_t> launcher = launcher_of_host();
  if (!launcher) return false;
  const Processes processes = processes_of_host();
  return std::ranges::any_of(processes, [&](const auto& entry) {
    struct stat found {};
    return started_for(processes, entry.first, *launcher) == entry.first &&
           stat(fmt::format("/proc/{}", entry.first).c_str(), &found) == 0 && found.st_uid != geteuid();
  });
}

StartWatch::StartWatch(std::function<void(const std::string& line)> say, milliseconds limit)
    : thread_([this, say = std::move(say), limit](const std::stop_token& stop) {
        const std::string reason = watch(stop, limit);
        if (reason.empty()) return;
        if (say) {
          say(fmt::format("rank {}: {}: every rank needs the same command", launcher_rank().value_or(0),
                          reason));
        }
        // The launcher reads the line before it reads the request to end the job.
        std::this_thread::sleep_for(milliseconds(abort_pause_ms));
        end_job();
      }) {}

// The lowest waiting rank reports and ends the job. Each higher rank waits one second longer, up to ten, and
// four if a rank has ended, which all ranks of its host see. It also looks less often, since many ranks that
// read all processes of their host delay its start.
std::string StartWatch::watch(const std::stop_token& stop, milliseconds limit) {
  using Clock = MissingFor::Clock;
  const int rank = launcher_rank().value_or(0);
  pthread_setname_np(pthread_self(), fmt::format("{}{}", thread_name, rank).c_str());
  const auto end = Clock::now() + limit + seconds(std::min<std::ptrdiff_t>(rank, max_turn));
  const seconds glance{1 + std::min<std::ptrdiff_t>(place_on_host(), max_turn)};
  MissingFor missing_for(Clock::now());
  for (;;) {
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, stop, std::min(Clock::now() + glance, end), [] { return false; });
    if (stop.stop_requested()) return {};
    const RanksHere here = ranks_here();
    const Clock::time_point now = Clock::now();
    const Clock::duration missing = missing_for.note(here.ended, now);
    const auto turn = std::distance(here.waiting.begin(), here.waiting.find(rank));
    if (missing >= glance + time_to_appear * (1 + std::min(turn, max_turn)) && here.ended > 0)
      return reason_of_end(here);
    if (now >= end) return reason_of_limit(here, limit);
  }
}

}  // namespace starpipe::runtime
