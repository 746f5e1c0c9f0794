// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/registration.hpp"

#include <utility>

#include "starpipe/base/error.hpp"

namespace starpipe {
namespace {

// Local to a function, so that registrations of other files find it constructed.
std::vector<std::string>& errors() {
  static std::vector<std::string> messages;
  return messages;
}

std::vector<Registration>& kept() {
  static std::vector<Registration> registrations;
  return registrations;
}

}  // namespace

void keep_registration(Registration registration) { kept().push_back(std::move(registration)); }

const std::vector<Registration>& registrations() { return kept(); }

void keep_registration_error(std::string message) { errors().push_back(std::move(message)); }

void require_registrations() {
  if (!errors().empty()) throw InputError(errors().front());
}

std::vector<std::string> take_registration_errors() { return std::exchange(errors(), {}); }

}  // namespace starpipe
