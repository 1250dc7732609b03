// Makes elements. Nothing here takes HTML text, so the name of a class is never parsed as HTML.

export const $ = (id) => document.getElementById(id);

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const source = (png) => `data:image/png;base64,${png}`;

export function picture(png, alt, className = "px") {
  return h("img", { src: source(png), alt, class: className });
}

// A p-value with two digits, or with as many as keep it on its side of the alarm level and of 1.
export function roundedP(p, alpha) {
  if (p < 0.0001) return "< 0.0001";
  for (let digits = 2; ; digits++) {
    const text = p.toPrecision(digits), value = Number(text);
    if (digits === 17 || ((value <= alpha) === (p <= alpha) && (value < 1) === (p < 1))) return String(value);
  }
}

export function pText(p, alpha) {
  const text = roundedP(p, alpha);
  return text.startsWith("<") ? `p ${text}` : `p = ${text}`;
}

export function percent(share) {
  if (share === null) return "–";
  const text = (100 * share).toFixed(1);
  return `${{ "0.0": "< 0.1", "100.0": "> 99.9" }[text] ?? text} %`;
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

// The last call wins: replies to earlier ones are dropped.
export function latest(work) {
  let turn = 0;
  return async (...args) => {
    const mine = ++turn;
    return work(() => mine === turn, ...args);
  };
}

// Runs work when an element comes into view, and again after each `stale()` while it is in view. Work that returns
// false has failed, and is tried again when the element next comes into view.
export function whenSeen(element, work) {
  let isStale = true, isSeen = false;
  const go = async () => {
    if (!isStale || !isSeen) return;
    isStale = false;
    if (await work() === false) isStale = true;
  };
  new IntersectionObserver((entries) => {
    isSeen = entries.at(-1).isIntersecting;
    go();
  }, { rootMargin: "200px" }).observe(element);
  return () => {
    isStale = true;
    go();
  };
}
