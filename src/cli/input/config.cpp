// SPDX-License-Identifier: Apache-2.0
#include "cli/input/config.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "cli/input/profile_file.hpp"
#include "cli/input/yaml.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::cli {
namespace {

using runtime::Config;
using Value = const YamlValue&;

/// A key of the configuration: where its value goes, and which other key must have which value for it to
/// mean anything.
struct Key {
  std::string_view name;
  void (*read)(Value value, Config& config);
  std::string_view needs = {};
  std::string_view needed = {};
};

void read_precision(Value value, Config& config) {
  using model::Precision;
  const std::string word = value.one_of({"fp32", "tf32", "bf16"});
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
    if (word == model::to_string(precision)) config.model.precision = precision;
  }
}

void read_discipline(Value value, Config& config) {
  config.schedule.discipline = plan::parse_discipline(value.one_of({"greedy", "bounded", "ordered"}));
}

// Two limits of memory: stashes that the bounded discipline counts, and bytes that must do for a worker. A
// value that is meant for the other one is likely enough to be told so.
void read_stash_limit(Value value, Config& config) {
  const YAML::Node& node = value.node();
  if (node.IsScalar() && node.Scalar().find_first_of("bB") != std::string::npos) {
    value.expected("a number of stashes (runtime.memory_limit is in bytes)");
  }
  config.schedule.memory_limit = value.whole<int>(1);
}

void read_byte_limit(Value value, Config& config) {
  constexpr std::uint64_t least = 1024;
  config.runtime.memory_limit = value.bytes();
  if (*config.runtime.memory_limit >= least) return;
  value.fail(fmt::format("must be at least 1KiB, got {} bytes (schedule.memory_limit counts stashes)",
                         *config.runtime.memory_limit));
}

runtime::EmulationConfig& emulation(Config& config) {
  auto& emulate = config.runtime.emulate;
  return emulate ? *emulate : emulate.emplace();
}

// In the order of the documentation, which is also that of Config::text.
constexpr std::array keys = {
    Key{"model.kind", [](Value v, Config& c) { c.model.kind = v.one_of(model::network_kinds()); }},
    Key{"model.layers", [](Value v, Config& c) { c.model.layers = v.whole<int>(1); }},
    Key{"model.hidden", [](Value v, Config& c) { c.model.hidden = v.whole<int>(1); }},
    Key{"model.heads", [](Value v, Config& c) { c.model.heads = v.whole<int>(1); }, "model.kind", "gpt"},
    Key{"model.context", [](Value v, Config& c) { c.model.context = v.whole<int>(1); }, "model.kind", "gpt"},
    Key{"model.inputs", [](Value v, Config& c) { c.model.inputs = v.whole<int>(1); }, "model.kind", "mlp"},
    Key{"model.outputs", [](Value v, Config& c) { c.model.outputs = v.whole<int>(1); }, "model.kind", "mlp"},
    Key{"model.legs", [](Value v, Config& c) { c.model.legs = v.whole<int>(1); }, "model.kind", "mlp"},
    Key{"model.init", [](Value v, Config& c) { c.model.init = v.word(); }},

    Key{"data.kind",
        [](Value v, Config& c) {
          c.data.kind = v.one_of({"text", "synthetic"});
        }},
    Key{"data.path", [](Value v, Config& c) { c.data.path = v.word(); }, "data.kind", "text"},

    Key{"training.microbatches", [](Value v, Config& c) { c.training.microbatches = v.whole<int>(1); }},
    Key{"training.microbatch_size", [](Value v, Config& c) { c.training.microbatch_size = v.whole<int>(1); }},
    Key{"training.steps", [](Value v, Config& c) { c.training.steps = v.whole<int>(1); }},
    Key{"training.seed", [](Value v, Config& c) { c.training.seed = v.whole<std::uint64_t>(0); }},
    Key{"training.optimizer.kind",
        [](Value v, Config& c) {
          c.training.optimizer.kind = v.one_of({"adamw", "sgd"});
        }},
    Key{"training.optimizer.learning_rate",
        [](Value v, Config& c) { c.training.optimizer.learning_rate = v.positive(); }},
    Key{"training.optimizer.weight_decay",
        [](Value v, Config& c) { c.training.optimizer.weight_decay = v.not_negative(); }},
    Key{"training.optimizer.momentum",
        [](Value v, Config& c) { c.training.optimizer.momentum = v.not_negative(); },
        "training.optimizer.kind", "sgd"},
    Key{"training.optimizer.beta1", [](Value v, Config& c) { c.training.optimizer.beta1 = v.fraction(); },
        "training.optimizer.kind", "adamw"},
    Key{"training.optimizer.beta2", [](Value v, Config& c) { c.training.optimizer.beta2 = v.fraction(); },
        "training.optimizer.kind", "adamw"},
    Key{"training.optimizer.epsilon",
        [](Value v, Config& c) { c.training.optimizer.epsilon = v.not_negative(); },
        "training.optimizer.kind", "adamw"},

    Key{"schedule.plugin", [](Value v, Config& c) { c.schedule.plugins = v.words(); }},
    Key{"schedule.name", [](Value v, Config& c) { c.schedule.name = v.word(); }},
    Key{"schedule.file", [](Value v, Config& c) { c.schedule.file = v.word(); }},
    Key{"schedule.workers", [](Value v, Config& c) { c.schedule.workers = v.whole<int>(1); }},
    Key{"schedule.stages", [](Value v, Config& c) { c.schedule.stages = v.whole<int>(1); }},
    Key{"schedule.groups", [](Value v, Config& c) { c.schedule.groups = v.whole<int>(1); }},
    Key{"schedule.placement", [](Value v, Config& c) { c.schedule.placement = v.wholes(0); }},
    Key{"schedule.cuts", [](Value v, Config& c) { c.schedule.cuts = v.wholes(1); }},
    Key{"schedule.partition",
        [](Value v, Config& c) { c.schedule.partition = v.one_of({"auto"}) == "auto"; }},
    Key{"schedule.profile", [](Value v, Config& c) { c.schedule.profile_file = v.word(); }},
    Key{"schedule.discipline", read_discipline},
    Key{"schedule.memory_limit", read_stash_limit},
    Key{"schedule.dynamic", [](Value v, Config& c) { c.schedule.dynamic = v.boolean(); }},
    Key{"schedule.recompute", [](Value v, Config& c) { c.schedule.recompute = v.boolean(); }},

    Key{"runtime.policy", [](Value v, Config& c) { c.runtime.policy = v.word(); }},
    Key{"runtime.device", [](Value v, Config& c) { c.runtime.device = v.some_of({"cpu", "cuda"}); }},
    Key{"runtime.precision", read_precision},
    Key{"runtime.workers_per_core", [](Value v, Config& c) { c.runtime.workers_per_core = v.whole<int>(1); }},
    Key{"runtime.window", [](Value v, Config& c) { c.runtime.window = v.whole<int>(1); }},
    Key{"runtime.timeout", [](Value v, Config& c) { c.runtime.timeout = v.positive(); }},
    Key{"runtime.mapping",
        [](Value v, Config& c) {
          const bool linear = v.one_of({"linear", "auto"}) == "linear";
          c.runtime.mapping = linear ? runtime::MappingKind::linear : runtime::MappingKind::automatic;
        }},
    Key{"runtime.memory_limit", read_byte_limit},
    Key{"runtime.emulate.F", [](Value v, Config& c) { emulation(c).F = v.times(); }},
    Key{"runtime.emulate.B", [](Value v, Config& c) { emulation(c).B = v.times(); }},
    Key{"runtime.emulate.W", [](Value v, Config& c) { emulation(c).W = v.times(); }},
    Key{"runtime.emulate.comm", [](Value v, Config& c) { emulation(c).comm = v.time(); }},
    Key{"runtime.emulate.prefetch", [](Value v, Config& c) { emulation(c).prefetch = v.boolean(); }},
};

constexpr std::array<std::string_view, 7> sections = {
    "model", "data", "training", "training.optimizer", "schedule", "runtime", "runtime.emulate"};

/// What a schedule from a file has no use for.
constexpr std::array<std::string_view, 5> of_named_schedules = {
    "schedule.name", "schedule.groups", "schedule.placement", "schedule.partition", "schedule.profile"};

/// What decides whether other keys apply.
std::string value_of(const Config& config, std::string_view key) {
  if (key == "model.kind") return config.model.kind;
  if (key == "data.kind") return config.data.kind;
  return config.training.optimizer.kind;
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// " (did you mean 'model.heads'?)" when some key is close: misspelt, or in another section.
std::string suggestion(std::string_view unknown) {
  std::vector<std::string_view> known(sections.begin(), sections.end());
  for (const Key& key : keys) known.push_back(key.name);
  const std::string_view leaf = last_part(unknown);
  std::string_view best;
  std::size_t least = std::max<std::size_t>(2, leaf.size() / 3) + 1;
  for (const std::string_view name : known) {
    std::size_t distance = edit_distance(unknown.substr(0, 200), name);
    if (last_part(name) == leaf) distance = std::min<std::size_t>(distance, 1);
    if (distance >= least) continue;
    least = distance;
    best = name;
  }
  return best.empty() ? "" : fmt::format(" (did you mean '{}'?)", best);
}

/// All keys that were given, by dotted name.
class Given {
 public:
  /// What stands in `file`.
  void add_file(const YAML::Node& root, const std::string& file) { add(root, "", &file, {}); }

  /// One argument of --set.
  void add_override(const std::string& argument) {
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (equals == std::string::npos || name.empty()) {
      throw InputError(fmt::format("--set {}: expected KEY=VALUE, such as training.steps=10", argument));
    }
    const std::string label = "--set " + name;
    YAML::Node value;
    try {
      value = YAML::Load(argument.substr(equals + 1));
    } catch (const YAML::Exception& error) {
      throw InputError(fmt::format("--set {}: the value is not YAML: {}", argument, error.msg));
    }
    add_one(name, value, nullptr, label, label);
  }

  [[nodiscard]] const YamlValue* find(std::string_view name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }

  /// As YAML again.
  [[nodiscard]] std::string text() const {
    YAML::Node root(YAML::NodeType::Map);
    for (const Key& key : keys) {
      const YamlValue* value = find(key.name);
      if (value == nullptr) continue;
      YAML::Node at = root;
      std::string_view rest = key.name;
      for (auto dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
        at.reset(at[std::string(rest.substr(0, dot))]);
        rest.remove_prefix(dot + 1);
      }
      at[std::string(rest)] = plain(value->node());
    }
    YAML::Emitter emitter;
    emitter << root;
    return std::string(emitter.c_str()) + "\n";
  }

 private:
  // A copy without anchors, tags and the writer's quotes, which mean nothing here.
  static YAML::Node plain(const YAML::Node& node) {
    if (node.IsScalar()) return YAML::Node(node.Scalar());
    YAML::Node copy(YAML::NodeType::Sequence);
    copy.SetStyle(YAML::EmitterStyle::Flow);
    for (const YAML::Node& item : node) copy.push_back(plain(item));
    return copy;
  }

  /// The keys of a map. `file` is null for an override, all of which has one `label`.
  void add(const YAML::Node& map, const std::string& prefix, const std::string* file,
           const std::string& label) {
    for (const auto& pair : map) {
      const std::string place = file != nullptr ? place_of(*file, pair.first) : label;
      if (!pair.first.IsScalar()) {
        throw InputError(fmt::format("{}: a key must be a word, got {}", place, described(pair.first)));
      }
      const std::string name = prefix + pair.first.Scalar();
      add_one(name, pair.second, file, place,
              file != nullptr ? fmt::format("{}: {}", place, name) : fmt::format("--set {}", name));
    }
  }

  void add_one(const std::string& name, const YAML::Node& node, const std::string* file,
               const std::string& place, const std::string& label) {
    const bool override = file == nullptr;
    if (std::ranges::find(sections, name) != sections.end()) {
      if (node.IsNull()) return;
      if (!node.IsMap()) YamlValue(node, label).expected("a map");
      if (!override && !seen_sections_.emplace(name, true).second) fail_twice(place, name);
      add(node, name + ".", file, place);
      return;
    }
    if (std::ranges::find(keys, name, &Key::name) == keys.end()) {
      throw InputError(fmt::format("{}: unknown key '{}'{}", place, name, suggestion(name)));
    }
    if (override) values_.erase(name);
    if (override) replace_schedule(name);
    if (!values_.try_emplace(name, node, label).second) fail_twice(place, name);
  }

  /// An override that names another schedule: what the file says of its own one no longer means anything.
  void replace_schedule(const std::string& key) {
    overridden_.insert(key);
    const auto erase = [this](std::string_view name) {
      const auto found = values_.find(name);
      if (found != values_.end() && !overridden_.contains(found->first)) values_.erase(found);
    };
    if (key == "schedule.name") erase("schedule.file");
    if (key != "schedule.file") return;
    for (const std::string_view name : of_named_schedules) erase(name);
    for (const char* name : {"schedule.workers", "schedule.stages"}) erase(name);
  }

  [[noreturn]] static void fail_twice(const std::string& place, const std::string& name) {
    throw InputError(fmt::format("{}: key '{}' is given twice", place, name));
  }

  std::map<std::string, YamlValue, std::less<>> values_;
  std::map<std::string, bool> seen_sections_;
  std::set<std::string> overridden_;
};

/// What was not given besides `schedule.file` is the file's.
void leave_to_file(const Given& given, Config& config) {
  for (const std::string_view key : of_named_schedules) {
    if (const YamlValue* value = given.find(key)) value->fail("does not apply with schedule.file");
  }
  if (given.find("schedule.workers") == nullptr) config.schedule.workers.reset();
  if (given.find("training.microbatches") == nullptr) config.training.microbatches.reset();
}

}  // namespace

runtime::Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  const std::string source = file.string();
  const YAML::Node root = load_yaml(file);
  if (root.IsNull()) throw InputError(source + ": the configuration is empty");
  if (!root.IsMap()) {
    throw InputError(fmt::format("{}: expected a map with model, data, training and schedule, got {}", source,
                                 described(root)));
  }
  Given given;
  given.add_file(root, source);
  for (const std::string& argument : overrides) given.add_override(argument);

  Config config;
  config.source = source;
  for (const Key& key : keys) {
    if (const YamlValue* value = given.find(key.name)) key.read(*value, config);
  }
  const auto has = [&](std::string_view key) { return given.find(key) != nullptr; };
  const auto require = [&](std::string_view key) {
    if (!has(key)) throw InputError(fmt::format("{}: missing key '{}'", source, key));
  };
  require("model.kind");
  if (!has("data.kind")) config.data.kind = config.model.kind == "gpt" ? "text" : "synthetic";
  // PyTorch's default; the other one is AdamW's.
  if (config.training.optimizer.kind == "sgd" && !has("training.optimizer.weight_decay")) {
    config.training.optimizer.weight_decay = 0;
  }
  for (const Key& key : keys) {
    const YamlValue* value = given.find(key.name);
    if (value == nullptr || key.needs.empty()) continue;
    const std::string chosen = value_of(config, key.needs);
    if (chosen != key.needed) value->fail(fmt::format("does not apply to {} {}", key.needs, chosen));
  }
  if (config.model.precision == model::Precision::tf32 &&
      std::ranges::count(config.runtime.device, "cpu") > 0) {
    given.find("runtime.precision")->fail("tf32 needs runtime.device: cuda, a CPU has no such unit");
  }
  if (config.data.kind == "text") require("data.path");
  require("training.steps");
  if (has("schedule.file")) {
    leave_to_file(given, config);
  } else {
    require("schedule.name");
    require("schedule.workers");
  }
  if (const YamlValue* device = given.find("runtime.device");
      device != nullptr && device->node().IsSequence() && config.schedule.workers &&
      std::ssize(config.runtime.device) != *config.schedule.workers) {
    device->fail(fmt::format("{} devices for schedule.workers {}", config.runtime.device.size(),
                             *config.schedule.workers));
  }
  if (config.runtime.emulate) {
    for (const char* pass : {"runtime.emulate.F", "runtime.emulate.B", "runtime.emulate.W"}) require(pass);
  }
  if (config.schedule.partition) {
    for (const char* other : {"schedule.cuts", "runtime.emulate.F"}) {
      if (has(other)) given.find(other)->fail("does not apply to schedule.partition auto");
    }
    if (has("schedule.profile")) config.schedule.profile = read_layers(config.schedule.profile_file);
  } else if (has("schedule.profile")) {
    given.find("schedule.profile")->fail("applies to schedule.partition auto only");
  }
  config.text = given.text();
  return config;
}

}  // namespace starpipe::cli
