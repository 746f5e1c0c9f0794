// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/costs.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

/// The values of the stages, if `values` has one for each share; does not change it if it has one for all.
template <class Values>
void repeat(Values& values, int shares, int stages) {
  if (values.size() == 1) return;
  if (stages % shares != 0) {
    throw InputError(
        fmt::format("costs of {} shares of the model cannot be divided among {} stages", shares, stages));
  }
  Values of_stages;
  for (const auto& value : values) of_stages.insert(of_stages.end(), index(stages / shares), value);
  values = std::move(of_stages);
}

void divide_pair_times(Costs& costs, double parts) {
  if (!costs.overlap) return;
  for (std::optional<double>* const time : {&costs.overlap->F_B, &costs.overlap->F_BW}) {
    if (*time) **time /= parts;
  }
}

}  // namespace

double Durations::of(Pass pass) const {
  switch (pass) {
    case Pass::F:
    case Pass::R:
      return F;
    case Pass::B:
      return B;
    case Pass::W:
      return W;
    case Pass::BW:
      return B + W;
    case Pass::O:
    case Pass::L:
      break;
  }
  throw std::logic_error("a copy has no duration");
}

Costs with_known_copies(Costs costs) {
  if (!costs.host) costs.host = HomeLink{};
  if (!costs.disk) costs.disk = HomeLink{};
  return costs;
}

Costs with_recomputation(Costs costs, std::span<const Home> homes) {
  if (homes.empty()) return costs;
  std::vector<Durations>& durations = costs.durations;
  if (durations.size() == 1) durations.resize(homes.size(), durations.front());
  if (homes.size() != 1 && homes.size() != durations.size()) {
    throw InputError(fmt::format("{} homes for {} stages; give one for all, or one for each", homes.size(),
                                 durations.size()));
  }
  for (std::size_t s = 0; s < durations.size(); ++s) {
    if (homes[homes.size() == 1 ? 0 : s] == Home::none) durations[s].B += durations[s].F;
  }
  return costs;
}

Costs costs_of_stages(const Costs& of_shares, int shares, int stages) {
  Costs costs = of_shares;
  repeat(costs.durations, shares, stages);
  repeat(costs.sizes, shares, stages);
  const double parts = static_cast<double>(stages) / shares;
  for (Durations& durations : costs.durations) {
    for (const PassTime& pass : pass_times) durations.*pass.time /= parts;
  }
  divide_pair_times(costs, parts);
  for (StageSizes& sizes : costs.sizes) {
    for (const auto divided :
         {&StageSizes::stash, &StageSizes::gradient_stash, &StageSizes::weights, &StageSizes::master})
      sizes.*divided = static_cast<std::uint64_t>(std::ceil(static_cast<double>(sizes.*divided) / parts));
  }
  return costs;
}

Costs costs_of_slices(Costs costs, int slices) {
  if (costs.slices > 1) return costs;  // they have been divided
  const auto k = static_cast<std::uint64_t>(slices);
  for (Durations& durations : costs.durations) {
    for (const PassTime& pass : pass_times) durations.*pass.time /= slices;
  }
  divide_pair_times(costs, slices);
  for (StageSizes& sizes : costs.sizes) {
    for (const auto divided :
         {&StageSizes::activation, &StageSizes::gradient, &StageSizes::stash, &StageSizes::gradient_stash})
      sizes.*divided = (sizes.*divided + k - 1) / k;
  }
  return costs;
}

std::vector<Durations> durations_of_slices(std::span<const Durations> whole, const Costs& like, int stages,
                                           int slices) {
  std::vector<Durations> all;
  for (int s = 0; s < stages; ++s) {
    for (int k = 0; k < slices; ++k) {
      Durations& of_slice = all.emplace_back();
      for (const PassTime& pass : pass_times) {
        double sum = 0;
        for (int other = 0; other < slices; ++other) sum += like.duration(s, other).*pass.time;
        const double share = sum > 0 ? like.duration(s, k).*pass.time / sum : 1.0 / slices;
        of_slice.*pass.time = share * whole[whole.size() == 1 ? 0 : index(s)].*pass.time;
      }
    }
  }
  return all;
}

Costs costs_of_microbatches(Costs costs) {
  const auto slices = index(costs.slices);
  divide_pair_times(costs, 1.0 / costs.slices);
  costs.slices = 1;
  const auto add_up = [slices](auto& entries, auto add) {
    if (slices == 1) return;
    const auto first = entries.front();
    if (entries.size() == 1) entries.resize(slices, first);
    for (std::size_t s = 0; s < entries.size() / slices; ++s) {
      entries[s] = entries[s * slices];
      for (std::size_t k = 1; k < slices; ++k) add(entries[s], entries[s * slices + k]);
    }
    entries.resize(entries.size() / slices);
  };
  add_up(costs.durations, [](Durations& sum, const Durations& slice) {
    for (const PassTime& pass : pass_times) sum.*pass.time += slice.*pass.time;
  });
  add_up(costs.sizes, [](StageSizes& sum, const StageSizes& slice) {
    for (const auto part :
         {&StageSizes::activation, &StageSizes::gradient, &StageSizes::stash, &StageSizes::gradient_stash})
      sum.*part += slice.*part;
  });
  return costs;
}

const Durations& Costs::duration(int stage, int microbatch) const {
  return durations.size() == 1 ? durations.front()
                               : durations[index(stage) * index(slices) + index(microbatch % slices)];
}

std::uint64_t Costs::handed_back(const Schedule& schedule, int stage, int microbatch) const {
  std::uint64_t bytes = 0;
  for (int b = microbatch - schedule.slice(microbatch); b <= microbatch; ++b)
    bytes += size(stage, b).keys_values_gradient;
  return bytes;
}

const HomeLink& Costs::home_link(Home home) const {
  const std::optional<HomeLink>& link = home == Home::host ? host : disk;
  if (!link)
    throw InputError(
        fmt::format("home {0}: the time of a copy to the {0} is not known; give it as --copy, as "
                    "{0}_link in a file of links, or as runtime.emulate.copy",
                    to_string(home)));
  return *link;
}

double Costs::pair_time(const Job& forward, const Job& backward) const {
  const std::optional<double> time = !overlap                   ? std::nullopt
                                     : backward.pass == Pass::B ? overlap->F_B
                                                                : overlap->F_BW;
  if (time) return *time;
  return (overlap ? overlap->factor : 1) *
         (duration(forward).of(forward.pass) + duration(backward).of(backward.pass));
}

double Costs::time(const Schedule& schedule, JobId id) const {
  const Job job = schedule.job(id);
  if (const std::optional<JobId> other = schedule.partner(id); other && overlap) {
    const double own = duration(job).of(job.pass);
    const double both = own + duration(schedule.job(*other)).of(schedule.job(*other).pass);
    const double time =
        pair_time(schedule.job(schedule.first_of_pair(id)), schedule.job(schedule.last_of_pair(id)));
    return both > 0 ? time * own / both : time / 2;
  }
  if (!is_copy(job.pass)) return duration(job).of(job.pass);
  const std::uint64_t bytes = size(job).stash;
  if (!schedule.peer(id)) return home_link(schedule.home(job.stage, job.microbatch)).link.time(bytes);
  const auto [from, to] = schedule.ends(id);
  return (peer ? peer->link : link(from, to)).time(bytes);
}

bool Costs::has_sizes() const {
  return std::ranges::any_of(sizes, [](const StageSizes& of) {
    return (of.activation | of.gradient | of.stash | of.gradient_stash | of.weights | of.master) != 0;
  });
}

const StageSizes& Costs::size(int stage, int microbatch) const {
  return sizes.size() == 1 ? sizes.front() : sizes[index(stage) * index(slices) + index(microbatch % slices)];
}

}  // namespace starpipe::plan
