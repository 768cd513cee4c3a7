// Small DOM helpers. Text from the server is only inserted as text nodes, never as HTML.

export const $ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** Arrow keys move the focus among items, of which one is the tab stop. With `columns`, up and down move by rows. */
export function roving(items, columns = items.length) {
  let current = 0;
  const settle = (index) => {
    current = index;
    items.forEach((item, i) => { item.tabIndex = i === current ? 0 : -1; });
  };
  items.forEach((item, index) => {
    item.addEventListener("focus", () => settle(index));
    item.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns === items.length ? 1 : columns,
        ArrowUp: columns === items.length ? -1 : -columns, Home: -index, End: items.length - 1 - index };
      const step = steps[event.key];
      if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      const next = index + step;
      if (next >= 0 && next < items.length) items[next].focus();
    });
  });
  settle(0);
  // While an item has the focus, it stays the tab stop.
  return { settle: (index) => { if (!items.includes(document.activeElement)) settle(index); } };
}

/** A slider with label and value; `set` changes it without calling `oninput`. */
export function slider({ id, label, min, max, step, value, show = String, oninput }) {
  const output = h("output", { for: id }, show(value));
  const input = h("input", { type: "range", id, min, max, step, value });
  const text = h("label", { for: id }, label);
  const set = (number) => {
    input.value = number;
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { set(input.value); oninput(Number(input.value)); });
  set(value);
  return { element: h("div", { class: "slider" }, text, output, input), input, text, set };
}

export const round = (number, digits = 2) => number.toFixed(digits).replace("-0.00", "0.00").replace("-", "−");

/** "a 5", "an 8", "an airplane" */
export const withArticle = (name) => `${/^([aeiou]|8|11$|18$)/i.test(name) ? "an" : "a"} ${name}`;

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
