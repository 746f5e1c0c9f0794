// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::plan {

/// Time of each pass of one stage, in any one unit. BW lasts B + W, and R as long as F. O and L have none:
/// see Costs::time.
struct Durations {
  double F = 1;
  double B = 1;
  double W = 1;

  /// Throws std::logic_error for O and L.
  [[nodiscard]] double of(Pass pass) const;
  friend bool operator==(const Durations&, const Durations&) = default;
};

/// A pass that has a duration of its own: its name in files and options, and the member that holds its time.
struct PassTime {
  std::string_view name;
  double Durations::*time;
};
/// The only list of these names. Profiles, schedule files and options with durations are read and written
/// through it.
inline constexpr std::array<PassTime, 3> pass_times = {
    {{"F", &Durations::F}, {"B", &Durations::B}, {"W", &Durations::W}}};

/// Sizes in bytes of the data of one stage and one micro-batch. All zero when no model is known.
struct StageSizes {
  std::uint64_t activation = 0;      ///< the stage's output
  std::uint64_t gradient = 0;        ///< gradient with respect to the stage's output
  std::uint64_t stash = 0;           ///< kept by F for B and W
  std::uint64_t gradient_stash = 0;  ///< kept by B for W where the backward pass is split
  std::uint64_t weights = 0;         ///< the stage's own parameters, as passes read them
  std::uint64_t master = 0;          ///< the optimizer's own copy of them; 0 when it updates `weights`
  bool has_weights = true;           ///< whether the stage has parameters of its own
  /// True if the stage adds its inputs. Then the preceding stages all read one gradient of the same datum.
  bool adds_inputs = false;
  std::uint64_t keys_values = 0;           ///< of a slice: what later slices read of it (attention)
  std::uint64_t keys_values_gradient = 0;  ///< their gradient, which later slices hand back
  bool has_keys_values = true;             ///< whether later slices read anything of it

  /// Returns the size of the parameters that the optimizer updates. A weight gradient, and each optimizer
  /// state, is as large.
  [[nodiscard]] std::uint64_t updated() const { return master > 0 ? master : weights; }
};

/// Parameters that several stages use. The holders of the first stage's weights hold them; all of the stages
/// add to their gradient.
struct SharedWeights {
  std::vector<int> stages;    ///< ascending
  std::uint64_t weights = 0;  ///< bytes, as in StageSizes
  std::uint64_t master = 0;

  [[nodiscard]] std::uint64_t updated() const { return master > 0 ? master : weights; }
};

/// The link between a worker and the host, or the disk, to which it copies stashes. Copies there and copies
/// back do not delay each other.
struct HomeLink {
  Link link = {};   ///< of a copy that has it for itself
  int workers = 1;  ///< so many neighbours share a link, fairly: 0 to N - 1, N to 2 N - 1, ...
  /// Bytes of stashes that these neighbours may have on the host, or disk, at once; nullopt: no limit. Other
  /// workers have none: their memory is limited by the schedule's own limit.
  std::optional<std::uint64_t> memory = {};
  friend bool operator==(const HomeLink&, const HomeLink&) = default;
};

/// How long a worker takes for a pair (Schedule::has_pairs): F and a backward pass at once. Times have the
/// unit of the durations.
struct Overlap {
  double factor = 1;                ///< of the sum of both durations, where there is no time
  std::optional<double> F_B = {};   ///< of F and B, on any stages
  std::optional<double> F_BW = {};  ///< of F and BW, on any stages
  friend bool operator==(const Overlap&, const Overlap&) = default;
};

/// Durations, sizes and the price of transfers. Per-stage vectors have one entry per stage, or a single entry
/// for all stages. Where slices of a sequence differ, they have one for each stage and slice.
struct Costs {
  std::vector<Durations> durations = std::vector<Durations>(1);
  std::vector<StageSizes> sizes = std::vector<StageSizes>(1);
  /// Slices K whose entries follow each other: that of stage s and slice k is s K + k. 1: all slices of a
  /// stage have one entry.
  int slices = 1;
  std::vector<SharedWeights> shared = {};  ///< besides the stages' own weights
  Links links = {};                        ///< between workers
  std::optional<HomeLink> host = {};       ///< to the main memory of their hosts; nullopt: not known
  std::optional<HomeLink> disk = {};       ///< to the disks of their hosts
  /// Of copies to other workers, and back, which then delay no other transfer; nullopt: they are transfers on
  /// `links`. No workers share such a link.
  std::optional<HomeLink> peer = {};
  /// With prefetch, transfers overlap compute: a result leaves when it is ready, weights leave at time 0.
  /// Without, a worker fetches the inputs of a job sequentially, once it has picked the job.
  bool prefetch = true;
  /// So many neighbouring workers are a rank: 0 to N - 1, N to 2 N - 1, ... A rank receives a datum of
  /// another rank once, and its workers share it. Transfers from one of its workers to another follow each
  /// other (TransfersInFlight). This counts where transfers take time, with prefetch.
  int workers_of_rank = 1;
  /// True if the bytes of messages from one rank to another pass one message at a time, first come, first
  /// served, since MPI has one connection for each pair of ranks. The connections share the ports of a level
  /// with fair sharing; on other levels this has no effect. False: all transfers share the ports, as in
  /// SimGrid.
  bool ordered_messages = false;
  /// True if weights that few ranks hold and several read may go by relays: the ranks pass segments on to
  /// each other. False: the holder sends them to each of these ranks. This counts where transfers take time,
  /// with prefetch.
  bool relays = false;
  /// True if a message from one rank to another also takes two links of `host`: from the sender to its host,
  /// and from the receiver's host to the receiver. GPUs without GPUDirect send messages this way. On such a
  /// link messages and copies of stashes follow each other. Needs `host`; counts with prefetch.
  bool messages_pass_hosts = false;
  /// Says how long pairs take. nullopt: the jobs of a pair follow each other as other jobs do, and neither
  /// waits for the other.
  std::optional<Overlap> overlap = {};

  /// Gives every copy of a stash this time, whatever its home.
  void set_copy(double time) { host = disk = peer = HomeLink{.link = {.alpha = time}}; }

  /// Returns the entry of `stage`, from 0, for the slice that the micro-batch has. All slices have the same
  /// weights.
  [[nodiscard]] const Durations& duration(int stage, int microbatch = 0) const;
  [[nodiscard]] const StageSizes& size(int stage, int microbatch = 0) const;
  [[nodiscard]] const Durations& duration(const Job& job) const {
    return duration(job.stage, job.microbatch);
  }
  [[nodiscard]] const StageSizes& size(const Job& job) const { return size(job.stage, job.microbatch); }
  /// Returns the bytes of gradients that the backward pass of `microbatch` gets of the slice after: of the
  /// keys and values of all slices up to this one.
  [[nodiscard]] std::uint64_t handed_back(const Schedule& schedule, int stage, int microbatch) const;
  /// True if the size of any datum is known.
  [[nodiscard]] bool has_sizes() const;
  /// Returns the link to homes of this kind, host or disk. Throws InputError if it is not known.
  [[nodiscard]] const HomeLink& home_link(Home home) const;
  /// Returns how long a worker takes for a pair.
  [[nodiscard]] double pair_time(const Job& forward, const Job& backward) const;
  /// Returns how long a job takes: its pass, or a copy that has its link for itself. The jobs of a pair share
  /// its time in proportion to their own durations. Throws InputError as `home_link`.
  [[nodiscard]] double time(const Schedule& schedule, JobId id) const;
  /// Returns the price of a transfer between two different workers that has the link for itself.
  [[nodiscard]] const Link& link(int from, int to) const { return links.between(from, to); }
  /// True if messages between ranks pass `host`, and that takes time.
  [[nodiscard]] bool has_slow_hosts() const {
    return messages_pass_hosts && prefetch && host && host->link.takes_time();
  }
  /// True if transfers may delay each other: on a port, between two workers of a rank, as segments of relayed
  /// weights, or on the link with a host.
  [[nodiscard]] bool transfers_wait() const {
    return links.shared() || ((workers_of_rank > 1 || relays) && links.takes_time()) || has_slow_hosts();
  }
};

/// Returns the costs with copies that take no time, where their links are not known. Memory follows from n
/// alone where stashes are copied, so such costs are enough to predict it.
Costs with_known_copies(Costs costs);

/// Returns the costs of `stages` equal stages of a model, made from the costs of `shares` equal parts of its
/// chain. `of_shares` has one entry for each share, or one for all, and no shared weights. A stage takes its
/// part of a share's durations, stashes and weights; bytes are rounded up. Sizes of activations and gradients
/// stay as they are. Throws InputError if there is an entry for each share and `stages` is not a multiple of
/// `shares`.
Costs costs_of_stages(const Costs& of_shares, int shares, int stages);

/// Returns the costs of slices, K of each micro-batch: the durations and sizes of micro-batches divided by K,
/// rounded up; weights stay.
Costs costs_of_slices(Costs costs, int slices);

/// Returns the durations of each stage and slice: those of whole micro-batches, one for all stages or one for
/// each, divided as `like` divides them, or equally where these are 0.
std::vector<Durations> durations_of_slices(std::span<const Durations> whole, const Costs& like, int stages,
                                           int slices);

/// Returns the costs of whole micro-batches: the sums over slices, where these have costs of their own.
Costs costs_of_microbatches(Costs costs);

/// Returns the costs with F's time added to B, for the stages whose stashes have no home. Functions that
/// build schedules get these, since they place no R. `homes`: one for all stages, or one for each; empty: as
/// Home::worker. Throws InputError for another number of homes than durations, unless either is one.
Costs with_recomputation(Costs costs, std::span<const Home> homes);

}  // namespace starpipe::plan
