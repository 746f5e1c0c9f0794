// SPDX-License-Identifier: Apache-2.0
// Values of all ranks, brought together.
#pragma once

#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>
#include <nlohmann/json.hpp>

#include "runtime/ranks/mpi.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

/// Collective. The values of all ranks, by rank, on every rank. `Value` has nlohmann's conversions
/// (NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE), so fields travel by name.
template <class Value>
std::vector<Value> gather_all(const Mpi& mpi, const Value& mine) {
  std::vector<Value> all;
  for (const std::string& text : mpi.gather(nlohmann::json(mine).dump()))
    all.push_back(nlohmann::json::parse(text).get<Value>());
  return all;
}

/// Collective. The records of all ranks, by rank, on rank 0; nothing on the others. `Record` is plain data
/// and travels as bytes: this is for many records.
template <class Record>
std::vector<Record> gather_on_root(const Mpi& mpi, std::span<const Record> mine) {
  const int bytes = static_cast<int>(mine.size_bytes());
  std::vector<int> sizes(index(mpi.ranks()));
  MPI_Gather(&bytes, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, mpi.comm());
  std::vector<int> offsets(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), offsets.begin() + 1);
  std::vector<Record> all(index(offsets.back()) / sizeof(Record));
  MPI_Gatherv(mine.data(), bytes, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE, 0,
              mpi.comm());
  return all;
}

}  // namespace starpipe::runtime
