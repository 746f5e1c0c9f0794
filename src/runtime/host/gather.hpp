// SPDX-License-Identifier: Apache-2.0
// Values of all ranks, brought together.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/host/mpi.hpp"

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
  std::vector<Record> all;
  mpi.gather_on_root(std::as_bytes(mine), sizeof(Record), [&all](std::size_t records) {
    all.resize(records);
    return std::as_writable_bytes(std::span(all));
  });
  return all;
}

}  // namespace starpipe::runtime
