// The selected image, changed more and more.

import { request, whileBusy } from "./api.js";
import { driftChart } from "./charts.js";
import { $, h, latest, number, percent, picture, pText, whenSeen } from "./dom.js";

const NAMES = { colours: "Rotate its colours", inverted: "Swap bright and dark", noise: "Add noise" };
const ALARMS = { true: ["Typical", "Atypical"], false: ["As decided as usual", "Less decided than usual"] };
const UNITS = { colours: "rotated by", inverted: "swapped by", noise: "noise of ±" };

export class DriftPanel {
  constructor(page) {
    this.page = page;
    this.kind = page.about.drifts[0].name;
    this.slider = $("drift-amount");
    const buttons = page.about.drifts.map(({ name }) => h("button", { type: "button", "data-kind": name,
      "aria-pressed": String(name === this.kind), onclick: () => {
        this.kind = name;
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.kind === name));
        this.series = null;
        this.stale();
      } }, NAMES[name]));
    $("drift-kinds").replaceChildren(...buttons);
    this.slider.addEventListener("input", () => this.render());
    this.load = latest(async (isLast) => {
      if (!page.input) return false;
      const series = await whileBusy($("drift-body"), () => request("drift", { input: page.input, kind: this.kind }));
      if (!series) return false;
      if (!isLast()) return undefined;
      this.series = series;
      this.slider.max = String(series.inputs.length - 1);
      this.render();
      return undefined;
    });
    this.stale = whenSeen($("drift"), () => this.load());
  }

  render() {
    const { series, page } = this;
    if (!series) return;
    const step = Math.min(Number(this.slider.value), series.inputs.length - 1), view = series.inputs[step];
    const amount = `${number(series.amounts[step])} ${series.unit}`, isAtypical = view.p_value <= page.about.alpha;
    $("drift-output").textContent = amount;
    this.slider.setAttribute("aria-valuetext", `${amount}, ${pText(view.p_value, page.about.alpha)}, ${view.label}`);
    const box = $("drift-body").clientWidth, room = box > 560 ? box - 208 : box;
    $("drift-body").replaceChildren(
      h("div", { class: "now" }, h("div", { class: "look" }, picture(view.png, `The image, ${UNITS[this.kind]} ${amount}`)),
        h("span", { class: `verdict ${isAtypical ? "atypical" : "typical"}` }, ALARMS[page.about.uses_density][Number(isAtypical)]),
        h("span", {}, h("b", {}, view.label), ` ${percent(view.probability)}`),
        h("span", { class: "count" }, h("b", { id: "drift-p" }, pText(view.p_value, page.about.alpha)), `: ${view.rank_text}`)),
      h("figure", {}, driftChart(series, step, page.about.alpha, room, (i) => {
        this.slider.value = String(i);
        this.render();
      })));
    page.map?.path("drift", step > 0 ? series.inputs.slice(0, step + 1).map((view) => view.point) : null);
  }

  // The selected input has changed.
  renew() {
    this.series = null;
    this.slider.value = "0";
    this.page.map?.path("drift", null);
    this.stale();
  }
}
