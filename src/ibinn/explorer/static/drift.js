// The selected image, changed more and more.

import { ask, during } from "./api.js";
import { driftChart } from "./charts.js";
import { $, h, latest, number, percent, picture, toldP, whenSeen } from "./dom.js";

const NAMES = { colours: "Turn its colours", inverted: "Swap bright and dark", noise: "Add noise" };
const ALARMS = { true: ["No alarm", "Alarm"], false: ["As decided as usual", "Less decided than usual"] };
const UNITS = { colours: "turned by", inverted: "swapped by", noise: "noise of ±" };

export class DriftPanel {
  constructor(page) {
    this.page = page;
    this.kind = page.about.drifts[0].name;
    this.slider = $("drift-amount");
    const buttons = page.about.drifts.map(({ name }) => h("button", { type: "button", "data-kind": name,
      "aria-pressed": String(name === this.kind), onclick: () => {
        this.kind = name;
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.kind === name));
        this.way = null;
        this.stale();
      } }, NAMES[name]));
    $("drift-kinds").replaceChildren(...buttons);
    this.slider.addEventListener("input", () => this.render());
    this.load = latest(async (isLast) => {
      if (!page.input) return false;
      const way = await during($("drift-body"), () => ask("drift", { input: page.input, kind: this.kind }));
      if (!way) return false;
      if (!isLast()) return undefined;
      this.way = way;
      this.slider.max = String(way.inputs.length - 1);
      this.render();
      return undefined;
    });
    this.stale = whenSeen($("drift"), () => this.load());
  }

  render() {
    const { way, page } = this;
    if (!way) return;
    const step = Math.min(Number(this.slider.value), way.inputs.length - 1), shown = way.inputs[step];
    const amount = `${number(way.amounts[step])} ${way.unit}`, isPast = shown.p <= page.about.alpha;
    $("drift-output").textContent = amount;
    this.slider.setAttribute("aria-valuetext", `${amount}, ${toldP(shown.p, page.about.alpha)}, ${shown.label}`);
    const box = $("drift-body").clientWidth, room = box > 560 ? box - 208 : box;
    $("drift-body").replaceChildren(
      h("div", { class: "now" }, h("div", { class: "look" }, picture(shown.png, `The image, ${UNITS[this.kind]} ${amount}`)),
        h("span", { class: `verdict ${page.canAlarm ? (isPast ? "atypical" : "typical") : ""}` },
          page.canAlarm ? ALARMS[page.about.has_density][Number(isPast)] : "Too little to compare with"),
        h("span", {}, h("b", {}, shown.label), ` ${percent(shown.probability)}`),
        h("span", { class: "count" }, h("b", { id: "drift-p" }, toldP(shown.p, page.about.alpha)), `: ${shown.chance}`)),
      h("figure", {}, driftChart(way, step, page.about.alpha, room, (i) => {
        this.slider.value = String(i);
        this.render();
      })));
    page.map?.path("drift", step > 0 ? way.inputs.slice(0, step + 1).map((input) => input.point) : null);
  }

  // The selected input has changed.
  renew() {
    this.way = null;
    this.slider.value = "0";
    this.page.map?.path("drift", null);
    this.stale();
  }
}
