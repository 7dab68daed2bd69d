// All texts are set as text, never as markup: what a model said may look like a tag.
const { cells, samples } = JSON.parse(document.getElementById("data").textContent);
const COLUMNS = [
  ["task", "task"], ["policy", "policy"], ["score", "score"], ["budget", "budget"], ["mean", "mean"], ["low", "low"], ["high", "high"],
  ["n", "n"], ["errors", "failed"], ["kept_fraction", "kept %"], ["cache_bytes", "KiB held"], ["prefill_seconds", "prefill s"],
  ["evict_seconds", "evict s"], ["context_length", "context"], ["model", "model"], ["variant", "variant"],
  ["layout", "layout"], ["schedule", "schedule"], ["metric", "metric"], ["cell", "cell"],
];
const NUMBERS = new Set(["mean", "low", "high", "n", "errors", "kept_fraction", "cache_bytes", "prefill_seconds", "evict_seconds", "context_length", "budget"]);
const SCALE = { kept_fraction: [100, 1], cache_bytes: [1 / 1024, 0], mean: [1, 1], low: [1, 1], high: [1, 1], prefill_seconds: [1, 3], evict_seconds: [1, 4] };
const label = (c) => c.score ? `${c.policy} ${c.score}` : c.policy;
const shown = (key, value) => {
  if (value === null || value === undefined) return "";
  if (!(key in SCALE) || typeof value !== "number") return String(value);
  return (value * SCALE[key][0]).toFixed(SCALE[key][1]);
};
let order = ["task", 1], chosen = null;

const used = COLUMNS.filter(([key]) => cells.some((c) => c[key] !== null && c[key] !== "" && !(key === "errors" && c[key] === 0)));
function sorted(list) {
  const [key, way] = order, number = NUMBERS.has(key);
  const value = (c) => number ? (c[key] === null ? Infinity * way : Number(c[key])) : String(c[key] ?? "");
  return [...list].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * way; });
}
function table() {
  const words = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (c) => words.every((w) => used.some(([key]) => String(c[key] ?? "").toLowerCase().includes(w)));
  const list = sorted(cells.filter(matches));
  const row = document.createElement("tr");
  for (const [key, name] of used) {
    const th = make("th", name, NUMBERS.has(key) ? "number" : "");
    th.tabIndex = 0;
    if (order[0] === key) th.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
    th.onclick = () => { order = order[0] === key ? [key, -order[1]] : [key, key === "mean" ? -1 : 1]; table(); };
    th.onkeydown = (e) => { if (e.key === "Enter") th.onclick(); };
    row.append(th);
  }
  by("cells").tHead.replaceChildren(row);
  by("cells").tBodies[0].replaceChildren(...list.map((c) => {
    const tr = make("tr", undefined, c.cell === chosen ? "chosen" : "");
    tr.tabIndex = 0;
    for (const [key] of used) tr.append(make("td", shown(key, c[key]), (NUMBERS.has(key) ? "number" : "") + (key === "errors" && c.errors ? " bad" : "")));
    tr.onclick = () => drill(c.cell);
    tr.onkeydown = (e) => { if (e.key === "Enter") drill(c.cell); };
    return tr;
  }));
  by("count").textContent = list.length === cells.length ? "" : `${list.length} of ${cells.length} cells`;
}

function bars(coded) {
  const canvas = document.createElement("canvas"), bytes = Uint8Array.from(atob(coded), (c) => c.charCodeAt(0));
  canvas.width = bytes.length * 6; canvas.height = 26;
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bar");
  bytes.forEach((b, i) => { pen.globalAlpha = 0.08 + 0.92 * b / 255; pen.fillRect(i * 6, 0, 5, 26); });
  return canvas;
}
function drill(id) {
  const cell = cells.find((c) => c.cell === id), list = samples[id] || [];
  chosen = id; table();
  by("drill").hidden = false;
  by("which").textContent = `${cell.task}: ${label(cell)} at ${cell.budget}`;
  const count = cell.n + cell.errors;
  by("how").textContent = `${list.length} of ${count} samples, failed ones and the worst first.`;
  by("samples").replaceChildren(...list.map((s) => {
    const box = make("div", undefined, "sample"), facts = document.createElement("dl");
    box.append(make("h3", `sample ${s.sample}: ${s.error ? "failed" : s.value === null ? "no value" : `value ${s.value}`}`, s.error ? "bad" : ""));
    const say = (name, content) => { facts.append(make("dt", name)); const dd = document.createElement("dd"); dd.append(content); facts.append(dd); };
    if (s.error) say("error", make("pre", s.error, "bad"));
    if (s.tail !== null) say("prompt ends", make("pre", s.tail));
    say("prediction", make("pre", s.prediction));
    if (s.references !== null) say("reference", make("pre", s.references.join("\n")));
    if (s.kept !== null) { say("kept", bars(s.kept)); say("", make("span", `share of pairs that stayed, by position: 0 to ${s.seen}`, "note")); }
    box.append(facts);
    return box;
  }));
  for (const pre of by("samples").querySelectorAll("dd:first-of-type > pre")) pre.scrollTop = pre.scrollHeight;  // the question is last
  history.replaceState(null, "", `#${id}`);
  by("drill").scrollIntoView({ block: "start" });
}

function plot() {
  const axis = by("axis").value, [ink, line, soft] = colours(), narrow = window.innerWidth < 600;
  const here = cells.filter((c) => `${c.task} ${c.context_length ?? ""} ${c.model}` === by("task").value && c.mean !== null && c[axis] !== null);
  const names = [...new Set(here.map(label))].sort();
  const counts = here.map((c) => c.n), usual = counts.reduce((a, b) => counts.filter((n) => n === b).length > counts.filter((n) => n === a).length ? b : a, counts[0]);
  // a curve connects cells of one n: means over fewer or other samples are another experiment
  const curves = names.flatMap((name, i) => [...new Set(here.filter((c) => label(c) === name).map((c) => c.n))].sort((a, b) => (b === usual) - (a === usual) || a - b).map((n) => [name, i, n]));
  const factor = axis === "kept_fraction" ? 100 : 1;
  const traces = curves.map(([name, i, n]) => {
    const own = here.filter((c) => label(c) === name && c.n === n).sort((a, b) => a[axis] - b[axis]), mark = MARKS[i % MARKS.length];
    return {
      name: plain(name) + (n === usual ? "" : ` (n = ${n})`), x: own.map((c) => c[axis] * factor), y: own.map((c) => c.mean), customdata: own.map((c) => c.cell), mode: "lines+markers",
      error_y: { type: "data", symmetric: false, array: own.map((c) => c.high - c.mean), arrayminus: own.map((c) => c.mean - c.low), thickness: 1, width: 3 },
      line: { color: PALETTE[i % PALETTE.length], dash: n === usual ? "solid" : "dot" }, marker: { symbol: n === usual ? mark : `${mark}-open`, size: 9 },
      hovertemplate: `%{x:.4g}, %{y:.1f}, n = ${n}<extra>%{fullData.name}</extra>`,
    };
  });
  by("counts").textContent = here.length ? `n = ${usual} samples${new Set(counts).size > 1 ? "; open marks on dotted lines: another n, which the legend names" : ""}.` : "";
  const rate = here.length > 0 && here[0].rate, grid = { gridcolor: line, zerolinecolor: line, linecolor: soft, color: ink };
  Plotly.react("plot", traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif", size: 13 },
    margin: { l: 56, r: 12, t: 12, b: 46 }, hovermode: "closest",
    xaxis: { ...grid, title: { text: by("axis").selectedOptions[0].textContent + (factor === 100 ? " (%)" : "") }, rangemode: "tozero" },
    yaxis: { ...grid, title: { text: here.length ? plain(here[0].metric || "value") + (rate ? " (%)" : "") : "" }, rangemode: "tozero" },
    legend: narrow ? { orientation: "h", y: -0.25, font: { size: 11 } } : { y: 1 },
  }, { responsive: true, displayModeBar: false });
}

for (const key of [...new Set(cells.map((c) => `${c.task} ${c.context_length ?? ""} ${c.model}`))].sort()) by("task").append(make("option", key));
by("task").onchange = plot; by("axis").onchange = plot; by("filter").oninput = table;
onTheme(() => { plot(); if (chosen) drill(chosen); });
table(); plot();
const linked = decodeURIComponent(location.hash.slice(1));
if (cells.some((c) => c.cell === linked)) drill(linked);
by("plot").on("plotly_click", (e) => drill(e.points[0].customdata));
