// A list of inputs, as pictures or as the rows of a table. Each can be selected.

import { h, number, percent, picture, roundedP } from "./dom.js";

// under(view) returns the lines below a picture.
export function inputList(page, views, under) {
  return page.about.kind === "images" ? views.map((view) => card(page, view, under(view).filter(Boolean))) : [table(page, views)];
}

function card(page, view, lines) {
  const title = `${view.label}, ${percent(view.probability)}; ${view.rank_text}`;
  return h("button", { type: "button", class: "thing", title, "aria-label": `Open this one: ${title}`, onclick: () => page.open({ png: view.png }) },
    picture(view.png, ""), ...lines);
}

export function pLine(page, view) {
  return h("span", { class: view.p_value <= page.about.alpha ? "bad" : null }, `p ${roundedP(view.p_value, page.about.alpha)}`);
}

function table(page, views) {
  const names = page.about.features.map((feature) => feature.name);
  const head = ["open", "class", "p", ...names].map((name) => h("th", { scope: "col" }, name));
  const rows = views.map((view) => h("tr", {},
    h("td", {}, h("button", { type: "button", onclick: () => page.open({ row: view.row }) }, "Open")),
    h("td", {}, `${view.label}, ${percent(view.probability)}`), h("td", { class: view.p_value <= page.about.alpha ? "bad" : null }, roundedP(view.p_value, page.about.alpha)),
    ...view.row.map((value) => h("td", {}, number(value)))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Rows" },
    h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)));
}
