// Words explained where they stand: a button shows its meaning on hover, focus or click; Escape hides it.

import { h } from "./dom.js";

let count = 0;

/** Turns every `[data-word]` in `root` into such a button. `meanings` maps words to texts; others stay plain text. */
export function explainWords(root, meanings) {
  for (const place of root.querySelectorAll("[data-word]")) {
    const meaning = meanings[place.dataset.word];
    if (meaning && !place.querySelector(".word")) place.replaceChildren(...word(place.textContent, meaning));
  }
}

function word(text, meaning) {
  count += 1;
  const tip = h("span", { class: "meaning-tip", role: "tooltip", id: `word-${count}`, hidden: true }, meaning);
  const button = h("button", { type: "button", class: "word", "aria-describedby": tip.id, "aria-expanded": "false" }, text);
  let pinned = false;
  const show = (visible) => {
    if (visible) place(tip, button);
    tip.hidden = !visible;
    button.setAttribute("aria-expanded", String(visible));
  };
  button.addEventListener("click", () => { pinned = !pinned; show(pinned); });
  button.addEventListener("focus", () => { if (button.matches(":focus-visible")) show(true); });
  button.addEventListener("blur", () => { pinned = false; show(false); });
  button.addEventListener("keydown", (event) => { if (event.key === "Escape") { pinned = false; show(false); } });
  const both = h("span", { class: "word-with-tip" }, button, tip);
  both.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") show(true); });
  both.addEventListener("pointerleave", () => { if (!pinned && document.activeElement !== button) show(false); });
  return [both];
}

/** Moves the text sideways until it lies inside the page. */
function place(tip, button) {
  tip.hidden = false;
  tip.style.setProperty("--shift", "0px");
  const room = document.documentElement.clientWidth - 8;
  const over = button.getBoundingClientRect().left + tip.offsetWidth - room;
  tip.style.setProperty("--shift", `${-Math.max(0, over)}px`);
}
