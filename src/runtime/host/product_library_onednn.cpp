// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>
#include <sched.h>

#include "base/environment.hpp"
#include "runtime/host/product_library.hpp"

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

}  // namespace

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
