// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <string_view>

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

struct InstructionSet {
  unsigned bits;
  std::string_view name;
  std::string_view word = {};  // of `instruction_words`
};

// The largest first. The number of a set has the bits of all smaller ones, so an unknown newer set counts as
// the largest that it includes.
constexpr std::array<InstructionSet, 7> instruction_sets = {{
    {dnnl_cpu_isa_avx512_core_amx, "AMX", "amx"},
    {dnnl_cpu_isa_avx512_core_bf16, "AVX-512 with BF16", "avx512_bf16"},
    {dnnl_cpu_isa_avx512_core_vnni, "AVX-512 with VNNI"},
    {dnnl_cpu_isa_avx512_core, "AVX-512", "avx512"},
    {dnnl_cpu_isa_avx2, "AVX2", "avx2"},
    {dnnl_cpu_isa_avx, "AVX"},
    {dnnl_cpu_isa_sse41, "SSE4.1"},
}};

constexpr const InstructionSet* set_of(std::string_view word) {
  return std::ranges::find(instruction_sets, word, &InstructionSet::word);
}
static_assert(std::ranges::all_of(instruction_words, [](std::string_view word) {
  return word == native_instructions || set_of(word) != instruction_sets.end();
}));

constexpr const char* key = "runtime.instructions";

std::mutex told_mutex;
std::string told;  // by set_product_instructions; "": nothing yet

// oneDNN takes a limit once, before its first product, and before it is asked for its instructions.
void limit_kernels(std::string_view instructions, unsigned set) {
  for (const char* const variable : by_user)
    require_input(!environment(variable), variable, fmt::format("contradicts {}: {}", key, instructions));
  const dnnl_status_t status = dnnl_set_max_cpu_isa(static_cast<dnnl_cpu_isa_t>(set));
  require_input(status != dnnl_unimplemented, key,
                fmt::format("{}: this oneDNN is built without a limit of its instructions", instructions));
  if (status != dnnl_success)
    throw InputError(fmt::format("{}: {}: this process has computed with {} before", key, instructions,
                                 product_kernels()));
}

}  // namespace

void set_product_instructions(std::string_view instructions) {
  const std::scoped_lock lock(told_mutex);
  const bool is_limit = instructions != native_instructions;
  const unsigned wanted = is_limit ? set_of(instructions)->bits : 0;
  if (told.empty()) {
    if (is_limit) limit_kernels(instructions, wanted);
    told = instructions;
  }
  require_input(told == instructions, key,
                fmt::format("{}: this process computes with {} since its first run", instructions, told));
  if (is_limit && (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & wanted) != wanted)
    throw InputError(fmt::format("{}: {}: the processor has {} only", key, instructions, product_kernels()));
}

std::string product_library() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version.major, version.minor, version.patch);
}

std::string product_kernels() {
  const auto has = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  for (const auto& [set, name, word] : instruction_sets)
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
