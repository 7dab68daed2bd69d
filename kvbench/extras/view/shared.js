const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"], GREY = "#9aa1a9", LABEL = 15, LETTER = 7.4;
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "triangle-left", "triangle-right", "pentagon", "hexagon", "star", "cross", "x"];
const GLYPHS = { circle: "\u25cf\u25cb", square: "\u25a0\u25a1", diamond: "\u25c6\u25c7", "triangle-up": "\u25b2\u25b3", "triangle-down": "\u25bc\u25bd", "triangle-left": "\u25c0\u25c1", "triangle-right": "\u25b6\u25b7", pentagon: "\u2b1f\u2b20", hexagon: "\u2b22\u2b21", star: "\u2605\u2606", cross: "\u271a\u271b", x: "\u2716\u2715" };
const STROKES = { solid: "", dash: "6 3", dot: "2 2", dashdot: "6 2 2 2", longdash: "10 3", longdashdot: "9 2 2 2" };
const CLOSE = 1.5, TURN = 8, RING = 5, RINGS = 16;  // pixels, as in kvbench/report/plots/covered.py
// The library of charts: a file of its own beside a served page, or unpacked from this one.
const plotly = window.Plotly ? Promise.resolve(window.Plotly) : (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0)), script = document.createElement("script");
  script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
  return window.Plotly;
})();
plotly.catch(() => { for (const chart of document.querySelectorAll("#charts, .chart")) chart.textContent = "This browser cannot unpack the charts (it lacks DecompressionStream); the table below holds their numbers."; });
const by = (id) => document.getElementById(id);
const make = (tag, text, name) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (name) e.className = name; return e; };
const plain = (text) => String(text).replace(/</g, "\u2039").replace(/>/g, "\u203a");  // plotly reads some tags in names
const isNarrow = () => window.innerWidth < 640;
const isDark = () => document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const tint = (colour) => isDark() ? DARK[colour] ?? colour : colour;  // DARK: kvbench/report/colours.py
const glyph = (symbol) => GLYPHS[symbol.replace("-open", "")][symbol.endsWith("-open") ? 1 : 0];
// A piece of the line of a method, with its marker: what names in tables and below charts begin with.
function mark({ colour, symbol, dash }) {
  const part = (name, set) => { const e = document.createElementNS("http://www.w3.org/2000/svg", name); for (const [key, value] of Object.entries(set)) e.setAttribute(key, value); return e; };
  const box = part("svg", { class: "mark", viewBox: "0 0 34 14", width: 34, height: 14, "aria-hidden": "true" }), text = part("text", { x: 17, y: 7, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 12, fill: tint(colour) });
  text.textContent = glyph(symbol);
  box.append(part("line", { x1: 0, x2: 34, y1: 7, y2: 7, stroke: tint(colour), "stroke-width": 2, "stroke-dasharray": STROKES[dash] }), text);
  return box;
}
function colours() {
  const style = getComputedStyle(document.documentElement);
  return ["--ink", "--line", "--soft", "--back"].map((name) => style.getPropertyValue(name).trim());
}
function onTheme(redraw) {
  by("theme").onclick = () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark"; redraw();
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
// Of lines that cover each other, the pieces that are seen: one line after the other. Nothing leaves its place.
function piecesInTurn(paths) {
  const height = (path, x) => {
    const i = Math.max(1, path.findIndex(([u]) => u >= x)), [[x0, y0], [x1, y1]] = [path[i - 1], path[i]];
    return x1 === x0 ? y0 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
  };
  const corners = paths.flatMap((path) => path.map(([x]) => x)), pieces = paths.map(() => []);
  const first = Math.min(...corners), last = Math.max(...corners);
  for (let x = Math.ceil(first / TURN) * TURN; x < last; x += TURN) corners.push(x);
  corners.sort((a, b) => a - b).slice(1).forEach((stop, i) => {
    const start = corners[i], groups = [];
    if (stop - start < 1e-6) return;
    paths.forEach((path, k) => {
      if (path.length < 2 || path[0][0] > start || path.at(-1)[0] < stop) return;
      const ends = [height(path, start), height(path, stop)];
      const group = groups.find(([other]) => ends.every((y, side) => Math.abs(y - other.ends[side]) < CLOSE));
      if (group) group.push({ k, ends }); else groups.push([{ k, ends }]);
    });
    for (const group of groups.filter((members) => members.length > 1)) {
      const { k, ends } = group[Math.floor((start + stop) / 2 / TURN) % group.length];
      pieces[k].push([start, ends[0]], [stop, ends[1]], null);
    }
  });
  return pieces;
}
// By line and point: how many later lines have a point at the same place; their markers are rings around it.
function ranks(paths) {
  const covers = (path, [x, y]) => path.some(([u, v]) => Math.hypot(x - u, y - v) < CLOSE);
  return paths.map((path, i) => path.map((point) => paths.slice(i + 1).filter((other) => covers(other, point)).length));
}
// Lines with their names at the ends, or below on a narrow page. Lines without a name are grey behind the others.
function draw(box, lines, x, y, onClick) {
  const [ink, gridline, soft, paper] = colours(), narrow = isNarrow(), plot = box.querySelector(".plot"), list = box.querySelector(".names");
  lines = lines.filter((line) => line.points.length).map((line) => ({ ...line, colour: tint(line.colour) }));
  const named = lines.filter((line) => line.name), longest = Math.max(0, ...named.map((line) => line.name.length + 2));
  const margin = { l: 68, r: narrow ? 14 : Math.min(30 + LETTER * longest, 0.3 * plot.clientWidth), t: 16, b: x.bottom ?? 46 };
  const wide = plot.clientWidth - margin.l - margin.r, high = plot.clientHeight - margin.t - margin.b;
  const across = (value) => ((x.log ? Math.log10(value) : value) - x.range[0]) / (x.range[1] - x.range[0]);
  const up = (value) => (value - y.range[0]) / (y.range[1] - y.range[0]);
  const covering = named.filter((line) => !line.isReference), paths = covering.map((line) => line.points.map((p) => [across(p.x) * wide, up(p.y) * high]));
  const pieces = piecesInTurn(paths), nested = ranks(paths), ring = Math.min(RING, RINGS / Math.max(1, ...nested.flat()));
  const back = (pixel, range, length) => range[0] + pixel / length * (range[1] - range[0]);
  // one trace for all grey lines: a page of hundreds of lines opens many times as fast
  const grey = lines.filter((line) => !line.name).flatMap((line) => [...line.points.map((p) => ({ ...p, text: `${plain(line.title)}: ${p.text}` })), { x: null, y: null }]);
  const trace = (points, more) => ({ type: "scatter", x: points.map((p) => p.x), y: points.map((p) => p.y), customdata: points.map((p) => [p.id, p.text]), hovertemplate: "%{customdata[1]}<extra>%{fullData.name}</extra>", ...more });
  const stroke = (line) => ({ mode: "lines", name: plain(line.title ?? line.name), line: { color: line.colour, dash: line.dash ?? "solid", width: 2.2 } });
  const traces = [
    ...(grey.length ? [trace(grey, { mode: "lines+markers", hovertemplate: "%{customdata[1]}<extra></extra>", opacity: 0.45, line: { color: GREY, width: 1 }, marker: { size: 4 } })] : []),
    ...named.map((line) => trace(line.points, stroke(line))),
    ...covering.flatMap((line, k) => pieces[k].length ? [{
      type: "scatter", ...stroke({ ...line, dash: "solid" }), hoverinfo: "skip",
      x: pieces[k].map((p) => p && (x.log ? 10 ** back(p[0], x.range, wide) : back(p[0], x.range, wide))), y: pieces[k].map((p) => p && back(p[1], y.range, high)),
    }] : []),
    ...covering.map((line, k) => trace(line.points, {
      mode: "markers", cliponaxis: false, name: plain(line.title ?? line.name),
      marker: {
        color: line.colour, opacity: 1, symbol: line.points.map((p, i) => p.symbol ?? (nested[k][i] ? "circle" : line.symbol)), size: line.points.map((p, i) => (p.size ?? 8) + ring * nested[k][i]),
        line: { color: line.points.map((p, i) => nested.flat().some(Boolean) && !p.edge ? paper : line.colour), width: line.points.map((p, i) => p.edge ?? 1) },
      },
      error_y: { visible: line.points[0].low !== undefined, type: "data", symmetric: false, array: line.points.map((p) => p.high - p.y), arrayminus: line.points.map((p) => p.y - p.low), color: line.colour, thickness: 1, width: 3 },
    })),
  ];
  const ends = narrow ? [] : named.map((line) => line.points.at(-1)), heights = spread(ends.map((end) => up(end.y) * high), LABEL, high).map((height) => height / high);
  const letters = Math.floor((margin.r - 20) / LETTER) - 2, fitting = (name) => name.length > letters ? `${name.slice(0, letters - 1)}\u2026` : name;
  const axis = { gridcolor: gridline, zeroline: false, linecolor: soft, color: ink, fixedrange: true };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif", size: 13 }, width: plot.clientWidth, height: plot.clientHeight, margin, hovermode: "closest", showlegend: false,
    hoverlabel: { font: { size: 12 } },
    xaxis: { ...axis, type: x.log ? "log" : "linear", range: x.range, title: { text: x.title, standoff: 8 }, tickvals: x.ticks, ticktext: x.words }, yaxis: { ...axis, range: y.range, title: { text: y.title, standoff: 6 } },
    annotations: ends.map((_, i) => ({ xref: "paper", yref: "paper", x: 1, y: heights[i], xshift: 14, xanchor: "left", yanchor: "middle", showarrow: false, text: `<span style="color:${named[i].colour}">${glyph(named[i].symbol)}</span> ${plain(fitting(named[i].name))}`, hovertext: fitting(named[i].name) === named[i].name ? undefined : plain(named[i].name), font: { size: 12, color: ink } })),
    shapes: [...(x.bands ?? []).map(([x0, x1]) => ({ type: "rect", x0, x1, yref: "paper", y0: 0, y1: 1, layer: "below", line: { width: 0 }, fillcolor: "#f4666b", opacity: 0.14 })), ...ends.map((end, i) => ({ type: "line", xref: "paper", yref: "paper", x0: across(end.x), y0: up(end.y), x1: 1 + 12 / wide, y1: heights[i], opacity: 0.6, layer: "below", line: { color: GREY, width: 1 } }))],
  };
  plotly.then((Plotly) => {
    if (!plot.isConnected) return;
    Plotly.react(plot, traces, layout, { displayModeBar: false });
    plot.removeAllListeners("plotly_click");
    plot.on("plotly_click", (e) => { const id = e.points[0].customdata?.[0]; if (id && onClick) onClick(id); });
  }, () => {});
  list.replaceChildren(...(narrow ? named : []).map((line) => {
    const entry = make("span", line.name); entry.prepend(mark({ dash: "solid", ...line })); return entry;
  }));
}
