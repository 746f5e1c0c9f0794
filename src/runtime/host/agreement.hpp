// SPDX-License-Identifier: Apache-2.0
// Mistakes and failures on some rank: all ranks end together.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/host/lost_rank.hpp"
#include "runtime/host/mpi.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

/// Collective. Runs `setup` on every rank. If it throws InputError on any rank, all ranks throw the same
/// InputError.
template <class Setup>
auto agree(const Mpi& mpi, Setup setup) {
  std::string problem;
  std::optional<decltype(setup())> result;
  try {
    result.emplace(setup());
  } catch (const InputError& error) {
    problem = error.what();
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  return std::move(*result);
}

/// Runs `function`. If it throws anything but RunFailure, ends the run on all ranks at once: other ranks
/// would wait for this rank, and destructors would wait for tasks and for other ranks.
void or_abort(const Mpi& mpi, const std::function<void()>& function);

/// Ends the run on all ranks unless it is destroyed within the limit. It lives while ranks wait for each
/// other at the end of a run, when the watchdog is off. It does nothing on SimGrid.
class EndWatch {
 public:
  explicit EndWatch(const Mpi& mpi, std::chrono::milliseconds limit = std::chrono::minutes(2));

 private:
  std::optional<Deadline> deadline_;
};

// Values of all ranks, brought together.

/// Collective. Returns the values of all ranks, by rank, on every rank. `Value` has nlohmann's conversions
/// (NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE), so fields travel by name; as CBOR, which keeps text that is not
/// UTF-8.
template <class Value>
std::vector<Value> gather_all(const Mpi& mpi, const Value& mine) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(nlohmann::json(mine));
  std::vector<Value> all;
  for (const std::string& of_rank : mpi.gather(std::string(bytes.begin(), bytes.end())))
    all.push_back(nlohmann::json::from_cbor(of_rank).get<Value>());
  return all;
}

/// Collective. Returns the value of rank 0 on every rank. `Value` as for `gather_all`.
template <class Value>
Value share_all(const Mpi& mpi, const Value& mine) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(nlohmann::json(mine));
  return nlohmann::json::from_cbor(mpi.share(std::string(bytes.begin(), bytes.end()))).get<Value>();
}

/// Collective. Returns the records of all ranks, by rank, on rank 0; empty on the others. `Record` is plain
/// data and travels as bytes: this is for many records.
template <class Record>
std::vector<Record> gather_on_root(const Mpi& mpi, std::span<const Record> mine) {
  std::vector<Record> all;
  mpi.gather_on_root(std::as_bytes(mine), sizeof(Record), [&all](std::span<const std::uint64_t> counts) {
    all.resize(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
    return std::as_writable_bytes(std::span(all));
  });
  return all;
}

/// Collective. Returns the texts of all ranks, by rank, on rank 0; empty on the others.
std::vector<std::string> texts_on_root(const Mpi& mpi, const std::string& mine);

/// Collective. Returns the values of all ranks, by rank, on rank 0; empty on the others. `Value` as for
/// `gather_all`.
template <class Value>
std::vector<Value> values_on_root(const Mpi& mpi, const Value& mine) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(nlohmann::json(mine));
  std::vector<Value> all;
  for (const std::string& of_rank : texts_on_root(mpi, std::string(bytes.begin(), bytes.end())))
    all.push_back(nlohmann::json::from_cbor(of_rank).get<Value>());
  return all;
}

}  // namespace starpipe::runtime
