// The page: what is selected, and who needs to know.

import { ask, during, hush, Problem, tell } from "./api.js";
import { BetweenPanel } from "./between.js";
import { dark, sprite } from "./colours.js";
import { DecisionPanel } from "./decision.js";
import { $, h, number, toldP } from "./dom.js";
import { DriftPanel } from "./drift.js";
import { LatentMap } from "./map.js";
import { QualityPanel } from "./quality.js";
import { SamplesPanel } from "./samples.js";

const MOST_BYTES = 20_000_000;
const PIECE = 200; // points of the map at a time, so that other questions need not wait long

class Page {
  async start() {
    this.about = await ask("about");
    const { about } = this;
    this.thing = about.kind === "images" ? "image" : "row";
    this.canAlarm = 1 / (about.n_calibration + 1) <= about.alpha;
    this.points = { y: [], called: [], p: [] };
    this.input = this.shown = null; // the selected input, and what the model says of it
    this.index = 0; // the last that was selected on the map
    this.turn = 0; // counts what a person asks for
    this.introduce();
    this.decision = new DecisionPanel(this);
    if (about.map_of) this.map = new LatentMap(about, { pick: (i) => this.pick({ index: i }), hover: (i, x, y) => this.hover(i, x, y) });
    if (about.drifts.length) this.drift = new DriftPanel(this);
    if (about.map_of) this.between = new BetweenPanel(this);
    if (about.map_of) new SamplesPanel(this);
    new QualityPanel(this);
    if (about.map_of) this.legend();
    this.listen();
    if (about.kind === "rows") this.form();
    await this.first();
    if (about.map_of) await this.fillMap();
  }

  introduce() {
    const { about } = this, things = about.kind, { n_train: n } = about;
    document.title = `${about.name} – ibinn explorer`;
    $("name").textContent = about.name;
    const [height, width, channels] = about.shape;
    const size = things === "images" ? `${channels === 1 ? "grey" : "colour"} images of ${width} × ${height} pixels` : `rows of ${about.shape[0]} columns`;
    $("facts").textContent = [about.gamma === null ? about.method : `${about.method}, γ = ${about.gamma}`,
      `${about.classes.length} classes`, size, n === null ? null : `trained on ${n.toLocaleString("en")} ${things}${about.data ? ` of ${about.data}` : ""}`]
      .filter(Boolean).join(" · ");
    if (about.notes.length) {
      $("notes").textContent = about.notes.join(" ");
      $("notes").hidden = false;
    }
    const isCooled = about.temperature !== null && about.temperature < 1;
    const dot = about.map_of === "samples" ? `${this.thing === "image" ? "an image" : "a row"} that the model made up${isCooled ? `, at temperature ${about.temperature},` : ","} placed where it sees it, coloured by the class it was made for`
      : `a test ${this.thing}, placed where the model sees it and coloured by its true class`;
    $("map-say").textContent = `Each dot is ${dot}. Kinds that keep to themselves are easy to tell apart; this is a flat view of many dimensions, so kinds `
      + "that overlap here may still be far apart for the model.";
    $("decision-say").textContent = about.has_density
      ? `What the model makes of one ${this.thing}: ${this.canAlarm ? "if it looks ordinary, take the probabilities at their word; if it looks unusual, trust none of them."
        : `it has too few ${things} to compare with to tell whether one is unusual.`}`
      : `What the model makes of one ${this.thing}: without a density it cannot tell whether it knows such ${things}, only how decided it is.`;
    $("drift-say").textContent = "The selected image, changed more and more: " + (about.has_density
      ? "a model that knows its limits finds it ever more unusual, and raises the alarm. Its way is drawn on the map."
      : "without a density the model can only become less decided, and often does not even that.");
    $("between-say").textContent = `The straight way from one ${this.thing} to another through the model's inner space: small, believable steps mean that it `
      + "knows what lies between.";
    $("samples-say").textContent = `${things === "images" ? "Images" : "Rows"} that the model made up: clean and varied ones mean that it knows what the class looks like; `
      + `a low temperature gives the most typical ones.${isCooled ? ` Above ${about.temperature} most of this model's lie far outside of the range of pixels.` : ""}`;
    $("quality-say").textContent = `How well the model did on test ${things} that it never saw: whether its probabilities hold, and which strange inputs it notices.`;
    $("samples-body").classList.toggle("grid", things === "images");
    $("map-canvas").setAttribute("aria-label", `Map of ${about.n_inputs} ${things}`);
    for (const element of document.querySelectorAll(".thing-name")) element.textContent = things === "images" ? "Image" : "Row";
    $("pick-total").textContent = `of ${about.n_inputs.toLocaleString("en")}`;
    $("pick").max = String(about.n_inputs);
    $("picker").hidden = about.n_inputs === 0;
    $("filter-unusual").hidden = !this.canAlarm;
    $("upload-label").hidden = things === "rows";
    const there = { map: about.map_of, drift: about.drifts.length, between: about.map_of, samples: about.map_of };
    for (const [id, isThere] of Object.entries(there)) $(id).hidden = !isThere;
    document.querySelector(".two").classList.toggle("one", !about.map_of);
    $("panels").replaceChildren(...["map", "decision", "drift", "between", "samples", "quality"].filter((id) => !$(id).hidden)
      .map((id) => h("a", { href: `#${id}` }, $(`${id}-title`).textContent)));
  }

  // --- the selected input

  // input: { index }, { png } or { row }.
  pick(input, notes = []) {
    hush();
    this.turn += 1;
    return this.decision.show(input, notes);
  }

  // From another panel: the decision comes into view.
  async look(input) {
    await this.pick(input);
    $("decision").scrollIntoView();
    $("decision-title").focus({ preventScroll: true });
  }

  decided(input, decision) {
    this.input = input;
    this.shown = decision.shown;
    this.index = input.index ?? this.index;
    $("pick").value = input.index === undefined ? "" : String(input.index + 1);
    this.map?.select(decision.shown.point, input.index ?? null);
    this.drift?.renew();
    if (this.features && input !== this.typed) this.showRow(decision.shown.row);
  }

  async first() {
    const { about } = this;
    if (about.n_inputs) await this.pick({ index: 0 });
    else if (about.kind === "rows") await this.pick({ row: about.features.map((feature) => feature.middle) });
    else $("decision-body").replaceChildren(h("p", {}, "Choose an image of your own to begin."));
  }

  async upload(file) {
    if (!file) return;
    hush();
    const mine = ++this.turn;
    const image = await during($("decision-body"), () => {
      if (file.size > MOST_BYTES) throw new Problem("The file has more than 20 MB; make the image smaller.");
      return ask("upload", file);
    });
    if (image && mine === this.turn) await this.pick({ png: image.png }, image.notes);
  }

  // --- the map

  async fillMap() {
    const { about, points } = this;
    for (let start = 0; start < about.n_inputs; start += PIECE) {
      $("map-loading").textContent = `${start.toLocaleString("en")} of ${about.n_inputs.toLocaleString("en")} placed`;
      let part;
      try {
        part = await ask(`map?start=${start}&count=${PIECE}`);
      } catch (problem) {
        $("map-loading").textContent = `stopped at ${start.toLocaleString("en")} of ${about.n_inputs.toLocaleString("en")}; reload the page to go on`;
        throw problem;
      }
      points.y.push(...part.y);
      points.called.push(...part.called);
      points.p.push(...part.p);
      this.map.add(part);
      this.count();
      if (start === 0) this.propose().catch(tell);
    }
    $("map-loading").textContent = "";
    document.body.dataset.map = "whole";
  }

  // The selected input, and the first that the model calls otherwise.
  async propose() {
    const start = { input: this.input, shown: this.shown };
    const other = this.points.called.findIndex((label) => this.about.classes[label] !== start.shown?.label);
    if (other < 0 || !start.shown) return;
    const { shown } = await ask("decision", { input: { index: other } });
    this.between.propose(start, { input: { index: other }, shown });
  }

  isBright(i) {
    const { points } = this, { value } = $("filter");
    if (this.only !== undefined && points.y[i] !== this.only) return false;
    return value === "all" || (value === "wrong" ? points.y[i] !== points.called[i] : points.p[i] <= this.about.alpha);
  }

  count() {
    const n = this.points.y.filter((_, i) => this.isBright(i)).length, all = this.points.y.length;
    $("filter-count").textContent = n === all ? "" : `${n.toLocaleString("en")} of ${all.toLocaleString("en")}`;
  }

  legend() {
    const { classes } = this.about;
    const draw = () => $("legend").replaceChildren(...classes.map((name, k) => {
      const mark = sprite(k, classes.length, 5, 1);
      mark.setAttribute("aria-hidden", "true");
      return h("button", { type: "button", "aria-pressed": String(this.only === k), onclick: () => {
        this.only = this.only === k ? undefined : k;
        [...$("legend").children].forEach((button, i) => button.setAttribute("aria-pressed", String(this.only === i)));
        this.refilter();
      } }, mark, name);
    }));
    draw();
    dark.addEventListener("change", draw);
  }

  refilter() {
    this.map.filter((i) => this.isBright(i));
    this.count();
  }

  hover(i, x, y) {
    const tip = $("map-tip"), { about, points } = this;
    tip.hidden = i === null;
    if (i === null || i === this.hovered) {
      this.hovered = i;
      if (i !== null) this.placeTip(tip, x, y);
      return;
    }
    this.hovered = i;
    const truth = about.map_of === "test" ? `true class ${about.classes[points.y[i]]}` : `made as ${about.classes[points.y[i]]}`;
    tip.replaceChildren(about.kind === "images" ? h("img", { class: "px", src: `api/inputs/${i}.png`, alt: "" }) : "",
      h("div", {}, h("b", {}, about.classes[points.called[i]] ?? "no class"), h("span", {}, truth), h("span", {}, toldP(points.p[i], about.alpha))));
    this.placeTip(tip, x, y);
  }

  placeTip(tip, x, y) {
    const box = $("map-box").getBoundingClientRect();
    tip.style.left = `${Math.min(Math.max(x + 16, 4), Math.max(box.width - tip.offsetWidth - 6, 4))}px`;
    tip.style.top = `${y + 20 + tip.offsetHeight > box.height ? Math.max(y - tip.offsetHeight - 14, 4) : y + 18}px`;
  }

  // --- a row of features

  form() {
    const form = $("features");
    this.features = this.about.features.map((feature) => h("input", { type: "number", step: "any", "data-name": feature.name, oninput: () => this.retype() }));
    form.replaceChildren(...this.about.features.map((feature, i) => h("label", {}, h("span", { title: feature.name }, feature.name), this.features[i],
      h("small", {}, `usually ${number(feature.low)} to ${number(feature.high)}`))));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
  }

  retype() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      const row = this.features.map((input) => input.valueAsNumber);
      this.features.forEach((input, i) => input.setAttribute("aria-invalid", String(Number.isNaN(row[i]))));
      if (row.some(Number.isNaN)) {
        tell(new Problem("A number is missing: the decision below is still that on the row before."));
        return;
      }
      this.typed = { row };
      this.pick(this.typed);
    }, 250);
  }

  showRow(row) {
    this.features.forEach((input) => input.removeAttribute("aria-invalid"));
    row.forEach((value, i) => { this.features[i].value = String(Number(value.toPrecision(6))); });
  }

  // --- hands

  listen() {
    const n = this.about.n_inputs, go = (i) => n && this.pick({ index: (i + n) % n });
    $("pick").addEventListener("change", (event) => {
      const i = Math.round(event.target.valueAsNumber) - 1;
      if (i >= 0 && i < n) go(i);
      else event.target.value = this.input?.index === undefined ? "" : String(this.input.index + 1);
    });
    $("pick-before").addEventListener("click", () => go(this.index - 1));
    $("pick-after").addEventListener("click", () => go(this.index + 1));
    $("pick-any").addEventListener("click", () => go(Math.floor(Math.random() * n)));
    $("upload").addEventListener("change", (event) => {
      this.upload(event.target.files[0]);
      event.target.value = "";
    });
    if (this.map) {
      $("filter").addEventListener("change", () => this.refilter());
      $("zoom-in").addEventListener("click", () => this.map.zoom(1.5));
      $("zoom-out").addEventListener("click", () => this.map.zoom(1 / 1.5));
      $("zoom-all").addEventListener("click", () => this.map.reset());
      this.refilter();
    }
    if (this.about.kind === "rows") return;
    const card = $("decision");
    document.addEventListener("dragover", (event) => { event.preventDefault(); card.classList.add("drop"); });
    document.addEventListener("dragleave", () => card.classList.remove("drop"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      card.classList.remove("drop");
      this.upload(event.dataTransfer.files[0]);
    });
    document.addEventListener("paste", (event) => this.upload([...event.clipboardData.files].find((file) => file.type.startsWith("image/"))));
  }
}

new Page().start().catch(tell);
