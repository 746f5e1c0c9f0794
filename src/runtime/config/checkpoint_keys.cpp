// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "runtime/config/key_parts.hpp"

namespace starpipe::runtime::keys {

void add_checkpoint_keys(Keys& keys) {
  constexpr const char* folder = "checkpoint.folder";
  const auto add = [&](ConfigKey made) { keys.push_back(only_with(std::move(made), folder)); };
  keys.push_back(not_emulated(
      key(folder, text(),
          "Where `train` keeps checkpoints, a folder that all ranks see; other commands write none. One is "
          "written after the last step in any case. Without this key there are no checkpoints.",
          at(&Config::checkpoint, &CheckpointConfig::folder))));
  add(key("checkpoint.every", whole(), "A checkpoint is written after every so many steps.",
          at(&Config::checkpoint, &CheckpointConfig::every)));
  add(key("checkpoint.keep", whole(),
          "The most checkpoints that are kept. When a new one is whole, older ones are removed.",
          at(&Config::checkpoint, &CheckpointConfig::keep)));
  add(key("checkpoint.on_signal", one_of(checkpoint_signals),
          "The signal after which a checkpoint is written at the end of the step. SIGTERM then writes one, "
          "too, and ends the run with status 75. none: no signal does so, and SIGTERM ends the run at once.",
          at(&Config::checkpoint, &CheckpointConfig::on_signal)));
}

}  // namespace starpipe::runtime::keys
