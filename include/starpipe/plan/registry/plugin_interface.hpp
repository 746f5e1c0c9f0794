// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starpipe/base/random.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/version.hpp"

// What a plug-in and starpipe must have in common, as a text that the compiler makes. A plug-in leaves its
// text in its file (STARPIPE_PLUGIN), and `load_plugin` compares it with starpipe's own. Both sides exchange
// objects of the standard library, so equal headers are not enough: the same class may have another layout
// under another compiler, standard library or option of the compiler.

namespace starpipe::plan {

/// A text of fixed capacity, ended by zeros.
struct InterfaceText {
  std::array<char, 2048> characters{};
  std::size_t size = 0;

  constexpr void add(std::string_view text) {
    // In a constant expression, a text longer than the capacity is a compile-time error.
    for (const char c : text) characters.at(size++) = c;
  }
  constexpr void add(std::uint64_t number) {
    if (number > 9) add(number / 10);
    characters.at(size++) = static_cast<char>('0' + number % 10);
  }
  [[nodiscard]] constexpr std::string_view view() const { return {characters.data(), size}; }
};

namespace interface_parts {

/// Text with the compiler's name of T. For types of the standard library it includes their version's
/// namespace, such as std::__cxx11.
template <class T>
constexpr std::string_view name_of() {
  return __PRETTY_FUNCTION__;
}

template <class... Members>
struct TypeList {
  /// Hash of the types, sizes and alignments of the members, in their order.
  static constexpr std::uint64_t hash() {
    std::uint64_t result = hash_start;
    const auto add = [&result](std::string_view name, std::uint64_t size, std::uint64_t alignment) {
      result = hash_of(size * 64 + alignment, hash_of(name, result));
    };
    (add(name_of<Members>(), sizeof(Members), alignof(Members)), ...);
    return result;
  }
  /// The number of members whose type another member has, too.
  static constexpr std::size_t with_equal_types() {
    const auto count = [](std::string_view name) {
      return (static_cast<std::size_t>(name_of<Members>() == name) + ...);
    };
    return (static_cast<std::size_t>(count(name_of<Members>()) > 1) + ...);
  }
};

/// The types of the `count` members of an aggregate. It only compiles when `count` is the number of members.
template <std::size_t count, class T>
constexpr auto members(T& value) {
  if constexpr (count == 2) {
    [[maybe_unused]] auto& [a, b] = value;
    return TypeList<decltype(a), decltype(b)>();
  } else if constexpr (count == 3) {
    [[maybe_unused]] auto& [a, b, c] = value;
    return TypeList<decltype(a), decltype(b), decltype(c)>();
  } else if constexpr (count == 4) {
    [[maybe_unused]] auto& [a, b, c, d] = value;
    return TypeList<decltype(a), decltype(b), decltype(c), decltype(d)>();
  } else if constexpr (count == 5) {
    [[maybe_unused]] auto& [a, b, c, d, e] = value;
    return TypeList<decltype(a), decltype(b), decltype(c), decltype(d), decltype(e)>();
  } else if constexpr (count == 6) {
    [[maybe_unused]] auto& [a, b, c, d, e, f] = value;
    return TypeList<decltype(a), decltype(b), decltype(c), decltype(d), decltype(e), decltype(f)>();
  } else if constexpr (count == 8) {
    [[maybe_unused]] auto& [a, b, c, d, e, f, g, h] = value;
    return TypeList<decltype(a), decltype(b), decltype(c), decltype(d), decltype(e), decltype(f), decltype(g),
                    decltype(h)>();
  } else if constexpr (count == 9) {
    [[maybe_unused]] auto& [a, b, c, d, e, f, g, h, i] = value;
    return TypeList<decltype(a), decltype(b), decltype(c), decltype(d), decltype(e), decltype(f), decltype(g),
                    decltype(h), decltype(i)>();
  } else {
    static_assert(count == 10, "add a case for this number of members");
    [[maybe_unused]] auto& [a, b, c, d, e, f, g, h, i, j] = value;
    return TypeList<decltype(a), decltype(b), decltype(c), decltype(d), decltype(e), decltype(f), decltype(g),
                    decltype(h), decltype(i), decltype(j)>();
  }
}

constexpr void begin(InterfaceText& text, std::string_view key) {
  text.add(";");
  text.add(key);
  text.add("=");
}

constexpr void add(InterfaceText& text, std::string_view key, std::string_view value, std::uint64_t number) {
  begin(text, key);
  text.add(value);
  text.add(number);
}

/// A class: its size and alignment.
template <class T>
constexpr void add_class(InterfaceText& text, std::string_view key) {
  begin(text, key);
  text.add(sizeof(T));
  text.add("-bytes,-aligned-to-");
  text.add(alignof(T));
}

constexpr std::uint64_t nine_digits(std::uint64_t hash) { return hash % 1'000'000'007U; }

/// Where names stand: members of equal types by their offsets, or enumerators by their numbers.
constexpr void add_places(InterfaceText& text, std::initializer_list<std::uint64_t> places) {
  std::uint64_t hash = hash_start;
  for (const std::uint64_t place : places) hash = hash_of(place, hash);
  text.add("#");
  text.add(nine_digits(hash));
}

/// An aggregate: also the types of its `count` members. `places`: of all members with equal types, whose
/// order the types do not tell. Fewer places than such members are a compile-time error.
template <class T, std::size_t count>
constexpr void add_aggregate(InterfaceText& text, std::string_view key,
                             std::initializer_list<std::uint64_t> places = {}) {
  using Types = decltype(members<count>(std::declval<T&>()));
  if (places.size() < Types::with_equal_types()) throw std::logic_error("a place is missing");
  add_class<T>(text, key);
  text.add(",-member-types-#");
  text.add(nine_digits(Types::hash()));
  if (places.size() == 0) return;
  text.add(",-order-");
  add_places(text, places);
}

template <class Enumerator>
constexpr std::uint64_t number_of(Enumerator enumerator) {
  return static_cast<std::uint64_t>(enumerator);
}

}  // namespace interface_parts

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // both compilers have it for all of these types

/// The interface of the file that is being compiled: "0.1;compiler=GCC-12;...". No blanks; a value has '-' in
/// their place. The compiler and its options come before the types, so that a message names the cause of a
/// difference first.
constexpr InterfaceText interface_text() {
  using namespace interface_parts;
  InterfaceText text;
  text.add(STARPIPE_INTERFACE);
#if defined(__clang__)
  add(text, "compiler", "Clang-", __clang_major__);
#elif defined(__GNUC__)
  add(text, "compiler", "GCC-", __GNUC__);
#else
#error "starpipe's plug-ins are known to work with GCC and Clang only"
#endif
  add(text, "language-standard", "", __cplusplus);
#if defined(_LIBCPP_VERSION)
  add(text, "standard-library", "libc++-", _LIBCPP_VERSION / 10000);
  add(text, "_LIBCPP_ABI_VERSION", "", _LIBCPP_ABI_VERSION);
#elif defined(_GLIBCXX_RELEASE)
  add(text, "standard-library", "libstdc++-", _GLIBCXX_RELEASE);
  add(text, "_GLIBCXX_USE_CXX11_ABI", "", _GLIBCXX_USE_CXX11_ABI);
#if defined(_GLIBCXX_DEBUG)
  add(text, "_GLIBCXX_DEBUG", "", 1);
#else
  add(text, "_GLIBCXX_DEBUG", "", 0);
#endif
#else
#error "starpipe's plug-ins are known to work with libstdc++ and libc++ only"
#endif
#if defined(__GXX_ABI_VERSION)
  add(text, "C++-ABI", "", __GXX_ABI_VERSION);
#endif
  add(text, "pointers", "", sizeof(void*));
  begin(text, "headers-of-layers-and-networks");  // classes with virtual functions: no types tell their order
  text.add(STARPIPE_MODEL_HEADERS);
  add_class<std::string>(text, "std::string");
  add_class<std::vector<int>>(text, "std::vector");
  add_class<std::optional<int>>(text, "std::optional");
  add_class<std::function<void()>>(text, "std::function");
  add_class<std::map<std::string, int>>(text, "std::map");
  begin(text, "Pass");
  add_places(text, {number_of(Pass::F), number_of(Pass::B), number_of(Pass::W), number_of(Pass::BW)});
  begin(text, "Discipline");
  add_places(text,
             {number_of(Discipline::greedy), number_of(Discipline::bounded), number_of(Discipline::ordered)});
  add_aggregate<Job, 3>(text, "Job", {offsetof(Job, stage), offsetof(Job, microbatch)});
  add_aggregate<Placement, 2>(text, "Placement",
                              {offsetof(Placement, weights), offsetof(Placement, compute)});
  add_class<StageGraph>(text, "StageGraph");
  add_aggregate<Durations, 3>(text, "Durations",
                              {offsetof(Durations, F), offsetof(Durations, B), offsetof(Durations, W)});
  add_aggregate<StageSizes, 8>(
      text, "StageSizes",
      {offsetof(StageSizes, activation), offsetof(StageSizes, gradient), offsetof(StageSizes, stash),
       offsetof(StageSizes, gradient_stash), offsetof(StageSizes, weights), offsetof(StageSizes, master),
       offsetof(StageSizes, has_weights), offsetof(StageSizes, adds_inputs)});
  add_aggregate<SharedWeights, 3>(text, "SharedWeights",
                                  {offsetof(SharedWeights, weights), offsetof(SharedWeights, master)});
  add_aggregate<Link, 2>(text, "Link", {offsetof(Link, alpha), offsetof(Link, beta)});
  add_aggregate<LinkLevel, 4>(text, "LinkLevel",
                              {offsetof(LinkLevel, name), offsetof(LinkLevel, workers),
                               offsetof(LinkLevel, link), offsetof(LinkLevel, sharing)});
  add_class<Links>(text, "Links");
  add_aggregate<Costs, 6>(text, "Costs");
  add_class<Schedule>(text, "Schedule");
  add_aggregate<ScheduleSpec, 10>(text, "ScheduleSpec",
                                  {offsetof(ScheduleSpec, microbatches), offsetof(ScheduleSpec, workers)});
  add_aggregate<ScheduleOption, 5>(text, "ScheduleOption",
                                   {offsetof(ScheduleOption, name), offsetof(ScheduleOption, meaning),
                                    offsetof(ScheduleOption, default_value), offsetof(ScheduleOption, min),
                                    offsetof(ScheduleOption, max)});
  add_aggregate<ScheduleRequest, 9>(
      text, "ScheduleRequest",
      {offsetof(ScheduleRequest, workers), offsetof(ScheduleRequest, microbatches),
       offsetof(ScheduleRequest, memory_limits), offsetof(ScheduleRequest, stage_workers)});
  add_aggregate<ScheduleEntry, 9>(text, "ScheduleEntry",
                                  {offsetof(ScheduleEntry, name), offsetof(ScheduleEntry, summary),
                                   offsetof(ScheduleEntry, source), offsetof(ScheduleEntry, alias)});
  return text;
}

#pragma GCC diagnostic pop

/// The same after the mark by which `load_plugin` finds it in a file.
constexpr InterfaceText marked_interface_text() {
  InterfaceText text;
  text.add("starpipe plug-in interface ");
  text.add(interface_text().view());
  return text;
}

/// How the interface of a plug-in differs from that of this library, such as "compiler: Clang 14 in the
/// plug-in, GCC 12 in starpipe"; empty when they are equal. Names the first difference and counts the others.
/// `theirs`: an `interface_text`.
std::string interface_difference(std::string_view theirs);

}  // namespace starpipe::plan
