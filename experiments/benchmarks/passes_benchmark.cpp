// SPDX-License-Identifier: Apache-2.0
// Measures the passes of a GPT in one stage on one core: F beside one stash and beside eight, BW, B and W.
// --benchmark_enable_random_interleaving=true --benchmark_repetitions=20 runs them in turn.
#include <vector>

#include <benchmark/benchmark.h>

#include "aligned_floats.hpp"
#include "starpipe/model/backend.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::model {
namespace {

constexpr std::size_t max_stashes = 8;

/// A stage with all its data. A micro-batch has `sequences` sequences of `context` tokens.
struct Passes {
  Passes(int hidden, int context, int sequences)
      : network([&] {
          ModelConfig config;
          config.kind = "gpt";
          config.options = {{"layers", 4}, {"hidden", hidden}, {"heads", 4}, {"context", context}};
          return build_network(config, sequences, 1);
        }()) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights.data()[i] = 1e-4f * (static_cast<float>(i * 2654435761U % 401) - 200);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens.data()[i] = static_cast<float>(i * 7 % 97);
    for (std::size_t i = 0; i < target.size(); ++i) target.data()[i] = static_cast<float>((i + 1) * 7 % 97);
    for (std::size_t i = 0; i < max_stashes; ++i) {
      stashes.emplace_back(stage.stash_size());
      forward(stashes[i]);
    }
  }

  static Memory view(AlignedFloats& of) { return {of.data(), of.size()}; }

  void forward(AlignedFloats& stash) {
    const std::vector<ConstMemory> inputs = {view(tokens)};
    stage.forward(ConstParameters(ConstMemory(view(weights))), inputs, view(target), view(loss).first(1),
                  view(stash), view(scratch));
  }
  void backward(bool split) {
    Stage::Backward pass{.parameters = ConstParameters(ConstMemory(view(weights))),
                         .stash = view(stashes[0]),
                         .output_gradients = {},
                         .loss_scale = 1e-9f,  // sums of many passes stay finite
                         .input_gradients = {},
                         .scratch = view(scratch),
                         .found = &found};
    if (split) {
      pass.gradient_stash = view(gradient_stash);
    } else {
      pass.parameter_gradient = ParameterGradients(view(sum));
    }
    stage.backward(pass);
  }
  void backward_weights() {
    stage.backward_weights(view(stashes[0]), view(gradient_stash), ParameterGradients(view(sum)),
                           view(scratch));
  }

  Network network;
  const Stage& stage = network.stages[0];
  AlignedFloats weights{stage.weights_size()};
  AlignedFloats tokens{stage.input_size(0)};
  AlignedFloats target{stage.rows() * stage.target_columns()};
  AlignedFloats loss{4};
  std::vector<AlignedFloats> stashes;
  AlignedFloats gradient_stash{stage.gradient_stash_size()};
  AlignedFloats sum{stage.parameter_size()};
  AlignedFloats scratch{stage.scratch_size()};
  float found = 0;
};

/// The quickstart's model, and a larger one.
Passes& passes_of(const benchmark::State& state) {
  static Passes quickstart(128, 128, 4);
  static Passes larger(256, 256, 1);
  return state.range(0) == 128 ? quickstart : larger;
}

void f(benchmark::State& state) {
  Passes& passes = passes_of(state);
  std::size_t turn = 0;
  for ([[maybe_unused]] auto iteration : state)
    passes.forward(passes.stashes[turn++ % static_cast<std::size_t>(state.range(1))]);
}
void bw(benchmark::State& state) {
  Passes& passes = passes_of(state);
  for ([[maybe_unused]] auto iteration : state) passes.backward(false);
}
void b_and_w(benchmark::State& state) {
  Passes& passes = passes_of(state);
  for ([[maybe_unused]] auto iteration : state) {
    passes.backward(true);
    passes.backward_weights();
  }
}
BENCHMARK(f)
    ->ArgNames({"hidden", "stashes"})
    ->ArgsProduct({{128, 256}, {1, 8}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(bw)->ArgName("hidden")->Arg(128)->Arg(256)->Unit(benchmark::kMillisecond);
BENCHMARK(b_and_w)->ArgName("hidden")->Arg(128)->Arg(256)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace starpipe::model
