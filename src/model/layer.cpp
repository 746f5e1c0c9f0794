// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/layer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace starpipe::model {
namespace {

// Function-local, so that registrations in other translation units find them constructed.
std::map<std::string, LayerFactory, std::less<>>& layer_registry() {
  static std::map<std::string, LayerFactory, std::less<>> registry;
  return registry;
}

std::map<std::string, LossFactory, std::less<>>& loss_registry() {
  static std::map<std::string, LossFactory, std::less<>> registry;
  return registry;
}

template <class Registry>
std::vector<std::string> keys(const Registry& registry) {
  std::vector<std::string> result;
  for (const auto& entry : registry) result.push_back(entry.first);
  return result;
}

std::invalid_argument bad_option(const LayerSpec& spec, std::string_view key, const char* what) {
  return std::invalid_argument(spec.kind + " layer " + spec.name + ": option " + std::string(key) + " " +
                               what);
}

}  // namespace

std::size_t Parameter::size() const {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

void check_options(const LayerSpec& spec, std::initializer_list<std::string_view> required,
                   std::initializer_list<std::string_view> optional) {
  const auto in = [](std::initializer_list<std::string_view> list, std::string_view key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  };
  for (const auto& [key, value] : spec.options) {
    if (!in(required, key) && !in(optional, key)) throw bad_option(spec, key, "is unknown");
  }
  for (const std::string_view key : required) {
    if (!spec.options.contains(std::string(key))) throw bad_option(spec, key, "is missing");
  }
}

double option(const LayerSpec& spec, std::string_view key, double fallback) {
  const auto found = spec.options.find(std::string(key));
  return found == spec.options.end() ? fallback : found->second;
}

std::size_t size_option(const LayerSpec& spec, std::string_view key) {
  const double value = option(spec, key, 0);
  if (!(value >= 1 && value <= 9e15) || value != std::floor(value)) {
    throw bad_option(spec, key, "must be a positive whole number");
  }
  return static_cast<std::size_t>(value);
}

bool register_layer(std::string kind, LayerFactory factory) {
  const auto [where, added] = layer_registry().try_emplace(std::move(kind), std::move(factory));
  if (!added) throw std::logic_error("layer kind " + where->first + " is registered twice");
  return true;
}

bool register_loss(std::string kind, LossFactory factory) {
  const auto [where, added] = loss_registry().try_emplace(std::move(kind), std::move(factory));
  if (!added) throw std::logic_error("loss kind " + where->first + " is registered twice");
  return true;
}

std::unique_ptr<Layer> make_layer(const LayerSpec& spec) {
  const auto found = layer_registry().find(spec.kind);
  if (found == layer_registry().end()) {
    throw std::invalid_argument("layer " + spec.name + ": unknown kind " + spec.kind);
  }
  if (spec.rows == 0 || spec.columns == 0) {
    throw std::invalid_argument(spec.kind + " layer " + spec.name + ": rows and columns must be positive");
  }
  return found->second(spec);
}

std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns) {
  const auto found = loss_registry().find(kind);
  if (found == loss_registry().end()) {
    throw std::invalid_argument("unknown loss kind " + std::string(kind));
  }
  if (rows == 0 || columns == 0) {
    throw std::invalid_argument(std::string(kind) + " loss: rows and columns must be positive");
  }
  return found->second(rows, columns);
}

std::vector<std::string> layer_kinds() { return keys(layer_registry()); }
std::vector<std::string> loss_kinds() { return keys(loss_registry()); }

}  // namespace starpipe::model
