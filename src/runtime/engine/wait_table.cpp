// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/messages.hpp"
#include "runtime/engine/watchdog.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

class Waits {
 public:
  Waits(const TaskGraph& graph, const plan::Schedule& schedule, const WorkerMap& map,
        std::span<const RankNews> news, const NewsLimits& limits)
      : graph_(graph),
        schedule_(schedule),
        evaluates_(schedule.forward_only()),
        map_(map),
        news_(news),
        limits_(limits) {}

  [[nodiscard]] TableRow row(int rank) const {
    const RankStatus& status = of(rank);
    TableRow row = {std::to_string(rank), doing(rank), "", "", ""};
    if (is_elsewhere(status) || status.phase != StepPhase::running || waits_for_end(status)) {
      if (const auto late = find_late(rank)) row[4] = fmt::format("rank {}: {}", *late, doing(*late));
      return row;
    }
    row[2] = name(status.next);
    if (status.running == status.next) return row;
    const auto missing = find_missing(rank, status.next);
    if (!missing) return row;
    const auto [datum, writer] = *missing;
    const int sender = map_.rank_of(graph_.tasks()[writer].worker);
    row[3] = fmt::format("{}, from {}", describe(graph_.data()[datum]), name(static_cast<int>(writer)));
    row[4] = fmt::format("rank {}: {}{}", sender, doing(sender),
                         has_ended(sender, writer, status)
                             ? "; has computed it: it has not arrived, or the policy does not start the task"
                             : "");
    return row;
  }

 private:
  [[nodiscard]] const RankStatus& of(int rank) const { return news_[index(rank)].status; }
  [[nodiscard]] std::string name(int task) const { return name_of(graph_.tasks()[index(task)], schedule_); }

  // True if the rank's tasks are not in the graph: it is in a step and the others evaluate, or the other way
  // round.
  [[nodiscard]] bool is_elsewhere(const RankStatus& status) const {
    return (status.evaluates != 0) != evaluates_;
  }

  [[nodiscard]] std::string doing(int rank) const {
    const RankStatus& status = of(rank);
    if (runs_too_long(rank)) {
      return fmt::format("runs {} for {:.1f} s, longer than ten timeouts", name(status.running),
                         status.running_for + news_[index(rank)].age);
    }
    if (receives_too_long(rank)) {
      return fmt::format("waits for an emulated transfer for {:.1f} s, longer than ten timeouts",
                         status.transfer_for + news_[index(rank)].age);
    }
    if (std::isinf(news_[index(rank)].age)) return "silent";
    std::string does = is_in(status);
    if (is_silent(rank))
      return fmt::format("silent for {:.1f} s (last known: {})", news_[index(rank)].age, does);
    return does;
  }

  [[nodiscard]] std::string is_in(const RankStatus& status) const {
    if (is_elsewhere(status) && status.phase != StepPhase::outside) return "is in " + part_of_run(status);
    switch (status.phase) {
      case StepPhase::outside:
        return "is in no step";
      case StepPhase::beginning:
        return "waits for all ranks to begin " + part_of_run(status);
      case StepPhase::ending:
      case StepPhase::running:
        break;
    }
    if (status.running >= 0)
      return fmt::format("runs {} for {:.1f} s", name(status.running), status.running_for);
    if (status.next >= 0) return "waits to run " + name(status.next);
    return "waits for all ranks to end " + part_of_run(status);
  }

  [[nodiscard]] bool is_silent(int rank) const { return news_[index(rank)].age >= limits_.silent; }

  // True if the rank's last status shows a task that has run too long to count as progress. The rank may be
  // silent.
  [[nodiscard]] bool runs_too_long(int rank) const {
    const RankStatus& status = of(rank);
    return !is_elsewhere(status) && status.phase != StepPhase::outside && status.running >= 0 &&
           status.running_for >= limits_.long_task;
  }

  // True if an emulated transfer to the rank takes too long.
  [[nodiscard]] bool receives_too_long(int rank) const {
    const RankStatus& status = of(rank);
    return !is_elsewhere(status) && status.phase != StepPhase::outside &&
           status.transfer_for >= limits_.long_task;
  }

  // Returns the rank's place in the run, for comparisons: the evaluation after a step comes after the step.
  static std::pair<int, int> place(const RankStatus& status) { return {status.step, status.evaluates}; }

  static bool waits_for_end(const RankStatus& status) {
    return status.phase == StepPhase::ending || (status.phase == StepPhase::running && status.next < 0);
  }

  // Returns the rank that holds up `waiting`. `waiting` is between steps, or waits for all ranks to begin or
  // end a step. The result is the rank that has been silent for longest. In a step, when no rank is silent,
  // it is the first rank that is behind. nullopt if there is none.
  [[nodiscard]] std::optional<int> find_late(int waiting) const {
    const RankStatus& mine = of(waiting);
    std::optional<int> late;
    std::optional<int> silent;
    for (int rank = 0; std::cmp_less(rank, news_.size()); ++rank) {
      if (rank == waiting) continue;
      if (is_silent(rank)) {
        if (!silent || news_[index(rank)].age > news_[index(*silent)].age) silent = rank;
        continue;
      }
      if (mine.phase == StepPhase::outside) continue;
      const RankStatus& status = of(rank);
      const bool behind = place(status) < place(mine) || status.phase == StepPhase::outside ||
                          (waits_for_end(mine) && !waits_for_end(status));
      if (behind && !late) late = rank;
    }
    return silent ? silent : late;
  }

  // True if the rank's status shows that `task` has ended in the step, or evaluation, of `at`. The rank's
  // next task and all later ones count as not ended, although some of the later ones may have ended.
  [[nodiscard]] bool has_ended(int rank, std::size_t task, const RankStatus& at) const {
    const RankStatus& status = of(rank);
    if (place(status) != place(at)) return place(status) > place(at);
    return status.phase == StepPhase::outside || waits_for_end(status) ||
           (status.phase == StepPhase::running && task < index(status.next));
  }

  // Returns the first datum that the task reads and another rank has not written yet, with the task that
  // writes it. If all are written, the first datum that another rank writes, which may be on its way.
  [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_missing(int rank, int task) const {
    std::optional<std::pair<std::size_t, std::size_t>> written;
    for (const DataAccess& access : graph_.tasks()[index(task)].data) {
      if (access.access != Access::read) continue;
      const auto writer = find_writer(access.datum, index(task));
      if (!writer) continue;
      const int sender = map_.rank_of(graph_.tasks()[*writer].worker);
      if (sender == rank) continue;
      if (!has_ended(sender, *writer, of(rank))) return std::pair(access.datum, *writer);
      if (!written) written.emplace(access.datum, *writer);
    }
    return written;
  }

  // Returns the last task before `reader` that writes the datum.
  [[nodiscard]] std::optional<std::size_t> find_writer(std::size_t datum, std::size_t reader) const {
    for (std::size_t t = reader; t-- > 0;) {
      for (const DataAccess& access : graph_.tasks()[t].data) {
        if (access.datum == datum && access.access != Access::read && access.access != Access::precede)
          return t;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::string describe(const Datum& datum) const {
    std::string text(to_string(datum.kind));
    if (datum.stage >= schedule_.stages()) {
      text += fmt::format(" that stages {} share",
                          fmt::join(graph_.parameters()[index(datum.stage)].stages, ", "));
    } else if (datum.stage >= 0) {
      text += fmt::format(" of stage {}", datum.stage);
    }
    if (datum.microbatch >= 0) text += fmt::format(", micro-batch {}", datum.microbatch);
    return text;
  }

  const TaskGraph& graph_;
  const plan::Schedule& schedule_;
  bool evaluates_;  // the graph is an evaluation
  const WorkerMap& map_;
  std::span<const RankNews> news_;
  NewsLimits limits_;
};

}  // namespace

std::string wait_table(const TaskGraph& graph, const plan::Schedule& schedule, const WorkerMap& map,
                       std::span<const RankNews> news, const NewsLimits& limits) {
  constexpr std::array columns = {TableColumn{Align::right}, TableColumn{Align::left},
                                  TableColumn{Align::left}, TableColumn{Align::left},
                                  TableColumn{Align::left}};
  const Waits waits(graph, schedule, map, news, limits);
  std::vector<TableRow> rows = {{"rank", "does", "next task", "missing datum", "waits for"}};
  for (int rank = 0; std::cmp_less(rank, news.size()); ++rank) rows.push_back(waits.row(rank));
  std::string text = table_text(rows, columns);
  text.pop_back();  // the message adds the last newline
  return text;
}

}  // namespace starpipe::runtime
