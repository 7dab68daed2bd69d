"use strict";
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"], GREY = "#9aa1a9", APART = 3, LABEL = 15;
const by = (id) => document.getElementById(id);
const make = (tag, text, name) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (name) e.className = name; return e; };
const plain = (text) => String(text).replace(/</g, "\u2039").replace(/>/g, "\u203a");  // plotly reads some tags in names
const isNarrow = () => window.innerWidth < 640;
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
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
}
// A word that is the whole of some value finds that value alone; any other word finds what holds it.
function matching(text, items, values) {
  const texts = items.map((item) => values(item).map((value) => String(value ?? "").toLowerCase()));
  const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const isWhole = texts.some((list) => list.includes(word));
    return (list) => list.some((value) => isWhole ? value === word : value.includes(word));
  });
  return items.filter((_, i) => tests.every((test) => test(texts[i])));
}
// The nearest heights in the same order that are at least `gap` apart, within 0..room if they fit.
function spread(heights, gap, room) {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]), blocks = [];
  order.forEach((i, rank) => {
    let mean = heights[i] - rank * gap, count = 1;
    while (blocks.length && blocks.at(-1)[0] > mean) { const [m, n] = blocks.pop(); mean = (m * n + mean * count) / (n + count); count += n; }
    blocks.push([mean, count]);
  });
  const top = Math.max(0, room - gap * (heights.length - 1)), places = [];
  blocks.flatMap(([mean, count]) => Array(count).fill(mean)).forEach((mean, rank) => { places[order[rank]] = Math.min(Math.max(mean, 0), top) + rank * gap; });
  return places;
}
// Lines of which half the points cover those of another stand side by side; offsets in pixels.
function apart(paths) {
  const groups = [];
  paths.forEach((path, i) => {
    const covers = (other) => path.filter(([x, y]) => other.some(([u, v]) => Math.hypot(x - u, y - v) < 2)).length >= path.length / 2;
    const group = groups.find((members) => covers(paths[members[0]]));
    if (group) group.push(i); else groups.push([i]);
  });
  const offsets = paths.map(() => 0);
  for (const group of groups) group.forEach((i, step) => { offsets[i] = (step - (group.length - 1) / 2) * Math.min(APART, 12 / group.length); });
  return offsets;
}
// Lines with their names at the ends, or below on a narrow page. Lines without a name are grey behind the others.
function draw(box, lines, x, y, onClick) {
  const [ink, gridline, soft] = colours(), narrow = isNarrow(), plot = box.querySelector(".plot"), list = box.querySelector(".names");
  lines = lines.filter((line) => line.points.length);
  const named = lines.filter((line) => line.name), longest = Math.max(0, ...named.map((line) => line.name.length));
  const margin = { l: 68, r: narrow ? 14 : Math.min(30 + 6.7 * longest, plot.clientWidth / 2), t: 16, b: x.bottom ?? 46 };
  const wide = plot.clientWidth - margin.l - margin.r, high = plot.clientHeight - margin.t - margin.b;
  const across = (value) => ((x.log ? Math.log10(value) : value) - x.range[0]) / (x.range[1] - x.range[0]);
  const up = (value) => (value - y.range[0]) / (y.range[1] - y.range[0]);
  const offsets = apart(named.map((line) => line.points.map((point) => [across(point.x) * wide, up(point.y) * high])));
  const moved = new Map(named.map((line, i) => [line, offsets[i] * (y.range[1] - y.range[0]) / high]));
  // one trace for all grey lines: a page of hundreds of lines opens many times as fast
  const grey = lines.filter((line) => !line.name).flatMap((line) => [...line.points.map((p) => ({ ...p, text: `${plain(line.title)}: ${p.text}` })), { x: null, y: null }]);
  const trace = (points, more) => ({ type: "scatter", x: points.map((p) => p.x), y: points.map((p) => p.y), customdata: points.map((p) => [p.id, p.text]), ...more });
  const traces = [trace(grey, { mode: "lines+markers", hovertemplate: "%{customdata[1]}<extra></extra>", opacity: 0.45, line: { color: GREY, width: 1 }, marker: { size: 4 } }), ...named.map((line) => trace(line.points, {
    name: plain(line.title ?? line.name), mode: line.isReference ? "lines" : "lines+markers", y: line.points.map((p) => p.y + moved.get(line)),
    hovertemplate: "%{customdata[1]}<extra>%{fullData.name}</extra>", line: { color: line.colour, dash: line.dash ?? "solid", width: 2.2 },
    marker: { symbol: line.points.map((p) => p.symbol ?? line.symbol), size: line.points.map((p) => p.size ?? 8), line: { width: line.points.map((p) => p.edge ?? 0) } },
    error_y: { visible: line.points[0].low !== undefined, type: "data", symmetric: false, array: line.points.map((p) => p.high - p.y), arrayminus: line.points.map((p) => p.y - p.low), thickness: 1, width: 3 },
  }))].slice(grey.length ? 0 : 1);
  const ends = narrow ? [] : named.map((line) => line.points.at(-1)), heights = spread(ends.map((end, i) => up(end.y) * high + offsets[i]), LABEL, high).map((height) => height / high);
  const axis = { gridcolor: gridline, zeroline: false, linecolor: soft, color: ink, fixedrange: true };
  Plotly.react(plot, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif", size: 13 }, width: plot.clientWidth, height: plot.clientHeight, margin, hovermode: "closest", showlegend: false,
    hoverlabel: { font: { size: 12 } },
    xaxis: { ...axis, type: x.log ? "log" : "linear", range: x.range, title: { text: x.title, standoff: 8 }, tickvals: x.ticks, ticktext: x.words }, yaxis: { ...axis, range: y.range, title: { text: y.title, standoff: 6 } },
    annotations: ends.map((_, i) => ({ xref: "paper", yref: "paper", x: 1, y: heights[i], xshift: 14, xanchor: "left", yanchor: "middle", showarrow: false, text: plain(named[i].name), font: { size: 12, color: ink } })),
    shapes: [...(x.bands ?? []).map(([x0, x1]) => ({ type: "rect", x0, x1, yref: "paper", y0: 0, y1: 1, layer: "below", line: { width: 0 }, fillcolor: "#f4666b", opacity: 0.14 })), ...ends.map((end, i) => ({ type: "line", xref: "paper", yref: "paper", x0: across(end.x), y0: up(end.y) + offsets[i] / high, x1: 1 + 12 / wide, y1: heights[i], line: { color: named[i].colour, width: 1 } }))],
  }, { displayModeBar: false });
  list.replaceChildren(...(narrow ? named : []).map((line) => {
    const entry = make("span", line.name), mark = make("i");
    mark.style.borderTop = `3px ${line.dash && line.dash !== "solid" ? line.dash === "dot" ? "dotted" : "dashed" : "solid"} ${line.colour}`;
    entry.prepend(mark); return entry;
  }));
  plot.removeAllListeners("plotly_click");
  plot.on("plotly_click", (e) => { const id = e.points[0].customdata?.[0]; if (id && onClick) onClick(id); });
}
