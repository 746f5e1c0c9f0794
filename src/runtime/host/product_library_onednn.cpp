// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>
#include <sched.h>

#include "base/environment.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {
namespace {

// The user's limit of the instructions: the name of today, and the name before oneDNN 2.0.
constexpr std::array by_user = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"};

// Sets of instructions, the largest first. The number of a set has the bits of all smaller ones, so an
// unknown newer set counts as the largest that it includes.
constexpr std::array<std::pair<unsigned, std::string_view>, 7> instruction_sets = {{
    {dnnl_cpu_isa_avx512_core_amx, "AMX"},
    {dnnl_cpu_isa_avx512_core_bf16, "AVX-512 with BF16"},
    {dnnl_cpu_isa_avx512_core_vnni, "AVX-512 with VNNI"},
    {dnnl_cpu_isa_avx512_core, "AVX-512"},
    {dnnl_cpu_isa_avx2, "AVX2"},
    {dnnl_cpu_isa_avx, "AVX"},
    {dnnl_cpu_isa_sse41, "SSE4.1"},
}};

constexpr const char* key = "runtime.instructions";

// By word of `instruction_words`, but for the first.
constexpr std::array sets_of_words = {dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core,
                                      dnnl_cpu_isa_avx512_core_bf16, dnnl_cpu_isa_avx512_core_amx};
static_assert(sets_of_words.size() + 1 == instruction_words.size());

std::mutex told_mutex;
std::string told;  // by set_product_instructions; "": nothing yet

std::optional<dnnl_cpu_isa_t> set_of(std::string_view instructions) {
  const auto word = std::ranges::find(instruction_words, instructions) - instruction_words.begin();
  if (word == 0) return std::nullopt;  // native
  return sets_of_words.at(static_cast<std::size_t>(word - 1));
}

// oneDNN takes a limit once, before its first product, and before it is asked for its instructions.
void limit_kernels(std::string_view instructions, dnnl_cpu_isa_t set) {
  for (const char* const variable : by_user)
    require_input(!environment(variable), variable, fmt::format("contradicts {}: {}", key, instructions));
  const dnnl_status_t status = dnnl_set_max_cpu_isa(set);
  require_input(status != dnnl_unimplemented, key,
                fmt::format("{}: this oneDNN is built without a limit of its instructions", instructions));
  if (status != dnnl_success)
    throw InputError(fmt::format("{}: {}: this process has computed with {} before", key, instructions,
                                 product_kernels()));
}

}  // namespace

void set_product_instructions(std::string_view instructions) {
  const std::scoped_lock lock(told_mutex);
  const std::optional<dnnl_cpu_isa_t> set = set_of(instructions);
  if (told.empty()) {
    if (set) limit_kernels(instructions, *set);
    told = instructions;
  }
  require_input(told == instructions, key,
                fmt::format("{}: this process computes with {} since its first run", instructions, told));
  if (!set) return;
  const auto wanted = static_cast<unsigned>(*set);
  if ((static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & wanted) != wanted)
    throw InputError(fmt::format("{}: {}: the processor has {} only", key, instructions, product_kernels()));
}

std::string product_library() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version.major, version.minor, version.patch);
}

std::string product_kernels() {
  const auto has = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  for (const auto& [set, name] : instruction_sets)
    if ((has & set) == set) return std::string(name);
  return "without vectors";
}

std::string product_kernels_text() {
  for (const char* const variable : by_user)
    if (environment(variable)) return fmt::format("{} ({} is set)", product_kernels(), variable);
  const std::scoped_lock lock(told_mutex);
  if (!told.empty() && told != native_instructions)
    return fmt::format("{} ({} is set)", product_kernels(), key);
  return product_kernels();
}

void choose_product_kernels() {}

std::string product_advice() { return {}; }

bool has_room_to_load_products() noexcept { return true; }

namespace {

cpu_set_t noted_cores{};
bool cores_are_noted = false;

}  // namespace

void note_cores() noexcept { cores_are_noted = sched_getaffinity(0, sizeof noted_cores, &noted_cores) == 0; }

void restore_cores() noexcept {
  if (cores_are_noted) sched_setaffinity(0, sizeof noted_cores, &noted_cores);
}

OneProductThread::OneProductThread() : before_(1) {}
OneProductThread::~OneProductThread() = default;

void use_one_product_thread() {}

void take_product_buffers(int /*products*/) {}

}  // namespace starpipe::runtime
