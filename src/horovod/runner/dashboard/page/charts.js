// SVG charts, redrawn from rows of [seconds since the start, values...]; null is an unknown value.
const SPACE = "http://www.w3.org/2000/svg";
const LEFT = 60, RIGHT = 8, TOP = 8, BOTTOM = 20;

export function shape(name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function frame(svg, rows, most, least, label, clock) {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 120;
  const first = rows[0][0], last = Math.max(rows[rows.length - 1][0], first + 1);
  const x = t => LEFT + (t - first) / (last - first) * (width - LEFT - RIGHT);
  const y = v => height - BOTTOM - (v - least) / (most - least || 1) * (height - TOP - BOTTOM);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  for (const value of [least, (least + most) / 2, most]) {
    parts.push(shape("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value)}));
    parts.push(shape("text", {x: LEFT - 6, y: y(value) + 4, "text-anchor": "end"}, label(value)));
  }
  parts.push(shape("text", {x: LEFT, y: height - 4}, clock(first)));
  parts.push(shape("text", {x: width - RIGHT, y: height - 4, "text-anchor": "end"}, clock(last)));
  return {x, y, parts};
}

// Stacked layers: `classes` for values 1, 2, ... of each row.
export function stack(svg, rows, classes, label, clock, words) {
  const known = rows.filter(row => classes.some((_, i) => row[i + 1] !== null));
  svg.setAttribute("aria-label", words);
  if (known.length < 2) return svg.replaceChildren();
  const tops = known.map(row => classes.map((_, i) => row.slice(1, i + 2).reduce((sum, v) => sum + (v || 0), 0)));
  const most = Math.max(...tops.map(row => row[row.length - 1])) || 1;
  const {x, y, parts} = frame(svg, known, most, 0, label, clock);
  classes.forEach((name, layer) => {
    const upper = known.map((row, i) => `${x(row[0]).toFixed(1)},${y(tops[i][layer]).toFixed(1)}`);
    const lower = known.map((row, i) => `${x(row[0]).toFixed(1)},${y(layer ? tops[i][layer - 1] : 0).toFixed(1)}`).reverse();
    parts.push(shape("polygon", {class: name, points: [...upper, ...lower].join(" ")}));
  });
  svg.replaceChildren(...parts);
}

export function line(svg, rows, label, clock, words, fromZero) {
  const known = rows.filter(row => row[1] !== null);
  svg.setAttribute("aria-label", words);
  if (known.length < 2) return svg.replaceChildren();
  const values = known.map(row => row[1]);
  const most = Math.max(...values), least = fromZero ? 0 : Math.min(...values);
  const {x, y, parts} = frame(svg, known, most === least ? most + 1 : most, least, label, clock);
  parts.push(shape("polyline", {class: "line", points: known.map(row => `${x(row[0]).toFixed(1)},${y(row[1]).toFixed(1)}`).join(" ")}));
  svg.replaceChildren(...parts);
}

// Reuses existing rects and adds missing ones, because a large job has thousands of them.
function rects(svg, count, box) {
  svg.setAttribute("viewBox", box);
  svg.setAttribute("preserveAspectRatio", "none");
  while (svg.childElementCount > count) svg.lastChild.remove();
  while (svg.childElementCount < count) svg.append(shape("rect", {y: 0}));
  return svg.children;
}

function set(rect, name, value) {
  if (rect.getAttribute(name) !== value) rect.setAttribute(name, value);
}

// One cell for each share; larger shares are darker.
export function strip(svg, shares, words) {
  svg.setAttribute("aria-label", words);
  const cells = rects(svg, shares.length, `0 0 ${shares.length || 1} 1`);
  shares.forEach((share, i) => {
    set(cells[i], "x", String(i));
    set(cells[i], "width", shares.length > 40 ? "0.9" : "0.995");
    set(cells[i], "height", "1");
    set(cells[i], "opacity", Math.min(1, 0.04 + share).toFixed(2));
  });
}

// Parts of `whole` side by side, as bars of proportional width.
export function bar(svg, parts, classes, whole) {
  const layers = rects(svg, classes.length, "0 0 100 8");
  let at = 0;
  classes.forEach((name, i) => {
    const width = whole ? (parts[i] || 0) / whole * 100 : 0;
    set(layers[i], "class", name);
    set(layers[i], "x", at.toFixed(1));
    set(layers[i], "width", width.toFixed(1));
    set(layers[i], "height", "8");
    at += width;
  });
}
