// Learning curves: one task at a time, against frames or against time, with the methods that are ticked.
const AXES = { frames: "environment frames", seconds: "seconds" };
const ink = (color) => (color.toLowerCase() === "#000000" ? "var(--ink)" // black would vanish in the dark
  : `light-dark(color-mix(in oklab, ${color} 90%, black), color-mix(in oklab, ${color} 72%, white))`);

function ticks(low, high, count) {
  const rough = (high - low) / count || 1, base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * base).find((s) => s >= rough * 0.999);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-6; x += step) found.push(Math.abs(x) < step * 1e-6 ? 0 : x);
  return found;
}

function short(x) {
  const size = Math.abs(x), [by, unit] = size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  return String(+(x / by).toPrecision(3)) + unit;
}

function path(xs, ys, x, y) {
  let d = "", pen = "M";
  xs.forEach((at, i) => {
    if (ys[i] === null || at === null) { pen = "M"; return; }
    d += `${pen}${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    pen = "L";
  });
  return d;
}

function shade(line, xs, x, y) {
  const kept = xs.map((at, i) => [at, line.low[i], line.high[i]]).filter((row) => row.every((v) => v !== null));
  if (kept.length < 2) return "";
  const up = kept.map(([at, , high]) => `${x(at).toFixed(1)} ${y(high).toFixed(1)}`);
  const down = kept.reverse().map(([at, low]) => `${x(at).toFixed(1)} ${y(low).toFixed(1)}`);
  return `M${[...up, ...down].join("L")}Z`;
}

function chart(panel, lines, axis, name, narrow) {
  const [width, height] = narrow ? [360, 280] : [760, 360], left = 44, right = 12, top = 24, bottom = 44;
  const last = Math.max(...lines.flatMap((line) => line[axis]), 1e-9);
  const seen = lines.flatMap((line) => [...line.low, ...line.high, ...line.middle]).filter((v) => v !== null);
  const low = Math.min(0, ...seen), high = Math.max(...seen, low + 1e-3), room = (high - low) * 0.04;
  const x = (v) => left + (v / last) * (width - left - right);
  const y = (v) => height - bottom - ((v - low) / (high + room - low)) * (height - top - bottom);
  const label = `${name} against ${AXES[axis]} on ${panel.name}: ${lines.map((l) => l.text).join("; ") || "no method chosen"}`;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const v of ticks(low, high, 5)) {
    svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
    svg.append(element("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, short(v)));
  }
  for (const v of ticks(0, last, narrow ? 4 : 6)) {
    svg.append(element("line", { class: "axis", x1: x(v), x2: x(v), y1: height - bottom, y2: height - bottom + 5 }));
    svg.append(element("text", { class: "tick", x: x(v), y: height - bottom + 19, "text-anchor": "middle" }, short(v)));
  }
  svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  svg.append(element("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, AXES[axis]));
  svg.append(element("text", { x: 0, y: 12 }, name));
  for (const line of lines) {
    svg.append(element("path", { d: shade(line, line[axis], x, y), fill: ink(line.color), opacity: 0.15 }));
  }
  for (const line of lines) {
    const look = { fill: "none", stroke: ink(line.color), "stroke-width": 2, "stroke-dasharray": dashes(line) };
    svg.append(element("path", { class: "curve", d: path(line[axis], line.middle, x, y), ...look }));
  }
  return svg;
}

const dashes = (line) => line.dash.split(" ").filter(Boolean).map((n) => 2 * n).join(" ") || "none";

function ends(lines, name) {
  const at = (values) => values[values.length - 1];
  const say = (v) => (v === null ? "–" : String(+v.toPrecision(3)));
  const head = ["method", `${name} at the end`, "95% interval", "frames", "seconds", "seeds"];
  const table = element("table", {}, element("thead", {}, element("tr", {},
    ...head.map((text) => element("th", { scope: "col" }, text)))));
  const body = element("tbody");
  for (const line of lines) {
    const cells = [say(at(line.middle)), `${say(at(line.low))} to ${say(at(line.high))}`, short(at(line.frames)),
      say(at(line.seconds)), String(line.seeds)];
    body.append(element("tr", {}, element("th", { scope: "row" }, line.text), ...cells.map((c) => element("td", {}, c))));
  }
  table.append(body);
  return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Numbers of the chart" }, table);
}

function curves(box) {
  const given = read(box.dataset.from), task = box.querySelector(".task"), items = box.querySelector(".items");
  const chosen = new Map(); // by the name of a method, so that a choice outlasts a change of task
  for (const line of given.panels.flatMap((panel) => panel.lines)) {
    if (!chosen.has(line.text)) chosen.set(line.text, line.shown);
  }
  const narrow = matchMedia("(max-width: 40rem)");
  const draw = () => {
    const panel = given.panels[+task.value], axis = box.querySelector("[type=radio]:checked").value;
    const lines = panel.lines.filter((line) => chosen.get(line.text));
    box.querySelector(".chart").replaceChildren(chart(panel, lines, axis, given.y, narrow.matches));
    box.querySelector(".numbers").replaceChildren(ends(panel.lines, given.y));
  };
  const legend = () => items.replaceChildren(...given.panels[+task.value].lines.map((line) => {
    const tick = element("input", { type: "checkbox" });
    tick.checked = chosen.get(line.text);
    tick.addEventListener("change", () => { chosen.set(line.text, tick.checked); draw(); });
    const look = { x1: 0, x2: 26, y1: 4, y2: 4, stroke: ink(line.color), "stroke-width": 3, "stroke-dasharray": dashes(line) };
    const sample = element("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, element("line", look));
    return element("label", {}, tick, sample, `${line.text} (${line.seeds})`);
  }));
  box.hidden = false;
  task.addEventListener("change", () => { legend(); draw(); });
  for (const radio of all("[type=radio]", box)) radio.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  legend();
  draw();
}

addEventListener("DOMContentLoaded", () => all(".curves").forEach(curves));
