"use strict";
// Everything that only works with scripts is hidden until here; so a page without them shows no dead controls.
const all = (what, where = document) => [...where.querySelectorAll(what)];
const read = (name) => JSON.parse(document.getElementById(name).textContent);

function element(name, attributes = {}, ...inside) {
  const svg = ["svg", "g", "path", "line", "text", "rect", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside); // strings become text, never markup
  return made;
}

function theme() {
  const root = document.documentElement, box = document.getElementById("theme");
  const kept = { get: () => { try { return localStorage.getItem("made-theme") || ""; } catch { return ""; } },
    set: (name) => { try { localStorage.setItem("made-theme", name); } catch { /* not kept, that is all */ } } };
  const use = (name) => { if (name) root.dataset.theme = name; else delete root.dataset.theme; };
  const saved = ["light", "dark"].includes(kept.get()) ? kept.get() : "";
  use(saved);
  box.hidden = false;
  for (const input of all("input", box)) {
    input.checked = input.value === saved;
    input.addEventListener("change", () => { use(input.value); kept.set(input.value); });
  }
}

function filters() {
  const form = document.getElementById("filters");
  if (!form) return;
  const claims = all("[data-verdict]"), rows = all(".overview .claim"), boxes = all("[name=verdict]", form);
  const address = () => { // a filtered view can be linked
    const query = new URLSearchParams(), off = boxes.filter((box) => !box.checked).map((box) => box.value);
    if (off.length) query.set("without", off.join(" "));
    if (form.elements.part.value) query.set("section", form.elements.part.value);
    try { history.replaceState(null, "", `${query.size ? `?${query}` : location.pathname}${location.hash}`); }
    catch { /* an address that may not change, that is all */ }
  };
  const restore = () => {
    const query = new URLSearchParams(location.search), off = (query.get("without") || "").split(" ");
    for (const box of boxes) box.checked = !off.includes(box.value);
    const part = query.get("section") || "";
    if ([...form.elements.part.options].some((option) => option.value === part)) form.elements.part.value = part;
  };
  const apply = () => {
    const kinds = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const part = form.elements.part.value, whole = !part && kinds.size === boxes.length;
    for (const claim of claims) {
      claim.hidden = !(kinds.has(claim.dataset.verdict) && (!part || claim.dataset.part === part));
    }
    for (const section of all(".experiment")) section.hidden = !whole && !all(".claim", section).some((c) => !c.hidden);
    for (const link of all("nav a")) { // no link to what is hidden
      link.parentElement.hidden = !!document.getElementById(link.hash.slice(1)).closest("[hidden]");
    }
    const left = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").textContent = `${left} of ${rows.length} claims shown`;
    document.querySelector(".nothing").hidden = left > 0;
  };
  form.hidden = false;
  form.addEventListener("change", () => { apply(); address(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { apply(); address(); })); // after the fields are back
  restore();
  apply();
}

function copying() {
  if (!navigator.clipboard) return;
  for (const button of all(".copy")) {
    button.hidden = false;
    const label = button.firstChild;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
        label.data = "Copied";
      } catch { label.data = "Select it by hand"; }
      setTimeout(() => { label.data = "Copy"; }, 1500);
    });
  }
}

function videos() {
  for (const button of all(".video")) {
    const image = button.closest("figure").querySelector("img"), still = image.src, label = button.firstChild;
    button.hidden = false;
    button.addEventListener("click", () => {
      const playing = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(playing));
      label.data = playing ? "Stop" : "Play";
      image.src = playing ? image.dataset.video : still;
    });
  }
}

function contents() { // open beside the text, closed above it
  const box = document.querySelector("nav details"), wide = matchMedia("(min-width: 66rem)");
  const fit = () => { if (box) box.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
}

function scrolling() { // a stop of the Tab key only where there is something to scroll
  for (const box of all(".scroll")) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
}

addEventListener("DOMContentLoaded", () => { theme(); contents(); filters(); copying(); videos(); });
addEventListener("load", scrolling);
addEventListener("resize", scrolling);
addEventListener("toggle", scrolling, true); // what was folded away had no width
