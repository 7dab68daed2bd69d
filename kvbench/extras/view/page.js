// All texts are set as text, never as markup: what a model said may look like a tag.
const page = JSON.parse(document.getElementById("data").textContent);
let { cells, looks } = page;
const COLUMNS = [
  ["folder", "folder"], ["task", "task"], ["policy", "policy"], ["score", "score"], ["budget", "budget"], ["mean", "mean"], ["low", "low"], ["high", "high"],
  ["n", "n"], ["errors", "failed"], ["kept_fraction", "kept %"], ["held_bytes", "KiB held"], ["prefill_seconds", "prefill s"],
  ["evict_seconds", "evict s"], ["context_length", "context"], ["model", "model"], ["variant", "variant"],
  ["layout", "layout"], ["schedule", "schedule"], ["setting", "setting"], ["metric", "metric"], ["cell", "cell"],
];
const NUMBERS = new Set(["mean", "low", "high", "n", "errors", "kept_fraction", "held_bytes", "prefill_seconds", "evict_seconds", "context_length", "budget"]);
const SCALE = { kept_fraction: [100, 1], held_bytes: [1 / 1024, 0], prefill_seconds: [1, 3], evict_seconds: [1, 4] };
const FACETS = [["folder", "folder"], ["task", "task"], ["context_length", "context"], ["model", "model"], ["policy", "policy"], ["score", "score"], ["budget", "budget"], ["n", "n"]];
const WORDS = ["folder", "task", "policy", "score", "budget", "model", "context_length", "variant", "layout", "schedule", "setting", "metric", "cell"];
const PANELS = 12, LINES = 8, BEST = 5, ROWS = 200;
const isFull = (c) => c.policy === "full";
const label = (c) => [c.policy, c.score === c.policy ? null : c.score, c.setting].filter(Boolean).join(" ");
const groupOf = (c) => JSON.stringify([c.folder ?? "", c.model, c.task, c.context_length]);
const inMetric = (c, value) => c.rate ? value.toFixed(1) : String(Number(value.toPrecision(4)));
const shown = (key, c) => {
  const value = c[key];
  if (value === null || value === undefined) return "";
  if (key === "mean" || key === "low" || key === "high") return inMetric(c, value);
  if (!(key in SCALE) || typeof value !== "number") return String(value);
  return (value * SCALE[key][0]).toFixed(SCALE[key][1]);
};
let byId = new Map(cells.map((c) => [c.cell, c]));
const facets = Object.fromEntries(FACETS.map(([key]) => [key, new Set()]));
let order = ["task", 1], chosen = [], rows = ROWS, sample = null;

const passes = (c, but) => FACETS.every(([key]) => key === but || !facets[key].size || facets[key].has(c[key]));
const left = () => searched().filter((c) => passes(c));  // by all filters
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
      const all = make("button", "all"); all.type = "button"; all.onclick = () => { facets[key].clear(); title(); fill(); filtered(); };
      const counts = values(key, cells).map((value) => [value, others.filter((c) => c[key] === value).length]);
      menu.replaceChildren(all, ...counts.sort((a, b) => !a[1] - !b[1]).map(([value, count]) => {
        const line = make("label"), tick = make("input");
        tick.type = "checkbox"; tick.checked = facets[key].has(value);
        tick.onchange = () => { if (tick.checked) facets[key].add(value); else facets[key].delete(value); title(); filtered(); };
        line.append(tick, make("span", name_of(value)), make("i", count)); if (!count) line.className = "empty";
        return line;
      }));
    };
    title();
    return box;
  }));
}
document.addEventListener("click", (e) => { for (const open of document.querySelectorAll("details.facet[open]")) if (!open.contains(e.target)) open.open = false; });

const FIRST = ["policy", "score", "budget", "mean"];
// The columns that hold anything; on a narrow page the method, with its task, and its mean come first.
function columns() {
  const used = COLUMNS.filter(([key]) => cells.some((c) => (c[key] ?? "") !== "" && !(key === "errors" && c[key] === 0)) && (key !== "folder" || values(key, cells).length > 1));
  const place = ([key]) => FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length;
  return isNarrow() ? used.filter(([key]) => key !== "task" && key !== "folder").map((column, i) => [column, i]).sort(([a, i], [b, j]) => place(a) - place(b) || i - j).map(([column]) => column) : used;
}
function sorted(list, [key, way] = order) {
  const number = NUMBERS.has(key);
  const value = (c) => number ? (c[key] === null ? Infinity * way : Number(c[key])) : String(c[key] ?? "");
  return [...list].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * way; });
}
// Colour, marker and dash of each method, no two the same: colour and marker of its policy, or of its score where one
// policy is shown; the dash of its score; and for what is alike then, the next dash or marker that is free.
const USUAL = [null, undefined, "exact", "kv_heads", "prompt"];
const unusual = (c) => [c.variant, c.layout, c.schedule, c.seed, c.setting].filter((value) => !USUAL.includes(value));
const methodOf = (c) => JSON.stringify([c.policy, c.score, c.variant, c.layout, c.schedule, c.seed, c.setting]);
const drawn = new Map();
function looksOf(alone) {
  if (drawn.has(alone)) return drawn.get(alone);
  const scores = values("score", cells).filter((s) => s !== null), methods = new Map(), taken = new Set(), first = new Set();
  for (const c of cells.filter((c) => !isFull(c)).sort((a, b) => unusual(a).length - unusual(b).length)) if (!methods.has(methodOf(c))) methods.set(methodOf(c), c);
  const isFirst = (c) => !first.has(label(c)) && first.add(label(c));
  const all = [...methods].map(([key, c]) => [key, c, isFirst(c)]), found = new Map();
  for (const [key, c] of [...all.filter((m) => m[2]), ...all.filter((m) => !m[2])]) {
    const [colour, own, turn] = alone ? looks.scores[c.score ?? c.policy] : looks.policies[c.policy];
    const start = alone ? turn : Math.max(0, scores.indexOf(c.score)), open = (name) => name.endsWith("-open") ? name : `${name}-open`;
    const markers = [own, open(own), ...SYMBOLS, ...SYMBOLS.map(open)];
    const free = markers.flatMap((symbol) => DASHES.map((_, i) => ({ colour, symbol, dash: DASHES[(start + i) % DASHES.length] })));
    const look = free.find((one) => !taken.has(Object.values(one).join())) ?? free[0];
    taken.add(Object.values(look).join()); found.set(key, look);
  }
  drawn.set(alone, found);
  return found;
}
const lookOf = (c, alone) => isFull(c) ? { colour: "var(--soft)", symbol: "circle", dash: "dash" } : looksOf(alone).get(methodOf(c));
function isAlone(list) { const evicting = list.filter((c) => !isFull(c)); return new Set(evicting.map((c) => c.policy)).size === 1 && new Set(evicting.map((c) => c.score)).size > 1; }
const classOf = (key) => key === "policy" ? "method" : key === "score" ? "score" : NUMBERS.has(key) ? "number" : "";
function hint() {
  const box = document.querySelector(".scroll"), hidden = [...by("cells").querySelectorAll("th")].filter((th) => th.offsetWidth && th.offsetLeft + th.offsetWidth / 2 > box.scrollLeft + box.clientWidth).length;
  by("wider").hidden = !hidden; by("wider").textContent = `${hidden} more column${hidden > 1 ? "s" : ""} at the right: scroll the table \u2192`;
}
function table(list) {
  const row = make("tr"), alone = isAlone(list), used = columns();
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
      if (key === "policy") { td.prepend(mark(lookOf(c, alone))); if (several("task")) td.dataset.task = several("folder") ? `${c.task}, ${c.folder}` : c.task; }
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
  held_bytes: ["bytes held", 1, (v) => v >= 2 ** 30 ? `${v / 2 ** 30} GiB` : v >= 2 ** 20 ? `${v / 2 ** 20} MiB` : `${v / 1024} KiB`],
};
function xAxis(key, list) {
  const [title, factor, word] = AXES[key], numbers = list.map((c) => c[key] * factor), low = Math.min(...numbers), high = Math.max(...numbers);
  let ticks = key === "kept_fraction" ? [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100] : Array.from({ length: 50 }, (_, i) => 2 ** i);
  const pad = Math.max((Math.log10(high) - Math.log10(low)) * 0.05, 0.03), range = [Math.log10(low) - pad, Math.log10(high) + pad];
  ticks = ticks.filter((tick) => Math.log10(tick) >= range[0] && Math.log10(tick) <= range[1]);
  if (ticks.length < 2) ticks = [...new Set(numbers.map((number) => Number(number.toPrecision(2))))].sort((x, y) => x - y);
  if (ticks.length > 6) ticks = ticks.filter((_, i) => i % Math.ceil(ticks.length / 6) === 0);
  return { title, log: true, factor, range, ticks, words: ticks.map(word) };
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
  const counts = list.map((c) => c.n), alone = isAlone(list);
  const usual = counts.reduce((a, b) => counts.filter((n) => n === b).length > counts.filter((n) => n === a).length ? b : a, counts[0]);
  const text = (c) => `${inMetric(c, c.mean)}${c.low === null ? "" : ` [${inMetric(c, c.low)}, ${inMetric(c, c.high)}]`}, budget ${plain(c.budget)}, n = ${c.n}`;
  const grouped = new Map();
  // a curve connects cells of one n and one set of settings: other samples or settings are another experiment
  for (const c of list.filter((c) => !isFull(c) && c.mean !== null && c[axis] > 0)) {
    const key = JSON.stringify([methodOf(c), c.n]);
    if (!grouped.has(key)) grouped.set(key, []);
    grouped.get(key).push(c);
  }
  const lines = [...grouped.values()].map((members) => ({ cells: members.sort((a, b) => a[axis] - b[axis]) })), names = toName(lines);
  const factor = AXES[axis][1], several = new Set(["variant", "layout", "schedule", "seed"].filter((key) => values(key, list).filter((value) => value !== null).length > 1));
  return [usual, lines.map((line) => {
    const c = line.cells[0], look = lookOf(c, alone), more = [...several].map((key) => c[key]).filter((v) => !USUAL.includes(v));
    const title = [label(c), ...more].join(" ") + (c.n === usual ? "" : ` (n = ${c.n})`);
    const marks = (c) => chosen.includes(c.cell) ? { symbol: "circle-open", size: 15, edge: 2.5 } : c.n === usual ? {} : { size: 5 };
    return {
      name: names.has(line) ? title : "", title, ...look, dash: c.n === usual ? look.dash : look.dash === "dot" ? "solid" : "dot",
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
  let grey = 0, isOther = false; const counts = new Set();
  const scale = drawable.length ? xAxis(axis, drawable) : null;
  first.forEach((key, i) => {
    const members = drawable.filter((c) => groupOf(c) === key), [folder, model, task, length] = JSON.parse(key);
    const panel = box.children[i];
    panel.firstChild.textContent = [task, length && `${length} tokens`, values("model", cells).length > 1 && model, values("folder", cells).length > 1 && folder].filter(Boolean).join(", ");
    const [usual, lines, behind] = linesOf(members, axis);
    grey += behind; counts.add(usual); isOther ||= lines.some((line) => line.name.endsWith(")"));
    const fulls = new Map();  // one of each setting and seed
    for (const c of cells.filter((c) => isFull(c) && groupOf(c) === key && c.mean !== null && c.n === usual && (!facets.policy.size || facets.policy.has("full")))) if (!fulls.has(`${c.setting} ${c.seed}`)) fulls.set(`${c.setting} ${c.seed}`, c);
    const seeds = values("seed", [...fulls.values()]).length > 1;
    const metric = cells.filter((c) => c.metric === members[0].metric && list.includes(c) && c.mean !== null);
    for (const full of fulls.values()) lines.push({ name: ["full cache", full.setting, seeds && `seed ${full.seed}`].filter(Boolean).join(" "), isReference: true, colour: GREY, dash: "dash", symbol: "circle", points: scale.range.map((end) => ({ x: 10 ** end, y: full.mean, id: full.cell, text: `${inMetric(full, full.mean)}, n = ${full.n}` })) });
    draw(panel, lines, scale, yAxis(metric), choose);
  });
  const parts = [];
  if (counts.size) parts.push(`n = ${[...counts].join(", ")} samples`);
  if (isOther) parts.push("small marks: another n, which the name says");
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
const isWrong = (c, s) => Boolean(s.error) || s.value === null || (c.rate && s.value !== Number(c.higher));
// What an answer is worth: only a rate can be right or wrong.
function verdict(c, s) {
  if (s.error) return ["failed", "bad"];
  if (s.value === null) return ["no value", ""];
  const number = `value ${Number(s.value.toPrecision(3))}`;
  return !c.rate ? [number, ""] : s.value === Number(c.higher) ? [`\u2713 right, ${number}`, "good"] : s.value === Number(!c.higher) ? [`\u2717 wrong, ${number}`, "bad"] : [`partly right, ${number}`, ""];
}
function answer(c, s, prompt) {
  const box = make("div", undefined, "answer"), head = make("h4");
  head.append(mark(lookOf(c, false)), make("span", `${label(c)}${isFull(c) ? "" : ` at ${c.budget}`}${several("folder") ? `, ${c.folder}` : ""}`));
  box.append(head);
  if (!s) { box.append(make("p", "This cell has no such sample here.", "note")); return box; }
  const [words, kind] = verdict(c, s);
  head.append(make("span", words, `value ${kind}`));
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
const several = (key) => values(key, cells).length > 1;
const addressOf = (ids, number) => `${page.live ? "?" : "#"}${new URLSearchParams({ cells: ids.join(","), sample: number })}`;
// The samples of this page, as a server gives them: each entry with its cells and an answer of each.
function embeddedSamples() {
  const picked = chosen.map((id) => byId.get(id)), numbers = new Map();
  picked.forEach((c, i) => (page.samples[c.cell] || []).forEach((s) => {
    const key = `${s.prompt ?? c.task} ${s.sample}`;
    if (sample !== null && s.sample !== sample) return;
    if (!numbers.has(key)) numbers.set(key, Array(picked.length).fill(null));
    numbers.get(key)[i] = s;
  }));
  const all = [...numbers.values()].map((answers) => ({ cells: chosen, answers }));
  const wrong = all.filter(({ answers }) => answers.some((s, i) => s && isWrong(picked[i], s)));
  return { total: all.length, wrong: wrong.length, page: 1, pages: 1, entries: by("wrong").checked ? wrong : all, prompts: page.prompts };
}
function entryBox({ cells: ids, answers }, prompts) {
  const known = ids.map((id) => byId.get(id)), box = make("div", undefined, "sample"), both = make("div", undefined, "answers");
  const s = answers.find(Boolean), prompt = s.prompt === null ? null : prompts[s.prompt], head = make("h3"), link = make("a", `sample ${s.sample}`);
  link.href = addressOf(ids, s.sample); link.title = "the address of this sample";
  link.onclick = (e) => { if (e.button || e.ctrlKey || e.metaKey || e.shiftKey) return; e.preventDefault(); chosen = ids; sample = s.sample; visit(); };
  head.append(link, chosen.length ? "" : ` of ${known[0].task}`); box.append(head);
  if (prompt) {
    const fold = make("details"); fold.append(make("summary", "prompt, its end"), make("pre", prompt.tail)); fold.ontoggle = () => { fold.lastChild.scrollTop = fold.lastChild.scrollHeight; };
    const facts = make("p", undefined, "reference"); facts.append(make("span", "reference "), make("code", prompt.references.join(" | ")));
    box.append(fold, facts);
  }
  both.append(...known.map((c, i) => answer(c, answers[i], prompt))); box.append(both);
  return box;
}
function show({ total, wrong, entries, prompts, ...place }) {
  const only = by("wrong").checked;
  by("wrong").disabled = !only && !wrong;
  const worst = sample === null ? ", failed ones and the worst first" : "", more = chosen.length === 1 ? " Choose a second cell to read both side by side." : chosen.length ? "" : " Choose a cell in the table to read its samples alone.";
  by("how").textContent = total ? `${only ? `${wrong} wrong of ` : ""}${total} ${chosen.length ? "samples" : "answers"}${worst}.${more}` : "No sample is left by these filters.";
  by("samples").replaceChildren(...entries.filter((entry) => entry.cells.every((id) => byId.has(id))).map((entry) => entryBox(entry, prompts)));
  for (const fold of by("samples").querySelector(".sample")?.querySelectorAll("details.text") ?? []) fold.open = true;
  if (page.live) { turnPages(place); by("fresh").hidden = true; }
}
function drill() {
  if (!page.live) by("drill").hidden = !chosen.length;
  const chips = chosen.map((id) => {
    const c = byId.get(id), chip = make("button", `${several("folder") ? `${c.folder}, ` : ""}${c.task}: ${label(c)}${isFull(c) ? "" : ` at ${c.budget}`} \u2715`, "chip");
    chip.type = "button"; chip.title = "leave out"; chip.onclick = () => choose(id);
    return chip;
  });
  if (sample !== null) {
    const chip = make("button", `sample ${sample} \u2715`, "chip"); chip.type = "button"; chip.title = "all samples"; chip.onclick = () => { sample = null; visit(); };
    chips.push(chip);
  }
  by("which").replaceChildren(...chips);
  if (page.live) ask(); else if (chosen.length) show(embeddedSamples());
}
function choose(id) {
  const was = chosen.length;
  chosen = chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen.slice(0, 1), id];
  sample = null; turned = 1;
  update(); drill();
  if (!was) by("drill").scrollIntoView({ block: "start" });
}
// A sample of its own is an entry of the browser's history, so that the way back leads to the list.
function visit() { turned = 1; write(true); update(); drill(); by("drill").scrollIntoView({ block: "start" }); }

// What is chosen is in the address, so that a link opens the page as it was left.
function address() {
  const words = new URLSearchParams();
  for (const [key] of FACETS) for (const value of facets[key]) words.append(key, String(value));
  if (by("filter").value) words.set("find", by("filter").value);
  if (by("axis").selectedIndex) words.set("against", by("axis").value);
  if (by("wrong").checked) words.set("wrong", "only");
  if (chosen.length) words.set("cells", chosen.join(","));
  if (by("text")?.value) words.set("text", by("text").value);
  if (sample !== null) words.set("sample", sample);
  if (turned > 1) words.set("page", turned);
  return words;
}
function write(isNew) {
  const words = address(), text = page.live ? (words.size ? `?${words}` : location.pathname) : `#${words}`;
  if (isNew) history.pushState(null, "", text); else history.replaceState(null, "", text);
}
function read() {
  const text = page.live ? location.search.slice(1) : location.hash.slice(1), words = new URLSearchParams(page.live || text.includes("=") ? text : { cells: decodeURIComponent(text) });
  for (const [key] of FACETS) {
    const known = new Map(values(key, cells).flatMap((value) => [[String(value), value], [JSON.stringify(value), value]]));
    facets[key] = new Set(words.getAll(key).filter((word) => known.has(word)).map((word) => known.get(word)));
  }
  by("filter").value = words.get("find") ?? "";
  by("axis").value = words.get("against") in AXES ? words.get("against") : "kept_fraction";
  by("wrong").checked = words.get("wrong") === "only";
  if (by("text")) by("text").value = words.get("text") ?? "";
  chosen = (words.get("cells") ?? "").split(",").filter((id) => byId.has(id)).slice(0, 2);
  sample = /^\d{1,7}$/.test(words.get("sample") ?? "") ? Number(words.get("sample")) : null;
  turned = Math.max(1, Number.parseInt(words.get("page") ?? "1", 10) || 1);
  menus(); update(); drill();
}
function update() { write(); const list = left(); table(list); charts(list); }

// A served page asks its server for samples of the cells that are chosen, or left by the filters; and now and then
// whether there are other rows.
const EVERY = 5000;
let turned = 1, asked = 0, waiting = null;
function filtered() { turned = 1; update(); if (page.live) { clearTimeout(waiting); waiting = setTimeout(drill, 200); } }
function say(text) { by("state").textContent = text; }
async function ask() {
  const mine = ++asked, side_by_side = chosen.length > 0, ids = side_by_side ? chosen : left().map((c) => c.cell);
  const query = { cells: ids, side_by_side, only_wrong: by("wrong").checked, text: by("text").value, sample, page: turned };
  try {
    const answer = await fetch("samples", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(query) });
    if (!answer.ok) throw new Error(await answer.text());
    const read = await answer.json();
    if (mine === asked) { show(read); say("live"); }
  } catch (error) {
    if (mine === asked) say(`no samples: ${error.message}`);
  }
}
function turnPages({ page: number, pages }) {
  turned = number; write();
  const button = (text, to) => { const b = make("button", text); b.type = "button"; b.disabled = to < 1 || to > pages; b.onclick = () => { turned = to; write(); drill(); by("drill").scrollIntoView({ block: "start" }); }; return b; };
  by("pages").replaceChildren(...(pages > 1 ? [button("\u2190", number - 1), make("span", `${number} of ${pages}`), button("\u2192", number + 1)] : []));
}
function tellNotes({ facts, notes }) {
  by("facts").textContent = facts;
  by("notes").hidden = !notes.length;
  by("notes").firstChild.textContent = `${notes.length} note${notes.length > 1 ? "s" : ""} about these rows`;
  by("notes").lastChild.replaceChildren(...notes.map((note) => make("li", note)));
}
async function follow() {
  if (document.hidden) return;
  try {
    const answer = await fetch(`cells?version=${page.live}`);
    if (answer.status === 204) { say("live"); return; }
    if (!answer.ok) throw new Error(await answer.text());
    Object.assign(page, await answer.json());
    ({ cells, looks } = page); byId = new Map(cells.map((c) => [c.cell, c])); drawn.clear();
    chosen = chosen.filter((id) => byId.has(id));
    tellNotes(page); if (!document.querySelector("details.facet[open]")) menus(); update();
    if (by("samples").children.length) by("fresh").hidden = false; else drill();  // what somebody reads stays
  } catch (error) {
    say("the server does not answer; this is what it last had");
  }
}
by("axis").onchange = update; by("filter").oninput = () => { rows = ROWS; filtered(); };
by("more").onclick = () => { rows = Infinity; update(); };
by("reset").onclick = () => { for (const set of Object.values(facets)) set.clear(); by("filter").value = ""; menus(); filtered(); };
by("wrong").onchange = () => { turned = 1; write(); drill(); };
document.querySelector(".scroll").addEventListener("scroll", hint);
window.addEventListener(page.live ? "popstate" : "hashchange", read);
onTheme(() => { update(); drill(); });
if (page.live) {
  by("text").oninput = filtered; by("fresh").onclick = drill;
  tellNotes(page); setInterval(follow, EVERY);
}
read();
plotly.catch(() => {}).then(() => { document.documentElement.dataset.ready = Math.round(performance.now()); });
