// The page: the selected input, and the panels that depend on it.

import { hideProblem, Problem, request, showProblem, whileBusy } from "./api.js";
import { BetweenPanel } from "./between.js";
import { dark, sprite } from "./colours.js";
import { DecisionPanel } from "./decision.js";
import { $, h, number, pText } from "./dom.js";
import { DriftPanel } from "./drift.js";
import { LatentMap } from "./map.js";
import { QualityPanel } from "./quality.js";
import { SamplesPanel } from "./samples.js";

const MAX_UPLOAD = 20_000_000;
const PIECE = 200; // points of the map in one request, so that other requests do not wait long

class Page {
  async start() {
    this.about = await request("about");
    const { about } = this;
    this.thing = about.kind === "images" ? "image" : "row";
    this.points = { y: [], predicted: [], pValues: [] };
    this.input = this.view = null; // the selected input, and the output for it
    this.index = 0; // the last one selected on the map
    this.turn = 0; // counts the actions of the user
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
    const dot = about.map_of === "samples" ? `${this.thing === "image" ? "an image" : "a row"} drawn from the model, placed by its latent code and coloured by the class it was drawn for`
      : `a test ${this.thing}, placed by its latent code and coloured by its true class`;
    $("map-say").textContent = `Each dot is ${dot}. Classes that lie apart are easy to distinguish. This is a projection of many dimensions, so classes `
      + "that overlap here may still be far apart.";
    $("decision-say").textContent = about.uses_density
      ? `The output for one ${this.thing}. ${about.can_flag ? "If it is typical, use its probabilities; if it is atypical, do not trust them."
        : `There are too few calibration ${things} to flag one as atypical.`}`
      : `The output for one ${this.thing}. Without a density the model shows how decided it is, but not whether such ${things} are typical.`;
    $("drift-say").textContent = "The selected image, changed more and more: " + (about.uses_density
      ? "its p-value should fall until it is atypical. Its path is drawn on the map."
      : "without a density the model can only become less decided, and often it does not.");
    $("between-say").textContent = `The straight line from one ${this.thing} to another in latent space: small, believable steps mean that the model `
      + "has learned what lies between.";
    $("samples-say").textContent = `${things === "images" ? "Images" : "Rows"} drawn from the model: clean and varied ones mean that it has learned what the class looks like; `
      + `a low temperature gives the most typical ones.`;
    $("quality-say").textContent = `The results on test ${things} that the model never saw: whether its probabilities hold, and which strange inputs it detects.`;
    $("samples-body").classList.toggle("grid", things === "images");
    $("map-canvas").setAttribute("aria-label", `Map of ${about.n_inputs} ${things}`);
    for (const element of document.querySelectorAll(".thing-name")) element.textContent = things === "images" ? "Image" : "Row";
    $("pick-total").textContent = `of ${about.n_inputs.toLocaleString("en")}`;
    $("pick").max = String(about.n_inputs);
    $("picker").hidden = about.n_inputs === 0;
    $("filter-atypical").hidden = !about.can_flag;
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
    hideProblem();
    this.turn += 1;
    return this.decision.show(input, notes);
  }

  // From another panel: scrolls to the decision.
  async open(input) {
    await this.pick(input);
    $("decision").scrollIntoView();
    $("decision-title").focus({ preventScroll: true });
  }

  decided(input, decision) {
    this.input = input;
    this.view = decision.view;
    this.index = input.index ?? this.index;
    $("pick").value = input.index === undefined ? "" : String(input.index + 1);
    this.map?.select(decision.view.point, input.index ?? null);
    this.drift?.renew();
    if (this.features && input !== this.typed) this.showRow(decision.view.row);
  }

  async first() {
    const { about } = this;
    if (about.n_inputs) await this.pick({ index: 0 });
    else if (about.kind === "rows") await this.pick({ row: about.features.map((feature) => feature.mean) });
    else $("decision-body").replaceChildren(h("p", {}, "Choose an image of your own to begin."));
  }

  async upload(file) {
    if (!file) return;
    hideProblem();
    const mine = ++this.turn;
    const image = await whileBusy($("decision-body"), () => {
      if (file.size > MAX_UPLOAD) throw new Problem("The file has more than 20 MB; make the image smaller.");
      return request("upload", file);
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
        part = await request(`map?start=${start}&count=${PIECE}`);
      } catch (problem) {
        $("map-loading").textContent = `stopped at ${start.toLocaleString("en")} of ${about.n_inputs.toLocaleString("en")}; reload the page to continue`;
        throw problem;
      }
      points.y.push(...part.y);
      points.predicted.push(...part.predicted);
      points.pValues.push(...part.p_values);
      this.map.add(part);
      this.count();
      if (start === 0) this.propose().catch(showProblem);
    }
    $("map-loading").textContent = "";
    document.body.dataset.map = "whole";
  }

  // An interpolation from the selected input to the first of another class.
  async propose() {
    const start = { input: this.input, view: this.view };
    const other = this.points.predicted.findIndex((label) => this.about.classes[label] !== start.view?.label);
    if (other < 0 || !start.view) return;
    const { view } = await request("decision", { input: { index: other } });
    this.between.propose(start, { input: { index: other }, view });
  }

  isBright(i) {
    const { points } = this, { value } = $("filter");
    if (this.only !== undefined && points.y[i] !== this.only) return false;
    return value === "all" || (value === "wrong" ? points.y[i] !== points.predicted[i] : points.pValues[i] <= this.about.alpha);
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
    const truth = about.map_of === "test" ? `true class ${about.classes[points.y[i]]}` : `drawn as ${about.classes[points.y[i]]}`;
    tip.replaceChildren(about.kind === "images" ? h("img", { class: "px", src: `api/inputs/${i}.png`, alt: "" }) : "",
      h("div", {}, h("b", {}, about.classes[points.predicted[i]] ?? "no class"), h("span", {}, truth), h("span", {}, pText(points.pValues[i], about.alpha))));
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
        showProblem(new Problem("A number is missing: the decision below is still that of the previous row."));
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

  // --- events

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

new Page().start().catch(showProblem);
