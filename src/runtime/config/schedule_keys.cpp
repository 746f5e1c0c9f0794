// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/config/key_parts.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/simulate/home_ways.hpp"

namespace starpipe::runtime::keys {
namespace {

const KeyRules of_names = {.not_with = {schedule_in_file}};

/// Reads `schedule.slice_sizes`, which is a word or a list of numbers.
void set_slice_sizes(Config& config, const json& value) {
  ScheduleConfig& schedule = config.schedule;
  schedule.slice_sizes = model::SliceSizes::tokens;
  schedule.slice_tokens.clear();
  if (value.is_null()) return;
  for (const json& entry : value) {
    const auto word = entry.get<std::string>();
    const auto known = std::ranges::find(model::slice_size_words, word);
    if (known != model::slice_size_words.end() && value.size() == 1) {
      from_json_value(entry, schedule.slice_sizes);
      continue;
    }
    int tokens = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), tokens);
    if (error != std::errc() || end != word.data() + word.size() || tokens < 1)
      throw InputError(fmt::format("schedule.slice_sizes: '{}' is neither {} nor a number of tokens", word,
                                   fmt::join(model::slice_size_words, " nor ")));
    schedule.slice_tokens.push_back(tokens);
  }
}

void add_slice_sizes(Keys& keys) {
  Section section(keys, "schedule", {}, &Config::schedule);
  ConfigKey& sizes = section.add(
      "slice_sizes", {.count = Count::one_or_list},
      "How sequences are cut: `tokens`, into slices of equal numbers of tokens, or `work`, of equal work "
      "by FLOPs, since later tokens see more keys. Or a list with the tokens of each slice, such as the one "
      "of equal times that `starpipe profile` prints.",
      &ScheduleConfig::slice_sizes, {.default_text = "tokens", .only_with = {{"schedule.slices"}}});
  sizes.set = set_slice_sizes;
  sizes.get = [](const Config& config) {
    const ScheduleConfig& schedule = config.schedule;
    if (schedule.slice_tokens.empty()) return to_json_value(schedule.slice_sizes);
    json list = json::array();
    for (const int tokens : schedule.slice_tokens) list.push_back(std::to_string(tokens));
    return list;
  };
}

/// Which schedule, of how many workers and stages.
void add_shape_keys(Keys& keys) {
  Section section(keys, "schedule", {}, &Config::schedule);
  Section named(keys, "schedule", of_names, &Config::schedule);
  named.add("plugin", text(Count::one_or_list),
            "Plug-ins (shared objects), each with the schedule of `schedule.name`. The option `--plugin` "
            "adds to them.",
            &ScheduleConfig::plugins);
  named.add("name", text(), "A schedule that `starpipe schedule list` shows.", &ScheduleConfig::name,
            {.required = always, .replaces = true});
  section.add(
      "file", text(),
      "A CSV or JSON file with the order of the jobs, instead of a named schedule. Workers, stages "
      "and micro-batches follow from it; its slices must be those of `schedule.slices`. Its path is relative "
      "to the folder in which starpipe runs.",
      &ScheduleConfig::file, {.replaces = true});
  section.add("workers", whole(), "Workers (W).", &ScheduleConfig::workers,
              {.defaults = {value_in_file}, .required = always});
  section.add(
      "stages", whole(), "Stages (S) into which the network is cut.", &ScheduleConfig::stages,
      {.default_text = "W times the schedule's number of stages on a worker", .defaults = {value_in_file}});
  named.add("tensor", whole(),
            "With `model.tensor`: the workers that each of the W workers becomes (D). Where the schedule has "
            "worker v, shard k is on worker D v + k mod D.",
            &ScheduleConfig::tensor, {.default_text = "the largest value of `model.tensor`"});
  named.add("groups", whole(),
            "Groups (G) of W / G workers, each with a pipeline of its own (data parallelism); micro-batch b "
            "goes to group b mod G. Of naive, gpipe, 1f1b, eager-1f1b, lpp and fslpp.",
            &ScheduleConfig::groups);
  ConfigKey& slices =
      section.add("slices", whole(),
                  "Slices (K) into which each micro-batch is cut along its sequences (gpt and llama): to the "
                  "schedule each is a "
                  "micro-batch of its own, which reads the keys and values of the slices before.",
                  &ScheduleConfig::slices, {.default_text = "1"});
  slices.default_value = {};
  slices.get = [](const Config& config) {
    return config.schedule.slices == 1 ? json() : json(config.schedule.slices);
  };
  slices.set = [](Config& config, const json& value) {
    config.schedule.slices = value.is_null() ? 1 : value.get<int>();
  };
  add_slice_sizes(keys);
  named.add("options", {.kind = Kind::whole, .count = Count::map},
            "Options of the schedule, such as `{waves: 2}`: those that `starpipe schedule list --long` "
            "shows. The others have their defaults.",
            &ScheduleConfig::options);
  named.add("placement", wholes(0), "The worker of each stage.", &ScheduleConfig::placement,
            {.default_text = "the schedule's own"});
  section.add("cuts", wholes(1),
              "The first unit of each stage but the first. Units of gpt and llama: 0 is the embedding, then "
              "the blocks, then the head.",
              &ScheduleConfig::cuts,
              {.default_text = "balanced by FLOPs", .not_with = {{"schedule.partition"}}});
  constexpr std::array<std::string_view, 1> automatic = {"auto"};
  ConfigKey& partition =
      named.add("partition", one_of(automatic),
                "Chooses `cuts`, and `placement` where the schedule leaves it open, by the units' times.",
                &ScheduleConfig::partition);
  partition.default_value = {};
  partition.set = [=](Config& config, const json& value) {
    config.schedule.partition = value.get<std::string>() == automatic.front();
  };
  partition.get = [=](const Config& config) {
    return config.schedule.partition ? json(automatic.front()) : json();
  };
  section.add(
      "profile", text(), "A file of `starpipe profile` with the units' times.", &ScheduleConfig::profile_file,
      {.default_text = "times are measured when the run starts", .only_with = {{"schedule.partition"}}});
}

/// Shards of the vocabulary, which w places like any stage.
void add_vocabulary_keys(Keys& keys) {
  using model::VocabularyShards;
  const KeyRules of_shards = {.only_with = {{"schedule.vocabulary.shards"}}};
  Section section(keys, "schedule.vocabulary", of_names, &Config::model, &model::ModelConfig::vocabulary);
  ConfigKey& shards =
      section.add("shards", whole(),
                  "Shards into which the embedding and the head of gpt and llama are cut (vocabulary "
                  "parallelism): each has a range of the tokens. 1: both are whole.",
                  &VocabularyShards::shards, {.default_text = "1"});
  shards.default_value = {};
  shards.get = [](const Config& config) {
    const int count = config.model.vocabulary.shards;
    return count == 1 ? json() : json(count);
  };
  shards.set = [](Config& config, const json& value) {
    config.model.vocabulary.shards = value.is_null() ? 1 : value.get<int>();
  };
  section.add("placement", one_of(plan::shard_placement_words),
              "The workers of the shards. all: shard k is on worker k of all workers, counted round. last: "
              "shards of the head are on the last stage's worker, shards of the embedding on the first "
              "stage's.",
              &VocabularyShards::placement, of_shards);
  Section(keys, "schedule.vocabulary", of_names, &Config::schedule)
      .add("ahead", whole(0),
           "How many micro-batches a worker may run ahead of the schedule's own order while it waits "
           "for shards. It holds the stashes of as many micro-batches more.",
           &ScheduleConfig::vocabulary_ahead, of_shards);
}

/// The order in which jobs run, and the memory that they may need.
void add_order_keys(Keys& keys) {
  Section section(keys, "schedule", {}, &Config::schedule);
  section.add("discipline", one_of(plan::discipline_words),
              "How a worker uses the priorities n: greedy takes the ready job with the smallest n, bounded "
              "does so within `memory_limit`, ordered runs exactly in the order of n.",
              &ScheduleConfig::discipline,
              {.default_text = "the schedule's own; bounded where its order exceeds a `memory_limit`"});
  section
      .add("memory_limit",
           {.kind = Kind::whole, .count = Count::one_or_list, .min = 1, .length = "schedule.workers"},
           "The largest number of stashes that a worker may hold, counted like the peaks in the output: one "
           "number for all workers, or a list with one for each. A smaller limit of the schedule applies "
           "instead. A schedule whose order needs no more keeps its order. Otherwise it runs in another "
           "order, and the output says so. The discipline greedy keeps no limit and is refused.",
           &ScheduleConfig::memory_limits, {.only_with = {ordered_policy}})
      .get = [](const Config& config) { return one_or_list(config.schedule.memory_limits); };
  // Null for false, so that a condition on the key holds only when it is true.
  section
      .add("dynamic", boolean(),
           "True: greedy and bounded schedules pick jobs at run time. False: `simulate` fixes the order "
           "before the run, and every run follows it.",
           &ScheduleConfig::dynamic, {.not_with = {{"runtime.policy", {"worker-order"}}}})
      .get = [](const Config& config) { return config.schedule.dynamic ? json(true) : json(); };
  ConfigKey& home = section.add(
      "home", {.count = Count::one_or_list},
      "Where stashes wait from F to B: `worker`, with the worker that computes F; `none`, nowhere: F "
      "keeps only the stage's inputs, and the pass R computes F again before B; `host`, `disk` or "
      "`worker:N`, "
      "another worker: O copies them there, and L copies them back before B. One word for all stages, "
      "or a list with one for each. Or a [way](stashes.md#named-ways) that chooses the homes of all stashes, "
      "in "
      "the schedule's own order: `auto`, `bpipe`, `mario`, `megatron`, `pipeoffload`.",
      &ScheduleConfig::homes, {.default_text = "as the schedule has them, in general `worker`"});
  home.set = [](Config& config, const json& value) {
    ScheduleConfig& schedule = config.schedule;
    schedule.home_way.clear();
    schedule.homes.clear();
    if (value.is_null()) return;
    for (const json& entry : value) {
      const auto word = entry.get<std::string>();
      const bool is_way = plan::is_home_way(word);
      if (is_way && value.size() > 1)
        throw InputError(fmt::format("schedule.home: {} is for all stages", word));
      if (is_way) {
        schedule.home_way = word;
        continue;
      }
      try {
        schedule.homes.push_back(plan::parse_home(word));
      } catch (const InputError& error) {
        throw InputError(fmt::format("schedule.home: {}, or a way such as auto", error.what()));
      }
    }
  };
  home.get = [](const Config& config) {
    const ScheduleConfig& schedule = config.schedule;
    return schedule.home_way.empty() ? one_or_list(schedule.homes) : json(schedule.home_way);
  };
}

}  // namespace

void add_schedule_keys(Keys& keys) {
  add_shape_keys(keys);
  add_vocabulary_keys(keys);
  add_order_keys(keys);
}

}  // namespace starpipe::runtime::keys
