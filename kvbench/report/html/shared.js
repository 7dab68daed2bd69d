"use strict";
const PALETTE = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon", "bowtie"];
const by = (id) => document.getElementById(id);
const make = (tag, text, name) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (name) e.className = name; return e; };
const plain = (text) => String(text).replace(/</g, "\u2039").replace(/>/g, "\u203a");  // plotly reads some tags in names
function colours() {
  const style = getComputedStyle(document.documentElement);
  return ["--ink", "--line", "--soft"].map((name) => style.getPropertyValue(name).trim());
}
function onTheme(redraw) {
  by("theme").onclick = () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark"; redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
