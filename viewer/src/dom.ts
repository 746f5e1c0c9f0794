// SPDX-License-Identifier: Apache-2.0
// Elements. Texts become text nodes, never markup: names in reports are anyone's.

type Child = Node | string | null | undefined;
type Attributes = {[name: string]: string | number | boolean | undefined};

function fill(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
}

export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

export function svg<Tag extends keyof SVGElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[Tag] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, attributes, children);
  return element;
}

export function button(text: string, title: string, act: () => void): HTMLButtonElement {
  const element = h("button", {type: "button", title}, text);
  element.addEventListener("click", act);
  return element;
}

export interface Cell {
  text: string;
  node?: Node;
  /** Class names. */
  kind?: string;
}

/** A table whose first column has words and whose others have numbers, except `words`. The last `totals` rows are sums. */
export function table(
  heads: string[],
  rows: (string | Cell)[][],
  options: {caption?: string; words?: number[]; kind?: string; totals?: number} = {},
): HTMLElement {
  const words = new Set([0, ...(options.words ?? [])]);
  const head = h("tr");
  heads.forEach((text, c) => head.append(h("th", {scope: "col", class: words.has(c) ? "word" : undefined}, text)));
  const body = h("tbody");
  const firstTotal = rows.length - (options.totals ?? 0);
  rows.forEach((row, r) => {
    const line = h("tr", {class: r >= firstTotal ? "total" : undefined});
    row.forEach((cell, c) => {
      const {text, node, kind} = typeof cell === "string" ? {text: cell, node: undefined, kind: undefined} : cell;
      const classes = [words.has(c) ? "word" : "", kind ?? ""].join(" ").trim() || undefined;
      line.append(
        c === 0 ? h("th", {scope: "row", class: classes}, node ?? text) : h("td", {class: classes}, node ?? text),
      );
    });
    body.append(line);
  });
  const element = h("table", {class: options.kind}, options.caption ? h("caption", {}, options.caption) : null);
  if (heads.some((text) => text)) element.append(h("thead", {}, head));
  element.append(body);
  const scroll = h("div", {class: "scroll"}, element);
  scrollers.observe(scroll);
  return scroll;
}

/** What does not fit is reached with keys, too. */
const scrollers = new ResizeObserver((entries) => {
  for (const {target} of entries) {
    const fits = target.scrollWidth <= target.clientWidth && target.scrollHeight <= target.clientHeight;
    if (fits) target.removeAttribute("tabindex");
    else target.setAttribute("tabindex", "0");
  }
});

export function section(title: string, id: string, ...children: Child[]): HTMLElement {
  return h("section", {id}, h("h2", {}, title), ...children);
}
