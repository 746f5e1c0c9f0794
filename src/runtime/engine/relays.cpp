// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/relays.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include <starpu_mpi.h>

#include "plan/simulate/relays.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

std::vector<RelayedWeights> relayed_weights(const TaskGraph& graph, const plan::Schedule& schedule,
                                            std::span<const int> rank_of) {
  struct Reading {
    std::uint32_t turn = std::numeric_limits<std::uint32_t>::max();
    std::set<int> ranks = {};
  };
  std::map<std::uint32_t, Reading> readings;  // by datum
  for (const Task& task : graph.tasks()) {
    for (const DataAccess& access : task.data) {
      const Datum& datum = graph.data()[access.datum];
      const int rank = rank_of[index(task.worker)];
      if (datum.kind != DataKind::weights || !task.job || rank_of[index(datum.worker)] == rank) continue;
      Reading& reading = readings[access.datum];
      reading.turn = std::min(reading.turn, schedule.turn(*task.job));
      reading.ranks.insert(rank);
    }
  }
  std::vector<std::pair<std::uint32_t, RelayedWeights>> found;
  std::vector<plan::WeightsToSend> all_weights;
  for (const auto& [datum, reading] : readings) {
    const std::vector<int> readers(reading.ranks.begin(), reading.ranks.end());
    const Datum& of = graph.data()[datum];
    const int holder = rank_of[index(of.worker)];
    all_weights.push_back({holder, readers, of.bytes()});
    if (plan::relay_plan(holder, readers, of.bytes()).empty()) continue;
    found.emplace_back(reading.turn, RelayedWeights{datum, readers});
  }
  if (!plan::relays_help(all_weights)) return {};
  std::ranges::stable_sort(found, {}, &std::pair<std::uint32_t, RelayedWeights>::first);
  std::vector<RelayedWeights> all;
  for (auto& [turn, weights] : found) all.push_back(std::move(weights));
  return all;
}

Relays::Relays(const StepContext& step, const StepData& data) : step_(step) {
  constexpr starpu_mpi_tag_t first_tag = starpu_mpi_tag_t{1} << 40U;  // beyond the tags of data
  const int me = step.session.mpi().rank();
  std::vector<int> rank_of;
  for (int w = 0; w < step.session.map().workers(); ++w) rank_of.push_back(step.session.map().rank_of(w));
  starpu_mpi_tag_t tag = first_tag;
  for (RelayedWeights& relayed : relayed_weights(step.graph, step.schedule, rank_of)) {
    const Datum& datum = step.graph.data()[relayed.datum];
    const int holder = data.owner(datum);
    const std::vector<plan::RelayStep> plan = plan::relay_plan(holder, relayed.readers, datum.bytes());
    const starpu_mpi_tag_t first = tag;
    tag += static_cast<starpu_mpi_tag_t>(plan.back().segment) + 1;
    if (holder != me && !std::ranges::binary_search(relayed.readers, me)) continue;
    const std::size_t number = weights_.size();
    weights_.push_back({.handle = data.handle(relayed.datum), .is_mine = holder == me});
    Weights& weights = weights_.back();
    if (weights.is_mine) weights.readers = std::move(relayed.readers);
    auto* const memory =
        static_cast<std::byte*>(starpu_data_handle_to_pointer(weights.handle, STARPU_MAIN_RAM));
    for (const plan::RelayStep& message : plan) {
      if (segments_.empty() || segments_.back().of != number ||
          segments_.back().tag != first + static_cast<starpu_mpi_tag_t>(message.segment)) {
        starpu_data_handle_t handle = nullptr;
        starpu_vector_data_register(&handle, STARPU_MAIN_RAM,
                                    reinterpret_cast<std::uintptr_t>(memory + message.first),
                                    static_cast<std::uint32_t>(message.bytes / sizeof(float)), sizeof(float));
        segments_.push_back({.relays = this,
                             .of = number,
                             .handle = Handle(handle),
                             .tag = first + static_cast<starpu_mpi_tag_t>(message.segment)});
      }
      Segment& segment = segments_.back();
      if (message.to == me) segment.from = message.from;
      if (message.from == me) segment.to.push_back(message.to);
      if (weights.is_mine ? message.from == me : message.to == me) ++weights.messages;
    }
  }
}

void Relays::receive() {
  for (Weights& weights : weights_) {
    weights.left = weights.messages;
    require(starpu_data_acquire(weights.handle, weights.is_mine ? STARPU_R : STARPU_W), "StarPU", "reaching",
            "weights");
    if (!weights.is_mine) starpu_mpi_cached_receive_set(weights.handle);
    for (const int reader : weights.readers) starpu_mpi_cached_send_set(weights.handle, reader);
  }
  for (Segment& segment : segments_) {
    if (weights_[segment.of].is_mine) continue;
    require(starpu_mpi_irecv_detached(segment.handle.get(), segment.from, segment.tag,
                                      step_.session.mpi().starpu_comm(), arrived, &segment),
            "StarPU", "receiving", "weights");
  }
}

void Relays::send() {
  for (Segment& segment : segments_) {
    if (weights_[segment.of].is_mine) pass_on(segment);
  }
}

void Relays::arrived(void* argument) noexcept {
  Segment& segment = *static_cast<Segment*>(argument);
  Relays& relays = *segment.relays;
  relays.pass_on(segment);
  relays.count(relays.weights_[segment.of]);
}

void Relays::sent(void* argument) noexcept {
  const std::unique_ptr<const Message> message(static_cast<const Message*>(argument));
  Relays& relays = *message->segment->relays;
  {
    const std::scoped_lock lock(relays.mutex_);
    relays.busy_.erase(message->to);
  }
  relays.send_next(message->to);
  Weights& weights = relays.weights_[message->segment->of];
  if (weights.is_mine) relays.count(weights);
}

void Relays::pass_on(Segment& segment) {
  {
    const std::scoped_lock lock(mutex_);
    for (const int to : segment.to) waiting_[to].insert(&segment);
  }
  for (const int to : segment.to) send_next(to);
}

// Notes that one message of the weights has passed. Gives them back after the last one.
void Relays::count(Weights& weights) {
  {
    const std::scoped_lock lock(mutex_);
    if (--weights.left > 0) return;
  }
  starpu_data_release(weights.handle);
}

void Relays::send_next(int to) {
  std::unique_ptr<Message> message;
  {
    const std::scoped_lock lock(mutex_);
    std::set<Segment*>& waiting = waiting_[to];
    if (waiting.empty() || !busy_.insert(to).second) return;
    message = std::make_unique<Message>(Message{*waiting.begin(), to});
    waiting.erase(waiting.begin());
  }
  // StarPU-MPI sends what is ready in the order of priorities. Messages of jobs have 0 or less: weights go
  // first, as on a step's first jobs all others wait.
  require(starpu_mpi_isend_detached_prio(message->segment->handle.get(), to, message->segment->tag, 0,
                                         step_.session.mpi().starpu_comm(), sent, message.get()),
          "StarPU", "sending", "weights");
  static_cast<void>(message.release());  // `sent` takes it
}

}  // namespace starpipe::runtime
