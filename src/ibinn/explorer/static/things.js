// Inputs in a row, as pictures or as the rows of a table, each of which can be looked at.

import { h, number, percent, picture, told } from "./dom.js";

// page.pick(input) makes one of them the selected input. under(shown, i) gives what stands below a picture.
export function things(page, inputs, under) {
  return page.about.kind === "images" ? inputs.map((shown, i) => card(page, shown, under(shown, i).filter(Boolean))) : [table(page, inputs)];
}

function card(page, shown, lines) {
  const title = `${shown.label}, ${percent(shown.probability)}; ${shown.chance}`;
  return h("button", { type: "button", class: "thing", title, "aria-label": `Look at this one: ${title}`, onclick: () => page.look({ png: shown.png }) },
    picture(shown.png, ""), ...lines);
}

export function pLine(page, shown) {
  return h("span", { class: shown.p <= page.about.alpha ? "bad" : null }, `p ${told(shown.p, page.about.alpha)}`);
}

function table(page, inputs) {
  const names = page.about.features.map((feature) => feature.name);
  const head = ["look", "class", "p", ...names].map((name) => h("th", { scope: "col" }, name));
  const rows = inputs.map((shown) => h("tr", {},
    h("td", {}, h("button", { type: "button", onclick: () => page.look({ row: shown.row }) }, "Look")),
    h("td", {}, `${shown.label}, ${percent(shown.probability)}`), h("td", { class: shown.p <= page.about.alpha ? "bad" : null }, told(shown.p, page.about.alpha)),
    ...shown.row.map((value) => h("td", {}, number(value)))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Rows" },
    h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)));
}
