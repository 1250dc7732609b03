// What ibinn evaluate found.

import { ask, during } from "./api.js";
import { calibrationChart, scoreChart } from "./charts.js";
import { $, h, whenSeen } from "./dom.js";

export class QualityPanel {
  constructor(page) {
    this.page = page;
    whenSeen($("quality"), () => this.load());
  }

  async load() {
    const quality = await during($("quality-body"), () => ask("quality"));
    if (!quality) return false;
    $("quality-body").replaceChildren(...(quality.missing ? [h("p", {}, quality.missing)] : this.parts(quality)));
    return undefined;
  }

  parts(quality) {
    const [own, ...strange] = quality.sets;
    const { about } = this.page;
    return [h("p", { class: "lead" }, quality.headline),
      h("dl", { class: "findings" }, quality.findings.map((note) => h("div", {}, h("dt", {}, note.title), h("dd", {}, note.text)))),
      h("div", { class: "charts" },
        quality.bins.some((bin) => bin.share !== null) && h("figure", { class: "calibration" }, h("h3", {}, "Do its probabilities hold?"), calibrationChart(quality.bins),
          h("figcaption", {}, "On the dotted line a class that gets 80 % is right in 80 of 100 cases. On the right, points below it mean too sure and above it too cautious; "
            + `on the left the other way round. Points in the grey boxes are as good as perfect on so few ${about.kind}.`)),
        own && strange.length > 0 && h("div", { class: "sets" }, h("h3", {}, "Does it notice strange inputs?"),
          h("p", { class: "key" }, h("span", {}, h("i", { class: "quiet-box" }), `ordinary test ${about.kind}`), h("span", {}, h("i", { class: "against" }), "strange ones")),
          h("div", { class: "multiples" }, strange.map((set) => h("figure", {}, h("h3", {}, upper(set.told)),
            scoreChart(quality.edges, own.shares, set.shares, quality.threshold),
            h("figcaption", {}, `${set.flagged === null ? "" : `${set.flagged.toFixed(1)} % set off the alarm. `}`,
              set.auroc === null ? "" : `AUROC ${set.auroc.toFixed(1)} %.`)))),
          quality.threshold !== null && h("p", { class: "help" }, `Right of the line “alarm” is what gets p ≤ ${100 * about.alpha} %`,
            own.flagged === null ? "." : `: ${own.flagged.toFixed(1)} % of ordinary ${about.kind}, by mistake. Where the two colours overlap, strange inputs pass as ordinary ones.`)))];
  }
}

const upper = (text) => text[0].toUpperCase() + text.slice(1);
