// SPDX-License-Identifier: Apache-2.0
// Numbers with units, as the program prints them.

import type {Run} from "./data";

/** At most `digits` significant digits, never an exponent for what people read as a number. */
export function number(value: number, digits = 4): string {
  if (!Number.isFinite(value)) return value > 0 ? "infinity" : value < 0 ? "-infinity" : "NaN";
  const magnitude = Math.abs(value);
  if (magnitude !== 0 && (magnitude < 1e-4 || magnitude >= 1e15)) return value.toExponential(Math.max(0, digits - 2));
  if (magnitude >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

/** Parts of a second. */
const SCALES: [number, string][] = [
  [1, "s"],
  [1e3, "ms"],
  [1e6, "µs"],
  [1e9, "ns"],
];

/** How times of runs are shown: seconds in ns, µs, ms or s by the length of the longest; others as they are. */
export class Times {
  readonly name: string;
  /** Units shown in a unit of time. */
  private readonly factor: number;
  private readonly decimals: number;

  /** `longest`: in units. `unit`: "s", or empty when it has no name. `more`: decimals beside those that a table has. */
  constructor(
    readonly unit: string,
    longest: number,
    more = 0,
  ) {
    const shown =
      unit === "s"
        ? (SCALES.find(([factor]) => longest * factor >= 1) ?? SCALES[longest > 0 ? 3 : 0])
        : ([1, unit] as const);
    this.factor = shown[0];
    this.name = shown[1];
    const size = longest * this.factor;
    const ofShort = size > 0 ? Math.min(100, 5 - Math.floor(Math.log10(size))) : 0; // six digits of the longest
    this.decimals = unit === "s" ? (size >= 100 ? 2 : 3) + more : Math.max(6, ofShort);
  }

  /** Without the unit. `time` in units. */
  number(time: number): string {
    const value = time * this.factor;
    return this.unit === "s" ? value.toFixed(this.decimals) : String(Number(value.toFixed(this.decimals)));
  }
  /** With the unit. */
  text(time: number): string {
    return this.name ? `${this.number(time)} ${this.name}` : this.number(time);
  }
  /** With a smaller unit where this one would leave less than three digits. */
  fine(time: number): string {
    const size = Math.abs(time);
    if (this.unit !== "s" || size === 0 || size * this.factor >= 100 * 10 ** -this.decimals) return this.text(time);
    const [factor, name] = SCALES.find(([of]) => size * of >= 1) ?? SCALES[SCALES.length - 1];
    return `${Number((time * factor).toPrecision(4))} ${name}`;
  }
  /** With a sign and the unit. */
  difference(time: number): string {
    const text = this.text(Math.abs(time));
    return `${time < 0 && this.number(time) !== `-${this.number(0)}` ? "−" : "+"}${text}`;
  }
  /** For axes: without the zeros at the end. */
  tick(time: number): string {
    return String(Number(this.number(time)));
  }
  heading(word: string): string {
    return this.name ? `${word} (${this.name})` : word;
  }
  /** For axes: the value in the unit shown. */
  shown(time: number): number {
    return time * this.factor;
  }
}

const longestOf = (runs: Run[]): number =>
  Math.max(...runs.flatMap((run) => run.timelines.map((t) => (t.last - t.first) * run.tick)));

/** The times of all runs, which have one unit, for tables. */
export function timesOf(runs: Run[]): Times {
  return new Times(runs[0].unit, longestOf(runs));
}

/** The same for the times of single jobs: with decimals enough for a hundredth of a mean job. */
export function jobTimesOf(runs: Run[]): Times {
  const longest = longestOf(runs);
  const jobs = Math.max(...runs.flatMap((run) => run.timelines.map((t) => t.count / t.workers)));
  const more = Math.round(Math.log10(Math.max(1, jobs)));
  return new Times(runs[0].unit, longest, Math.max(1, Math.min(6, more)));
}

export function percent(share: number, decimals = 1): string {
  return `${(share * 100).toFixed(decimals)} %`;
}

/** "+1.9 %", "equal". */
export function change(from: number, to: number): string {
  const share = from === 0 ? Infinity : to / from - 1;
  if (from === to || Math.abs(share) < 1e-6) return "equal";
  return from === 0 ? "" : signed(share * 100, "%");
}

export function bytes(value: number): string {
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  if (value < 10000) return `${Math.round(value)} B`;
  let scaled = value;
  let unit = -1;
  while (unit < units.length - 1 && (unit < 0 || scaled >= 1024)) {
    scaled /= 1024;
    ++unit;
  }
  return `${scaled.toFixed(1)} ${units[unit]}`;
}

/** "1 worker", "4 workers". */
export function counted(count: number, word: string): string {
  return `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : word.endsWith("h") ? "es" : "s"}`;
}

/** With a sign and one decimal: "+1.9 %"; what rounds to 0 is "+0.0 %". */
export function signed(value: number, unit: string): string {
  if (!Number.isFinite(value)) return "";
  const text = Math.abs(value).toFixed(1);
  return `${value < 0 && Number(text) !== 0 ? "−" : "+"}${text} ${unit}`;
}

/** "0 to 63"; "any core (8 times), GPU 1"; "a, b, c". Three or more of a kind are drawn together. */
export function listed(values: string[]): string {
  const parts: string[] = [];
  for (let i = 0; i < values.length; ) {
    let end = i + 1;
    while (end < values.length && values[end] === values[i]) ++end;
    let up = i + 1;
    while (up < values.length && /^\d+$/.test(values[i]) && Number(values[up]) === Number(values[i]) + (up - i)) ++up;
    if (end - i > 2) parts.push(`${values[i]} (${end - i} times)`);
    else if (up - i > 2) parts.push(`${values[i]} to ${values[up - 1]}`);
    else parts.push(values[i]);
    i = end - i > 2 ? end : up - i > 2 ? up : i + 1;
  }
  return parts.join(", ");
}
