// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/saved_pieces.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

std::size_t size_of(const std::vector<std::size_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

}  // namespace

std::vector<SavedPiece> saved_pieces(const CheckpointReader& reader, const std::string& prefix,
                                     const model::Parameter& parameter) {
  const std::vector<std::size_t>& whole = parameter.whole_shape();
  const std::string name = prefix + parameter.name;
  const auto refuse = [&](const std::string& what) {
    throw InputError(fmt::format("{} is {}, and {} in the model", name, what, whole));
  };
  if (const auto* const shape = reader.shape(name)) {
    if (*shape != whole) refuse(fmt::format("{}", *shape));
    return {{name}};
  }
  std::vector<SavedPiece> pieces;
  std::size_t size = 0;
  for (std::string& label : reader.names_from(name + "[")) {
    auto piece = model::piece_from_text(std::string_view(label).substr(name.size()), whole);
    if (!piece || piece->shape() != *reader.shape(label)) refuse("in pieces of another shape");
    size += size_of(piece->shape());
    pieces.push_back({std::move(label), *std::move(piece)});
  }
  // Pieces of one run do not overlap.
  if (!pieces.empty() && size != size_of(whole)) refuse("there in part");
  return pieces;
}

void read_numbers(CheckpointReader& reader, const std::string& prefix, const model::Parameter& parameter,
                  std::span<float> numbers) {
  if (reader.shape(prefix + parameter.label()) != nullptr) {
    reader.read(prefix + parameter.label(), numbers);
    return;
  }
  std::vector<float> tensor(size_of(parameter.whole_shape()));
  std::vector<SavedPiece> pieces = saved_pieces(reader, prefix, parameter);
  if (pieces.empty()) pieces.push_back({prefix + parameter.name});  // `read` says that it is missing
  for (const auto& [name, piece] : pieces) {
    std::vector<float> saved(piece ? size_of(piece.shape()) : tensor.size());
    reader.read(name, saved);
    if (piece) {
      piece.put(saved, tensor);
    } else {
      tensor = std::move(saved);
    }
  }
  if (parameter.piece) {
    parameter.piece.take(std::span<const float>(tensor), numbers);
  } else {
    std::ranges::copy(tensor, numbers.begin());
  }
}

}  // namespace starpipe::runtime
