// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>

#include "cli/commands/ranks.hpp"
#include "cli/commands/subcommand.hpp"
#include "model/weights.hpp"
#include "plan/drawing/page.hpp"
#include "plan/drawing/timeline_svg.hpp"
#include "plan/formats/trace_json.hpp"
#include "runtime/api/training.hpp"
#include "runtime/api/weights_saving.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/report/report.hpp"
#include "runtime/setup/partition_choice.hpp"

namespace starpipe::cli {
namespace {

namespace fs = std::filesystem;

// Shows each step on a terminal, and about twenty steps of a run in a log.
class StepProgress {
 public:
  StepProgress(int first, int steps, std::string sample_word)
      : first_(first), steps_(steps), sample_word_(std::move(sample_word)) {}

  /// Shows the step. A log has only some steps, and every step whose update was skipped.
  void show(const Step& step, double samples_per_second) {
    const std::string norm = step.gradient_norm
                                 ? fmt::format("  norm {:#.4g}{}", std::abs(*step.gradient_norm),
                                               step.clipped ? " clipped" : "")
                                 : "";  // abs: a NaN may have a sign
    const std::string text = fmt::format(
        "step {:>{}}/{}  {}{}  {:.0f} {}/s{}{}", step.number + 1, fmt::formatted_size("{}", steps_), steps_,
        step.loss ? "loss " + loss_text(*step.loss) : "emulated", norm, samples_per_second, sample_word_,
        time_left(step.number), step.skipped ? "  update skipped: infinity or NaN" : "");
    const bool last = step.number + 1 == steps_;
    const bool logged = !line_.on_terminal() && step.number % std::max(1, steps_ / 20) == 0;
    if (last || logged || step.skipped) {
      keep(text, last);
    } else {
      line_.show(text);
    }
  }

  /// Keeps a line between two steps, or after the last step (`last`).
  void keep(const std::string& text, bool last) const {
    // A launcher forwards standard error and standard output separately. So only on standard output do the
    // last lines keep their order with the tables.
    if (last && !line_.on_terminal() && runtime::launcher_rank()) {
      fmt::print("{}\n", text);
    } else {
      line_.keep(text);
    }
  }

 private:
  // Returns the time that the remaining steps will take if they last as long as the steps so far, without the
  // first, which warms up. Returns "" after the first step, and if less than a second is left.
  [[nodiscard]] std::string time_left(int step) {
    const auto now = std::chrono::steady_clock::now();
    if (step == first_) {
      after_first_ = now;
      return "";
    }
    const double seconds =
        std::chrono::duration<double>(now - after_first_).count() / (step - first_) * (steps_ - step - 1);
    if (seconds < 1) return "";
    const auto whole = static_cast<std::int64_t>(seconds);
    return whole < 3600 ? fmt::format("  {}:{:02} left", whole / 60, whole % 60)
                        : fmt::format("  {}:{:02}:{:02} left", whole / 3600, whole / 60 % 60, whole % 60);
  }

  int first_;
  int steps_;
  std::string sample_word_;
  ProgressLine line_;
  std::chrono::steady_clock::time_point after_first_;  // when the first step had ended
};

constexpr std::string_view metrics_option = "--metrics";
constexpr std::string_view weights_option = "--save-weights";
constexpr const char* precision_option = "--save-precision";
constexpr const char* shard_option = "--max-shard-size";

struct TrainOptions {
  ConfigOptions config;
  OutputFiles outputs;
  std::string precision = "fp32";
  model::SaveFormat saved;
  bool resume = false;
};

/// Throws InputError for mistakes in the names of outputs that every rank can find. Rank 0, which writes the
/// files, finds the other mistakes.
void check_names(const Config& config, const TrainOptions& options) {
  if (options.outputs.has(weights_option) && config.runtime.emulate) {
    throw InputError("--save-weights: with runtime.emulate no weights are trained");
  }
  for (const OutputFile& output : options.outputs.files()) {
    if (output.file && is_standard_output(*output.file)) {
      throw InputError(
          fmt::format("{}: standard output has the tables of the run; name a file", output.option));
    }
  }
  options.outputs.check(inputs_of(config));
}

/// Collective. Throws InputError, before the first step, if the weights cannot be saved.
void check_weights(const Runtime& runtime, const Trainer& trainer, const TrainOptions& options) {
  const fs::path& file = *options.outputs.file(weights_option);
  const model::WeightsLayout layout(file, trainer.network(), options.saved);
  runtime.agree([&] {
    if (!layout.index()) return true;
    if (!is_replaced(file))
      throw InputError(fmt::format("{}: {} takes one file only", shard_option, file.string()));
    std::vector<OutputFile> files;
    for (const OutputFile& output : options.outputs.files()) files.push_back({output.option, output.file});
    for (const auto& part : layout.files()) files.push_back({std::string(weights_option), part.path});
    files.push_back({std::string(weights_option), layout.index()->path});
    OutputFiles(std::move(files)).check(inputs_of(trainer.config()));
    return true;
  });
  runtime.agree([&] {
    runtime::check_weights_output(runtime.mpi(), file, layout);
    return true;
  });
}

runtime::RankRequest training_request(const TrainOptions& options) {
  runtime::RankRequest request("train");
  request.add_flag("--resume", options.resume);
  request.add(precision_option, options.precision);
  request.add(shard_option, std::to_string(options.saved.max_shard_size));
  add_outputs(request, options.outputs);
  return request;
}

/// Runs several pieces of work, also when an earlier one fails: a full disk or a closed pipe must not cost
/// the other results of a long run. Throws the first exception, if there was one, and prints all others.
void run_each(std::span<const std::function<void()>> work) {
  std::exception_ptr first;
  for (const std::function<void()>& part : work) {
    try {
      part();
    } catch (const std::exception& error) {
      if (first) print_message(fmt::format("starpipe: {}\n", one_line(error.what())));
      if (!first) first = std::current_exception();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

// Holds the figures that the outputs show. `report` makes the report in its first call, for several outputs.
struct MadeSteps {
  const plan::Schedule& schedule;
  const plan::ComparedRun& run;
  std::function<const nlohmann::ordered_json&()> report;
};

std::string trace_text(const MadeSteps& steps) {
  const plan::ComparedRun& run = steps.run;
  const std::array runs = {plan::DrawnRun{"predicted", &steps.schedule, &run.predicted.timeline},
                           plan::DrawnRun{"measured", &run.measured.as_run, &run.measured.timeline}};
  return plan::trace_json(runs).dump() + "\n";
}

std::string timeline_text(const MadeSteps& steps) {
  const std::array runs = {plan::explained_run("predicted", steps.run.predicted),
                           plan::explained_run("measured", steps.run.measured)};
  return plan::timeline_svg(runs, {.unit = "s"});
}

std::string page_text(const MadeSteps& steps) {
  const nlohmann::ordered_json shown = plan::report_for_page(steps.report());
  const std::array runs = {plan::compared_page_run(steps.schedule.name(), steps.run, shown)};
  return plan::report_page(runs);
}

// An output of the steps that a run has made. They are written at its end, so an existing file stays if the
// run fails. Metrics are written during the run, and the weights before these outputs.
struct StepOutput {
  std::string_view name;  // as OutputFiles::add takes it
  const char* help;
  std::string (*text)(const MadeSteps& steps);

  [[nodiscard]] std::string_view option() const { return name.substr(0, name.find(' ')); }
};
constexpr std::array step_outputs = {
    StepOutput{"--report FILE.json", "Write losses, times, and predicted and measured values",
               [](const MadeSteps& steps) { return plan::json_text(steps.report()); }},
    StepOutput{"--html FILE.html", "Write the report as a page for a browser, in one file", page_text},
    StepOutput{"--trace FILE.json",
               "Write the predicted and the measured step as a trace for ui.perfetto.dev", trace_text},
    StepOutput{"--timeline FILE.svg", "Draw the predicted and the measured step as an SVG image",
               timeline_text}};

bool has_step_outputs(const OutputFiles& outputs) {
  return std::ranges::any_of(step_outputs, [&](const StepOutput& one) { return outputs.has(one.option()); });
}

// Writes the files before it prints the table: standard output may be a pipe that no program reads any more.
void write_outputs(const OutputFiles& outputs, const runtime::Training& training,
                   const runtime::Training::Result& result) {
  const runtime::AgreedRun& agreed = training.agreed();
  const runtime::Experiment& experiment = agreed.experiment;
  const plan::Schedule& schedule = experiment.schedule;
  const runtime::TrainRecord& record = result.record;
  const plan::ComparedRun& run = *result.compared;
  std::optional<nlohmann::ordered_json> made;
  const MadeSteps steps{schedule, run, [&]() -> const nlohmann::ordered_json& {
                          return made ? *made : made.emplace(runtime::training_report(training, result));
                        }};
  std::vector<std::function<void()>> work;
  for (const StepOutput& one : step_outputs)
    work.emplace_back([&] { outputs.write(one.option(), [&] { return one.text(steps); }); });
  work.emplace_back([&] {
    print(fmt::format("\n{} on {}, {}, policy {}: {:.0f} {}/s\n{}{}\n{}", schedule.name(),
                      counted_text(schedule.workers(), "worker"), counted_text(agreed.mpi.ranks(), "rank"),
                      record.policy, record.samples_per_second, experiment.data->sample_word(),
                      describe_partition(agreed.partition),
                      plan::describe_reordering(schedule.name(), experiment.reordering),
                      training_table(run, training.measurement().workers(), record)));
  });
  run_each(work);
}

// Ends a run that was resumed after its last step: only the weights were missing.
void finish_complete_run(const Runtime& runtime, const Trainer& trainer, const TrainOptions& options) {
  if (runtime.rank() != 0) return;
  print(fmt::format("All {} steps are done; nothing is left to train{}.\n", trainer.config().training.steps,
                    has_step_outputs(options.outputs) ? ", and there is no step to report" : ""));
}

// Collective. Writes the results of the steps. Returns why the run counts as failed although the steps have
// succeeded; "" if it does not.
std::string finish_run(const Runtime& runtime, Trainer& trainer, const TrainOptions& options) {
  const runtime::Training::Result result = trainer.training().result();
  if (runtime.rank() == 0) write_outputs(options.outputs, trainer.training(), result);
  const auto& checkpoints = result.record.checkpoints;
  if (!checkpoints || checkpoints->last_problem.empty()) return "";
  return fmt::format("the last checkpoint, of step {}, could not be written", trainer.steps_done());
}

// Why a run counts as failed although its steps have succeeded; "" if it does not.
struct RunEnd {
  std::string problem = {};  // of its results
  // Why the file of metrics lacks lines. A stopped run does not fail by it: --resume writes the missing
  // lines.
  std::string metrics_problem = {};
};

// Collective. The weights are saved as soon as they are trained. What fails later must not cost them, and
// must not cost the other results either.
RunEnd run_and_finish(Runtime& runtime, Trainer& trainer, const TrainOptions& options) {
  const bool was_complete = trainer.steps_done() == trainer.config().training.steps;
  bool is_trained = false;
  std::exception_ptr failure;
  trainer.training().on_trained = [&] {
    is_trained = true;
    try {
      if (const auto& file = options.outputs.file(weights_option))
        trainer.training().save_weights(*file, options.saved);
    } catch (const RunFailure&) {
      failure = std::current_exception();
    } catch (...) {  // rank 0, which writes, tells it
      if (runtime.rank() == 0) failure = std::current_exception();
    }
  };
  trainer.accept_signals();
  try {
    trainer.run();
  } catch (const RunFailure&) {
    if (!is_trained) throw;
    if (!failure) failure = std::current_exception();
  }
  RunEnd end;
  finish_on_ranks(runtime, [&] {
    const auto tell = [&] {
      try {
        if (failure) std::rethrow_exception(failure);
      } catch (const RunFailure& error) {
        runtime.fail(error.what(), error.status());
      }
    };
    const auto finish = [&] {
      if (was_complete)
        finish_complete_run(runtime, trainer, options);
      else
        end.problem = finish_run(runtime, trainer, options);
    };
    const auto find_lost_lines = [&] { end.metrics_problem = trainer.training().metrics_problem(); };
    run_each(std::array<std::function<void()>, 3>{tell, finish, find_lost_lines});
  });
  return end;
}

void train(Runtime& runtime, const TrainOptions& options) {
  Config config = agree_on_config(runtime, training_request(options), [&] {
    Config wanted = options.config.load();
    check_names(wanted, options);
    if (options.resume && !wanted.checkpoint.enabled())
      throw InputError("--resume: needs checkpoint.folder, where the checkpoints are");
    return wanted;
  });
  const int steps = config.training.steps;
  TrainerParts parts;
  parts.metrics = options.outputs.file(metrics_option);
  RunEnd end;
  int steps_done = 0;
  {
    Trainer trainer(runtime, std::move(config), std::move(parts));
    if (options.resume) trainer.resume();
    runtime.agree([&] {
      if (options.outputs.has("--timeline")) plan::require_drawable(2 * trainer.schedule().job_count());
      for (const OutputFile& output : options.outputs.files()) {
        const bool is_other = output.option != metrics_option && output.option != weights_option;
        if (output.file && is_other && runtime.rank() == 0) require_writable(output.option, *output.file);
      }
      return true;
    });
    if (options.outputs.has(weights_option)) check_weights(runtime, trainer, options);
    runtime::require_pairs(trainer.config(), trainer.schedule());
    const std::string unequal =
        runtime::describe_unequal_stages(trainer.config(), trainer.training().agreed().experiment);
    if (runtime.rank() == 0 && !unequal.empty()) print_message("starpipe: " + unequal);
    const model::Dataset& data = *trainer.training().agreed().experiment.data;
    const auto samples =
        static_cast<double>(data.samples_per_microbatch() * index(trainer.schedule().whole_microbatches()));
    const int first = trainer.steps_done();
    StepProgress progress(first, steps, data.sample_word());
    const model::Dataset* const validation = trainer.training().agreed().experiment.validation.get();
    if (runtime.rank() == 0) {
      trainer.on_step([&](const Step& step) { progress.show(step, samples / step.seconds); });
      trainer.on_evaluation([&](const Evaluation& done) {
        progress.keep(runtime::evaluation_text(done.loss, static_cast<int>(done.losses.size()), *validation),
                      done.steps == steps);
      });
    }
    end = run_and_finish(runtime, trainer, options);
    steps_done = trainer.steps_done();
  }
  const std::string lost =
      end.metrics_problem.empty() ? "" : end.metrics_problem + "; its last lines are lost";
  if (!end.problem.empty())
    runtime.fail(lost.empty() ? end.problem : fmt::format("{}; {}", end.problem, lost));
  if (steps_done < steps) {
    runtime.fail(fmt::format("ended by SIGTERM after step {} of {}; --resume continues from its checkpoint",
                             steps_done, steps),
                 runtime::status_of_stopped_run);
  }
  if (!lost.empty()) runtime.fail(lost);
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("train", "Train a network, and show predicted and measured times side by side");
  const auto options = std::make_shared<TrainOptions>();
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  OutputFiles& outputs = options->outputs;
  for (const StepOutput& one : step_outputs) outputs.add(*command, one.name, one.help);
  outputs.add(*command, "--metrics FILE.jsonl",
              "Write a line of JSON after each step: loss, times, bubble, memory");
  CLI::Option* const weights =
      outputs.add(*command, "--save-weights FILE.safetensors", "Save the trained weights");
  add_option(*command, std::string(precision_option) + " TYPE", options->precision,
             "Type of the saved numbers: fp32, bf16 or fp16", one_of(model::stored_type_words))
      ->needs(weights)
      ->capture_default_str();
  add_option(*command, std::string(shard_option) + " BYTES", options->saved.max_shard_size,
             "Save weights of more bytes than this (5GB, 500MiB) in several files with an index",
             byte_count(1))
      ->needs(weights);
  command->add_flag("--resume", options->resume,
                    "Continue from the newest checkpoint in checkpoint.folder, if there is one");
  command->footer(
      "Examples:\n"
      "  starpipe train experiments/quickstart.yaml --set training.steps=10 --report report.json\n"
      "  mpiexec -n 2 starpipe train experiments/quickstart.yaml\n"
      "With several ranks, each rank runs a share of the schedule's workers on its devices.");
  command->callback([options, &action] {
    const auto* const type = std::ranges::find(model::stored_type_words, options->precision);
    options->saved.type = static_cast<model::StoredType>(type - model::stored_type_words.begin());
    action = [options] { return run_on_ranks([&](Runtime& runtime) { train(runtime, *options); }); };
  });
}

}  // namespace starpipe::cli
