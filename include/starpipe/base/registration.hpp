// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace starpipe {

// Schedules, layers and networks register themselves in file-scope initialisers. An exception there would end
// the program before `main` without a message. So a registration that fails keeps its error here, and the
// first use of a registry throws it. Not thread-safe: registrations run sequentially.

/// A layer, loss or network that was registered.
struct Registration {
  std::string what;  ///< "layer", "loss" or "network"
  std::string name;
};

/// Records a successful registration in `registrations()`. New entries after loading a plug-in are the
/// plug-in's.
void keep_registration(Registration registration);

/// Returns the successful registrations, in their order.
const std::vector<Registration>& registrations();

/// Keeps the message of a registration that failed.
void keep_registration_error(std::string message);

/// Throws InputError with the first message kept, if there is one. The messages stay.
void require_registrations();

/// Returns all messages kept, and forgets them.
std::vector<std::string> take_registration_errors();

}  // namespace starpipe
