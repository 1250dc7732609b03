// The way from one input to another through latent space.

import { ask, during } from "./api.js";
import { $, h, latest, percent, picture, whenSeen } from "./dom.js";
import { pLine, things } from "./things.js";

const NAMES = ["between-start", "between-end"]; // of the buttons

export class BetweenPanel {
  constructor(page) {
    this.page = page;
    this.ends = [null, null]; // { input, shown }
    this.load = latest(async (isLast) => {
      if (!this.ends[0] || !this.ends[1]) return false;
      const [start, end] = this.ends.map(({ input }) => input);
      const way = await during($("between-body"), () => ask("interpolation", { start, end, steps: 9 }));
      if (!way) return false;
      if (!isLast()) return undefined;
      $("between-body").replaceChildren(...things(page, way.inputs, (shown) =>
        [h("b", {}, shown.label), h("span", {}, percent(shown.probability)), pLine(page, shown)]));
      page.map.path("between", this.isShown ? way.inputs.map((input) => input.point) : null);
      return undefined;
    });
    this.stale = whenSeen($("between"), () => this.load());
    this.bar();
  }

  // At first, the way to another class that the page proposes; then what a person chooses.
  propose(start, end) {
    if (this.isChosen) return;
    this.ends = [start, end];
    this.bar();
    this.stale();
  }

  set(i) {
    if (!this.page.input) return;
    this.isChosen = true;
    this.ends[i] = { input: this.page.input, shown: this.page.shown };
    this.bar();
    $(NAMES[i]).focus();
    this.stale();
  }

  bar() {
    const slot = (i) => h("div", { class: "slot" }, this.ends[i]?.shown.png ? picture(this.ends[i].shown.png, "") : null,
      h("div", {}, h("small", {}, i ? "to" : "from"), this.ends[i]?.shown.label ?? "–"),
      h("button", { type: "button", id: NAMES[i], "aria-label": `Take the selected one as the ${i ? "end" : "start"}`, onclick: () => this.set(i) }, "Take the selected one"));
    const show = h("label", {}, h("input", { type: "checkbox", checked: this.isShown, onchange: (event) => {
      this.isShown = event.target.checked;
      this.stale();
    } }), " show the way on the map");
    $("between-bar").replaceChildren(slot(0), slot(1), show);
  }
}
