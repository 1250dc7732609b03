// One decision: class, verdict, probabilities, rank among the calibration inputs, and the evidence.

import { request, whileBusy } from "./api.js";
import { rankChart } from "./charts.js";
import { $, h, latest, number, percent, pText, picture, roundedP } from "./dom.js";

const FIRST = 5; // classes shown at once

const VERDICTS = {
  true: { typical: "Typical", atypical: "Atypical: do not trust it" },
  false: { typical: "As decided as usual", atypical: "Less decided than usual" },
};

export class DecisionPanel {
  constructor(page) {
    this.page = page;
    this.body = $("decision-body");
    this.isOpen = false; // the evidence
    this.allClasses = false;
    this.show = latest(async (isLast, input, notes = []) => {
      const decision = await whileBusy(this.body, () => request("decision", { input }));
      if (!decision || !isLast()) return;
      if (JSON.stringify(this.input) !== JSON.stringify(input)) this.pair = null;
      this.input = input;
      this.render(decision, notes);
      page.decided(input, decision);
    });
    this.showEvidence = latest(async (isLast) => {
      const [a, b] = this.pair, place = $("evidence-body");
      const evidence = await whileBusy(place, () => request("evidence", { input: this.input, a, b }));
      if (evidence && isLast() && this.isOpen) this.renderEvidence(evidence);
    });
  }

  render(decision, notes) {
    const { view, explanation, true_class: truth } = decision, { about } = this.page;
    const p = pText(view.p_value, about.alpha), verdict = VERDICTS[about.uses_density][decision.verdict];
    $("decision-news").textContent = `${view.label}, ${percent(view.probability)}. ${verdict}. ${p}: ${view.rank_text}.`;
    const order = about.classes.map((name, k) => [name, explanation.posterior[name], k]).sort((a, b) => b[1] - a[1]);
    this.order = order;
    this.pair ??= [order[0][2], order[1][2]];
    const isWrong = truth !== null && truth !== view.label;
    this.look = h("div", { class: "look" }, view.png && picture(view.png, `The selected ${this.page.thing}`));
    this.body.replaceChildren(
      h("div", { class: "top" }, view.png ? this.look : null,
        h("div", {},
          h("span", { class: `verdict ${decision.verdict}`, id: "verdict" }, verdict),
          h("p", { class: "big" }, `${view.label} `, h("span", { class: "sub" }, percent(view.probability))),
          truth === null ? null : h("p", { class: `sub${isWrong ? " bad" : ""}` }, isWrong ? `true class: ${truth}` : "correct"),
          h("p", { class: "sub", id: "rank-text" }, h("b", { id: "p-value" }, p), `: ${view.rank_text}.`),
          about.can_flag ? null : h("p", { class: "sub", id: "coarse" }, `The p-values of ${about.n_calibration} calibration ${about.kind} are too coarse to flag anything.`),
          ...notes.map((note) => h("p", { class: "sub" }, `Your image was ${note}.`)))),
      h("p", { class: "sentence", id: "sentence" }, explanation.text),
      h("div", { class: "parts" },
        h("div", {}, h("h3", {}, "Which class?"), this.bars(order)),
        h("figure", {}, h("h3", {}, about.uses_density ? "How typical?" : "How decided?"),
          rankChart(explanation.rank, p, about.kind, about.uses_density ? "stranger" : "less decided"),
          h("figcaption", {}, about.uses_density
            ? `Right of most bars: stranger than most calibration ${about.kind}. ${about.can_flag ? `With p ≤ ${100 * about.alpha} % it is atypical.`
              : `With only ${about.n_calibration} to compare with, nothing can be flagged as atypical.`}`
            : "Without a density the model only shows how undecided it is: further right is less decided.")),
        this.evidence(), this.numbers(explanation)));
    if (this.isOpen) this.showEvidence();
  }

  bars(order) {
    const some = this.allClasses ? order : order.slice(0, FIRST);
    const list = h("ul", { class: "bars" }, some.map(([name, share]) => bar(name, percent(share), (share ?? 0) * 100)));
    if (order.length <= FIRST) return list;
    const more = h("button", { type: "button", id: "all-classes", onclick: () => {
      this.allClasses = !this.allClasses;
      place.replaceWith(this.bars(order));
      $("all-classes").focus();
    } }, this.allClasses ? "Only the most probable" : `All ${order.length} classes`);
    const place = h("div", {}, list, h("p", { class: "help" }, more));
    return place;
  }

  evidence() {
    const { about } = this.page;
    const select = (i) => h("select", { "aria-label": i ? "evidence against" : "evidence for", onchange: (event) => {
      this.pair[i] = Number(event.target.value);
      if (this.pair[0] === this.pair[1]) this.pair[1 - i] = this.order.find(([, , k]) => k !== this.pair[i])[2];
      this.reset();
    } }, this.order.map(([name, , k]) => h("option", { value: k, selected: this.pair[i] === k }, name)));
    const selects = [select(0), select(1)];
    this.reset = () => {
      selects.forEach((element, i) => { element.value = this.pair[i]; });
      if (this.isOpen) this.showEvidence();
    };
    const what = about.kind === "images" ? "pixels" : "columns";
    const button = h("button", { type: "button", id: "evidence", "aria-pressed": String(this.isOpen), onclick: () => {
      this.isOpen = !this.isOpen;
      button.setAttribute("aria-pressed", String(this.isOpen));
      if (this.isOpen) this.showEvidence();
      else this.hideEvidence();
    } }, `Show the ${what}`);
    return h("div", {}, h("h3", {}, "Evidence"),
      h("div", { class: "evidence" }, button, "for", selects[0], "against", selects[1]), h("div", { id: "evidence-body" }));
  }

  hideEvidence() {
    this.look.classList.remove("shows");
    this.look.querySelector(".over")?.remove();
    $("evidence-body").replaceChildren();
  }

  renderEvidence(evidence) {
    this.hideEvidence();
    const key = h("p", { class: "key" }, h("span", {}, h("i", { class: "for" }), `evidence for ${evidence.a}`),
      h("span", {}, h("i", { class: "against" }), `evidence for ${evidence.b}`));
    if (evidence.png) {
      this.look.classList.add("shows");
      this.look.append(picture(evidence.png, `Evidence of the pixels for ${evidence.a} and for ${evidence.b}`, "px over"));
      $("evidence-body").replaceChildren(key, h("p", { class: "help" },
        `Strong colours decide, pale ones hardly matter. ${odds("pixel", evidence.strongest)}`));
      return;
    }
    const names = this.page.about.features.map((feature) => feature.name), most = evidence.strongest || 1;
    const order = evidence.values.map((value, i) => [value, i]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 10);
    const list = order.map(([value, i]) => {
      const item = bar(names[i], `${value > 0 ? "+" : "−"}${number(Math.abs(value))}`, (50 * Math.abs(value)) / most);
      const filled = item.querySelector(".fill");
      filled.classList.add(value > 0 ? "for" : "against");
      filled.style.left = value > 0 ? "50%" : `${50 - (50 * Math.abs(value)) / most}%`;
      return item;
    });
    $("evidence-body").replaceChildren(key, h("ul", { class: "bars signed" }, list), h("p", { class: "help" },
      `Longer bars matter more, compared with an average row. ${odds("column", evidence.strongest)}`));
  }

  numbers(explanation) {
    const rows = [["p-value by score", Object.entries(explanation.p_values).map(([name, p]) => `${name} ${roundedP(p, this.page.about.alpha)}`).join(", ")],
      ["smallest possible p", roundedP(explanation.smallest_p, this.page.about.alpha)]];
    if (explanation.log_q_x !== null) rows.unshift(["log-density log q(x)", `${number(explanation.log_q_x)} nats`]);
    if (explanation.nearest) {
      const typical = explanation.typical_distance === null ? "" : ` (typical: ${number(explanation.typical_distance)})`;
      rows.push(["nearest class centres", explanation.nearest.map((m) => `${m.label} at ${number(m.distance)}`).join(", ") + typical]);
    }
    return h("details", { open: this.hasNumbers, ontoggle: (event) => { this.hasNumbers = event.target.open; } }, h("summary", {}, "All numbers"),
      h("dl", { class: "numbers" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
  }
}

// What the strongest of an evidence map, in nats, does to the odds.
function odds(what, nats) {
  return nats < 20 ? `The strongest ${what} alone changes the odds, before calibration, by a factor of ${Number(Math.max(Math.exp(nats), 1).toPrecision(2)).toLocaleString("en")}.` : "";
}

function bar(name, value, width) {
  const fill = h("div", { class: "fill" });
  fill.style.width = `${width}%`;
  return h("li", {}, h("span", { class: "name", title: name }, name), h("div", { class: "track", "aria-hidden": "true" }, fill),
    h("span", { class: "value" }, value));
}
