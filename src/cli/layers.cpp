// SPDX-License-Identifier: Apache-2.0
#include "cli/layers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/yaml.hpp"
#include "starpipe/plan/error.hpp"

namespace starpipe::cli {
namespace {

constexpr int most_layers = 4096;

struct Layer {
  plan::LayerCosts costs;
  int count = 1;
};

using Value = const YamlValue&;

void read_spread(Value value, Layer& /*layer*/) {
  if (!value.node().IsMap()) value.expected("a map of F, B and W");
}

struct Key {
  std::string_view name;
  void (*read)(Value value, Layer& layer);
};
constexpr std::array keys = {
    Key{"name", [](Value v, Layer& l) { l.costs.name = v.word(); }},
    Key{"count", [](Value v, Layer& l) { l.count = v.whole<int>(1, most_layers); }},
    Key{"F", [](Value v, Layer& l) { l.costs.time.F = v.not_negative(); }},
    Key{"B", [](Value v, Layer& l) { l.costs.time.B = v.not_negative(); }},
    Key{"W", [](Value v, Layer& l) { l.costs.time.W = v.not_negative(); }},
    Key{"weights", [](Value v, Layer& l) { l.costs.sizes.weights = v.bytes(); }},
    Key{"master", [](Value v, Layer& l) { l.costs.sizes.master = v.bytes(); }},
    Key{"activation", [](Value v, Layer& l) { l.costs.sizes.activation = v.bytes(); }},
    Key{"gradient", [](Value v, Layer& l) { l.costs.sizes.gradient = v.bytes(); }},
    Key{"stash", [](Value v, Layer& l) { l.costs.sizes.stash = v.bytes(); }},
    Key{"gradient_stash", [](Value v, Layer& l) { l.costs.sizes.gradient_stash = v.bytes(); }},
    Key{"spread", read_spread},
};

Layer read_layer(const YAML::Node& map, const std::string& file, std::size_t number) {
  const std::string place = fmt::format("{}: layers[{}]", place_of(file, map), number);
  if (!map.IsMap()) YamlValue(map, place).expected("a map with F, B and W");
  Layer layer;
  std::set<std::string> seen;
  for (const auto& pair : map) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
    const auto* const key = std::ranges::find(keys, name, &Key::name);
    if (key == keys.end()) {
      std::vector<std::string_view> known;
      for (const Key& k : keys) known.push_back(k.name);
      throw InputError(fmt::format("{}: unknown key {} (known: {})", place, described(pair.first),
                                   fmt::join(known, ", ")));
    }
    if (!seen.insert(name).second) throw InputError(fmt::format("{}: {} is given twice", place, name));
    key->read(YamlValue(pair.second, fmt::format("{}.{}", place, name)), layer);
  }
  if (!seen.contains("F") && !seen.contains("B") && !seen.contains("W")) {
    throw InputError(fmt::format("{}: a time is missing (F, B or W)", place));
  }
  if (!seen.contains("gradient")) layer.costs.sizes.gradient = layer.costs.sizes.activation;
  return layer;
}

}  // namespace

std::vector<plan::LayerCosts> read_layers(const std::filesystem::path& file) {
  const YAML::Node root = load_yaml(file);
  const std::string name = file.string();
  if (!root.IsMap()) YamlValue(root, name).expected("a map with layers");
  YAML::Node list;
  for (const auto& pair : root) {
    if (!pair.first.IsScalar() || pair.first.Scalar() != "layers") {
      throw InputError(fmt::format("{}: unknown key {} (known: layers)", place_of(name, pair.first),
                                   described(pair.first)));
    }
    if (list.IsDefined() && !list.IsNull()) {
      throw InputError(fmt::format("{}: layers is given twice", place_of(name, pair.first)));
    }
    list.reset(pair.second);
  }
  if (!list.IsSequence() || list.size() == 0) YamlValue(list, name + ": layers").expected("a list of layers");
  std::vector<plan::LayerCosts> layers;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Layer layer = read_layer(list[i], name, i);
    layers.insert(layers.end(), static_cast<std::size_t>(layer.count), layer.costs);
    if (layers.size() > most_layers) {
      throw InputError(fmt::format("{}: more than {} layers", name, most_layers));
    }
  }
  return layers;
}

namespace {

/// As precise as the clock.
nlohmann::ordered_json times_json(const plan::Durations& times) {
  const auto seconds = [](double time) { return std::round(time * 1e9) / 1e9; };
  return {{"F", seconds(times.F)}, {"B", seconds(times.B)}, {"W", seconds(times.W)}};
}

}  // namespace

nlohmann::ordered_json layers_json(const std::vector<runtime::MeasuredLayer>& layers) {
  nlohmann::ordered_json list;
  for (const auto& [costs, spread] : layers) {
    const plan::StageSizes& sizes = costs.sizes;
    nlohmann::ordered_json layer = {{"name", costs.name}};
    layer.update(times_json(costs.time));
    layer["weights"] = sizes.weights;
    if (sizes.master > 0) layer["master"] = sizes.master;
    layer.update({{"activation", sizes.activation},
                  {"stash", sizes.stash},
                  {"gradient_stash", sizes.gradient_stash},
                  {"spread", times_json(spread)}});
    list.push_back(std::move(layer));
  }
  return {{"layers", std::move(list)}};
}

namespace {

void emit(YAML::Emitter& out, const nlohmann::ordered_json& value) {
  if (value.is_string()) {
    out << value.get<std::string>();
  } else if (value.is_object()) {
    out << YAML::Flow << YAML::BeginMap;
    for (const auto& [key, item] : value.items()) {
      out << YAML::Key << key << YAML::Value;
      emit(out, item);
    }
    out << YAML::EndMap;
  } else {
    out << value.dump();  // a number
  }
}

}  // namespace

std::string layers_yaml(const std::vector<runtime::MeasuredLayer>& layers) {
  YAML::Emitter out;
  out << YAML::Comment(
      "Medians and, as spread, interquartile ranges of one micro-batch: seconds; sizes: bytes.");
  out << YAML::BeginMap << YAML::Key << "layers" << YAML::Value << YAML::BeginSeq;
  const nlohmann::ordered_json json = layers_json(layers);
  for (const auto& layer : json.at("layers")) emit(out, layer);
  out << YAML::EndSeq << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace starpipe::cli
