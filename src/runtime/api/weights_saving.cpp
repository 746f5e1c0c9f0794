// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/weights_saving.hpp"

#include <exception>
#include <fstream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/files.hpp"
#include "runtime/host/agreement.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

namespace fs = std::filesystem;

// Runs parts of a rank's work. It keeps the first failure, until the ranks tell each other, and skips the
// parts after it.
class Attempt {
 public:
  void operator()(const std::function<void()>& work) {
    if (failure_) return;
    try {
      work();
    } catch (const std::exception& error) {
      failure_ = std::current_exception();
      problem_ = error.what();
    }
  }

  // Collective. Returns on every rank what to throw if the attempt of one has failed: rank 0's own exception
  // on rank 0. Returns nullptr if none has.
  [[nodiscard]] std::exception_ptr agreed(const Mpi& mpi) const {
    const bool is_root = mpi.rank() == 0;
    const std::string of_root = mpi.first_problem(is_root ? problem_ : "");
    if (!of_root.empty()) return is_root ? failure_ : std::make_exception_ptr(InputError(of_root));
    const std::string of_others =
        mpi.first_problem(failure_ ? fmt::format("rank {}: {}", mpi.rank(), problem_) : "");
    return of_others.empty() ? nullptr : std::make_exception_ptr(RunFailure(of_others));
  }

 private:
  std::exception_ptr failure_;
  std::string problem_;
};

// Collective. Returns a message if a rank does not see the file `made` of rank 0; "" if all see it, or if
// rank 0 has made none. `made` is empty on the other ranks.
std::string unshared(const Mpi& mpi, const fs::path& made) {
  std::pair<std::string, std::string> of_root;
  if (!made.empty()) {
    std::random_device random;
    of_root = {made.string(), fmt::format("{:08x}{:08x}{:08x}", random(), random(), random())};
    std::ofstream(made, std::ios::binary | std::ios::in) << of_root.second;
  }
  const auto [path, mark] = share_all(mpi, of_root);
  if (path.empty()) return "";
  std::string found(mark.size(), '\0');
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.read(found.data(), static_cast<std::streamsize>(found.size()));
  const bool is_same = file && found == mark;
  return mpi.first_problem(
      is_same ? ""
              : fmt::format("the ranks do not share the folder of {}: rank {} does not find rank 0's file",
                            fs::path(path).parent_path().string(), mpi.rank()));
}

void require_free_name(const fs::path& file, const model::WeightsLayout& layout) {
  if (layout.index() && fs::exists(file))
    throw InputError(
        fmt::format("weights: {} exists, and programs would read it and not {}; "
                    "remove it or give another name",
                    file.string(), layout.index()->path.filename().string()));
}

// Collective. Returns a message about a number that the type cannot hold; "" if there is none.
std::string overflow(const Mpi& mpi, const Engine& engine, model::StoredType type) {
  std::string problem;
  engine.read_own_parameters([&](const model::Parameter& parameter, int, std::span<const float> values) {
    const auto found = model::first_overflow(type, values);
    if (found && problem.empty())
      problem = fmt::format("weights: {} holds {}, which {} cannot", parameter.name, *found,
                            model::stored_type_words[static_cast<std::size_t>(type)]);
  });
  return mpi.first_problem(problem);
}

// Collective. All ranks send all parameters, also if rank 0 fails.
template <class Writer>
void write_gathered(const Engine& engine, Attempt& attempt, Writer* writer) {
  engine.read_parameters([&](const model::Parameter& parameter, int, std::span<const float> values) {
    attempt([&] { writer->write(parameter, values); });
  });
}

}  // namespace

void check_weights_output(const Mpi& mpi, const fs::path& file, const model::WeightsLayout& layout) {
  const bool is_root = mpi.rank() == 0;
  std::optional<model::WeightsOutput> trial;
  agree(mpi, [&] {
    if (!is_root) return true;
    require_free_name(file, layout);
    require_writable("--save-weights", file);
    if (layout.index()) require_writable("--save-weights", layout.index()->path);
    if (!is_replaced(file)) return true;
    try {
      trial.emplace(layout);
    } catch (const InputError&) {
      throw;
    } catch (const std::runtime_error&) {  // a full disk may have room after the last step
    }
    return true;
  });
  if (mpi.ranks() == 1) return;
  const std::string problem = unshared(mpi, trial ? trial->paths().front() : fs::path());
  if (!problem.empty())
    mpi.say(fmt::format("--save-weights: {}, so rank 0 receives each parameter and writes it", problem));
}

std::exception_ptr save_weights(const Mpi& mpi, const Engine& engine, const model::Network& network,
                                const fs::path& file, model::SaveFormat format) {
  const bool is_root = mpi.rank() == 0;
  const std::string too_large = overflow(mpi, engine, format.type);
  if (!too_large.empty()) format.type = model::StoredType::fp32;
  const model::WeightsLayout layout(file, network, format);
  Attempt attempt;
  std::optional<model::WeightsOutput> output;
  std::vector<std::string> paths;
  bool is_stream = false;
  attempt([&] {
    if (!is_root) return;
    require_free_name(file, layout);
    is_stream = !is_replaced(file);
    if (is_stream) return;
    output.emplace(layout);
    for (const fs::path& path : output->paths()) paths.push_back(path.string());
  });
  if (const auto failure = attempt.agreed(mpi)) return failure;
  std::tie(paths, is_stream) = share_all(mpi, std::pair(paths, is_stream));
  if (is_stream) {
    std::optional<model::CollectedWeights> collected;
    if (is_root) collected.emplace(layout);
    write_gathered(engine, attempt, collected ? &*collected : nullptr);
    attempt([&] {
      if (is_root) collected->finish();
    });
  } else {
    model::WeightsWriter writer(layout, {paths.begin(), paths.end()});
    const bool is_shared =
        mpi.ranks() == 1 || unshared(mpi, is_root ? fs::path(paths.front()) : fs::path()).empty();
    if (is_shared)
      attempt([&] {
        engine.read_own_parameters([&](const model::Parameter& parameter, int,
                                       std::span<const float> values) { writer.write(parameter, values); });
      });
    else
      write_gathered(engine, attempt, &writer);
    attempt([&] { writer.close(); });
  }
  if (const auto failure = attempt.agreed(mpi)) return failure;
  attempt([&] {
    if (output) output->finish();
  });
  if (const auto failure = attempt.agreed(mpi)) return failure;
  if (too_large.empty()) return nullptr;
  return std::make_exception_ptr(
      RunFailure(fmt::format("{}; {} has the weights in fp32", too_large,
                             layout.index() ? layout.index()->path.string() : file.string())));
}

}  // namespace starpipe::runtime
