// SPDX-License-Identifier: Apache-2.0
// A reader of PyTorch's CSV written from the format's description: sets and sweeps, nothing shared with the
// library.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace starpipe::plan {

/// A cell of a row: the job or the communication.
struct Cell {
  int stage = 0;
  std::string word;
  int microbatch = -1;
  bool with_next = false;  // a pair with the cell behind it

  friend auto operator<=>(const Cell& a, const Cell& b) {
    return std::tie(a.stage, a.word, a.microbatch) <=> std::tie(b.stage, b.word, b.microbatch);
  }
};

/// Returns the text without blanks around it.
inline std::string stripped(std::string text) {
  const auto blank = [](char c) { return std::string_view(" \t\r\v\f").find(c) != std::string_view::npos; };
  while (!text.empty() && blank(text.back())) text.pop_back();
  while (!text.empty() && blank(text.front())) text.erase(0, 1);
  return text;
}

/// Returns the cell of this text; nullopt if it is not one.
inline std::optional<Cell> slow_cell(const std::string& text) {
  static const std::regex pattern(
      "([0-9]{1,6})(?:(F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B)([0-9]{1,6})|(UNSHARD|RESHARD|REDUCE_GRAD))");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) return std::nullopt;
  if (match[4].matched) return Cell{std::stoi(match[1]), match[4]};
  return Cell{std::stoi(match[1]), match[2], std::stoi(match[3])};
}

/// Returns the rows of the file; nullopt if a cell cannot be read.
inline std::optional<std::vector<std::vector<Cell>>> slow_parse(std::string text) {
  if (text.starts_with("\xef\xbb\xbf")) text = text.substr(3);
  while (!text.empty() && std::string(" \t\r\n").find(text.back()) != std::string::npos) text.pop_back();
  if (text.empty()) return std::nullopt;
  std::vector<std::vector<Cell>> rows(1);
  text += '\n';
  std::string cell;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',' && text[i] != '\n') {
      cell += text[i];
      continue;
    }
    cell = stripped(cell);
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = stripped(cell.substr(1, cell.size() - 2));
    }
    static const std::regex overlapped("\\(([^;]*);([^;]*)\\)OVERLAP_F_B");
    std::smatch pair;
    std::vector<std::string> parts = {cell};
    if (cell.starts_with('(') && std::regex_match(cell, pair, overlapped)) {
      parts = {stripped(pair[1]), stripped(pair[2])};
      const auto first = slow_cell(parts[0]);
      const auto second = slow_cell(parts[1]);
      if (!first || !second || (first->word == "F") == (second->word == "F")) return std::nullopt;
      for (const auto& read : {first, second}) {
        if (read->word != "F" && read->word != "B" && read->word != "I") return std::nullopt;
      }
    }
    for (const std::string& part : parts) {
      if (part.empty()) continue;
      const auto read = slow_cell(part);
      if (!read) return std::nullopt;
      rows.back().push_back(*read);
      rows.back().back().with_next = parts.size() == 2 && &part == &parts.front();
    }
    cell.clear();
    if (text[i] == '\n' && i + 1 < text.size()) rows.emplace_back();
  }
  return rows;
}

/// True if the rows can run to their end, each in its order, and are all that a step needs.
inline bool slow_accepts(const std::string& text) {
  const auto rows = slow_parse(text);
  if (!rows) return false;
  int stages = 0;
  int microbatches = 0;
  bool communicates = false;
  std::map<Cell, std::size_t> row_of;  // the row of each cell that computes, sends or receives
  std::set<std::pair<std::size_t, int>> unsharding;
  for (std::size_t r = 0; r < rows->size(); ++r) {
    for (const Cell& c : (*rows)[r]) {
      const bool computes = c.word.size() == 1;
      communicates = communicates || !computes;
      if (computes) stages = std::max(stages, c.stage + 1);
      if (computes) microbatches = std::max(microbatches, c.microbatch + 1);
      if (c.word == "UNSHARD") unsharding.insert({r, c.stage});
      if (c.microbatch >= 0 && !row_of.emplace(c, r).second) return false;  // twice
    }
  }
  if (stages == 0) return false;
  const auto has = [&](int s, const char* word, int b) { return row_of.contains(Cell{s, word, b}); };
  const auto row = [&](int s, const char* word, int b) { return row_of.at(Cell{s, word, b}); };
  for (int s = 0; s < stages; ++s) {
    for (int b = 0; b < microbatches; ++b) {
      if (!has(s, "F", b)) return false;
      if (has(s, "B", b) ? has(s, "I", b) || has(s, "W", b) : !has(s, "I", b) || !has(s, "W", b))
        return false;
    }
  }
  const auto backward = [&](int s, int b) { return has(s, "B", b) ? "B" : "I"; };

  std::set<Cell> done;
  std::set<std::tuple<std::size_t, int, std::string>> states;  // "unsharded", "reduced"
  const auto is_done = [&](int s, const std::string& word, int b) { return done.contains(Cell{s, word, b}); };
  enum class Answer { ready, waits, never };
  const auto ask = [&](const Cell& c, std::size_t r) {
    const int s = c.stage;
    const std::string& word = c.word;
    const int b = c.microbatch;
    const auto when = [](bool ready) { return ready ? Answer::ready : Answer::waits; };
    // Without communication, a result is at once on every worker that needs it.
    const auto input = [&](const char* receive, int from, const char* pass) {
      if (!communicates || row(from, pass, b) == r) return is_done(from, pass, b);
      return is_done(s, receive, b) && row(s, receive, b) == r;
    };
    const bool unsharded = states.contains({r, s, "unsharded"});
    if (word.size() == 1) {
      if (unsharding.contains({r, s}) && !unsharded) return Answer::never;
      if (communicates && row(s, "F", b) != r) return Answer::never;
      if (word != "F" && states.contains({r, s, "reduced"})) return Answer::never;
    }
    if (word == "F") return when(s == 0 || input("RECV_F", s - 1, "F"));
    if (word == "W") return when(is_done(s, "I", b));
    if (word == "B" || word == "I") {
      return when(is_done(s, "F", b) && (s + 1 == stages || input("RECV_B", s + 1, backward(s + 1, b))));
    }
    if (word == "UNSHARD" || word == "RESHARD" || word == "REDUCE_GRAD") {
      const bool here = std::ranges::any_of(
          (*rows)[r], [s = s](const Cell& other) { return other.stage == s && other.word.size() == 1; });
      if (!here) return Answer::never;
      if (word == "REDUCE_GRAD") return states.contains({r, s, "reduced"}) ? Answer::never : Answer::ready;
      return unsharded == (word == "RESHARD") ? Answer::ready : Answer::never;
    }
    // A transfer belongs to a job of this row and to a neighbour of that job in another row.
    const bool forward = word.back() == 'F';
    const bool sends = word.starts_with("SEND");
    const int peer = forward == sends ? s + 1 : s - 1;
    if (s >= stages || b >= microbatches || peer < 0 || peer >= stages) return Answer::never;
    const char* const mine = forward ? "F" : backward(s, b);
    const char* const theirs = forward ? "F" : backward(peer, b);
    if (row(s, mine, b) != r || row(peer, theirs, b) == r) return Answer::never;
    if (sends) return is_done(s, mine, b) ? Answer::ready : Answer::never;
    if (is_done(s, mine, b)) return Answer::never;
    return when(is_done(peer, forward ? "SEND_F" : "SEND_B", b));
  };

  std::vector<std::size_t> next(rows->size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < rows->size(); ++r) {
      while (next[r] < (*rows)[r].size()) {
        const Cell& c = (*rows)[r][next[r]];
        const Answer answer = ask(c, r);
        if (answer == Answer::never) return false;
        if (c.with_next) {  // both of a pair begin, and end, at once
          const Cell& other = (*rows)[r][next[r] + 1];
          const Answer of_other = ask(other, r);
          if (of_other == Answer::never) return false;
          if (answer == Answer::waits || of_other == Answer::waits) break;
          done.insert({c, other});
          next[r] += 2;
          progress = true;
          continue;
        }
        if (answer == Answer::waits) break;
        done.insert(c);
        if (c.word == "UNSHARD") states.insert({r, c.stage, "unsharded"});
        if (c.word == "RESHARD") states.erase({r, c.stage, "unsharded"});
        if (c.word == "REDUCE_GRAD") states.insert({r, c.stage, "reduced"});
        ++next[r];
        progress = true;
      }
    }
  }
  for (std::size_t r = 0; r < rows->size(); ++r) {
    if (next[r] < (*rows)[r].size()) return false;
  }
  return true;
}

}  // namespace starpipe::plan
