// SPDX-License-Identifier: Apache-2.0
#include "plan/search/simplex.hpp"

#include <cstddef>
#include <numeric>
#include <utility>

namespace starpipe::plan {
namespace {

constexpr double near_zero = 1e-11;

/// Exchanges a variable that is 0 (`column`) and one that is not (`row`). Variables beyond those of u are the
/// distances of the rows from their limits.
void pivot(LinearProgram& program, std::size_t row, std::size_t column) {
  std::vector<double>& pivot_row = program.rows[row];
  const double by = pivot_row[column];
  pivot_row[column] = 1;
  for (double& value : pivot_row) value /= by;
  program.limits[row] /= by;
  const auto subtract = [&](std::vector<double>& values) {
    const double factor = std::exchange(values[column], 0);
    if (factor == 0) return 0.0;
    for (std::size_t c = 0; c < values.size(); ++c) values[c] -= factor * pivot_row[c];
    return factor;
  };
  for (std::size_t r = 0; r < program.rows.size(); ++r) {
    if (r != row) program.limits[r] -= subtract(program.rows[r]) * program.limits[row];
  }
  subtract(program.gain);
}

}  // namespace

std::vector<double> maximized(LinearProgram program, int max_pivots) {
  const std::size_t count = program.gain.size();
  std::vector<std::size_t> at_zero(count);               // variable of each column
  std::vector<std::size_t> in_row(program.rows.size());  // variable of each row
  std::iota(at_zero.begin(), at_zero.end(), std::size_t{0});
  std::iota(in_row.begin(), in_row.end(), count);
  for (int pivots = 0; pivots < max_pivots; ++pivots) {
    // Bland's rule: of the variables that may enter, and of those that may leave, the first.
    std::size_t column = count;
    for (std::size_t c = 0; c < count; ++c) {
      if (program.gain[c] > near_zero && (column == count || at_zero[c] < at_zero[column])) column = c;
    }
    if (column == count) break;
    std::size_t row = program.rows.size();
    double least = 0;
    for (std::size_t r = 0; r < program.rows.size(); ++r) {
      if (program.rows[r][column] <= near_zero) continue;
      const double ratio = program.limits[r] / program.rows[r][column];
      if (row == program.rows.size() || ratio < least || (ratio == least && in_row[r] < in_row[row])) {
        row = r;
        least = ratio;
      }
    }
    if (row == program.rows.size()) break;  // no limit: not for bounded programs, but for rounding
    pivot(program, row, column);
    std::swap(at_zero[column], in_row[row]);
  }
  std::vector<double> best(count, 0);
  for (std::size_t r = 0; r < program.rows.size(); ++r) {
    if (in_row[r] < count) best[in_row[r]] = program.limits[r];
  }
  return best;
}

}  // namespace starpipe::plan
