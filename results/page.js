"use strict";
// Draws what dashboard.py wrote into #data, and keeps figures and tables on the same trials.
// A trial is its index into data.trials.*; a view is one setting (or a mean over settings) and the scores on it.

const data = JSON.parse(document.getElementById("data").textContent);
const { trials, views, archs, rows, tables } = data;
const now = { view: 0, table: 0, picked: new Set(), hidden: new Set(), sort: { column: "test", down: true }, all: false };

const SETUP = { displaylogo: false, showSendToCloud: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d"] };
const setup = (bar = true) => ({ ...SETUP, displayModeBar: bar && !narrow() ? "hover" : false });
const FIXED = ["circle", "square", "triangle-up", "star", "hexagon"];
const GROWING = ["diamond-open", "square-open", "triangle-down-open", "star-open", "hexagon-open"];
const GLYPHS = { circle: "●", square: "■", "triangle-up": "▲", star: "★", hexagon: "⬢", "diamond-open": "◇", "square-open": "□",
  "triangle-down-open": "▽", "star-open": "☆", "hexagon-open": "⬡" };
const COLOURS = 7, MANY = 1500, LINES = 300, ROWS = 100;

const $ = (id) => document.getElementById(id);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const colour = (arch) => ink(`c${arch % COLOURS}`);
const symbol = (arch) => (archs[arch].grows ? GROWING : FIXED)[Math.floor(arch / COLOURS) % FIXED.length];
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"); // Plotly reads markup in text
const figure = (value, percent) => (value === null ? "–" : percent ? `${(100 * value).toFixed(1)} %` : value.toFixed(3));
const real = (value) => (value === null ? null : value / 1e4); // scores travel as whole ten-thousandths
const narrow = () => window.innerWidth < 640;
const drawsFast = () => !!document.createElement("canvas").getContext("webgl");

function bytes(count) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (count >= scale) return `${Number((count / scale).toPrecision(3))} ${unit}`;
  return `${count} B`;
}

// 1, 2, 5 of every power of ten, thinned to what has room.
function byteTicks(sizes) {
  const low = Math.min(...sizes.filter((size) => size > 0)) / 1.6, high = Math.max(...sizes) * 1.6, values = [];
  for (let power = 0; power < 15; power++) for (const step of [1, 2, 5]) values.push(step * 10 ** power);
  let tickvals = values.filter((value) => value >= low && value <= high);
  const room = narrow() ? 5 : 11;
  if (tickvals.length > room) tickvals = tickvals.filter((value) => Number.isInteger(Math.log10(value)));
  while (tickvals.length > room) tickvals = tickvals.filter((_, i) => i % 2 === 0);
  return { tickvals, ticktext: tickvals.map(bytes), range: [Math.log10(low), Math.log10(high)] };
}

function make(tag, text, traits = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(traits)) element.setAttribute(name, value);
  return element;
}

function frame(more) {
  const axis = { gridcolor: ink("rule"), linecolor: ink("rule"), zeroline: false, automargin: true, ticks: "outside",
    tickcolor: ink("rule"), fixedrange: narrow() };
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest", modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("rule"), activecolor: ink("quiet") },
    font: { family: ink("body"), size: 13, color: ink("ink") }, margin: { l: 56, r: 16, t: 16, b: 48 },
    hoverlabel: { bgcolor: ink("card"), bordercolor: ink("rule"), font: { color: ink("ink"), family: ink("body"), size: 13 }, align: "left" },
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis } };
}

function scoreAxis(view) {
  const name = view.metric.replace("_", " ");
  return view.percent ? { title: { text: name, standoff: 8 }, tickformat: ".0%", range: [-0.02, 1.09], tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1] }
    : { title: { text: name, standoff: 8 } };
}

// Chance and ceiling, as lines that say what they are.
function bounds(view) {
  const lines = [["chance", view.chance], ["ceiling", view.ceiling]];
  return {
    shapes: lines.map(([, y]) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, layer: "below",
      line: { color: ink("quiet"), width: 1, dash: "dot" } })),
    annotations: lines.map(([name, y]) => ({ xref: "paper", x: 0, xanchor: "left", y, yanchor: "bottom", showarrow: false,
      text: `${name} ${figure(y, view.percent)}`, font: { size: 12, color: ink("quiet") } })),
  };
}

const scoreIn = (view, trial) => real(view.scores[view.trials.indexOf(trial)]);
const stateIn = (view, trial) => view.states[view.trials.indexOf(trial)];
const shown = (trial) => !now.hidden.has(trials.arch[trial]);

function describe(trial, score, state, view) {
  return `<b>${plain(rows[trials.row[trial]])}</b><br>test ${figure(score, view.percent)}`
    + `<br>state ${bytes(state)}${archs[trials.arch[trial]].grows ? ` after ${view.length} tokens, grows` : ""}`
    + `<br>${plain(data.hypers[trials.hyper[trial]])}<br>seed ${trials.seed[trial]}`;
}

function drawState() {
  const view = views[now.view], traces = [], fast = view.trials.length > MANY && drawsFast() ? "scattergl" : "scatter";
  archs.forEach((arch, a) => {
    if (now.hidden.has(a)) return;
    const own = view.trials.map((trial, i) => [trial, real(view.scores[i]), view.states[i]]).filter(([trial]) => trials.arch[trial] === a);
    traces.push({ type: fast, mode: "markers", name: arch.name, x: own.map(([, , state]) => state), y: own.map(([, score]) => score),
      customdata: own.map(([trial]) => [trial]), text: own.map((one) => describe(...one, view)), hovertemplate: "%{text}<extra>one trial</extra>",
      marker: { color: colour(a), symbol: symbol(a), size: 7, opacity: 0.35 }, meta: "trials" });
  });
  archs.forEach((arch, a) => {
    const own = view.means.filter((mean) => mean.arch === a);
    if (now.hidden.has(a) || !own.length) return;
    traces.push({ type: "scatter", mode: own.length > 1 ? "lines+markers" : "markers", name: arch.name, x: own.map((m) => m.state),
      y: own.map((m) => m.mean), customdata: own.map((m) => m.trials), line: { color: colour(a), width: 2 },
      error_y: { type: "data", array: own.map((m) => m.half), color: colour(a), thickness: 1.5, width: 4 },
      marker: { color: colour(a), symbol: symbol(a), size: 13, line: { color: ink("paper"), width: symbol(a).includes("open") ? 2.5 : 1.5 } },
      text: own.map((m) => `<b>${plain(rows[m.row])}</b><br>${figure(m.mean, view.percent)}${m.half === null ? "" : ` ± ${figure(m.half, view.percent)}`}`
        + `<br>state ${bytes(m.state)}<br>${m.trials.length} seed${m.trials.length > 1 ? "s" : ""}, ${plain(data.hypers[trials.hyper[m.trials[0]]])}`),
      hovertemplate: "%{text}<extra>mean</extra>", meta: "means" });
    if (symbol(a).includes("open")) Object.assign(traces.at(-1).marker.line, { color: colour(a) });
  });
  const front = view.means.filter((m) => m.front && !now.hidden.has(m.arch));
  traces.unshift({ type: "scatter", mode: "lines", x: front.map((m) => m.state), y: front.map((m) => m.mean), hoverinfo: "skip",
    line: { shape: "hv", color: ink("quiet"), width: 1.5, dash: "dash" }, meta: "front" });
  const picked = [...now.picked].filter((trial) => view.trials.includes(trial) && shown(trial));
  traces.push({ type: "scatter", mode: "markers", x: picked.map((t) => stateIn(view, t)), y: picked.map((t) => scoreIn(view, t)),
    hoverinfo: "skip", marker: { symbol: "circle-open", size: 18, color: ink("ink"), line: { width: 2 } }, meta: "picked" });
  const layout = frame({ ...bounds(view), yaxis: scoreAxis(view),
    xaxis: { type: "log", title: { text: "recurrent state (log scale)", standoff: 8 }, ...byteTicks(view.states) } });
  return Plotly.react($("state"), traces, layout, setup());
}

function curve(trial) {
  const [clock, values] = trials.curve[trial] ?? [0, []];
  return [data.clocks[clock] ?? [], values.map((v) => (v === null ? null : v / 1000))];
}

function drawCurves() {
  const view = views[now.view], traces = [];
  const chosen = view.means.flatMap((mean) => mean.trials).filter((t) => shown(t) && trials.curve[t]).slice(0, LINES);
  const lines = (list, name, traits) => {
    const x = [], y = [], customdata = [];
    for (const trial of list) {
      const [steps, values] = curve(trial);
      x.push(...steps, null); y.push(...values, null); customdata.push(...steps.map(() => [trial]), [trial]);
    }
    traces.push({ type: "scatter", mode: "lines", x, y, customdata, name, ...traits });
  };
  archs.forEach((arch, a) => {
    const own = chosen.filter((trial) => trials.arch[trial] === a);
    if (own.length) lines(own, arch.name, { line: { color: colour(a), width: 1.5, dash: arch.grows ? "dot" : "solid" }, opacity: now.picked.size ? 0.35 : 0.85,
      meta: "curves", hovertemplate: `<b>${plain(arch.name)}</b><br>step %{x}: %{y}<extra></extra>` });
  });
  for (const trial of [...now.picked].filter((t) => shown(t) && trials.curve[t]).slice(0, LINES))
    lines([trial], rows[trials.row[trial]], { line: { color: colour(trials.arch[trial]), width: 3.5 }, meta: "picked",
      hovertemplate: `<b>${plain(rows[trials.row[trial]])}</b>, seed ${trials.seed[trial]}<br>step %{x}: %{y}<extra></extra>` });
  const axis = scoreAxis(view);
  axis.title.text = `${axis.title.text}, validation`;
  return Plotly.react($("curves"), traces, frame({ ...bounds(view.own ?? view), yaxis: axis, xaxis: { title: { text: "optimizer steps", standoff: 8 }, range: [0, 1.04 * Math.max(1, ...traces.flatMap((trace) => trace.x))], tickformat: ",", nticks: narrow() ? 5 : 10 } }), setup());
}

// Dark or light, whichever reads better on a colour between `low` and `high`.
function onto(share, low, high) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [from, to] = [parts(low), parts(high)];
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * (rgb[i] / 255) ** 2.2, 0.05);
  const ground = light(from.map((value, i) => value + share * (to[i] - value)));
  return light(parts("#ffffff")) / ground > ground / light(parts("#101820")) ? "#ffffff" : "#101820";
}

function drawHeat() {
  const table = tables[now.table], low = ink("low"), high = ink("high");
  const x = table.columns.map((_, i) => i), y = table.rows.map((_, i) => i);
  const small = $("strengths").clientWidth < 160 + 110 * x.length; // then headings lean, and the figure may scroll sideways
  $("heat").style.minWidth = `${(narrow() ? 130 : 190) + 44 * x.length}px`;
  $("heat").style.height = `${(small ? 170 : 120) + 36 * y.length}px`;
  const words = (text, width) => plain(text.length > width ? `${text.slice(0, width - 1)}…` : text);
  const share = table.cells.map((line) => line.map((cell) => cell[3]));
  const hover = table.cells.map((line, row) => line.map(([mean, half, seeds], column) =>
    `<b>${plain(table.rows[row])}</b><br>${plain(table.columns[column])}<br>${figure(mean, table.percent)}${half === null ? "" : ` ± ${figure(half, table.percent)}`}`
    + `<br>chance ${figure(table.chance[column], table.percent)}, ceiling ${figure(table.ceiling[column], table.percent)}`
    + `<br>${seeds} seed${seeds === 1 ? "" : "s"}, ${table.states[row]}`));
  const heat = { type: "heatmap", x, y, z: share, customdata: hover, hovertemplate: "%{customdata}<extra></extra>",
    hoverongaps: false, xgap: 2, ygap: 2, zmin: 0, zmax: 1, colorscale: [[0, low], [1, high]],
    colorbar: { orientation: "h", y: -0.02, yanchor: "top", thickness: 10, len: small ? 0.9 : 0.4, x: 0.5, outlinewidth: 0,
      tickvals: [0, 1], ticktext: ["chance", "ceiling"], tickfont: { color: ink("quiet"), size: 12 } } };
  const there = y.flatMap((row) => x.map((column) => [row, column])).filter(([row, column]) => share[row][column] !== null);
  const text = { type: "scatter", mode: "text", x: there.map(([, column]) => column), y: there.map(([row]) => row), hoverinfo: "skip",
    text: there.map(([row, column]) => figure(table.cells[row][column][0], table.percent).replace(" %", "")),
    textfont: { size: small ? 11 : 13, color: there.map(([row, column]) => onto(share[row][column], low, high)) } };
  const layout = frame({ margin: { l: 8, r: small ? 44 : 8, t: 8, b: 48 },
    xaxis: { side: "top", tickvals: x, showgrid: false, ticks: "", fixedrange: true, tickangle: small ? -55 : 0, range: [-0.5, x.length - 0.5],
      ticktext: table.columns.map((name) => (small ? words(name, 20) : plain(name).replace(/, | & /g, (mark) => `${mark.trimEnd()}<br>`))) },
    yaxis: { tickvals: y, showgrid: false, ticks: "", ticklabelstandoff: 6, fixedrange: true, range: [y.length - 0.5, -0.5],
      ticktext: table.rows.map((name) => words(name, small ? 24 : 44)) } });
  $("heatseen").textContent = table.seen;
  return Plotly.react($("heat"), [heat, text], layout, setup(false));
}

function fillLegend() {
  const view = views[now.view], there = new Set(view.trials.map((trial) => trials.arch[trial]));
  $("legend").replaceChildren(...archs.map((arch, a) => [arch, a]).filter(([, a]) => there.has(a)).map(([arch, a]) => {
    const button = make("button", undefined, { type: "button", "aria-pressed": String(!now.hidden.has(a)), title: "show or hide" });
    const glyph = make("i", GLYPHS[symbol(a)], { "aria-hidden": "true" });
    glyph.style.color = colour(a);
    button.append(glyph, make("span", arch.name), ...(arch.grows ? [make("small", `grows; here after ${view.length} tokens`)] : []));
    button.addEventListener("click", () => { now.hidden.has(a) ? now.hidden.delete(a) : now.hidden.add(a); draw(); });
    const item = make("li");
    item.append(button);
    return item;
  }));
}

const COLUMNS = {
  architecture: (t) => rows[trials.row[t]], "hyper-parameters": (t) => data.hypers[trials.hyper[t]], seed: (t) => trials.seed[t],
  test: (t, at, view) => real(view.scores[at]), validation: (t) => real(trials.validation[t]), state: (t, at, view) => view.states[at],
  steps: (t) => trials.steps[t], seconds: (t) => trials.seconds[t], key: (t) => trials.key[t],
};
const WORDS = {
  test: (v, view) => figure(v, view.percent), validation: (v, view) => figure(v, view.percent), state: (v) => bytes(v), steps: (v) => v.toLocaleString("en"), seconds: (v) => v.toFixed(1),
};

function fillTrials() {
  const view = views[now.view], { column, down } = now.sort, names = Object.keys(COLUMNS);
  const lines = view.trials.map((trial, at) => [trial, at]).filter(([trial]) => shown(trial))
    .map(([trial, at]) => ({ trial, values: names.map((name) => COLUMNS[name](trial, at, view)) }));
  const by = names.indexOf(column), order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (a ?? -Infinity) - (b ?? -Infinity));
  lines.sort((a, b) => (down ? -1 : 1) * order(a.values[by], b.values[by]) || a.trial - b.trial);
  const first = lines.filter(({ trial }, i) => now.all || i < ROWS || now.picked.has(trial));
  const right = (name) => (name in WORDS ? { class: "figure" } : {});
  const head = make("tr");
  for (const name of names) {
    const cell = make("th", undefined, { scope: "col", ...right(name), "aria-sort": name !== column ? "none" : down ? "descending" : "ascending" });
    const button = make("button", name, { type: "button" });
    button.addEventListener("click", () => {
      now.sort = { column: name, down: name === column ? !down : name in WORDS };
      fillTrials();
      $("trials").tHead.rows[0].cells[names.indexOf(name)].firstChild.focus();
    });
    cell.append(button);
    head.append(cell);
  }
  const body = first.map(({ trial, values }) => {
    const line = make("tr", undefined, { "data-trial": trial, tabindex: "0" });
    names.forEach((name, i) => line.append(make(i ? "td" : "th", (WORDS[name] ?? String)(values[i], view), i ? right(name) : { scope: "row" })));
    return line;
  });
  $("trials").tHead.replaceChildren(head);
  $("trials").tBodies[0].replaceChildren(...body);
  $("more").hidden = first.length === lines.length;
  $("more").textContent = `Show all ${lines.length} trials`;
  $("count").textContent = `${lines.length} trial${lines.length === 1 ? "" : "s"} of ${view.label}`;
  markRows();
}

// The trials behind a row of any table: its own, or those that a row of score tables rests on.
function behind(line) {
  if (line.dataset.trial) return [Number(line.dataset.trial)];
  return [...new Set(tables[line.closest("table").dataset.table].trials[line.dataset.line].flat())];
}

function markRows() {
  for (const line of document.querySelectorAll("tr[data-trial], tr[data-line]")) {
    const on = now.picked.size > 0 && behind(line).some((trial) => now.picked.has(trial));
    line.classList.toggle("picked", on);
    line.setAttribute("aria-selected", String(on));
  }
}

function pick(list) {
  const same = list.length === now.picked.size && list.every((trial) => now.picked.has(trial));
  now.picked = new Set(same ? [] : list);
  const there = new Set(views[now.view].trials);
  if (!same && list.length && !list.some((trial) => there.has(trial))) {
    now.view = Math.max(0, views.findIndex((view) => view.trials.includes(list[0])));
    $("view").value = now.view;
  }
  const box = $("picked");
  box.classList.toggle("on", now.picked.size > 0);
  box.replaceChildren();
  if (now.picked.size) {
    const view = views[now.view], one = list.filter((t) => view.trials.includes(t));
    const names = [...new Set(one.map((t) => rows[trials.row[t]]))].join(", ");
    const scores = one.map((t) => figure(scoreIn(view, t), view.percent)).slice(0, 8).join(", ");
    const clear = make("button", "Clear", { type: "button" });
    clear.addEventListener("click", () => pick([]));
    box.append(make("span", `Picked: ${names}, seed ${one.map((t) => trials.seed[t]).slice(0, 8).join(", ")}: test ${scores}`), clear);
  }
  return draw();
}

function draw() {
  const view = views[now.view];
  $("stateseen").textContent = view.seen;
  $("curveseen").textContent = view.learnt;
  fillLegend();
  fillTrials();
  const inside = $("trials").querySelector("tr.picked");
  if (inside) inside.parentElement.parentElement.parentElement.scrollTop = Math.max(0, inside.offsetTop - 120);
  return Promise.all([drawState(), drawCurves()]);
}

function choices(select, names, groups, chosen, change) {
  const parents = new Map();
  names.forEach((name, i) => {
    if (!parents.has(groups[i])) parents.set(groups[i], groups[i] ? select.appendChild(make("optgroup", undefined, { label: groups[i] })) : select);
    parents.get(groups[i]).append(make("option", name, { value: i }));
  });
  select.value = chosen;
  select.closest(".controls").hidden = names.length < 2;
  select.addEventListener("change", () => change(Number(select.value)));
}

// Tables that came written: a click on a heading sorts the measured rows, the rest stays below.
function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = make("button", cell.textContent, { type: "button" });
    cell.replaceChildren(button);
    cell.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") === "none" ? cell.classList.contains("figure") : cell.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (line) => line.cells[column].classList.contains("figure") ? Number(line.cells[column].dataset.value ?? -Infinity) : line.cells[column].textContent;
      const order = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * order(value(a), value(b))));
    });
  });
}

function follow(event) {
  const line = event.target.closest("tr[data-trial], tr[data-line]");
  if (!line || event.target.closest("button")) return;
  if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  pick(behind(line));
}

async function start() {
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("tr[data-line]").forEach((line) => line.setAttribute("tabindex", "0"));
  document.addEventListener("click", follow);
  document.addEventListener("keydown", follow);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && now.picked.size) pick([]); });
  $("more").addEventListener("click", () => { now.all = true; fillTrials(); });
  choices($("view"), views.map((v) => v.label), views.map((v) => v.group), 0, (i) => { now.view = i; now.all = false; draw(); });
  if (tables.length) choices($("table"), tables.map((t) => t.title), tables.map(() => ""), 0, (i) => { now.table = i; drawHeat(); });
  await draw();
  if (tables.length) await drawHeat();
  $("state").on("plotly_click", ({ points }) => points[0].customdata && pick(points[0].customdata));
  $("curves").on("plotly_click", ({ points }) => points[0].customdata && pick(points[0].customdata));
  if (tables.length) $("heat").on("plotly_click", ({ points: [{ pointIndex: [row, column] }] }) => {
    const line = tables[now.table].trials[row];
    pick(line[column].length ? line[column] : [...new Set(line.flat())]);
  });
  const again = () => { draw(); if (tables.length) drawHeat(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  matchMedia("(max-width: 639px)").addEventListener("change", again);
  document.body.dataset.ready = "true";
}

start();
