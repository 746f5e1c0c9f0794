// SPDX-License-Identifier: Apache-2.0
// Long lists, a part at a time.

import {button, h} from "./dom";

/** Entries `begin` to `end` of a list. */
export type Part = (begin: number, end: number) => Node[];

/**
 * A list of `count` entries, at most `size` at a time. Buttons go through it. Paper has the part that is shown.
 * `word`: what the entries are, as in "workers 0 to 15 of 64".
 */
export function paged(count: number, size: number, word: string, make: Part): HTMLElement {
  const content = h("div", {});
  if (count <= size) {
    content.append(...make(0, count));
    return content;
  }
  let begin = 0;
  const shown = h("output", {class: "shown"});
  const show = (from: number): void => {
    begin = from;
    const end = Math.min(count, begin + size);
    shown.textContent = `${word} ${begin} to ${end - 1} of ${count}`;
    back.disabled = begin === 0;
    on.disabled = end === count;
    content.replaceChildren(...make(begin, end));
  };
  const back = button("←", `The ${word} before`, () => show(Math.max(0, begin - size)));
  const on = button("→", `The ${word} after`, () => show(begin + size));
  show(0);
  return h("div", {}, h("div", {class: "pager"}, back, on, shown), content);
}
