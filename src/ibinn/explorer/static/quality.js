// The results of ibinn evaluate.

import { request, whileBusy } from "./api.js";
import { calibrationChart, scoreChart } from "./charts.js";
import { $, h, whenSeen } from "./dom.js";

export class QualityPanel {
  constructor(page) {
    this.page = page;
    whenSeen($("quality"), () => this.load());
  }

  async load() {
    const quality = await whileBusy($("quality-body"), () => request("quality"));
    if (!quality) return false;
    $("quality-body").replaceChildren(...(quality.missing ? [h("p", {}, quality.missing)] : this.parts(quality)));
    return undefined;
  }

  parts(quality) {
    const [test, ...ood] = quality.sets;
    const { about } = this.page;
    return [h("p", { class: "lead" }, quality.headline),
      h("dl", { class: "findings" }, quality.findings.map(({ title, text }) => h("div", {}, h("dt", {}, title), h("dd", {}, text)))),
      h("div", { class: "charts" },
        quality.bins.some((bin) => bin.share !== null) && h("figure", { class: "calibration" }, h("h3", {}, "Do its probabilities hold?"), calibrationChart(quality.bins),
          h("figcaption", {}, "On the dotted line a class that gets 80 % is right in 80 of 100 cases. On the right, points below it mean too sure and above it too cautious; "
            + `on the left the other way round. Points in the grey boxes are as good as perfect on a test set of this size.`)),
        test && ood.length > 0 && h("div", { class: "sets" }, h("h3", {}, "Does it detect strange inputs?"),
          h("p", { class: "key" }, h("span", {}, h("i", { class: "quiet-box" }), `test ${about.kind}`), h("span", {}, h("i", { class: "against" }), "strange inputs")),
          h("div", { class: "multiples" }, ood.map((set) => h("figure", {}, h("h3", {}, upper(set.title)),
            scoreChart(quality.edges, test.shares, set.shares, quality.threshold),
            h("figcaption", {}, `${set.flagged === null ? "" : `${set.flagged.toFixed(1)} % are flagged as atypical. `}`,
              set.auroc === null ? "" : `AUROC ${set.auroc.toFixed(1)} %.`)))),
          quality.threshold !== null && h("p", { class: "help" }, `Inputs right of the line “alarm” have p ≤ ${100 * about.alpha} %`,
            test.flagged === null ? "." : `: ${test.flagged.toFixed(1)} % of test ${about.kind} are false alarms. Where the two colours overlap, strange inputs pass as typical ones.`)))];
  }
}

const upper = (text) => text[0].toUpperCase() + text.slice(1);
