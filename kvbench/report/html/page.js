// All texts are set as text, never as markup: what a model said may look like a tag.
const { cells, samples, prompts, looks } = JSON.parse(document.getElementById("data").textContent);
const COLUMNS = [
  ["task", "task"], ["policy", "policy"], ["score", "score"], ["budget", "budget"], ["mean", "mean"], ["low", "low"], ["high", "high"],
  ["n", "n"], ["errors", "failed"], ["kept_fraction", "kept %"], ["cache_bytes", "KiB held"], ["prefill_seconds", "prefill s"],
  ["evict_seconds", "evict s"], ["context_length", "context"], ["model", "model"], ["variant", "variant"],
  ["layout", "layout"], ["schedule", "schedule"], ["metric", "metric"], ["cell", "cell"],
];
const NUMBERS = new Set(["mean", "low", "high", "n", "errors", "kept_fraction", "cache_bytes", "prefill_seconds", "evict_seconds", "context_length", "budget"]);
const SCALE = { kept_fraction: [100, 1], cache_bytes: [1 / 1024, 0], prefill_seconds: [1, 3], evict_seconds: [1, 4] };
const FACETS = [["task", "task"], ["context_length", "context"], ["model", "model"], ["policy", "policy"], ["score", "score"], ["budget", "budget"], ["n", "n"]];
const WORDS = ["task", "policy", "score", "budget", "model", "context_length", "variant", "layout", "schedule", "metric", "cell"];
const PANELS = 12, LINES = 8, BEST = 5, ROWS = 200;
const isFull = (c) => c.policy === "full";
const label = (c) => c.score && c.score !== c.policy ? `${c.policy} ${c.score}` : c.policy;
const groupOf = (c) => JSON.stringify([c.model, c.task, c.context_length]);
const inMetric = (c, value) => c.rate ? value.toFixed(1) : String(Number(value.toPrecision(4)));
const shown = (key, c) => {
  const value = c[key];
  if (value === null || value === undefined) return "";
  if (key === "mean" || key === "low" || key === "high") return inMetric(c, value);
  if (!(key in SCALE) || typeof value !== "number") return String(value);
  return (value * SCALE[key][0]).toFixed(SCALE[key][1]);
};
const byId = new Map(cells.map((c) => [c.cell, c]));
const facets = Object.fromEntries(FACETS.map(([key]) => [key, new Set()]));
let order = ["task", 1], chosen = [], rows = ROWS;

const passes = (c, but) => FACETS.every(([key]) => key === but || !facets[key].size || facets[key].has(c[key]));
const searched = () => matching(by("filter").value, cells, (c) => WORDS.map((key) => c[key]));
const budgetKey = (text) => [/[.e]/i.test(text) ? 0 : 1, Number(text)];
function values(key, list) {
  const found = [...new Set(list.map((c) => c[key]))];
  if (key === "budget") return found.sort((a, b) => { const [x, y] = [budgetKey(a), budgetKey(b)]; return x[0] - y[0] || x[1] - y[1]; });
  return found.sort((a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "") < String(b ?? "") ? -1 : 1);
}
function menus() {
  by("facets").replaceChildren(...FACETS.filter(([key]) => values(key, cells).length > 1).map(([key, name]) => {
    const box = make("details", undefined, "facet"), head = make("summary"), menu = make("div", undefined, "menu");
    box.append(head, menu);
    box.ontoggle = () => { if (box.open) { for (const other of document.querySelectorAll("details.facet[open]")) if (other !== box) other.open = false; fill(); } };
    const name_of = (value) => value === null ? "none" : String(value);
    const title = () => head.replaceChildren(make("span", name), make("b", facets[key].size ? facets[key].size > 2 ? `${facets[key].size} chosen` : [...facets[key]].map(name_of).join(", ") : "all"));
    const fill = () => {
      const others = searched().filter((c) => passes(c, key));
      const all = make("button", "all"); all.type = "button"; all.onclick = () => { facets[key].clear(); title(); fill(); update(); };
      const counts = values(key, cells).map((value) => [value, others.filter((c) => c[key] === value).length]);
      menu.replaceChildren(all, ...counts.sort((a, b) => !a[1] - !b[1]).map(([value, count]) => {
        const line = make("label"), tick = make("input");
        tick.type = "checkbox"; tick.checked = facets[key].has(value);
        tick.onchange = () => { if (tick.checked) facets[key].add(value); else facets[key].delete(value); title(); update(); };
        line.append(tick, make("span", name_of(value)), make("i", count)); if (!count) line.className = "empty";
        return line;
      }));
    };
    title();
    return box;
  }));
}
document.addEventListener("click", (e) => { for (const open of document.querySelectorAll("details.facet[open]")) if (!open.contains(e.target)) open.open = false; });

const used = COLUMNS.filter(([key]) => cells.some((c) => c[key] !== null && c[key] !== "" && !(key === "errors" && c[key] === 0)));
function sorted(list) {
  const [key, way] = order, number = NUMBERS.has(key);
  const value = (c) => number ? (c[key] === null ? Infinity * way : Number(c[key])) : String(c[key] ?? "");
  return [...list].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * way; });
}
const lookOf = (c, alone) => isFull(c) ? ["var(--soft)", "circle", 0] : alone ? looks.scores[c.score ?? c.policy] : looks.policies[c.policy];
function isAlone(list) { const evicting = list.filter((c) => !isFull(c)); return new Set(evicting.map((c) => c.policy)).size === 1 && new Set(evicting.map((c) => c.score)).size > 1; }
const classOf = (key) => key === "policy" ? "method" : key === "score" ? "score" : NUMBERS.has(key) ? "number" : "";
function hint() {
  const box = document.querySelector(".scroll"), hidden = [...by("cells").querySelectorAll("th")].filter((th) => th.offsetWidth && th.offsetLeft + th.offsetWidth / 2 > box.scrollLeft + box.clientWidth).length;
  by("wider").hidden = !hidden; by("wider").textContent = `${hidden} more column${hidden > 1 ? "s" : ""} at the right: scroll the table \u2192`;
}
function table(list) {
  const row = make("tr"), alone = isAlone(list);
  for (const [key, name] of used) {
    const th = make("th", name, classOf(key));
    th.tabIndex = 0;
    if (order[0] === key) th.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
    th.onclick = () => { order = order[0] === key ? [key, -order[1]] : [key, key === "mean" ? -1 : 1]; update(); };
    th.onkeydown = (e) => { if (e.key === "Enter") th.onclick(); };
    row.append(th);
  }
  by("cells").tHead.replaceChildren(row);
  by("cells").tBodies[0].replaceChildren(...sorted(list).slice(0, rows).map((c) => {
    const tr = make("tr", undefined, chosen.includes(c.cell) ? "chosen" : "");
    tr.tabIndex = 0;
    for (const [key] of used) {
      const td = make("td", shown(key, c), classOf(key) + (key === "errors" && c.errors ? " bad" : ""));
      if (key === "policy" && c.score && c.score !== c.policy) td.dataset.score = c.score;
      if (key === "policy") { const dot = make("i", undefined, "dot"); dot.style.background = tint(lookOf(c, alone)[0]); td.prepend(dot); }
      tr.append(td);
    }
    tr.onclick = () => choose(c.cell);
    tr.onkeydown = (e) => { if (e.key === "Enter") choose(c.cell); };
    return tr;
  }));
  by("more").hidden = list.length <= rows;
  by("more").textContent = `show all ${list.length} rows`;
  hint();
  by("count").textContent = list.length === cells.length ? `${cells.length} cells` : `${list.length} of ${cells.length} cells`;
}

const AXES = {
  kept_fraction: ["pairs kept (%)", 100, (v) => String(v)], kept_tokens: ["pairs kept per head", 1, (v) => String(v)],
  cache_bytes: ["bytes held", 1, (v) => v >= 2 ** 30 ? `${v / 2 ** 30} GiB` : v >= 2 ** 20 ? `${v / 2 ** 20} MiB` : `${v / 1024} KiB`],
};
function xAxis(key, list) {
  const [title, factor, word] = AXES[key], numbers = list.map((c) => c[key] * factor), low = Math.min(...numbers), high = Math.max(...numbers);
  let ticks = key === "kept_fraction" ? [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100] : Array.from({ length: 50 }, (_, i) => 2 ** i);
  ticks = ticks.filter((tick) => tick >= low * 0.8 && tick <= high * 1.25);
  if (ticks.length < 2) ticks = [...new Set(numbers.map((number) => Number(number.toPrecision(2))))].sort((x, y) => x - y);
  if (ticks.length > 6) ticks = ticks.filter((_, i) => i % Math.ceil(ticks.length / 6) === 0);
  const pad = Math.max((Math.log10(high) - Math.log10(low)) * 0.05, 0.03);
  return { title, log: true, factor, range: [Math.log10(low) - pad, Math.log10(high) + pad], ticks, words: ticks.map(word) };
}
function yAxis(list) {
  const first = list[0], title = plain(first.metric || "value") + (first.rate ? " (%)" : "");
  if (list.every((c) => c.rate)) return { title, range: [-4, 104] };
  const ends = list.flatMap((c) => [c.low ?? c.mean, c.high ?? c.mean]), low = Math.min(...ends), high = Math.max(...ends), pad = (high - low || Math.abs(high) || 1) * 0.06;
  return { title, range: [low - pad, high + pad] };
}
// The names to draw in colour: the chosen ones, and of many those that are least behind the best at each budget.
function toName(lines) {
  if (lines.length <= LINES) return new Set(lines);
  const all = lines.flatMap((line) => line.cells), way = all[0].higher ? 1 : -1;
  const best = new Map();
  for (const c of all) best.set(c.budget, Math.max(best.get(c.budget) ?? -Infinity, way * c.mean));
  const behind = (line) => line.cells.reduce((sum, c) => sum + best.get(c.budget) - way * c.mean, 0) / line.cells.length;
  const most = Math.max(...lines.map((line) => line.cells.length));
  const ranked = lines.filter((line) => line.cells.length * 2 >= most).sort((a, b) => behind(a) - behind(b));
  return new Set([...ranked.slice(0, BEST), ...lines.filter((line) => line.cells.some((c) => chosen.includes(c.cell)))]);
}
function linesOf(list, axis) {
  const counts = list.map((c) => c.n), alone = isAlone(list), scores = values("score", cells).filter((s) => s !== null);
  const usual = counts.reduce((a, b) => counts.filter((n) => n === b).length > counts.filter((n) => n === a).length ? b : a, counts[0]);
  const text = (c) => `${inMetric(c, c.mean)}${c.low === null ? "" : ` [${inMetric(c, c.low)}, ${inMetric(c, c.high)}]`}, budget ${plain(c.budget)}, n = ${c.n}`;
  const grouped = new Map();
  // a curve connects cells of one n and one set of settings: other samples or settings are another experiment
  for (const c of list.filter((c) => !isFull(c) && c.mean !== null && c[axis] > 0)) {
    const key = JSON.stringify([c.policy, c.score, c.n, c.variant, c.layout, c.schedule, c.seed]);
    if (!grouped.has(key)) grouped.set(key, []);
    grouped.get(key).push(c);
  }
  const lines = [...grouped.values()].map((members) => ({ cells: members.sort((a, b) => a[axis] - b[axis]) })), names = toName(lines);
  const factor = AXES[axis][1], several = new Set(["variant", "layout", "schedule", "seed"].filter((key) => values(key, list).length > 1));
  return [usual, lines.map((line) => {
    const c = line.cells[0], [colour, symbol, turn] = lookOf(c, alone), more = [...several].map((key) => c[key]).filter((v) => v !== null && v !== "exact" && v !== "kv_heads" && v !== "prompt");
    const title = [label(c), ...more].join(" ") + (c.n === usual ? "" : ` (n = ${c.n})`);
    const marks = (c) => chosen.includes(c.cell) ? { symbol: "circle-open", size: 15, edge: 2.5 } : c.n === usual ? {} : { size: 5 };
    return {
      name: names.has(line) ? title : "", title, colour, symbol, dash: c.n !== usual ? "dot" : alone ? DASHES[turn % DASHES.length] : !c.score ? "solid" : DASHES[scores.indexOf(c.score) % DASHES.length],
      points: line.cells.map((c) => ({ x: c[axis] * factor, y: c.mean, low: c.low ?? c.mean, high: c.high ?? c.mean, id: c.cell, text: text(c), ...marks(c) })),
    };
  }), lines.length - names.size];
}
function charts(list) {
  const axis = by("axis").value, drawable = list.filter((c) => !isFull(c) && c.mean !== null && c[axis] > 0);
  const groups = [...new Set(drawable.map(groupOf))].sort(new Intl.Collator("en", { numeric: true }).compare), first = groups.slice(0, PANELS), box = by("charts");
  box.className = groups.length > 1 ? "many" : "";
  while (box.children.length > first.length) box.lastChild.remove();
  while (box.children.length < first.length) {  // all before the first is drawn, as they share the width
    const panel = make("figure"); panel.append(make("figcaption"), make("div", undefined, "plot"), make("div", undefined, "names")); box.append(panel);
  }
  let grey = 0; const counts = new Set();
  const scale = drawable.length ? xAxis(axis, drawable) : null;
  first.forEach((key, i) => {
    const members = drawable.filter((c) => groupOf(c) === key), [model, task, length] = JSON.parse(key);
    const panel = box.children[i];
    panel.firstChild.textContent = [task, length && `${length} tokens`, values("model", cells).length > 1 && model].filter(Boolean).join(", ");
    const [usual, lines, behind] = linesOf(members, axis);
    grey += behind; counts.add(usual);
    const full = cells.find((c) => isFull(c) && groupOf(c) === key && c.mean !== null && !(c.n !== usual) && (!facets.policy.size || facets.policy.has("full")));
    const metric = cells.filter((c) => c.metric === members[0].metric && list.includes(c) && c.mean !== null);
    if (full) lines.push({ name: "full cache", isReference: true, colour: GREY, dash: "dash", symbol: "circle", points: scale.range.map((end) => ({ x: 10 ** end, y: full.mean, id: full.cell, text: `${inMetric(full, full.mean)}, n = ${full.n}` })) });
    draw(panel, lines, scale, yAxis(metric), choose);
  });
  const parts = [];
  if (counts.size) parts.push(`n = ${[...counts].join(", ")} samples`);
  if (first.length && by("charts").textContent.includes("(n = ")) parts.push("small marks on dotted lines: another n, which the name says");
  if (grey) parts.push(`in colour the ${BEST} least behind the best at each budget, and what you choose; ${grey} lines in grey`);
  if (groups.length > PANELS) parts.push(`${PANELS} of ${groups.length} panels: choose a task`);
  by("counts").textContent = drawable.length ? `${parts.join("; ")}.` : "No cell that evicts is chosen.";
}

function shares(coded) { return Uint8Array.from(atob(coded), (c) => c.charCodeAt(0)); }
function bars(coded, needles) {
  const canvas = make("canvas"), bytes = shares(coded), pen = canvas.getContext("2d"), step = 6;
  canvas.width = bytes.length * step; canvas.height = 26;
  const style = getComputedStyle(document.documentElement);
  pen.fillStyle = style.getPropertyValue("--bar");
  bytes.forEach((b, i) => { pen.globalAlpha = 0.08 + 0.92 * b / 255; pen.fillRect(i * step, 0, step - 1, 26); });
  pen.globalAlpha = 1; pen.fillStyle = style.getPropertyValue("--right");
  for (const place of needles) pen.fillRect(place * canvas.width - 2, 0, 4, 7);
  return canvas;
}
// The tokens that hold a right answer.
function needlesOf(prompt) {
  if (prompt.needles) return prompt.needles;
  const text = prompt.tokens.join(""), hits = new Set(), starts = [];
  prompt.tokens.reduce((at, token) => { starts.push(at); return at + token.length; }, 0);
  for (const reference of prompt.references.filter((r) => r.trim().length > 1)) {
    for (let at = text.indexOf(reference); at >= 0; at = text.indexOf(reference, at + 1)) {
      starts.forEach((start, i) => { if (start < at + reference.length && start + prompt.tokens[i].length > at) hits.add(i); });
    }
  }
  return prompt.needles = hits;
}
function textOf(prompt, sample) {
  const box = make("div", undefined, "tokens"), kept = shares(sample.tokens), needles = needlesOf(prompt);
  box.append(...prompt.tokens.map((token, i) => {
    if (prompt.places[i] === null) return make("span", " \u2026 ", "gap");
    const span = make("span", token, needles.has(i) ? "needle" : ""), share = kept[i] / 255;
    if (share) span.style.setProperty("--share", share.toFixed(2)); else span.classList.add("gone");
    span.title = `token ${prompt.places[i]}: ${Math.round(100 * share)} % of heads keep it`;
    return span;
  }));
  return box;
}
function answer(c, s, prompt) {
  const box = make("div", undefined, "answer"), head = make("h4"), dot = make("i", undefined, "dot");
  dot.style.background = tint(lookOf(c, false)[0]);
  head.append(dot, make("span", `${label(c)}${isFull(c) ? "" : ` at ${c.budget}`}`));
  box.append(head);
  if (!s) { box.append(make("p", "This cell has no such sample on the page.", "note")); return box; }
  head.append(make("span", s.error ? "failed" : s.value === null ? "no value" : `value ${Number(s.value.toPrecision(3))}`, s.error || s.value === 0 ? "value bad" : "value"));
  if (s.error) box.append(make("pre", s.error, "bad"));
  box.append(make("pre", s.prediction));
  const tokens = prompt?.tokens && s.tokens;
  if (s.kept !== null) {
    const needles = tokens ? [...needlesOf(prompt)].map((i) => (prompt.places[i] + 0.5) / s.seen) : [];
    box.append(bars(s.kept, needles), make("p", `share of KV pairs kept, by position: 0 to ${s.seen}${needles.length ? "; green: the right answer" : ""}`, "note"));
  }
  if (tokens) {
    const fold = make("details"), fill = () => { if (fold.open && fold.children.length === 1) fold.append(textOf(prompt, s)); };
    fold.append(make("summary", "kept tokens over the text")); fold.ontoggle = fill; fold.className = "text"; box.append(fold);
  }
  return box;
}
function drill() {
  by("drill").hidden = !chosen.length;
  if (!chosen.length) return;
  const picked = chosen.map((id) => byId.get(id));
  by("which").replaceChildren(...picked.map((c) => {
    const chip = make("button", `${c.task}: ${label(c)}${isFull(c) ? "" : ` at ${c.budget}`} \u2715`, "chip");
    chip.type = "button"; chip.title = "leave out"; chip.onclick = () => choose(c.cell);
    return chip;
  }));
  const numbers = new Map();
  picked.forEach((c, i) => (samples[c.cell] || []).forEach((s) => {
    const key = `${s.prompt ?? c.task} ${s.sample}`;
    if (!numbers.has(key)) numbers.set(key, []);
    numbers.get(key)[i] = s;
  }));
  const isWrong = (pair) => pair.some((s, i) => s && (s.error || s.value === null || (picked[i].rate ? s.value < 1 : false)));
  const wrong = [...numbers.values()].filter(isWrong), read = by("wrong").checked ? wrong : [...numbers.values()];
  by("wrong").disabled = !picked.some((c) => c.rate) && !wrong.length;
  by("how").textContent = `${by("wrong").checked ? `${wrong.length} wrong of ` : ""}${numbers.size} samples, failed ones and the worst first.${picked.length < 2 ? " Choose a second cell to read both side by side." : ""}`;
  by("samples").replaceChildren(...read.map((pair) => {
    const s = pair.find(Boolean), prompt = s.prompt === null ? null : prompts[s.prompt], box = make("div", undefined, "sample"), both = make("div", undefined, "answers");
    box.append(make("h3", `sample ${s.sample}`));
    if (prompt) {
      const fold = make("details"); fold.append(make("summary", "prompt, its end"), make("pre", prompt.tail)); fold.ontoggle = () => { fold.lastChild.scrollTop = fold.lastChild.scrollHeight; };
      const facts = make("p", undefined, "reference"); facts.append(make("span", "reference "), make("code", prompt.references.join(" | ")));
      box.append(fold, facts);
    }
    both.append(...picked.map((c, i) => answer(c, pair[i], prompt)));
    box.append(both);
    return box;
  }));
  for (const fold of by("samples").querySelector(".sample")?.querySelectorAll("details.text") ?? []) fold.open = true;
}
function choose(id) {
  const was = chosen.length;
  chosen = chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen.slice(0, 1), id];
  update(); drill();
  if (!was) by("drill").scrollIntoView({ block: "start" });
}

// What is chosen is in the address, so that a link opens the page as it was left.
function write() {
  const words = new URLSearchParams();
  for (const [key] of FACETS) for (const value of facets[key]) words.append(key, JSON.stringify(value));
  if (by("filter").value) words.set("find", by("filter").value);
  if (by("axis").selectedIndex) words.set("against", by("axis").value);
  if (by("wrong").checked) words.set("wrong", "only");
  if (chosen.length) words.set("cells", chosen.join(","));
  history.replaceState(null, "", `#${words}`);
}
function read() {
  const text = location.hash.slice(1), words = new URLSearchParams(text.includes("=") ? text : { cells: decodeURIComponent(text) });
  for (const [key] of FACETS) {
    const known = new Map(values(key, cells).map((value) => [JSON.stringify(value), value]));
    facets[key] = new Set(words.getAll(key).filter((word) => known.has(word)).map((word) => known.get(word)));
  }
  by("filter").value = words.get("find") ?? "";
  by("axis").value = words.get("against") in AXES ? words.get("against") : "kept_fraction";
  by("wrong").checked = words.get("wrong") === "only";
  chosen = (words.get("cells") ?? "").split(",").filter((id) => byId.has(id)).slice(0, 2);
  menus(); update(); drill();
}
function update() {
  write();
  const list = searched().filter((c) => passes(c));
  table(list); charts(list);
}
by("axis").onchange = update; by("filter").oninput = () => { rows = ROWS; update(); };
by("more").onclick = () => { rows = Infinity; update(); };
by("reset").onclick = () => { for (const set of Object.values(facets)) set.clear(); by("filter").value = ""; menus(); update(); };
by("wrong").onchange = () => { write(); drill(); };
document.querySelector(".scroll").addEventListener("scroll", hint);
window.addEventListener("hashchange", read);
onTheme(() => { update(); drill(); });
read();
document.documentElement.dataset.ready = Math.round(performance.now());
