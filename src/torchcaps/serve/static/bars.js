// A bar chart with one bar per class.

import { h, round, roving } from "./dom.js";

/** With `pick(index, how)` every row is a button; how is "hover" (also on focus), "leave" or "pin". */
export function classBars(host, classes, pick = null) {
  const rows = classes.map((name, index) => {
    const value = h("span", { class: "value" });
    const fill = h("span", { class: "fill" });
    const inside = [h("span", { class: "name" }, name), h("span", { class: "track" }, fill), value];
    const row = pick === null ? h("div", { class: "bar" }, ...inside) : h("button", { class: "bar", type: "button",
      onpointerenter: () => pick(index, "hover"), onpointerleave: () => pick(index, "leave"),
      onclick: () => pick(index, "pin"), onblur: () => pick(index, "leave"),
      onfocus: (event) => event.target.matches(":focus-visible") && pick(index, "hover"),
    }, ...inside);
    return { row, fill, value };
  });
  const ticks = ["0", "0.5", "1"].map((text) => h("span", {}, text));
  const sum = h("p", { class: "note sum" });
  host.replaceChildren(...rows.map(({ row }) => row), h("div", { class: "scale", "aria-hidden": "true" }, ...ticks), sum);
  const focus = pick && roving(rows.map(({ row }) => row), 1);

  return {
    /** `kinds[index]` is the style of a row: "won", "first", "second", … */
    show(values, kinds = {}) {
      rows.forEach(({ row, fill, value }, index) => {
        fill.style.setProperty("--value", Math.min(1, Math.max(0, values[index])));
        value.textContent = round(values[index]);
        row.dataset.kind = kinds[index] ?? "";
      });
      const total = values.reduce((all, value) => all + value, 0);
      sum.textContent = total === 0 ? "" : `They add up to ${round(total)}: every class is judged by itself, so they need not add up to 1.`;
    },
    /** Marks the pinned row, if any, and makes row `stop` the tab stop. */
    choose(pinned, stop) {
      rows.forEach(({ row }, i) => row.setAttribute("aria-pressed", String(i === pinned)));
      focus.settle(stop);
    },
    clear() { this.show(classes.map(() => 0)); },
  };
}
