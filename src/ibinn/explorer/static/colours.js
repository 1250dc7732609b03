// Colour and mark of each class: those of the figures of ibinn evaluate, some lighter in the dark, yellow darker in the light.

const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#882255", "#999933", "#F0E442"];
const IN_THE_DARK = { "#000000": "#FFFFFF", "#882255": "#C2578A", "#0072B2": "#3D9BD9" };
const IN_THE_LIGHT = { "#F0E442": "#CDBD00" };
const MARKS = ["circle", "triangle", "square", "diamond", "nabla", "plus", "cross"];
const MOST_COLOURED = 20;

export const dark = matchMedia("(prefers-color-scheme: dark)");

export function colourOf(label, nClasses) {
  if (nClasses > MOST_COLOURED) return `hsl(${(label * 137.5) % 360} 65% ${dark.matches ? 65 : 45}%)`;
  const colour = COLOURS[label % COLOURS.length];
  return (dark.matches ? IN_THE_DARK : IN_THE_LIGHT)[colour] ?? colour;
}

// Draws the mark of a class around (x, y) with a radius.
export function trace(context, label, nClasses, x, y, r) {
  const mark = nClasses > MOST_COLOURED ? "circle" : MARKS[label % MARKS.length];
  const polygon = (...corners) => {
    corners.forEach(([dx, dy], i) => context[i ? "lineTo" : "moveTo"](x + r * dx, y + r * dy));
    context.closePath();
  };
  context.beginPath();
  if (mark === "circle") context.arc(x, y, r, 0, 2 * Math.PI);
  else if (mark === "triangle") polygon([0, -1.15], [1.05, 0.8], [-1.05, 0.8]);
  else if (mark === "nabla") polygon([0, 1.15], [1.05, -0.8], [-1.05, -0.8]);
  else if (mark === "square") polygon([-0.88, -0.88], [0.88, -0.88], [0.88, 0.88], [-0.88, 0.88]);
  else if (mark === "diamond") polygon([0, -1.25], [1.05, 0], [0, 1.25], [-1.05, 0]);
  else {
    const a = 0.36, b = 1.1, turn = mark === "cross" ? Math.PI / 4 : 0;
    const corners = [[-a, -b], [a, -b], [a, -a], [b, -a], [b, a], [a, a], [a, b], [-a, b], [-a, a], [-b, a], [-b, -a], [-a, -a]];
    polygon(...corners.map(([u, v]) => [u * Math.cos(turn) - v * Math.sin(turn), u * Math.sin(turn) + v * Math.cos(turn)]));
  }
}

// A small canvas with the mark of a class.
export function sprite(label, nClasses, radius, scale, alpha = 1) {
  const size = Math.ceil(2 * (1.3 * radius + 1) * scale);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.globalAlpha = alpha;
  context.fillStyle = colourOf(label, nClasses);
  trace(context, label, nClasses, size / 2, size / 2, radius * scale);
  context.fill();
  return canvas;
}
