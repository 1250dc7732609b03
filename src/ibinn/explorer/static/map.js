// The latent map: thousands of points on a canvas to pan, zoom and navigate with the keyboard.

import { colourOf, dark, sprite, trace } from "./colours.js";
import { $ } from "./dom.js";

const NEAR = 14; // pixels
const RADIUS = 3.4;
const MARGIN = 2; // width and height of the layer of points, in those of the view
const SETTLED = 120; // ms without an event after which zooming has ended

export class LatentMap {
  // on: { pick(index), hover(index or null, x, y) }
  constructor(about, on) {
    this.about = about;
    this.on = on;
    this.n = about.classes.length;
    this.x = new Float32Array(about.n_inputs).fill(NaN);
    this.y = new Float32Array(about.n_inputs).fill(NaN);
    this.label = new Uint16Array(about.n_inputs);
    this.isBright = new Uint8Array(about.n_inputs);
    this.bright = () => true;
    this.selected = null; // { point, index }
    this.paths = new Map(); // name -> points
    this.canvas = $("map-canvas");
    this.context = this.canvas.getContext("2d");
    this.view = null; // { x, y: centre; scale: pixels to a unit }
    this.known = about.means.filter(Boolean);
    new ResizeObserver(() => this.resize()).observe($("map-box"));
    dark.addEventListener("change", () => this.restyle());
    this.listen();
    this.resize();
  }

  add(part) {
    part.points.forEach((point, i) => {
      const at = part.start + i;
      this.label[at] = part.y[i];
      if (point) [this.x[at], this.y[at]] = point;
    });
    this.refilter();
    if (!this.isMoved) this.showAll();
  }

  filter(bright) {
    this.bright = bright;
    this.refilter();
    this.draw();
  }

  refilter() {
    for (let i = 0; i < this.x.length; i++) this.isBright[i] = Number.isNaN(this.x[i]) ? 0 : this.bright(i) ? 1 : 0;
    this.layer = null;
  }

  // Centres the view on a point of the map that is out of view.
  select(point, index = null) {
    this.selected = point && { point, index };
    if (point && index !== null && this.isMoved && !this.isInView(point)) [this.view.x, this.view.y] = point;
    this.draw();
  }

  isInView(point) {
    const [x, y] = this.toScreen(point);
    return x > 0 && y > 0 && x < this.width && y < this.height;
  }

  path(name, points) {
    if (points) this.paths.set(name, points.filter(Boolean));
    else this.paths.delete(name);
    this.draw();
  }

  // --- the view

  resize() {
    const box = $("map-box").getBoundingClientRect();
    this.width = box.width;
    this.height = box.height;
    this.ratio = Math.min(devicePixelRatio || 1, 3);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.restyle();
    if (!this.isMoved) this.showAll();
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    this.ink = style.getPropertyValue("--ink").trim();
    this.page = style.getPropertyValue("--card").trim();
    this.grid = style.getPropertyValue("--line").trim();
    const alpha = this.x.length > 3000 ? 0.5 : 0.7;
    this.layer = null;
    this.sprites = this.about.classes.map((_, k) => sprite(k, this.n, RADIUS, this.ratio, alpha));
    this.draw();
  }

  // The central 99 % of the points, and all means.
  showAll() {
    const spans = [this.x, this.y].map((values, axis) => {
      const there = values.filter((v) => !Number.isNaN(v)).sort();
      const ends = this.known.map((mean) => mean[axis]);
      if (there.length) ends.push(there[Math.floor(0.005 * there.length)], there[Math.ceil(0.995 * there.length) - 1]);
      return ends.length ? [Math.min(...ends), Math.max(...ends)] : [-1, 1];
    });
    const [across, up] = spans.map(([low, high]) => Math.max(high - low, 1e-6));
    this.view = {
      x: (spans[0][0] + spans[0][1]) / 2,
      y: (spans[1][0] + spans[1][1]) / 2,
      scale: 0.86 * Math.min(this.width / across, this.height / up),
    };
    this.home = this.view.scale;
    this.draw();
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const scale = Math.min(Math.max(this.view.scale * factor, this.home / 8), this.home * 200);
    const [x, y] = this.toData(px, py);
    this.view = { x: x - (px - this.width / 2) / scale, y: y + (py - this.height / 2) / scale, scale };
    this.isMoved = true;
    this.isZooming = true;
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.isZooming = false;
      this.draw();
    }, SETTLED);
    this.draw();
  }

  move(dx, dy) {
    this.view.x -= dx / this.view.scale;
    this.view.y += dy / this.view.scale;
    this.isMoved = true;
    this.draw();
  }

  toScreen([x, y]) {
    return [this.width / 2 + (x - this.view.x) * this.view.scale, this.height / 2 - (y - this.view.y) * this.view.scale];
  }

  toData(px, py) {
    return [this.view.x + (px - this.width / 2) / this.view.scale, this.view.y - (py - this.height / 2) / this.view.scale];
  }

  nearest(px, py) {
    let best = null, least = NEAR ** 2;
    for (let i = 0; i < this.x.length; i++) {
      if (!this.isBright[i]) continue;
      const [sx, sy] = this.toScreen([this.x[i], this.y[i]]);
      const distance = (sx - px) ** 2 + (sy - py) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  // The nearest point to the right (1, 0), the left, above (0, 1) or below of the selected one.
  neighbour(dx, dy) {
    const from = this.selected?.point ?? [this.view.x, this.view.y];
    let best = null, least = Infinity;
    for (let i = 0; i < this.x.length; i++) {
      if (!this.isBright[i] || i === this.selected?.index) continue;
      const [u, v] = [this.x[i] - from[0], this.y[i] - from[1]];
      const along = u * dx + v * dy, across = Math.abs(u * dy - v * dx);
      if (along <= 0 || across > along) continue;
      const cost = along + 2 * across;
      if (cost < least) [best, least] = [i, cost];
    }
    return best;
  }

  // --- drawing, at most once a frame

  draw() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      if (this.view) this.paint();
    });
  }

  paint() {
    const { context, ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.showPoints();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paintMeans();
    for (const points of this.paths.values()) this.paintPath(points);
    if (this.selected) this.paintSelected();
  }

  // All points are painted once, on a layer with a margin that is then moved as a whole. During a zoom the layer is
  // stretched, and painted again when the zoom has ended.
  showPoints() {
    const { canvas, context, view, ratio } = this;
    if (!this.layer || (this.layer.scale !== view.scale && !this.isZooming) || !this.isCovered()) this.paintLayer();
    const { layer } = this, grow = view.scale / layer.scale;
    const x = canvas.width / 2 + (layer.x - view.x) * view.scale * ratio, y = canvas.height / 2 - (layer.y - view.y) * view.scale * ratio;
    const width = layer.canvas.width * grow, height = layer.canvas.height * grow;
    context.drawImage(layer.canvas, Math.round(x - width / 2), Math.round(y - height / 2), width, height);
  }

  // Whether the layer reaches to the edges of the view.
  isCovered() {
    const { layer, view } = this, room = (side) => side * (MARGIN / layer.scale - 1 / view.scale) / 2;
    return Math.abs(view.x - layer.x) <= room(this.width) && Math.abs(view.y - layer.y) <= room(this.height);
  }

  paintLayer() {
    const canvas = this.layer?.canvas ?? document.createElement("canvas"), { x, y, scale } = this.view;
    canvas.width = MARGIN * this.canvas.width; // which clears it
    canvas.height = MARGIN * this.canvas.height;
    this.layer = { canvas, x, y, scale };
    const context = canvas.getContext("2d");
    this.paintPoints(context, false);
    this.paintPoints(context, true);
  }

  paintPoints(context, bright) {
    const { ratio, view } = this;
    const half = this.sprites[0].width / 2, sx = view.scale * ratio, wide = context.canvas.width, high = context.canvas.height;
    const cx = wide / 2 - view.x * sx, cy = high / 2 + view.y * sx, small = Math.ceil(half * 0.9);
    context.globalAlpha = bright ? 1 : 0.3;
    for (let i = 0; i < this.x.length; i++) {
      if (Boolean(this.isBright[i]) !== bright) continue;
      const px = cx + this.x[i] * sx, py = cy - this.y[i] * sx;
      if (!(px > -half && py > -half && px < wide + half && py < high + half)) continue;
      if (bright) context.drawImage(this.sprites[this.label[i]], px - half, py - half);
      else context.drawImage(this.sprites[this.label[i]], px - small / 2, py - small / 2, small, small);
    }
  }

  paintMeans() {
    const { context } = this, many = this.n > 30;
    this.about.means.forEach((mean, k) => {
      if (!mean) return;
      const [x, y] = this.toScreen(mean);
      trace(context, k, this.n, x, y, many ? 5 : 8);
      context.lineWidth = 2.5;
      context.strokeStyle = this.page;
      context.fillStyle = colourOf(k, this.n);
      context.stroke();
      context.fill();
    });
    if (many) return;
    context.font = "600 13px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.about.means.forEach((mean, k) => {
      if (!mean) return;
      const [x, y] = this.toScreen(mean), name = this.about.classes[k];
      const text = name.length > 18 ? `${name.slice(0, 17)}…` : name;
      const isRight = x + 16 + context.measureText(text).width > this.width;
      context.textAlign = isRight ? "right" : "left";
      this.write(text, x + (isRight ? -13 : 13), y);
    });
  }

  write(text, x, y) {
    const { context } = this;
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = this.page;
    context.fillStyle = this.ink;
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
  }

  paintPath(points) {
    const { context } = this, places = points.map((point) => this.toScreen(point));
    if (places.length < 2) return;
    for (const [width, colour] of [[5, this.page], [2, this.ink]]) {
      context.beginPath();
      places.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](x, y));
      context.lineWidth = width;
      context.lineJoin = "round";
      context.strokeStyle = colour;
      context.stroke();
    }
    const [x, y] = places.at(-1), before = places.toReversed().find((p) => Math.hypot(p[0] - x, p[1] - y) > 6) ?? places[0];
    this.arrow(x, y, Math.atan2(y - before[1], x - before[0]));
  }

  arrow(x, y, angle) {
    const { context } = this;
    context.beginPath();
    for (const [r, turn] of [[0, 0], [11, 2.7], [11, -2.7]]) {
      context.lineTo(x + r * Math.cos(angle + turn), y + r * Math.sin(angle + turn));
    }
    context.closePath();
    context.fillStyle = this.ink;
    context.fill();
  }

  // A ring; where the point is out of view, an arrow at the edge that points to it.
  paintSelected() {
    const { context } = this, [x, y] = this.toScreen(this.selected.point), margin = 16;
    const [u, v] = [Math.min(Math.max(x, margin), this.width - margin), Math.min(Math.max(y, margin), this.height - margin)];
    if (u !== x || v !== y) {
      this.arrow(u, v, Math.atan2(y - v, x - u));
      context.font = "600 13px system-ui, sans-serif";
      context.textAlign = u > this.width / 2 ? "right" : "left";
      this.write(this.isMoved ? "selected" : "far out", u + (u > this.width / 2 ? -16 : 16), v);
      return;
    }
    for (const [width, colour] of [[6, this.page], [2.5, this.ink]]) {
      context.beginPath();
      context.arc(x, y, 10, 0, 2 * Math.PI);
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.stroke();
    }
  }

  // --- events

  listen() {
    const { canvas } = this, down = new Map();
    let travelled = 0, spread = 0;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const apart = () => {
      const [a, b] = [...down.values()];
      return Math.hypot(a[0] - b[0], a[1] - b[1]);
    };
    const centre = () => {
      const [a, b] = [...down.values()];
      return [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      down.set(event.pointerId, place(event));
      travelled = down.size > 1 ? Infinity : 0;
      if (down.size === 2) spread = apart();
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event), before = down.get(event.pointerId);
      if (!before) {
        const found = event.pointerType === "mouse" ? this.nearest(x, y) : null;
        canvas.style.cursor = found === null ? "" : "pointer";
        this.on.hover(found, x, y);
        return;
      }
      const middle = down.size === 2 && centre();
      down.set(event.pointerId, [x, y]);
      travelled += Math.abs(x - before[0]) + Math.abs(y - before[1]);
      if (down.size === 1 && travelled > 4) {
        canvas.classList.add("drags");
        this.on.hover(null);
        this.move(x - before[0], y - before[1]);
      } else if (down.size === 2) {
        const [u, v] = centre();
        this.move(u - middle[0], v - middle[1]);
        this.zoom(apart() / spread, u, v);
        spread = apart();
      }
    });
    const up = (event) => {
      const before = down.get(event.pointerId);
      down.delete(event.pointerId);
      canvas.classList.remove("drags");
      if (before && event.type === "pointerup" && travelled <= 4) {
        const found = this.nearest(...place(event));
        if (found !== null) this.on.pick(found);
      }
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => this.on.hover(null));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0022)), ...place(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      if (ways[event.key] && !event.altKey && !event.ctrlKey && !event.metaKey) {
        const found = this.neighbour(...ways[event.key]);
        if (found !== null) this.on.pick(found);
      } else if (event.key === "+" || event.key === "=") this.zoom(1.4);
      else if (event.key === "-") this.zoom(1 / 1.4);
      else if (event.key === "0") this.reset();
      else return;
      event.preventDefault();
    });
  }

  reset() {
    this.isMoved = false;
    this.showAll();
  }
}
