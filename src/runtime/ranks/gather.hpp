// SPDX-License-Identifier: Apache-2.0
// Values of all ranks, brought together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
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
  // MPI counts in int: records, since bytes may be more.
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(index(mpi.ranks()));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&count, 1, MPI_UINT64_T, counts.data(), 1, MPI_UINT64_T, mpi.comm(), &request);
  wait_for(request);
  const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  if (total > std::numeric_limits<int>::max()) throw std::length_error("too many records to gather");
  const std::vector<int> sizes(counts.begin(), counts.end());
  std::vector<int> offsets(sizes.size(), 0);
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), 0);
  std::vector<Record> all(mpi.rank() == 0 ? total : 0);
  MPI_Datatype record = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(sizeof(Record), MPI_BYTE, &record);
  MPI_Type_commit(&record);
  MPI_Igatherv(mine.data(), static_cast<int>(count), record, all.data(), sizes.data(), offsets.data(), record,
               0, mpi.comm(), &request);
  wait_for(request);
  MPI_Type_free(&record);
  return all;
}

}  // namespace starpipe::runtime
