// An interpolation from one input to another in latent space.

import { request, whileBusy } from "./api.js";
import { $, h, latest, percent, picture, whenSeen } from "./dom.js";
import { inputList, pLine } from "./inputs.js";

const NAMES = ["between-start", "between-end"]; // of the buttons

export class BetweenPanel {
  constructor(page) {
    this.page = page;
    this.ends = [null, null]; // { input, view }
    this.load = latest(async (isLast) => {
      if (!this.ends[0] || !this.ends[1]) return false;
      const [start, end] = this.ends.map(({ input }) => input);
      const series = await whileBusy($("between-body"), () => request("interpolation", { start, end, steps: 9 }));
      if (!series) return false;
      if (!isLast()) return undefined;
      $("between-body").replaceChildren(...inputList(page, series.inputs, (view) =>
        [h("b", {}, view.label), h("span", {}, percent(view.probability)), pLine(page, view)]));
      page.map.path("between", this.isShown ? series.inputs.map((view) => view.point) : null);
      return undefined;
    });
    this.stale = whenSeen($("between"), () => this.load());
    this.bar();
  }

  // The first pair comes from the page; the user can then choose others.
  propose(start, end) {
    if (this.hasChoice) return;
    this.ends = [start, end];
    this.bar();
    this.stale();
  }

  set(i) {
    if (!this.page.input) return;
    this.hasChoice = true;
    this.ends[i] = { input: this.page.input, view: this.page.view };
    this.bar();
    $(NAMES[i]).focus();
    this.stale();
  }

  bar() {
    const slot = (i) => h("div", { class: "slot" }, this.ends[i]?.view.png ? picture(this.ends[i].view.png, "") : null,
      h("div", {}, h("small", {}, i ? "to" : "from"), this.ends[i]?.view.label ?? "–"),
      h("button", { type: "button", id: NAMES[i], "aria-label": `Use the selected input as the ${i ? "end" : "start"}`, onclick: () => this.set(i) }, "Use the selected one"));
    const show = h("label", {}, h("input", { type: "checkbox", checked: this.isShown, onchange: (event) => {
      this.isShown = event.target.checked;
      this.stale();
    } }), " show the path on the map");
    $("between-bar").replaceChildren(slot(0), slot(1), show);
  }
}
