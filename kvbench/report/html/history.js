const runs = JSON.parse(document.getElementById("data").textContent);
const UNITS = { accuracy: "mean", bytes: "bytes held", seconds: "seconds of evicting a prompt, or of a timed step" };
function plot() {
  const what = by("what").value, [ink, line, soft] = colours(), narrow = window.innerWidth < 600;
  const filters = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.numbers)))].filter((name) => filters.every((w) => name.toLowerCase().includes(w))).sort();
  const numbers = runs.map((_, i) => i + 1), words = runs.map((run, i) => `${i + 1} ${plain(run.name)} ${run.date}${run.verdict === "failed" ? " failed" : ""}`);
  const ends = runs.length > 1 ? [0, runs.length - 1] : [0];
  const traces = names.map((name, i) => ({
    name: plain(name), x: numbers, text: words, y: runs.map((run) => run.numbers[name] ? run.numbers[name][what] : null), mode: "lines+markers",
    line: { color: PALETTE[i % PALETTE.length] }, marker: { symbol: runs.map((run) => run.verdict === "failed" ? "x-thin-open" : MARKS[i % MARKS.length]), size: 8 }, hovertemplate: "%{text}: %{y:.5g}<extra>%{fullData.name}</extra>",
  }));
  const grid = { gridcolor: line, zerolinecolor: line, linecolor: soft, color: ink };
  Plotly.react("plot", traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif", size: 13 },
    margin: { l: 64, r: 12, t: 12, b: 60 }, hovermode: "closest", xaxis: { ...grid, zeroline: false, title: { text: "run (\u00d7: failed)" }, tickvals: ends.map((i) => i + 1), ticktext: ends.map((i) => `${i + 1}<br>${plain(runs[i].name)}<br>${runs[i].date}`) },
    yaxis: { ...grid, title: { text: UNITS[what] }, rangemode: "tozero" }, showlegend: true,
    legend: narrow || names.length > 12 ? { orientation: "h", y: -0.3, font: { size: 11 } } : { y: 1, font: { size: 11 } },
  }, { responsive: true, displayModeBar: false });
}
by("what").onchange = plot; by("filter").oninput = plot; onTheme(plot);
plot();
