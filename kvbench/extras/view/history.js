const { runs, cells } = JSON.parse(document.getElementById("data").textContent);
const UNITS = { accuracy: "mean", bytes: "bytes held", seconds: "seconds of evicting a prompt, or of a timed step" };
const MOST = 8, last = runs.at(-1), before = runs[(last.baseline ?? 1) - 1];
function plot() {
  const what = by("what").value, value = (run, name) => run.numbers[name]?.[what] ?? null;
  const names = matching(by("filter").value, Object.keys(cells), (name) => name.split(" ")).filter((name) => runs.some((run) => value(run, name) !== null)).sort();
  const common = names.length > 1 ? names[0].split(" ").filter((word) => names.every((name) => name.split(" ").includes(word))) : [];
  const short = (name) => name.split(" ").filter((word) => !common.includes(word)).join(" ") || name;
  const change = (name) => { const [a, b] = [value(before, name), value(last, name)]; return a === null || b === null || a === b ? 0 : Math.abs(a - b) / (what === "accuracy" ? 1 : Math.max(Math.abs(a), Math.abs(b))); };
  const moved = names.filter((name) => change(name)).sort((a, b) => change(b) - change(a));
  const drawn = new Set(names.length <= MOST ? names : (moved.length ? moved : names).slice(0, MOST));
  const point = (run, i, name) => {
    const y = value(run, name), [low, high] = what === "accuracy" && run.limits[name] || [y, y], limits = low < high ? ` [${Number(low.toPrecision(4))}, ${Number(high.toPrecision(4))}]` : "";
    return { x: i + 1, y, low, high, text: `${plain(run.label)}, ${run.status}: ${Number(y).toPrecision(5)}${limits}`, symbol: cells[name].look[1], size: 8 };
  };
  const lines = names.map((name) => ({
    name: drawn.has(name) ? short(name) : "", title: name, colour: cells[name].look[0], symbol: cells[name].look[1], dash: DASHES[cells[name].look[2] % DASHES.length],
    points: runs.map((run, i) => point(run, i, name)).filter((point) => point.y !== null),
  }));
  const numbers = lines.flatMap((line) => line.points.map((point) => point.y)), high = Math.max(...numbers, 0), percent = what === "accuracy" && names.every((name) => cells[name].percent);
  const y = { title: UNITS[what] + (percent ? " (%)" : ""), range: percent ? [-4, 104] : [-0.04 * (high || 1), 1.06 * (high || 1)] };
  const bands = runs.flatMap((run, i) => run.status === "failed" ? [[i + 0.5, i + 1.5]] : []);
  const step = Math.ceil(runs.length / (isNarrow() ? 6 : 15)), ticks = runs.map((_, i) => i + 1).filter((i) => (i - 1) % step === 0 && (i === runs.length || runs.length - i >= step / 2) || i === runs.length);
  draw(document.querySelector(".chart"), lines, { title: "run", range: [0.5, runs.length + 0.5], ticks, words: ticks.map(String), bands }, y);
  const more = names.length - drawn.size;
  by("note").textContent = [common.length && `All: ${common.join(" ")}.`, more && (moved.length ? `In colour the cells that changed most since run ${runs.indexOf(before) + 1}; ${more} in grey.` : `No cell changed since run ${runs.indexOf(before) + 1}; ${more} in grey.`), bands.length && "Red: runs that failed."].filter(Boolean).join(" ");
}
by("what").onchange = plot; by("filter").oninput = plot; onTheme(plot);
plot();
