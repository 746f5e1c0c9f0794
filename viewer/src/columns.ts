// SPDX-License-Identifier: Apache-2.0
// Reads columns of whole numbers, which `Column` of src/plan/drawing/page.hpp wrote.

const CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const DIGIT = new Int8Array(128).fill(-1);
for (let i = 0; i < CHARACTERS.length; ++i) DIGIT[CHARACTERS.charCodeAt(i)] = i;

/** The `count` numbers of a column. Throws when it has another number of them. */
export function column(text: string, count: number): Float64Array {
  const numbers = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; ++i) {
    let value = 0;
    let weight = 1;
    let digit;
    do {
      digit = DIGIT[text.charCodeAt(at++)];
      if (digit === undefined || digit < 0) throw new Error("the page's data end too early");
      value += (digit & 31) * weight;
      weight *= 32;
    } while (digit > 31);
    const magnitude = Math.floor(value / 2);
    numbers[i] = value % 2 === 1 ? -magnitude : magnitude;
  }
  if (at !== text.length) throw new Error("the page's data are too long");
  return numbers;
}

/** The sums of a column of differences, which begin at 0 again in each row. `offsets`: of the rows. */
export function sums(text: string, offsets: Int32Array): Float64Array {
  const numbers = column(text, offsets[offsets.length - 1]);
  for (let row = 0; row + 1 < offsets.length; ++row) {
    for (let i = offsets[row] + 1; i < offsets[row + 1]; ++i) numbers[i] += numbers[i - 1];
  }
  return numbers;
}

/** Where each row begins, and the end of the last. */
export function offsetsOf(rows: number[]): Int32Array {
  const offsets = new Int32Array(rows.length + 1);
  rows.forEach((count, row) => (offsets[row + 1] = offsets[row] + count));
  return offsets;
}
