// Samples of the model.

import { request, whileBusy } from "./api.js";
import { $, h, latest, whenSeen } from "./dom.js";
import { inputList, pLine } from "./inputs.js";

export class SamplesPanel {
  constructor(page) {
    const label = $("samples-class"), temperature = $("samples-temperature");
    let seed = 0;
    label.replaceChildren(...page.about.classes.map((name, k) => h("option", { value: k }, name)));
    const load = latest(async (isLast) => {
      const n = page.about.kind === "images" ? 24 : 10;
      const wanted = page.about.classes[Number(label.value)];
      const query = new URLSearchParams({ label: label.value, temperature: temperature.value, n, seed });
      const series = await whileBusy($("samples-body"), () => request(`samples?${query}`));
      if (!series) return false;
      if (!isLast()) return undefined;
      $("samples-body").replaceChildren(...inputList(page, series.inputs, (view) => [view.label !== wanted && h("span", { class: "bad" }, `classified as ${view.label}`), pLine(page, view)]));
      return undefined;
    });
    const stale = whenSeen($("samples"), load);
    const showTemperature = () => { $("samples-output").textContent = Number(temperature.value).toFixed(2); };
    showTemperature();
    label.addEventListener("change", stale);
    temperature.addEventListener("input", () => { showTemperature(); stale(); });
    $("samples-more").addEventListener("click", () => { seed += 1; stale(); });
  }
}
