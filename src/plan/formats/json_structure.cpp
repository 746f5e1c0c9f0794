// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/json_structure.hpp"

#include <cstddef>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "starpipe/base/error.hpp"

namespace starpipe::plan::detail {
namespace {

using nlohmann::json;

/// Follows the events of a parse.
class Structure : public nlohmann::json_sax<json> {
 public:
  Structure(const std::string& source_name, const JsonRules& rules)
      : source_name_(source_name), rules_(rules) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (!rules_.different_keys || keys_.back().insert(key).second) return true;
    throw InputError(fmt::format("{}: key '{}' is given twice in one object", source_name_, key));
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return false;
  }

 private:
  bool open() {
    keys_.emplace_back();
    if (!rules_.most_levels || keys_.size() <= static_cast<std::size_t>(*rules_.most_levels)) return true;
    throw InputError(
        fmt::format("{}: its values are nested in more than {} levels", source_name_, *rules_.most_levels));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& source_name_;
  const JsonRules& rules_;
  std::vector<std::unordered_set<std::string>> keys_;  // of each object and array that is open
};

}  // namespace

void require_structure(std::string_view text, const std::string& source_name, const JsonRules& rules) {
  Structure structure(source_name, rules);
  json::sax_parse(text, &structure);
}

}  // namespace starpipe::plan::detail
