// Maps of visits: the same window of episodes for every bonus; the slider moves through the run.
const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];

function tint(share) { // 0 to 1 along viridis, straight lines between its nine stops
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), i = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const parts = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const [a, b] = [parts(VIRIDIS[i]), parts(VIRIDIS[i + 1])];
  return `rgb(${a.map((v, k) => Math.round(v + (b[k] - v) * (at - i))).join(" ")})`;
}

function picture(given, rows, most) {
  const size = 20, head = 20, top = (r) => r * size + head * (r > 1 ? 2 : 1); // a heading above each of the two chains
  const width = Math.max(given.columns * size, 120); // the headings need so much
  const svg = element("svg", { viewBox: `0 0 ${width} ${4 * size + 2 * head}`, role: "img" });
  ["large reward", "small reward"].forEach((text, i) => svg.append(element("text", { x: 1, y: top(2 * i) - 5 }, text)));
  rows.forEach((visits, i) => {
    const row = Math.floor(i / given.columns), column = i % given.columns;
    const fill = visits > 0 ? tint(Math.log1p(visits) / Math.log1p(most)) : "none";
    const place = { x: column * size + 0.5, y: top(row) + 0.5, width: size - 1, height: size - 1, fill };
    svg.append(element("rect", place, element("title", {}, `${given.rows[row]}, step ${column + 1}: ${visits} visits`)));
  });
  return svg;
}

function shares(given, rows) {
  const sum = (from, to) => rows.slice(from * given.columns, to * given.columns).reduce((a, b) => a + b, 0);
  const whole = sum(0, 4) || 1, say = (v) => `${Math.round((100 * v) / whole)}%`;
  return `Large reward's chain ${say(sum(0, 2))}, the other ${say(sum(2, 4))}; dead states ${say(sum(1, 2) + sum(3, 4))}.`;
}

function scale(most) {
  const steps = [...Array(36).keys()];
  const bars = steps.map((i) => element("rect", { x: i, y: 0, width: 1.1, height: 4, fill: tint(i / 35) }));
  const svg = element("svg", { viewBox: "0 0 36 4", preserveAspectRatio: "none" }, ...bars);
  return ["few visits", svg, `${Math.round(most)} (logarithmic); empty: none`];
}

function maps(box) {
  const given = read(box.dataset.from), at = box.querySelector(".at"), form = box.querySelector(".form");
  const panels = box.querySelector(".panels"), play = box.querySelector(".play");
  const most = Math.max(...given.forms.flatMap((f) => f.methods.flatMap((m) => m.frames.flat())), 1);
  let timer = 0;
  const draw = () => {
    const i = +at.value, from = i ? given.steps[i - 1] + 1 : 1, when = `episodes ${from} to ${given.steps[i]}`;
    box.querySelector(".when").textContent = when;
    at.setAttribute("aria-valuetext", when);
    panels.replaceChildren(...given.forms[+form.value].methods.map((method) => {
      const rows = method.frames[i], told = shares(given, rows), svg = picture(given, rows, most);
      svg.setAttribute("aria-label", `Visits with ${method.text}, ${when}. ${told}`);
      return element("figure", {}, element("strong", {}, method.text), svg, element("figcaption", {}, told));
    }));
  };
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; play.setAttribute("aria-pressed", "false"); };
  const step = () => { if (+at.value >= +at.max) { stop(); return; } at.value = +at.value + 1; draw(); };
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (+at.value >= +at.max) { at.value = 0; draw(); }
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    timer = setInterval(step, 700);
  });
  at.addEventListener("input", () => { stop(); draw(); });
  form.addEventListener("change", draw);
  box.querySelector(".key").append(...scale(most));
  box.hidden = false;
  draw();
}

addEventListener("DOMContentLoaded", () => all(".maps").forEach(maps));
