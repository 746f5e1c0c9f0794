// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/csv_communication.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

using Kind = CsvAction::Kind;

class Communication {
 public:
  Communication(const Schedule& schedule, std::span<const std::vector<CsvAction>> rows,
                const std::string& source_name)
      : schedule_(schedule),
        rows_(rows),
        source_name_(source_name),
        computed_(schedule.id_count(), false),
        sent_(schedule.id_count()),
        received_(schedule.id_count()) {}

  void check() {
    if (!schedule_.graph().is_chain()) {
      throw InputError(
          fmt::format("{}: communication actions are defined for a chain of stages only", source_name_));
    }
    for (std::size_t row = 0; row < rows_.size(); ++row) check_row(row);
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      for (std::size_t i = 0; i < rows_[row].size(); ++i) check_has_send({row, i});
    }
    check_order();
  }

 private:
  struct Position {
    std::size_t row;
    std::size_t index;
  };

  // The state of the weights of a stage on one worker, as FSDP changes it.
  struct StageState {
    bool runs_here = false;
    bool sharded = true;
    bool ever_unsharded = false;
    bool reduced = false;
  };

  [[nodiscard]] const CsvAction& at(const Position& position) const {
    return rows_[position.row][position.index];
  }

  // Returns the text of an action and its position in the file.
  [[nodiscard]] std::string named(const Position& position) const {
    return fmt::format("{} ({})", at(position).text, csv_position(position.row, at(position).cell));
  }

  template <class... Args>
  [[noreturn]] void fail(const Position& position, fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError(fmt::format("{}: {}: {}", source_name_, csv_position(position.row, at(position).cell),
                                 fmt::format(format, std::forward<Args>(args)...)));
  }

  [[nodiscard]] std::string job_text(JobId id) const { return to_string(schedule_.job(id)); }

  // Returns the job that an action names. A backward pass is B or BW, whichever the schedule has.
  [[nodiscard]] std::optional<JobId> find(const Job& job) const {
    if (job.stage >= schedule_.stages() || job.microbatch >= schedule_.microbatches()) return std::nullopt;
    return job.pass == Pass::F ? schedule_.forward(job.stage, job.microbatch)
                               : schedule_.backward(job.stage, job.microbatch);
  }

  // Returns the job that makes the input of F or of a backward pass, if it runs on another worker.
  [[nodiscard]] std::optional<JobId> source(JobId id) const {
    return elsewhere(id, schedule_.job(id).pass == Pass::F ? -1 : 1);
  }
  // Returns the job that reads the result of `id`, if it runs on another worker.
  [[nodiscard]] std::optional<JobId> target(JobId id) const {
    return elsewhere(id, schedule_.job(id).pass == Pass::F ? 1 : -1);
  }
  [[nodiscard]] std::optional<JobId> elsewhere(JobId id, int stages_away) const {
    const Job job = schedule_.job(id);
    const int stage = job.stage + stages_away;
    if (job.pass == Pass::W || stage < 0 || stage >= schedule_.stages()) return std::nullopt;
    const JobId other = *find({stage, job.microbatch, job.pass});
    if (schedule_.compute(other) == schedule_.compute(id)) return std::nullopt;
    return other;
  }

  [[nodiscard]] bool is_here(JobId id, const Position& position) const {
    return schedule_.compute(id) == static_cast<int>(position.row);
  }

  void check_row(std::size_t row) {
    std::vector<StageState> stages(index(schedule_.stages()));
    for (const CsvAction& action : rows_[row]) {
      if (action.job.stage >= schedule_.stages()) continue;
      StageState& stage = stages[index(action.job.stage)];
      stage.runs_here = stage.runs_here || action.kind == Kind::compute;
      stage.ever_unsharded = stage.ever_unsharded || action.kind == Kind::unshard;
    }
    for (std::size_t i = 0; i < rows_[row].size(); ++i) {
      const Position position{row, i};
      switch (at(position).kind) {
        case Kind::compute:
          check_compute(position, stages[index(at(position).job.stage)]);
          break;
        case Kind::send:
          check_send(position);
          break;
        case Kind::receive:
          check_receive(position);
          break;
        case Kind::unshard:
        case Kind::reshard:
        case Kind::reduce_gradient:
          check_weights(position, stages);
          break;
      }
    }
  }

  void check_compute(const Position& position, const StageState& stage) {
    const Job job = at(position).job;
    const JobId id = *schedule_.find(job);
    const std::string can_never = to_string(job) + " can never start: ";
    if (const auto from = source(id); from && !received_[id]) {
      fail(position, "{}no RECV_{} comes before it, though {} runs in row {}", can_never,
           job.pass == Pass::F ? 'F' : 'B', job_text(*from), schedule_.compute(*from) + 1);
    }
    if (const JobId f = schedule_.forward(job.stage, job.microbatch); !is_here(f, position)) {
      fail(position, "{}{} runs in row {}, and no action transfers its stash", can_never, job_text(f),
           schedule_.compute(f) + 1);
    }
    if (stage.ever_unsharded && stage.sharded) {
      fail(position, "{}stage {} is not unsharded here", can_never, job.stage);
    }
    if (stage.reduced && job.pass != Pass::F) {
      fail(position, "{} comes after {}REDUCE_GRAD, which would leave it out", to_string(job), job.stage);
    }
    computed_[id] = true;
  }

  // Returns the job of a send or receive. It must run in the same row.
  JobId own_job(const Position& position) const {
    const CsvAction& action = at(position);
    const auto id = find(action.job);
    if (!id) {
      fail(position, "{}: the schedule has no stage {} with a micro-batch {}", action.text, action.job.stage,
           action.job.microbatch);
    }
    if (!is_here(*id, position)) {
      fail(position, "{}: {} runs in row {}, not here", action.text, job_text(*id),
           schedule_.compute(*id) + 1);
    }
    return *id;
  }

  // Notes the send or the receive of a job. Refuses a second one.
  void note(std::optional<Position>& first, const Position& position) const {
    if (first) fail(position, "{} is there twice, first at {}", at(position).text, named(*first));
    first = position;
  }

  void check_send(const Position& position) {
    const JobId id = own_job(position);
    const std::string_view text = at(position).text;
    if (!target(id)) fail(position, "{}: no other worker needs the result of {}", text, job_text(id));
    if (!computed_[id]) fail(position, "{} comes before {}, whose result it sends", text, job_text(id));
    note(sent_[id], position);
  }

  void check_receive(const Position& position) {
    const JobId id = own_job(position);
    const std::string_view text = at(position).text;
    if (!source(id)) fail(position, "{}: {} needs nothing from another worker", text, job_text(id));
    note(received_[id], position);
  }

  void check_weights(const Position& position, std::vector<StageState>& stages) const {
    const CsvAction& action = at(position);
    const int stage = action.job.stage;
    if (stage >= schedule_.stages() || !stages[index(stage)].runs_here) {
      fail(position, "{}: this row computes nothing of stage {}", action.text, stage);
    }
    StageState& state = stages[index(stage)];
    if (action.kind == Kind::reduce_gradient) {
      if (state.reduced) fail(position, "{} is there twice", action.text);
      state.reduced = true;
      return;
    }
    const bool reshard = action.kind == Kind::reshard;
    if (state.sharded == reshard) {
      fail(position, "{}: stage {} is {} already", action.text, stage, reshard ? "sharded" : "unsharded");
    }
    state.sharded = reshard;
  }

  // Returns the send that belongs to a receive.
  [[nodiscard]] const std::optional<Position>& send_of(const Position& position) const {
    return sent_[*source(*find(at(position).job))];
  }

  void check_has_send(const Position& position) const {
    if (at(position).kind != Kind::receive || send_of(position)) return;
    const JobId id = *find(at(position).job);
    const JobId from = *source(id);
    fail(position, "{} can never start: row {} has {} and no {}SEND_{}{}", job_text(id),
         schedule_.compute(from) + 1, job_text(from), schedule_.job(from).stage,
         schedule_.job(from).pass == Pass::F ? 'F' : 'B', schedule_.job(from).microbatch);
  }

  // Proves that the rows cannot deadlock: each row advances until a receive whose send has not been reached.
  void check_order() const {
    std::vector<std::size_t> next(rows_.size(), 0);
    std::vector<std::vector<std::size_t>> waiting(rows_.size());  // by row, the rows that wait for its sends
    std::vector<std::size_t> active;
    for (std::size_t row = 0; row < rows_.size(); ++row) active.push_back(row);
    const auto waits_for = [&](std::size_t row) -> std::optional<Position> {
      const Position position{row, next[row]};
      if (at(position).kind != Kind::receive) return std::nullopt;
      const Position send = *send_of(position);
      return send.index < next[send.row] ? std::nullopt : std::optional(send);
    };
    while (!active.empty()) {
      const std::size_t row = active.back();
      active.pop_back();
      bool sends = false;
      for (; next[row] < rows_[row].size(); ++next[row]) {
        if (const auto send = waits_for(row)) {
          waiting[send->row].push_back(row);
          break;
        }
        sends = sends || at({row, next[row]}).kind == Kind::send;
      }
      if (sends) active.insert(active.end(), waiting[row].begin(), waiting[row].end());
      if (sends) waiting[row].clear();
    }
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (next[row] < rows_[row].size()) fail_stuck(row, next);
    }
  }

  // Names the deadlock. Each stuck row waits for a send of another stuck row, so following the waits must
  // come back to a row.
  [[noreturn]] void fail_stuck(std::size_t row, const std::vector<std::size_t>& next) const {
    const Position first{row, next[row]};
    std::string text = fmt::format("{} can never start: {}", job_text(*find(at(first).job)), at(first).text);
    std::vector<bool> seen(rows_.size(), false);
    constexpr int max = 4;
    for (int i = 0; !seen[row]; ++i) {
      seen[row] = true;
      const Position send = *send_of({row, next[row]});
      row = send.row;
      if (i >= max) continue;
      text += fmt::format("{} waits for {} after {}", i == 0 ? "" : ", which", named(send),
                          named({row, next[row]}));
    }
    fail(first, "{}{}: a deadlock", text, std::ranges::count(seen, true) > max ? ", ..." : "");
  }

  const Schedule& schedule_;
  std::span<const std::vector<CsvAction>> rows_;
  const std::string& source_name_;
  // By JobId: whether the job was computed, the send of its result, the receive of its input.
  std::vector<bool> computed_;
  std::vector<std::optional<Position>> sent_;
  std::vector<std::optional<Position>> received_;
};

}  // namespace

std::string csv_position(std::size_t row, std::size_t cell) {
  return fmt::format("row {}, cell {}", row + 1, cell + 1);
}

void check_communication(const Schedule& schedule, std::span<const std::vector<CsvAction>> rows,
                         const std::string& source_name) {
  const bool any = std::ranges::any_of(rows, [](const std::vector<CsvAction>& row) {
    return std::ranges::any_of(row, [](const CsvAction& a) { return a.kind != Kind::compute; });
  });
  if (any) Communication(schedule, rows, source_name).check();
}

}  // namespace starpipe::plan
