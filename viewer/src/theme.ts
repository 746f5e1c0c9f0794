// SPDX-License-Identifier: Apache-2.0
// Light and dark. Colours are those of the style sheet, so that drawings and tables have the same.

export type Theme = "auto" | "light" | "dark";

export interface Colours {
  background: string;
  panel: string;
  text: string;
  muted: string;
  line: string;
  accent: string;
  /** By index of PASSES. */
  passes: string[];
  /** Text on them. */
  onPasses: string[];
  /** By index of CAUSES. */
  causes: string[];
  path: string;
  selected: string;
}

/** A colour of the style sheet. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function colours(): Colours {
  return {
    background: colour("background"),
    panel: colour("panel"),
    text: colour("text"),
    muted: colour("muted"),
    line: colour("line"),
    accent: colour("accent"),
    passes: ["f", "b", "w", "bw"].map((pass) => colour(`pass-${pass}`)),
    onPasses: ["f", "b", "w", "bw"].map((pass) => colour(`on-pass-${pass}`)),
    causes: ["fill", "drain", "producer", "transfer", "order", "runtime"].map((cause) => colour(`idle-${cause}`)),
    path: colour("path"),
    selected: colour("selected"),
  };
}

const listeners: (() => void)[] = [];

/** Calls `act` after each change of colours. */
export function onThemeChange(act: () => void): void {
  listeners.push(act);
}

function notify(): void {
  for (const act of listeners) act();
}

function apply(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  notify();
}

/** A button that goes through auto, light and dark. */
export function themeButton(): HTMLButtonElement {
  const order: Theme[] = ["auto", "light", "dark"];
  let at = 0;
  const element = document.createElement("button");
  element.type = "button";
  element.title = "Colours: as the system's, light, dark";
  const show = (): void => {
    element.textContent = `Colours: ${order[at]}`;
  };
  element.addEventListener("click", () => {
    at = (at + 1) % order.length;
    show();
    apply(order[at]);
  });
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", notify);
  // Paper is light.
  let before: string | undefined;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset["theme"];
    apply("light");
  });
  addEventListener("afterprint", () => apply((before as Theme | undefined) ?? "auto"));
  return element;
}
