// Inputs that the model makes up.

import { ask, during } from "./api.js";
import { $, h, latest, whenSeen } from "./dom.js";
import { pLine, things } from "./things.js";

export class SamplesPanel {
  constructor(page) {
    const label = $("samples-class"), temperature = $("samples-temperature");
    let seed = 0;
    temperature.value = Math.min(temperature.value, page.about.temperature);
    label.replaceChildren(...page.about.classes.map((name, k) => h("option", { value: k }, name)));
    const load = latest(async (isLast) => {
      const n = page.about.kind === "images" ? 24 : 10;
      const wanted = page.about.classes[Number(label.value)];
      const query = new URLSearchParams({ label: label.value, temperature: temperature.value, n, seed });
      const way = await during($("samples-body"), () => ask(`samples?${query}`));
      if (!way) return false;
      if (!isLast()) return undefined;
      $("samples-body").replaceChildren(...things(page, way.inputs, (shown) => [shown.label !== wanted && h("span", { class: "bad" }, `called ${shown.label}`), pLine(page, shown)]));
      return undefined;
    });
    const stale = whenSeen($("samples"), load);
    const tell = () => { $("samples-output").textContent = Number(temperature.value).toFixed(2); };
    tell();
    label.addEventListener("change", stale);
    temperature.addEventListener("input", () => { tell(); stale(); });
    $("samples-more").addEventListener("click", () => { seed += 1; stale(); });
  }
}
