// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <starpu.h>
#include <starpu_mpi.h>

#include "runtime/engine/step_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Weights of one holder that go to several ranks by relays.
struct RelayedWeights {
  std::uint32_t datum;
  std::vector<int> readers;  ///< ranks, ascending
};

/// Returns them in the order in which jobs need them: by the turn of the first job on another rank that reads
/// them; none where plan::relays_help says so. `rank_of`: by worker.
std::vector<RelayedWeights> relayed_weights(const TaskGraph& graph, const plan::Schedule& schedule,
                                            std::span<const int> rank_of);

/// Brings the weights that jobs of several other ranks read to these ranks, by plan::relay_plan. No worker is
/// needed: StarPU-MPI's thread passes a segment on as soon as it has arrived. MPI gets one segment at a time
/// for each other rank, the next one when it has sent that. Of those that wait, the segment of the weights
/// that jobs need first goes first.
///
/// The rank's copy belongs to this object from `receive` until all segments are there, and the holder's
/// weights until all are sent: so the jobs that read the copy, and the update of the weights, wait.
class Relays {
 public:
  /// The references must outlive this.
  Relays(const StepContext& step, const StepData& data);
  Relays(const Relays&) = delete;
  Relays& operator=(const Relays&) = delete;

  /// Asks for all segments that this rank receives in the step. Call it before the step's tasks are inserted,
  /// and before other ranks call `send`: then no segment arrives before its memory is known.
  void receive();
  /// Begins to send the weights that this rank holds.
  void send();

 private:
  /// Weights in the memory of this rank: the holder's, or a copy.
  struct Weights {
    starpu_data_handle_t handle = nullptr;
    bool is_mine = false;
    std::vector<int> readers = {};  // where they are mine
    std::size_t messages = 0;       // that are sent, or received, in a step
    std::size_t left = 0;           // of them
  };
  struct Segment {
    Relays* relays = nullptr;
    std::size_t of = 0;  // weights
    Handle handle = {};
    starpu_mpi_tag_t tag = 0;
    int from = 0;  // rank
    std::vector<int> to = {};
  };
  /// A segment on its way to another rank.
  struct Message {
    Segment* segment;
    int to;
  };

  static void arrived(void* segment) noexcept;
  static void sent(void* message) noexcept;
  void pass_on(Segment& segment);
  void count(Weights& weights);
  void send_next(int to);

  StepContext step_;
  std::vector<Weights> weights_;
  std::vector<Segment> segments_;              // in the order in which they are needed
  std::mutex mutex_;                           // of the members below, and of Weights::left
  std::map<int, std::set<Segment*>> waiting_;  // by receiver
  std::set<int> busy_;                         // receivers of a segment that is under way
};

}  // namespace starpipe::runtime
