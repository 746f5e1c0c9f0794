// SPDX-License-Identifier: Apache-2.0
// How much of a time each kind takes: what a timeline shows where its parts are narrower than a pixel.

import {lastAtMost} from "./data";

/** Parts of rows that do not overlap: those of row r are `offsets[r]` to `offsets[r + 1]`, in the order of time. */
export interface Parts {
  offsets: Int32Array;
  start: Float64Array;
  end: Float64Array;
}

/** Sums of the time of each kind of parts, so that the shares of any time span are found in O(log parts). */
export class Shares {
  // [(part + row) * kinds + kind]: time before the part; each row has one entry more, at its end.
  private readonly before: Float64Array;
  private readonly left: Float64Array;
  private readonly right: Float64Array;

  constructor(
    private readonly parts: Parts,
    readonly kinds: number,
    kindOf: (part: number) => number,
  ) {
    const {offsets, start, end} = parts;
    const rows = offsets.length - 1;
    this.left = new Float64Array(kinds);
    this.right = new Float64Array(kinds);
    this.before = new Float64Array((offsets[rows] + rows) * kinds);
    for (let r = 0; r < rows; ++r) {
      for (let i = offsets[r]; i < offsets[r + 1]; ++i) {
        const at = (i + r) * kinds;
        for (let k = 0; k < kinds; ++k) this.before[at + kinds + k] = this.before[at + k];
        this.before[at + kinds + kindOf(i)] += end[i] - start[i];
      }
    }
  }

  /**
   * Writes into `shares` the share of each kind in `columns` time spans of equal length, from `from` to `to`:
   * [column * kinds + kind].
   */
  fill(row: number, from: number, to: number, columns: number, shares: Float64Array): void {
    const width = (to - from) / columns;
    this.until(row, from, this.left);
    for (let c = 0; c < columns; ++c) {
      this.until(row, from + (c + 1) * width, this.right);
      for (let k = 0; k < this.kinds; ++k) shares[c * this.kinds + k] = (this.right[k] - this.left[k]) / width;
      this.left.set(this.right);
    }
  }

  /** The time of each kind until `time`. */
  private until(row: number, time: number, sums: Float64Array): void {
    const {offsets, start, end} = this.parts;
    const begin = offsets[row];
    const i = lastAtMost(start, time, begin, offsets[row + 1]); // the last part that has started
    if (i < begin) {
      sums.fill(0);
      return;
    }
    const at = (i + row) * this.kinds;
    const length = end[i] - start[i];
    const part = length > 0 ? Math.min(1, (time - start[i]) / length) : 1;
    for (let k = 0; k < this.kinds; ++k) {
      const before = this.before[at + k];
      sums[k] = before + part * (this.before[at + this.kinds + k] - before);
    }
  }
}
