// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "runtime/config/key_parts.hpp"

namespace starpipe::runtime::keys {
namespace {

/// The one value of `schedule.partition`.
constexpr const char* automatic = "auto";

/// Which schedule, of how many workers and stages.
void add_shape_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  add(only_named(key("schedule.plugin", text(Count::one_or_list),
                     "Plug-ins (shared objects), each with the schedule of `schedule.name`. The option "
                     "`--plugin` adds to them.",
                     at(&Config::schedule, &ScheduleConfig::plugins))));
  ConfigKey name =
      required(only_named(key("schedule.name", text(), "A schedule that `starpipe schedule list` shows.",
                              at(&Config::schedule, &ScheduleConfig::name))));
  name.replaces = true;
  add(std::move(name));
  ConfigKey file =
      key(file_key, text(),
          "A CSV or JSON file with the order of the jobs, instead of a named schedule. Workers, stages and "
          "micro-batches follow from it. Its path is relative to the folder in which starpipe runs.",
          at(&Config::schedule, &ScheduleConfig::file));
  file.replaces = true;
  add(std::move(file));
  add(or_from_file(required(
      key("schedule.workers", whole(), "Workers (W).", at(&Config::schedule, &ScheduleConfig::workers)))));
  add(or_from_file(
      described_default(key("schedule.stages", whole(), "Stages (S) into which the network is cut.",
                            at(&Config::schedule, &ScheduleConfig::stages)),
                        "W times the schedule's number of stages on a worker")));
  add(described_default(
      only_named(key("schedule.tensor", whole(),
                     "With `model.tensor`: the workers that each of the W workers becomes (D). Where the "
                     "schedule has worker v, shard k is on worker D v + k mod D.",
                     at(&Config::schedule, &ScheduleConfig::tensor))),
      "the largest value of `model.tensor`"));
  add(only_named(key("schedule.groups", whole(),
                     "Groups (G) of W / G workers, each with a pipeline of its own (data parallelism); "
                     "micro-batch b goes to group b mod G. Of naive, gpipe, 1f1b, eager-1f1b, lpp and fslpp.",
                     at(&Config::schedule, &ScheduleConfig::groups))));
  ValueType option = whole(0);
  option.count = Count::map;
  add(only_named(
      key("schedule.options", std::move(option),
          "Options of the schedule, such as `{waves: 2}`: those that `starpipe schedule list --long` "
          "shows. The others have their defaults.",
          at(&Config::schedule, &ScheduleConfig::options))));
  add(described_default(only_named(key("schedule.placement", wholes(0), "The worker of each stage.",
                                       at(&Config::schedule, &ScheduleConfig::placement))),
                        "the schedule's own"));
  add(described_default(
      not_with(key("schedule.cuts", wholes(1),
                   "The first unit of each stage but the first. Units of gpt and llama: 0 is the embedding, "
                   "then the blocks, then the head.",
                   at(&Config::schedule, &ScheduleConfig::cuts)),
               "schedule.partition"),
      "balanced by FLOPs"));
  ConfigKey partition =
      key("schedule.partition", one_of({automatic}),
          "Chooses `cuts`, and `placement` where the schedule leaves it open, by the units' times.",
          at(&Config::schedule, &ScheduleConfig::partition));
  partition.default_value = {};
  partition.set = [](Config& config, const json& value) {
    config.schedule.partition = value.get<std::string>() == automatic;
  };
  partition.get = [](const Config& config) { return config.schedule.partition ? json(automatic) : json(); };
  add(only_named(std::move(partition)));
  add(described_default(
      only_with(key("schedule.profile", text(), "A file of `starpipe profile` with the units' times.",
                    at(&Config::schedule, &ScheduleConfig::profile_file)),
                "schedule.partition"),
      "times are measured when the run starts"));
}

/// The order in which jobs run, and the memory that they may need.
void add_order_keys(Keys& keys) {
  const auto add = [&keys](ConfigKey made) { keys.push_back(std::move(made)); };
  add(described_default(
      key("schedule.discipline", one_of(plan::discipline_words),
          "How a worker uses the priorities n: greedy takes the ready job with the smallest n, bounded "
          "does so within `memory_limit`, ordered runs exactly in the order of n.",
          at(&Config::schedule, &ScheduleConfig::discipline)),
      "the schedule's own; bounded where its order exceeds a `memory_limit`"));
  ValueType limits = whole();
  limits.count = Count::one_or_list;
  limits.length = "schedule.workers";
  ConfigKey memory_limit = only_with(
      key("schedule.memory_limit", std::move(limits),
          "The most stashes that a worker may hold, counted like the peaks in the output: one number for all "
          "workers, or a list with one for each. A smaller limit of the schedule applies instead. A schedule "
          "whose "
          "order needs no more keeps its order. Otherwise it runs in another order, and the output says so. "
          "The "
          "discipline greedy keeps no limit and is refused.",
          at(&Config::schedule, &ScheduleConfig::memory_limits)),
      "runtime.policy", {"starpipe", "worker-order"});
  memory_limit.get = [](const Config& config) { return one_or_list(config.schedule.memory_limits); };
  add(std::move(memory_limit));
  // Tasks in the order of workers would neither pick jobs at run time nor keep a limit.
  add(unset_when_false(not_with(
      key("schedule.dynamic", boolean(),
          "Whether greedy and bounded schedules pick jobs at run time. Otherwise `simulate` fixes the "
          "order before the run, and every run follows it.",
          at(&Config::schedule, &ScheduleConfig::dynamic)),
      "runtime.policy", {"worker-order"})));
  add(or_from_file(key("schedule.recompute", boolean(),
                       "Whether F keeps only the stage's inputs, and B computes F again; false unless a file "
                       "says otherwise.",
                       at(&Config::schedule, &ScheduleConfig::recompute))));
}

/// Shards of the vocabulary, which w places like any stage.
void add_vocabulary_keys(Keys& keys) {
  constexpr const char* shards_key = "schedule.vocabulary.shards";
  const auto add = [&keys](ConfigKey made) { keys.push_back(only_named(std::move(made))); };
  ConfigKey shards =
      key(shards_key, whole(),
          "Shards into which the embedding and the head of gpt and llama are cut (vocabulary "
          "parallelism): each has a range of the tokens. 1: both are whole.",
          at(&Config::model, &model::ModelConfig::vocabulary, &model::VocabularyShards::shards));
  shards.default_value = {};
  shards.get = [](const Config& config) {
    const int count = config.model.vocabulary.shards;
    return count == 1 ? json() : json(count);
  };
  shards.set = [](Config& config, const json& value) {
    config.model.vocabulary.shards = value.is_null() ? 1 : value.get<int>();
  };
  add(described_default(std::move(shards), "1"));
  add(only_with(
      key("schedule.vocabulary.placement", one_of(plan::shard_placement_words),
          "The workers of the shards. all: shard k is on worker k of all workers, counted round. last: "
          "shards "
          "of the head are on the last stage's worker, those of the embedding on the first stage's.",
          at(&Config::model, &model::ModelConfig::vocabulary, &model::VocabularyShards::placement)),
      shards_key));
  add(only_with(
      key("schedule.vocabulary.ahead", whole(0),
          "How many micro-batches a worker may run ahead of the schedule's own order while it waits "
          "for shards. It holds the stashes of as many micro-batches more.",
          at(&Config::schedule, &ScheduleConfig::vocabulary_ahead)),
      shards_key));
}

}  // namespace

void add_schedule_keys(Keys& keys) {
  add_shape_keys(keys);
  add_vocabulary_keys(keys);
  add_order_keys(keys);
}

}  // namespace starpipe::runtime::keys
