// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/csv_communication.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

using Kind = CsvAction::Kind;

class Communication {
 public:
  Communication(const Schedule& schedule, std::span<const std::vector<CsvAction>> rows,
                const std::string& source_name)
      : schedule_(schedule),
        rows_(rows),
        source_name_(source_name),
        computed_(schedule.slots(), false),
        sent_(schedule.slots()),
        received_(schedule.slots()) {}

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
  struct Place {
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

  [[nodiscard]] const CsvAction& at(const Place& place) const { return rows_[place.row][place.index]; }

  // The text of an action and its place in the file.
  [[nodiscard]] std::string named(const Place& place) const {
    return fmt::format("{} ({})", at(place).text, csv_place(place.row, at(place).cell));
  }

  [[noreturn]] void fail(const Place& place, const std::string& message) const {
    throw InputError(fmt::format("{}: {}: {}", source_name_, csv_place(place.row, at(place).cell), message));
  }

  [[nodiscard]] std::string job_text(JobId id) const { return to_string(schedule_.job(id)); }

  // The job that an action names. A backward pass is B or BW, whichever the schedule has.
  [[nodiscard]] std::optional<JobId> find(const Job& job) const {
    if (job.stage >= schedule_.stages() || job.microbatch >= schedule_.microbatches()) return std::nullopt;
    return job.pass == Pass::F ? schedule_.forward(job.stage, job.microbatch)
                               : schedule_.backward(job.stage, job.microbatch);
  }

  // The job that makes the input of F or of a backward pass, if it runs on another worker.
  [[nodiscard]] std::optional<JobId> source(JobId id) const {
    return elsewhere(id, schedule_.job(id).pass == Pass::F ? -1 : 1);
  }
  // The job that reads the result of `id`, if it runs on another worker.
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

  [[nodiscard]] bool is_here(JobId id, const Place& place) const {
    return schedule_.compute(id) == static_cast<int>(place.row);
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
      const Place place{row, i};
      switch (at(place).kind) {
        case Kind::compute:
          check_compute(place, stages[index(at(place).job.stage)]);
          break;
        case Kind::send:
          check_send(place);
          break;
        case Kind::receive:
          check_receive(place);
          break;
        case Kind::unshard:
        case Kind::reshard:
        case Kind::reduce_gradient:
          check_weights(place, stages);
          break;
      }
    }
  }

  void check_compute(const Place& place, const StageState& stage) {
    const Job job = at(place).job;
    const JobId id = *schedule_.find(job);
    const std::string can_never = to_string(job) + " can never start: ";
    if (const auto from = source(id); from && !received_[id]) {
      fail(place,
           fmt::format("{}no RECV_{} comes before it, though {} runs in row {}", can_never,
                       job.pass == Pass::F ? 'F' : 'B', job_text(*from), schedule_.compute(*from) + 1));
    }
    if (const JobId f = schedule_.forward(job.stage, job.microbatch); !is_here(f, place)) {
      fail(place, fmt::format("{}{} runs in row {}, and no action brings what it keeps", can_never,
                              job_text(f), schedule_.compute(f) + 1));
    }
    if (stage.ever_unsharded && stage.sharded) {
      fail(place, fmt::format("{}stage {} is not unsharded here", can_never, job.stage));
    }
    if (stage.reduced && job.pass != Pass::F) {
      fail(place,
           fmt::format("{} comes after {}REDUCE_GRAD, which would leave it out", to_string(job), job.stage));
    }
    computed_[id] = true;
  }

  // The job of a send or receive. It must run in the same row.
  JobId own_job(const Place& place) const {
    const CsvAction& action = at(place);
    const auto id = find(action.job);
    if (!id) {
      fail(place, fmt::format("{}: there is no stage {} with a micro-batch {}", action.text, action.job.stage,
                              action.job.microbatch));
    }
    if (!is_here(*id, place)) {
      fail(place, fmt::format("{}: {} runs in row {}, not here", action.text, job_text(*id),
                              schedule_.compute(*id) + 1));
    }
    return *id;
  }

  void check_send(const Place& place) {
    const JobId id = own_job(place);
    const std::string_view text = at(place).text;
    if (!target(id))
      fail(place, fmt::format("{}: no other worker needs the result of {}", text, job_text(id)));
    if (!computed_[id])
      fail(place, fmt::format("{} comes before {}, whose result it sends", text, job_text(id)));
    if (sent_[id]) fail(place, fmt::format("{} is there twice, first at {}", text, named(*sent_[id])));
    sent_[id] = place;
  }

  void check_receive(const Place& place) {
    const JobId id = own_job(place);
    const std::string_view text = at(place).text;
    if (!source(id)) fail(place, fmt::format("{}: {} needs nothing from another worker", text, job_text(id)));
    if (received_[id])
      fail(place, fmt::format("{} is there twice, first at {}", text, named(*received_[id])));
    received_[id] = place;
  }

  void check_weights(const Place& place, std::vector<StageState>& stages) const {
    const CsvAction& action = at(place);
    const int stage = action.job.stage;
    if (stage >= schedule_.stages() || !stages[index(stage)].runs_here) {
      fail(place, fmt::format("{}: this row computes nothing of stage {}", action.text, stage));
    }
    StageState& state = stages[index(stage)];
    if (action.kind == Kind::reduce_gradient) {
      if (state.reduced) fail(place, fmt::format("{} is there twice", action.text));
      state.reduced = true;
      return;
    }
    const bool reshard = action.kind == Kind::reshard;
    if (state.sharded == reshard) {
      fail(place,
           fmt::format("{}: stage {} is {} already", action.text, stage, reshard ? "sharded" : "unsharded"));
    }
    state.sharded = reshard;
  }

  // The send that belongs to a receive.
  [[nodiscard]] const std::optional<Place>& send_of(const Place& place) const {
    return sent_[*source(*find(at(place).job))];
  }

  void check_has_send(const Place& place) const {
    if (at(place).kind != Kind::receive || send_of(place)) return;
    const JobId id = *find(at(place).job);
    const JobId from = *source(id);
    fail(place, fmt::format("{} can never start: row {} has {} and no {}SEND_{}{}", job_text(id),
                            schedule_.compute(from) + 1, job_text(from), schedule_.job(from).stage,
                            schedule_.job(from).pass == Pass::F ? 'F' : 'B', schedule_.job(from).microbatch));
  }

  // Proves that there is no deadlock: each row advances until a receive whose send has not been reached.
  void check_order() const {
    std::vector<std::size_t> next(rows_.size(), 0);
    std::vector<std::vector<std::size_t>> waiting(rows_.size());  // by row, the rows that wait for its sends
    std::vector<std::size_t> active;
    for (std::size_t row = 0; row < rows_.size(); ++row) active.push_back(row);
    const auto waits_for = [&](std::size_t row) -> std::optional<Place> {
      const Place place{row, next[row]};
      if (at(place).kind != Kind::receive) return std::nullopt;
      const Place send = *send_of(place);
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
    const Place first{row, next[row]};
    std::string text = fmt::format("{} can never start: {}", job_text(*find(at(first).job)), at(first).text);
    std::vector<bool> seen(rows_.size(), false);
    constexpr int most = 4;
    for (int i = 0; !seen[row]; ++i) {
      seen[row] = true;
      const Place send = *send_of({row, next[row]});
      row = send.row;
      if (i >= most) continue;
      text += fmt::format("{} waits for {} after {}", i == 0 ? "" : ", which", named(send),
                          named({row, next[row]}));
    }
    fail(first, text + fmt::format("{}: a deadlock", std::ranges::count(seen, true) > most ? ", ..." : ""));
  }

  const Schedule& schedule_;
  std::span<const std::vector<CsvAction>> rows_;
  const std::string& source_name_;
  // By JobId: whether the job was computed, the send of its result, the receive of its input.
  std::vector<bool> computed_;
  std::vector<std::optional<Place>> sent_;
  std::vector<std::optional<Place>> received_;
};

}  // namespace

std::string csv_place(std::size_t row, std::size_t cell) {
  return fmt::format("row {}, cell {}", row + 1, cell + 1);
}

void check_communication(const Schedule& schedule, std::span<const std::vector<CsvAction>> rows,
                         const std::string& source_name) {
  const bool any = std::ranges::any_of(rows, [](const std::vector<CsvAction>& row) {
    return std::ranges::any_of(row, [](const CsvAction& a) { return a.kind != Kind::compute; });
  });
  if (any) Communication(schedule, rows, source_name).check();
}

}  // namespace starpipe::plan::detail
