// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/gathering.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "model/data/slice_rows.hpp"
#include "plan/simulate/reductions.hpp"
#include "runtime/engine/kernels.hpp"
#include "runtime/host/agreement.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/backend.hpp"

namespace starpipe::runtime {
namespace {

// Calls `f` for consecutive parts of `values`, each small enough for one message: MPI counts in int.
template <class Value, class Function>
void for_each_message(std::span<Value> values, Function&& f) {
  constexpr std::size_t max = std::numeric_limits<int>::max();
  for (; !values.empty(); values = values.subspan(std::min(max, values.size()))) {
    f(values.first(std::min(max, values.size())));
  }
}

}  // namespace

Gathering::Gathering(const StepContext& step, StepData& data)
    : step_(step), data_(data), clock_offset_(step.session.clock_offset()) {}

std::optional<GradientNorm> Gathering::gradient_norm() const {
  const std::optional<std::size_t> complete = step_.graph.complete_verdict();
  if (!complete) return std::nullopt;
  struct Message {
    double norm;
    std::int64_t first_nonfinite;  // its number among all parameters; not less than their number: none
  } message{};
  const Datum& verdict = step_.graph.data()[*complete];
  if (data_.is_mine(verdict)) {
    data_.read(*complete, "the gradient's norm", [&](std::span<const float> values) {
      std::vector<float> copy(values.begin(), values.end());
      const Verdict known(copy);
      message.norm = known.norm();
      message.first_nonfinite =
          std::ranges::find_if_not(known.sums(), [](double sum) { return std::isfinite(sum); }) -
          known.sums().begin();
    });
  }
  message = step_.session.mpi().share_value(message, data_.owner(verdict));
  GradientNorm result{.norm = message.norm};
  if (!std::isfinite(message.norm)) result.first_nonfinite = parameter_name(message.first_nonfinite);
  return result;
}

std::string Gathering::parameter_name(std::int64_t number) const {
  for (const model::ParameterSet& set : step_.network.sets()) {
    for (const model::Parameter& parameter : set.parameters) {
      if (number-- == 0) return parameter.label();
    }
  }
  return "";
}

std::vector<float> Gathering::losses() const {
  const std::vector<float> mine = data_.losses();
  std::vector<float> all(mine.size());
  // One rank has each loss, the others zero, so the sum is exact.
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(mine.data(), all.data(), static_cast<int>(mine.size()), MPI_FLOAT, MPI_SUM,
                 step_.session.mpi().comm(), &request);
  wait_for(request);
  return model::losses_of_whole(step_.network, all);
}

std::vector<JobRecord> Gathering::jobs(std::vector<JobRecord> mine) const {
  for (JobRecord& job : mine) {
    job.submitted += clock_offset_;
    job.ready += clock_offset_;
    job.start += clock_offset_;
    job.end += clock_offset_;
  }
  if (step_.session.mpi().ranks() == 1) return mine;
  return gather_on_root<JobRecord>(step_.session.mpi(), mine);
}

std::vector<WorkerRecord> Gathering::workers(std::span<const WorkerRecord> mine) const {
  const WorkerMap& map = step_.session.map();
  const int rank = step_.session.mpi().rank();
  std::vector<WorkerRecord> local;  // by slot, as they are gathered
  for (int i = 0; i < map.count(rank); ++i) {
    WorkerRecord& record = local.emplace_back(mine[index(map.worker(map.first(rank) + i))]);
    if (record.last_sum > 0) record.last_sum += clock_offset_;
  }
  const std::vector<WorkerRecord> by_slot = gather_on_root<WorkerRecord>(step_.session.mpi(), local);
  std::vector<WorkerRecord> by_worker;
  for (int w = 0; std::cmp_less(w, by_slot.size()); ++w) by_worker.push_back(by_slot[index(map.slot(w))]);
  return by_worker;
}

void Gathering::for_each_on_root(DataKind wanted, const ParameterReader& use) const {
  const MPI_Comm comm = step_.session.mpi().comm();
  const int rank = step_.session.mpi().rank();
  const std::vector<model::ParameterSet> sets = step_.network.sets();
  std::vector<float> received;
  for (int s = 0; std::cmp_less(s, sets.size()); ++s) {
    const model::ParameterSet& set = sets[index(s)];
    if (set.size == 0) continue;
    const bool has_master = wanted == DataKind::weights && set.has_master();
    const int holder = plan::weight_holders(step_.schedule, set.first_stage()).front();
    const std::size_t d = step_.graph.find(has_master ? DataKind::master : wanted, s, holder).value();
    const int owner = data_.owner(step_.graph.data()[d]);
    // Each parameter is a message, or several, so that rank 0 needs memory for one.
    const auto send = [&](std::span<const float> values) {
      for (const model::Parameter& parameter : set.parameters) {
        const std::span<const float> own = values.first(parameter.size());
        values = values.subspan(own.size());
        if (rank == 0) {
          use(parameter, s, own);
          continue;
        }
        for_each_message(own, [&](std::span<const float> part) {
          MPI_Send(part.data(), static_cast<int>(part.size()), MPI_FLOAT, 0, s, comm);
        });
      }
    };
    if (rank == owner) data_.read(d, "a stage's parameters", send);
    if (rank != 0 || owner == 0) continue;
    for (const model::Parameter& parameter : set.parameters) {
      received.resize(parameter.size());
      for_each_message(std::span(received), [&](std::span<float> part) {
        MPI_Recv(part.data(), static_cast<int>(part.size()), MPI_FLOAT, owner, s, comm, MPI_STATUS_IGNORE);
      });
      use(parameter, s, received);
    }
  }
}

std::vector<std::vector<float>> Gathering::by_stage(DataKind wanted) const {
  std::vector<std::vector<float>> all(step_.graph.parameters().size());
  for_each_on_root(wanted, [&](const model::Parameter&, int set, std::span<const float> values) {
    all[index(set)].insert(all[index(set)].end(), values.begin(), values.end());
  });
  return all;
}

void Gathering::read_parameters(const ParameterReader& use) const {
  for_each_on_root(DataKind::weights, use);
}

std::optional<int> Gathering::first_nonfinite_stage() const {
  constexpr int none = std::numeric_limits<int>::max();
  int mine = none;
  const std::vector<model::ParameterSet> sets = step_.network.sets();
  for (std::size_t d = 0; d < step_.graph.data().size(); ++d) {
    const Datum& datum = step_.graph.data()[d];
    if (datum.kind != DataKind::weights && datum.kind != DataKind::master) continue;
    const model::ParameterSet& set = sets[index(datum.stage)];
    const bool is_rounded = datum.kind == DataKind::weights && set.has_master();
    if (is_rounded || set.size == 0 || !data_.is_mine(datum) || set.first_stage() >= mine) continue;
    data_.read(d, "a stage's weights", [&](std::span<const float> values) {
      float found = 0;
      model::cpu_backend().find_nonfinite(model::Precision::fp32, values, values.size(), found);
      if (found != 0) mine = set.first_stage();
    });
  }
  const int first = static_cast<int>(step_.session.mpi().combine(index(mine), Combine::min));
  if (first == none) return std::nullopt;
  return first;
}

std::vector<std::vector<float>> Gathering::parameters() const { return by_stage(DataKind::weights); }
std::vector<std::vector<float>> Gathering::gradients() const { return by_stage(DataKind::weight_gradient); }

std::vector<Gathering::Held> Gathering::held(bool first_only) const {
  std::vector<Held> found;
  for (int s = 0; std::cmp_less(s, step_.graph.parameters().size()); ++s) {
    if (step_.graph.parameters()[index(s)].size == 0) continue;
    const std::vector<int> holders =
        plan::weight_holders(step_.schedule, step_.graph.parameters()[index(s)].first_stage());
    for (const int holder : holders) {
      if (first_only && holder != holders.front()) continue;
      const std::size_t weights = step_.graph.find(DataKind::weights, s, holder).value();
      if (!data_.is_mine(step_.graph.data()[weights])) continue;
      found.push_back({s, weights, step_.graph.find(DataKind::master, s, holder),
                       step_.graph.find(DataKind::optimizer_state, s, holder)});
    }
  }
  return found;
}

void Gathering::read_state(const StateReader& read) const {
  for (const Held& data : held(true)) {
    data_.read(data.master.value_or(data.weights), "the parameters", [&](std::span<const float> values) {
      const auto of_set = values.first(step_.graph.parameters()[index(data.set)].size);
      if (!data.optimizer) {
        read(data.set, of_set, {});
      } else {
        data_.read(*data.optimizer, "the optimizer's state",
                   [&](std::span<const float> state) { read(data.set, of_set, state); });
      }
    });
  }
}

void Gathering::read_own_parameters(const ParameterReader& read) const {
  const std::vector<model::ParameterSet> sets = step_.network.sets();
  for (const Held& data : held(true)) {
    data_.read(data.master.value_or(data.weights), "the parameters", [&](std::span<const float> values) {
      for (const model::Parameter& parameter : sets[index(data.set)].parameters) {
        read(parameter, data.set, values.first(parameter.size()));
        values = values.subspan(parameter.size());
      }
    });
  }
}

void Gathering::write_state(const StateWriter& write) const {
  for (const Held& data : held(false)) {
    const std::size_t size = step_.graph.parameters()[index(data.set)].size;
    const auto write_both = [&](std::span<float> parameters) {
      parameters = parameters.first(size);
      if (!data.optimizer) {
        write(data.set, parameters, {});
      } else {
        data_.write(*data.optimizer, "the optimizer's state",
                    [&](std::span<float> state) { write(data.set, parameters, state); });
      }
    };
    if (!data.master) {
      data_.write(data.weights, "the parameters", write_both);
      continue;
    }
    data_.write(*data.master, "the parameters", [&](std::span<float> parameters) {
      write_both(parameters);
      const std::vector<float> rounded =
          model::rounded_weights(step_.network.stages.front().precision(), parameters);
      data_.write(data.weights, "the weights",
                  [&](std::span<float> values) { std::ranges::copy(rounded, values.begin()); });
    });
  }
}

}  // namespace starpipe::runtime
