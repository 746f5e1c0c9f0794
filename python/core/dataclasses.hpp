// SPDX-License-Identifier: Apache-2.0
#pragma once

// Structs of `plan` that Python has as dataclasses of the same fields: both directions of the conversion.

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/links.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::python {

/// A field of a dataclass: its name in Python, and the member.
template <class Class, class Member>
struct Field {
  const char* name;
  Member Class::*member;
};
template <class Class, class Member>
Field(const char*, Member Class::*) -> Field<Class, Member>;

/// The name of the dataclass in the package, and its fields. Specialised for each struct that Python has as a
/// dataclass.
template <class Value>
struct Dataclass;

template <class Member>
constexpr const char* expected_words() {
  if constexpr (std::is_same_v<Member, bool>) return "True or False";
  if constexpr (std::is_unsigned_v<Member>) return "a whole number, 0 or greater";
  if constexpr (std::is_integral_v<Member>) return "a whole number";
  if constexpr (std::is_floating_point_v<Member>) return "a number";
  if constexpr (std::is_same_v<Member, std::string>) return "a text";
  return "a sequence of the right values";
}

/// Returns the value of a field in Python. Dataclasses that do not change have tuples.
template <class Member>
pybind11::object field_value(const Member& member) {
  return pybind11::cast(member);
}
template <class Element>
pybind11::object field_value(const std::vector<Element>& member) {
  return pybind11::tuple(pybind11::cast(member));
}

/// Reads a field. Throws InputError, naming class and field, for a value of another type.
template <class Value, class Member>
void read_field(pybind11::handle source, const Field<Value, Member>& field, Value& into) {
  const pybind11::object given = source.attr(field.name);
  try {
    into.*field.member = given.cast<Member>();
  } catch (const pybind11::cast_error&) {
    throw InputError(fmt::format("{}.{}: expected {}, got {}", Dataclass<Value>::name, field.name,
                                 expected_words<Member>(), pybind11::repr(given).cast<std::string>()));
  }
}

template <>
struct Dataclass<plan::Durations> {
  static constexpr const char* name = "Durations";
  static constexpr std::tuple fields = {Field{"F", &plan::Durations::F}, Field{"B", &plan::Durations::B},
                                        Field{"W", &plan::Durations::W}};
};
template <>
struct Dataclass<plan::StageSizes> {
  static constexpr const char* name = "StageSizes";
  static constexpr std::tuple fields = {
      Field{"activation", &plan::StageSizes::activation},
      Field{"gradient", &plan::StageSizes::gradient},
      Field{"stash", &plan::StageSizes::stash},
      Field{"gradient_stash", &plan::StageSizes::gradient_stash},
      Field{"weights", &plan::StageSizes::weights},
      Field{"master", &plan::StageSizes::master},
      Field{"has_weights", &plan::StageSizes::has_weights},
      Field{"adds_inputs", &plan::StageSizes::adds_inputs},
      Field{"keys_values", &plan::StageSizes::keys_values},
      Field{"keys_values_gradient", &plan::StageSizes::keys_values_gradient},
      Field{"has_keys_values", &plan::StageSizes::has_keys_values}};
};
template <>
struct Dataclass<plan::SharedWeights> {
  static constexpr const char* name = "SharedWeights";
  static constexpr std::tuple fields = {Field{"stages", &plan::SharedWeights::stages},
                                        Field{"weights", &plan::SharedWeights::weights},
                                        Field{"master", &plan::SharedWeights::master}};
};
template <>
struct Dataclass<plan::LinkTime> {
  static constexpr const char* name = "LinkTime";
  static constexpr std::tuple fields = {Field{"bytes", &plan::LinkTime::bytes},
                                        Field{"time", &plan::LinkTime::time}};
};
template <>
struct Dataclass<plan::Link> {
  static constexpr const char* name = "Link";
  static constexpr std::tuple fields = {Field{"alpha", &plan::Link::alpha}, Field{"beta", &plan::Link::beta},
                                        Field{"times", &plan::Link::times}};
};
template <>
struct Dataclass<plan::LinkPort> {
  static constexpr const char* name = "LinkPort";
  static constexpr std::tuple fields = {Field{"member", &plan::LinkPort::member},
                                        Field{"beta", &plan::LinkPort::beta}};
};
template <>
struct Dataclass<plan::LinkLevel> {
  static constexpr const char* name = "LinkLevel";
  static constexpr std::tuple fields = {
      Field{"link", &plan::LinkLevel::link}, Field{"workers", &plan::LinkLevel::workers},
      Field{"sharing", &plan::LinkLevel::sharing}, Field{"name", &plan::LinkLevel::name},
      Field{"ports", &plan::LinkLevel::ports}};
};
template <>
struct Dataclass<plan::HomeLink> {
  static constexpr const char* name = "HomeLink";
  static constexpr std::tuple fields = {Field{"link", &plan::HomeLink::link},
                                        Field{"workers", &plan::HomeLink::workers},
                                        Field{"memory", &plan::HomeLink::memory}};
};
template <>
struct Dataclass<plan::Overlap> {
  static constexpr const char* name = "Overlap";
  static constexpr std::tuple fields = {Field{"factor", &plan::Overlap::factor},
                                        Field{"F_B", &plan::Overlap::F_B},
                                        Field{"F_BW", &plan::Overlap::F_BW}};
};
template <>
struct Dataclass<plan::Costs> {
  static constexpr const char* name = "Costs";
  static constexpr std::tuple fields = {Field{"durations", &plan::Costs::durations},
                                        Field{"sizes", &plan::Costs::sizes},
                                        Field{"slices", &plan::Costs::slices},
                                        Field{"shared", &plan::Costs::shared},
                                        Field{"links", &plan::Costs::links},
                                        Field{"prefetch", &plan::Costs::prefetch},
                                        Field{"workers_of_rank", &plan::Costs::workers_of_rank},
                                        Field{"ordered_messages", &plan::Costs::ordered_messages},
                                        Field{"relays", &plan::Costs::relays},
                                        Field{"messages_pass_hosts", &plan::Costs::messages_pass_hosts},
                                        Field{"host", &plan::Costs::host},
                                        Field{"disk", &plan::Costs::disk},
                                        Field{"peer", &plan::Costs::peer},
                                        Field{"overlap", &plan::Costs::overlap}};
};
template <>
struct Dataclass<plan::Job> {
  static constexpr const char* name = "Job";
  static constexpr std::tuple fields = {Field{"stage", &plan::Job::stage},
                                        Field{"microbatch", &plan::Job::microbatch},
                                        Field{"pass_", &plan::Job::pass}};
};
template <>
struct Dataclass<plan::Reordering> {
  static constexpr const char* name = "Reordering";
  static constexpr std::tuple fields = {Field{"worker", &plan::Reordering::worker},
                                        Field{"held", &plan::Reordering::held},
                                        Field{"limit", &plan::Reordering::limit}};
};
template <>
struct Dataclass<plan::Received> {
  static constexpr const char* name = "Received";
  static constexpr std::tuple fields = {Field{"count", &plan::Received::count},
                                        Field{"bytes", &plan::Received::bytes}};
};
template <>
struct Dataclass<plan::Transfers> {
  static constexpr const char* name = "Transfers";
  static constexpr std::tuple fields = {
      Field{"activations", &plan::Transfers::activations},
      Field{"stashes", &plan::Transfers::stashes},
      Field{"gradients", &plan::Transfers::gradients},
      Field{"keys_values", &plan::Transfers::keys_values},
      Field{"keys_values_gradients", &plan::Transfers::keys_values_gradients},
      Field{"weights", &plan::Transfers::weights},
      Field{"weight_gradients", &plan::Transfers::weight_gradients},
      Field{"reloads", &plan::Transfers::reloads}};
};

}  // namespace starpipe::python

namespace pybind11::detail {

template <class Value>
struct type_caster<Value, std::enable_if_t<(sizeof(starpipe::python::Dataclass<Value>) > 0)>> {
  PYBIND11_TYPE_CASTER(Value, const_name("object"));

  static object type() { return module_::import("starpipe").attr(starpipe::python::Dataclass<Value>::name); }

  bool load(handle source, bool /*convert*/) {
    if (!isinstance(source, type())) return false;
    std::apply([&](const auto&... field) { (starpipe::python::read_field(source, field, value), ...); },
               starpipe::python::Dataclass<Value>::fields);
    return true;
  }

  static handle cast(const Value& from, return_value_policy /*policy*/, handle /*parent*/) {
    dict fields;
    std::apply(
        [&](const auto&... field) {
          ((fields[field.name] = starpipe::python::field_value(from.*field.member)), ...);
        },
        starpipe::python::Dataclass<Value>::fields);
    return type()(**fields).release();
  }
};

/// In Python, links are a sequence of levels. An empty sequence means that transfers take no time.
template <>
struct type_caster<starpipe::plan::Links> {
  PYBIND11_TYPE_CASTER(starpipe::plan::Links, const_name("Sequence[LinkLevel]"));

  bool load(handle source, bool convert) {
    make_caster<std::vector<starpipe::plan::LinkLevel>> levels;
    if (!levels.load(source, convert)) return false;
    auto list = cast_op<std::vector<starpipe::plan::LinkLevel>&&>(std::move(levels));
    value = list.empty() ? starpipe::plan::Links() : starpipe::plan::Links(std::move(list));
    return true;
  }
  static handle cast(const starpipe::plan::Links& from, return_value_policy policy, handle parent) {
    return make_caster<std::vector<starpipe::plan::LinkLevel>>::cast(from.levels(), policy, parent);
  }
};

/// Enums are their words.
template <class Enum, Enum (*parse)(std::string_view)>
struct WordCaster {
  PYBIND11_TYPE_CASTER(Enum, const_name("str"));

  bool load(handle source, bool /*convert*/) {
    if (!PyUnicode_Check(source.ptr())) return false;
    value = parse(source.cast<std::string>());
    return true;
  }
  static handle cast(Enum from, return_value_policy /*policy*/, handle /*parent*/) {
    return str(std::string(to_string(from))).release();
  }
};
inline starpipe::plan::Sharing parse_sharing(std::string_view word) {
  for (std::size_t i = 0; i < starpipe::plan::sharing_words.size(); ++i) {
    if (starpipe::plan::sharing_words[i] == word) return static_cast<starpipe::plan::Sharing>(i);
  }
  throw starpipe::InputError(
      fmt::format("unknown sharing '{}' ({})", word, fmt::join(starpipe::plan::sharing_words, ", ")));
}
template <>
struct type_caster<starpipe::plan::Pass> : WordCaster<starpipe::plan::Pass, starpipe::plan::parse_pass> {};
template <>
struct type_caster<starpipe::plan::Discipline>
    : WordCaster<starpipe::plan::Discipline, starpipe::plan::parse_discipline> {};
template <>
struct type_caster<starpipe::plan::Sharing> : WordCaster<starpipe::plan::Sharing, parse_sharing> {};

}  // namespace pybind11::detail
