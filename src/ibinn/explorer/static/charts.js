// Small charts as SVG; their colours come from the style sheet.

import { number, s, pText } from "./dom.js";

function chart(width, height, label, ...children) {
  return s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);
}

const at = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function text(x, y, words, attributes = {}) {
  return s("text", { x, y, ...attributes }, words);
}

// Where the score of an input stands among those of the calibration inputs.
export function rankChart(rank, p, things, more) {
  const width = 420, height = 132, bottom = 104, top = 26;
  const low = rank.edges[0], high = rank.edges.at(-1), end = high + 0.3 * (high - low);
  const x = at(low, end, 4, width - 4), most = Math.max(...rank.counts, 1), y = at(0, most, bottom, top);
  const value = rank.value ?? Infinity, isBeyond = value > end, here = x(Math.min(Math.max(value, low), end));
  const bars = rank.counts.map((count, i) =>
    s("rect", { class: "quiet", x: x(rank.edges[i]), width: Math.max(x(rank.edges[i + 1]) - x(rank.edges[i]) - 1, 0.5),
      y: y(count), height: bottom - y(count) }));
  const isLeft = here > width / 2;
  const label = `Scores of ${rank.n} calibration ${things}, and of this one: ${p}`;
  return chart(width, height, label, ...bars,
    s("line", { class: "axis", x1: 0, x2: width, y1: bottom, y2: bottom }),
    s("line", { class: "here", x1: here, x2: here, y1: 8, y2: bottom }),
    text(here + (isLeft ? -7 : 7), 17, `this one${isBeyond ? ", far beyond →" : ""}`,
      { class: "strong", "text-anchor": isLeft ? "end" : "start" }),
    text(2, height - 8, `${rank.n.toLocaleString("en")} calibration ${things}`),
    text(width - 2, height - 8, `${more} →`, { "text-anchor": "end" }));
}

// p-values along a drift, on a logarithmic scale, with the alarm level.
export function driftChart(series, step, alpha, room, pick) {
  const width = Math.min(Math.max(room, 300), 680), height = 236, left = 58, right = width - 14, top = 12, bottom = height - 40;
  const ps = series.inputs.map((view) => view.p_value), least = Math.min(...ps, alpha);
  const x = at(0, series.inputs.length - 1, left, right), y = at(0, Math.log10(0.6 * least), top, bottom);
  const ticks = [1, 0.1, 0.01, 0.001, 0.0001].filter((p) => p >= 0.6 * least);
  const path = ps.map((p, i) => `${i ? "L" : "M"}${x(i)} ${y(Math.log10(p))}`).join("");
  const label = `p-value while the amount grows: from ${pText(ps[0], alpha)} to ${pText(ps.at(-1), alpha)}`;
  const dots = ps.map((p, i) => s("circle", { class: `dot${p <= alpha ? " atypical" : ""}`, cx: x(i), cy: y(Math.log10(p)),
    r: i === step ? 7 : 3.5, onclick: () => pick(i) }));
  const ends = series.amounts.map((amount, i) => [amount, i]).filter((_, i, all) => i % Math.ceil(all.length / (width > 450 ? 5 : 3)) === 0 || i === all.length - 1);
  return chart(width, height, label,
    ...ticks.flatMap((p) => [s("line", { class: "axis", x1: left, x2: right, y1: y(Math.log10(p)), y2: y(Math.log10(p)) }),
      text(left - 8, y(Math.log10(p)) + 4, p === 1 ? "p = 1" : String(p), { "text-anchor": "end" })]),
    s("line", { class: "alarm", x1: left, x2: right, y1: y(Math.log10(alpha)), y2: y(Math.log10(alpha)) }),
    text(right, y(Math.log10(alpha)) - 6, `alarm at ${100 * alpha} %`, { class: "alarm-text", "text-anchor": "end" }),
    s("path", { class: "line", d: path }),
    s("line", { class: "here", x1: x(step), x2: x(step), y1: top, y2: bottom, opacity: 0.3 }), ...dots,
    ...ends.map(([amount, i]) => text(x(i), bottom + 20, `${number(amount)} ${series.unit}`, { "text-anchor": i === series.inputs.length - 1 ? "end" : "middle" })));
}

// The share of right answers against the stated probability.
export function calibrationChart(bins) {
  const size = 360, left = 44, right = size - 8, top = 10, bottom = size - 40;
  const x = at(0, 1, left, right), y = at(0, 1, bottom, top), marks = [0, 0.25, 0.5, 0.75, 1];
  const there = bins.filter((bin) => bin.share !== null);
  const line = bins.map((bin, i) => bin.share === null ? ""
    : `${i && bins[i - 1].share !== null ? "L" : "M"}${x((bin.low + bin.high) / 2)} ${y(bin.share)}`).join("");
  return chart(size, size, "Share of right answers against the stated probability",
    ...marks.flatMap((v) => [s("line", { class: "axis", x1: left, x2: right, y1: y(v), y2: y(v) }),
      text(left - 6, y(v) + 4, `${100 * v}`, { "text-anchor": "end" }),
      text(x(v), bottom + 18, `${100 * v}`, { "text-anchor": "middle" })]),
    ...there.filter((bin) => bin.floor_low !== null).map((bin) => s("rect", { class: "floor", x: x(bin.low),
      width: Math.max(x(bin.high) - x(bin.low), 3), y: y(bin.floor_high), height: Math.max(y(bin.floor_low) - y(bin.floor_high), 2) })),
    s("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    s("path", { class: "line", d: line }),
    ...there.flatMap((bin) => {
      const middle = x((bin.low + bin.high) / 2);
      return [bin.share_low !== null && s("line", { class: "err", x1: middle, x2: middle, y1: y(bin.share_low), y2: y(bin.share_high) }),
        s("circle", { class: "dot", cx: middle, cy: y(bin.share), r: 4 },
          s("title", {}, `stated ${number(100 * bin.low)}–${number(100 * bin.high)} %: right in ${number(100 * bin.share)} % of ${bin.n}`))];
    }),
    text((left + right) / 2, size - 4, "stated probability (%)", { "text-anchor": "middle" }),
    s("text", { transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "how often right (%)"));
}

// Scores of one OoD set over those of the test set.
export function scoreChart(edges, test, ood, threshold) {
  const width = 320, height = 120, bottom = 96, top = 8;
  const x = at(edges[0], edges.at(-1), 2, width - 2), most = Math.max(...test, ...ood, 1), y = at(0, most, bottom, top);
  const bars = (shares, kind) => shares.map((share, i) => share > 0 && s("rect", { class: kind, x: x(edges[i]),
    width: x(edges[i + 1]) - x(edges[i]), y: y(share), height: bottom - y(share) }));
  const isIn = threshold !== null && threshold < edges.at(-1);
  return chart(width, height, "Histogram of the OoD scores of test inputs and of this set", ...bars(test, "quiet"), ...bars(ood, "set"),
    s("line", { class: "axis", x1: 0, x2: width, y1: bottom, y2: bottom }),
    isIn && s("line", { class: "alarm", x1: x(threshold), x2: x(threshold), y1: 2, y2: bottom }),
    isIn && text(x(threshold), height - 8, "alarm", { class: "alarm-text", "text-anchor": "middle" }),
    text(width - 2, height - 8, "stranger →", { "text-anchor": "end" }));
}
