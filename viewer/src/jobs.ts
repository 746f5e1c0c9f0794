// SPDX-License-Identifier: Apache-2.0
// Job ids and dependencies, as class Schedule of include/starpipe/plan/schedule/schedule.hpp has them.

import type {ScheduleData} from "./data";

export const PASSES = ["F", "B", "W", "BW", "R", "O", "L"] as const;
export const F = 0;
export const B = 1;
export const W = 2;
export const BW = 3;
export const R = 4;
export const O = 5;
export const L = 6;

/** Where a stash waits, by the numbers of `ScheduleData.homes`; behind these words come the workers. */
const HOMES = ["worker", "none", "host", "disk"] as const;
const NONE = 1;

/** True for a copy of a stash, which takes no time of its worker. */
export function isCopy(pass: number): boolean {
  return pass === O || pass === L;
}

/** True where stashes are copied. */
export function copies(schedule: ScheduleData): boolean {
  return schedule.homes !== undefined;
}

export interface Job {
  stage: number;
  microbatch: number;
  /** Index in PASSES. */
  pass: number;
}

/** The ids of a stage and micro-batch: F, then B or BW, then W if any pair has it, then R or O if any has it, then L. */
export function slotsOf(schedule: ScheduleData): number {
  return remadeOrOffloaded(schedule) + (copies(schedule) ? 2 : schedule.recomputes ? 1 : 0);
}

function remadeOrOffloaded(schedule: ScheduleData): number {
  return schedule.split_backward ? 3 : 2;
}

export class Jobs {
  private readonly slots: number;
  /** Of R and O, from F on. */
  private readonly remade: number;
  private readonly predecessors: number[][];
  private readonly successors: number[][];
  private readonly partners = new Map<number, number>();

  /** `entry`: for each id, -1 when there is no such job. */
  constructor(
    private readonly schedule: ScheduleData,
    private readonly entry: Int32Array,
  ) {
    const {stages} = schedule;
    this.slots = slotsOf(schedule);
    this.remade = remadeOrOffloaded(schedule);
    this.predecessors = Array.from({length: stages}, () => []);
    this.successors = Array.from({length: stages}, () => []);
    const chain = Array.from({length: stages - 1}, (_, s): [number, number] => [s, s + 1]);
    for (const [from, to] of schedule.edges ?? chain) {
      this.successors[from].push(to);
      this.predecessors[to].push(from);
    }
    for (const [first, last] of schedule.pairs ?? []) this.partners.set(first, last).set(last, first);
  }

  /** The job that the worker runs at once with this one; undefined for a job that runs alone. */
  partner(id: number): number | undefined {
    return this.partners.get(id);
  }

  job(id: number): Job {
    const {stages} = this.schedule;
    const pair = Math.floor(id / this.slots);
    return {stage: pair % stages, microbatch: Math.floor(pair / stages), pass: this.pass(id)};
  }

  pass(id: number): number {
    const position = id % this.slots;
    if (position === 0) return F;
    if (position === this.remade) return this.homeNumber(id) === NONE ? R : O;
    if (position > this.remade) return L;
    if (position === 2) return W;
    return this.schedule.split_backward && this.entry[id + 1] >= 0 ? B : BW;
  }

  /** The home of a job's stash: where stashes are copied, as `HOMES` has it; else each that is made again has none. */
  private homeNumber(id: number): number {
    const {homes} = this.schedule;
    return homes === undefined ? NONE : homes[Math.floor(id / this.slots) % homes.length];
  }

  /** The home that O copies to, or L from; "" for other passes. */
  homeOf(id: number): string {
    if (!isCopy(this.pass(id))) return "";
    const home = this.homeNumber(id);
    return home < HOMES.length ? HOMES[home] : `worker ${home - HOMES.length}`;
  }

  name(id: number): string {
    const {stage, microbatch, pass} = this.job(id);
    return `${PASSES[pass]}(${this.label(stage)},${microbatch})`;
  }

  /** The stage's number, with a letter when it is a shard: "5b" is stage 5, the second shard of a stage. */
  label(stage: number): string {
    return this.schedule.labels?.[stage] ?? String(stage);
  }

  /** The stage with this number or label; -1 when there is none. */
  labelled(text: string): number {
    const stage = parseInt(text, 10);
    return text === String(stage) || text === this.label(stage) ? stage : -1;
  }

  /** The id of a job; undefined when there is none. */
  find(stage: number, microbatch: number, pass: number): number | undefined {
    const {stages, microbatches} = this.schedule;
    if (!(stage >= 0 && stage < stages && microbatch >= 0 && microbatch < microbatches)) return undefined;
    const places = [0, 1, 2, 1, this.remade, this.remade, this.remade + 1];
    const place = places[pass];
    const id = this.forward(stage, microbatch) + place;
    return id < this.entry.length && this.entry[id] >= 0 && this.pass(id) === pass ? id : undefined;
  }

  private forward(stage: number, microbatch: number): number {
    return (microbatch * this.schedule.stages + stage) * this.slots;
  }

  /** R of the stage and micro-batch; undefined when there is none. */
  private remaker(stage: number, microbatch: number): number | undefined {
    return this.schedule.recomputes ? this.find(stage, microbatch, R) : undefined;
  }

  /** O or L of the stage and micro-batch; undefined when there is none. */
  private copy(stage: number, microbatch: number, pass: typeof O | typeof L): number | undefined {
    return copies(this.schedule) ? this.find(stage, microbatch, pass) : undefined;
  }

  /** The micro-batch that is the slice before (-1) or after (1) of the same sequences; none where there is no such slice. */
  private slice(microbatch: number, step: -1 | 1): number[] {
    const {slices} = this.schedule;
    if (slices === undefined) return [];
    const place = (microbatch % slices) + step;
    return place >= 0 && place < slices ? [microbatch + step] : [];
  }

  /** Jobs that must end before this one starts, except for the sake of memory. A pair waits for the inputs of both jobs. */
  before(id: number): number[] {
    const partner = this.partner(id);
    return partner === undefined ? this.inputs(id) : [...this.inputs(id), ...this.inputs(partner)];
  }

  private inputs(id: number): number[] {
    const {stage, microbatch, pass} = this.job(id);
    if (pass === F) {
      const earlier = this.slice(microbatch, -1).map((b) => this.forward(stage, b));
      return [...this.predecessors[stage].map((s) => this.forward(s, microbatch)), ...earlier];
    }
    if (pass === W || pass === L) return [id - 1];
    const forward = this.forward(stage, microbatch);
    if (pass === O) return [forward];
    const backward = this.successors[stage].map((s) => this.forward(s, microbatch) + 1);
    if (pass === R) return this.schedule.recomputes_late ? [forward, ...backward] : [forward];
    const stash = this.copy(stage, microbatch, L) ?? this.remaker(stage, microbatch) ?? forward;
    const later = this.slice(microbatch, 1).map((b) => this.forward(stage, b) + 1);
    return [stash, ...backward, ...later];
  }

  /** Jobs that cannot start before this one has ended. */
  after(id: number): number[] {
    const {stage, microbatch, pass} = this.job(id);
    if (pass === W) return [];
    if (pass === R || pass === L) return [this.forward(stage, microbatch) + 1];
    if (pass === O) return [id + 1];
    if (pass === F) {
      const reader = this.copy(stage, microbatch, O) ?? this.remaker(stage, microbatch) ?? id + 1;
      const later = this.slice(microbatch, 1).map((b) => this.forward(stage, b));
      return [...this.successors[stage].map((s) => this.forward(s, microbatch)), ...later, reader];
    }
    const earlier = this.slice(microbatch, -1).map((b) => this.forward(stage, b) + 1);
    const backward = this.predecessors[stage].map((s) => this.forward(s, microbatch) + 1);
    const late = this.schedule.recomputes_late ? this.predecessors[stage].flatMap((s) => this.remaker(s, microbatch) ?? []) : [];
    return [...(pass === B ? [id + 1] : []), ...backward, ...earlier, ...late];
  }

  /** All jobs on which this one depends, and all that depend on it, with the dependencies among them. */
  chain(id: number): {jobs: Set<number>; links: [number, number][]} {
    const jobs = new Set([id]);
    const links: [number, number][] = [];
    const follow = (next: (of: number) => number[], link: (from: number, to: number) => [number, number]): void => {
      const seen = new Set([id]);
      const todo = [id];
      for (let at = todo.pop(); at !== undefined; at = todo.pop()) {
        for (const other of next(at)) {
          links.push(link(at, other));
          if (seen.has(other)) continue;
          seen.add(other);
          jobs.add(other);
          todo.push(other);
        }
      }
    };
    follow(
      (of) => this.before(of),
      (at, other) => [other, at],
    );
    follow(
      (of) => this.after(of),
      (at, other) => [at, other],
    );
    return {jobs, links};
  }
}
