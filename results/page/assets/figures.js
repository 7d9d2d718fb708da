"use strict";
// Draws the figures from the data that figure_data.py made; linking.js keeps them and the tables on the same trials.
// A trial is its index into data.trials.*; a view is one setting (or a mean over settings) and the scores on it.

const { trials, views, archs, rows, tables, lists } = data;

// Lists of trials are written once, in `lists`, and so are cuts; elsewhere stand their numbers.
const unpacked = (held) => (Array.isArray(held) ? held.map(unpacked) : lists[held]);
function unpack(part) {
  if (part === null || typeof part !== "object") return;
  if (Array.isArray(part)) {
    if (typeof part[0] === "object") part.forEach(unpack);
    return;
  }
  for (const [name, value] of Object.entries(part))
    if (name === "trials") part.trials = unpacked(value);
    else unpack(value);
}
[views, data.held, tables, data.cuts].forEach(unpack);
for (const view of views) view.cuts = view.cuts.map((number) => data.cuts[number]);
for (const view of views) view.states = view.states.map((state) => Math.max(1, state)); // the axis is logarithmic
const now = {
  view: data.first,
  table: 0,
  cut: "",
  held: 0,
  filter: "", // words of a row of the tables
  search: "", // words of an architecture of the legend
  lit: [], // architectures that the reader starred
  equal: 0, // bytes of the comparison at equal state; 0: that of most architectures
  pair: [], // rows that are compared
  unfolded: false, // the legend of very many
  picked: new Set(),
  hidden: new Set(),
  sort: { column: "test", down: true },
  rows: 0, // of the table of trials; set below
  zoom: null, // of the first figure: { x, y }, or all of it
};

const SETUP = {
  displaylogo: false,
  showSendToCloud: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d"],
};
const setup = (bar = true) => ({ ...SETUP, displayModeBar: bar && !narrow() ? "hover" : false });
const FIXED = ["circle", "square", "triangle-up", "star", "hexagon"];
const GROWING = ["diamond", "cross", "x", "triangle-down", "star-diamond"];
const GLYPHS = {
  circle: "●",
  square: "■",
  "triangle-up": "▲",
  star: "★",
  hexagon: "⬢",
  diamond: "◆",
  cross: "✚",
  x: "✖",
  "triangle-down": "▼",
  "star-diamond": "✦",
};
const DASHES = [
  ["solid", "──"],
  ["dash", "╌╌"],
  ["dot", "┈┈"],
  ["dashdot", "─·"],
  ["longdash", "─ ─"],
];
const KEYS = 40; // of a legend
const COLOURS = 7,
  MANY = 1500, // trials of a view that have a mark each: of more, neighbours share one
  RINGS = 500, // around trials that are picked
  LINES = 300, // of learning curves
  ROWS = 100; // of the table of trials, to begin with
now.rows = ROWS;

const $ = (id) => document.getElementById(id);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
let lit = null; // architectures in colour, each with the number of its colour; null: all, each in its own
const colour = (arch) => ink(!lit ? `c${arch % COLOURS}` : lit.has(arch) ? `c${lit.get(arch)}` : "faint");
const faint = (arch) => lit !== null && !lit.has(arch);
// Architectures in the order in which they are drawn: grey ones lie below.
const inOrder = () => archs.map((arch, a) => [arch, a]).sort(([, a], [, b]) => faint(b) - faint(a));
const symbol = (arch) => (archs[arch].grows ? GROWING : FIXED)[Math.floor(arch / COLOURS) % FIXED.length];
// Text of records has one door to the page and one to Plotly. What would act instead of being seen (control characters, changes
// of direction) is written as its number, as escape.py does; Plotly reads markup, entities and %{names} in text.
const visible = (text) =>
  String(text).replaceAll("\r\n", "\n").replace(/[^\P{C}\n\t]|[\p{Zl}\p{Zp}]/gu, (sign) => {
    const code = sign.codePointAt(0),
      written = (letter, digits) => `\\${letter}${code.toString(16).padStart(digits, "0")}`;
    return sign === "\r" ? "\\r" : code < 256 ? written("x", 2) : code < 65536 ? written("u", 4) : written("U", 8);
  });
const SIGNS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "%": "&#37;" };
const plain = (text) => visible(text).replace(/[&<>]|%(?=\{)/g, (sign) => SIGNS[sign]);
const write = (id, text) => ($(id).textContent = visible(text));
// Text in the order of its numbers; sizes of state go by their bytes.
const BYTES = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9 };
const parts = new Map(); // of texts that were read before: sorting reads each many times
const numbered = (text) => {
  if (!parts.has(text)) parts.set(text, numbersIn(text));
  return parts.get(text);
};
const numbersIn = (text) => {
  const [, least, unit, common] = text.match(/^([\d.]+)(?:\s([kMG]?B))?(?:–[\d.]+\s([kMG]?B))?/) ?? [];
  return unit || common ? [Number(least) * BYTES[unit ?? common]] : text.split(/(\d+(?:\.\d+)?(?:e[-+]?\d+)?)/);
};
const natural = (a, b) => {
  const [one, other] = [numbered(a), numbered(b)];
  for (let i = 0; i < Math.min(one.length, other.length); i++) {
    const sizes = typeof one[i] === "number" && typeof other[i] === "number";
    const found = sizes || i % 2 ? one[i] - other[i] : String(one[i]).localeCompare(String(other[i]));
    if (found) return found;
  }
  return one.length - other.length;
};
const figure = (value, percent) =>
  value === null ? "–" : percent ? `${(100 * value).toFixed(1)} %` : value.toFixed(3);
const spread = (mean, half, percent) => figure(mean, percent) + (half === null ? "" : ` ± ${figure(half, percent)}`);
const grouped = (number) => number.toLocaleString("en");
const count = (number, name) => `${grouped(number)} ${name}${number === 1 ? "" : "s"}`;
const real = (value) => (value === null ? null : value / 1e6); // scores travel as whole millionths
const narrow = () => window.innerWidth < 640;
const ends = (values) => values.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
const tint = (name, share) => `rgba(${[1, 3, 5].map((i) => parseInt(name.slice(i, i + 2), 16)).join(",")},${share})`;

function bytes(count) {
  for (const [unit, scale] of [
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ])
    if (count >= 0.9995 * scale) return `${Number((count / scale).toPrecision(3))} ${unit}`;
  return `${count} B`;
}

// 1, 2, 5 of every power of ten, thinned to what has room; between two of them some sizes that are not round.
function ticksBetween(low, high) {
  const values = [];
  for (let power = 0; power < 15; power++) for (const step of [1, 2, 5]) values.push(step * 10 ** power);
  let tickvals = values.filter((value) => value >= low && value <= high);
  const room = narrow() ? 5 : 11;
  if (tickvals.length > room) tickvals = tickvals.filter((value) => Number.isInteger(Math.log10(value)));
  while (tickvals.length > room) tickvals = tickvals.filter((_, i) => i % 2 === 0);
  if (tickvals.length < 2) tickvals = [0.1, 0.5, 0.9].map((share) => Math.round(low * (high / low) ** share));
  return { tickvals, ticktext: tickvals.map(bytes), range: [Math.log10(low), Math.log10(high)] };
}

function byteTicks(sizes) {
  const [least, most] = ends(sizes);
  return ticksBetween(least / 1.6, most * 1.6);
}

function make(tag, text, traits = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = visible(text);
  for (const [name, value] of Object.entries(traits)) element.setAttribute(name, value);
  return element;
}

function frame(more) {
  const axis = {
    gridcolor: ink("rule"),
    linecolor: ink("rule"),
    zeroline: false,
    automargin: true,
    ticks: "outside",
    tickcolor: ink("rule"),
    fixedrange: narrow(),
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("rule"), activecolor: ink("quiet") },
    font: { family: ink("body"), size: 13, color: ink("ink") },
    margin: { l: 56, r: 16, t: 16, b: 48 },
    hoverlabel: {
      bgcolor: ink("card"),
      bordercolor: ink("rule"),
      font: { color: ink("ink"), family: ink("body"), size: 13 },
      align: "left",
    },
    ...more,
    xaxis: { ...axis, ...more.xaxis },
    yaxis: { ...axis, ...more.yaxis },
  };
}

function scoreAxis(view) {
  const name = plain(view.metric.replaceAll("_", " "));
  return view.percent
    ? {
        title: { text: name, standoff: 8 },
        tickformat: ".0%",
        range: [-0.02, 1.09],
        tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1],
      }
    : { title: { text: name, standoff: 8 } };
}

// The axis of the first figure. A mean over tasks has no single trials, and often a small part of the way to its ceiling: its
// axis is where its points are.
function heightsOf(view) {
  const axis = scoreAxis(view);
  if (!view.meansOnly || !view.percent) return axis;
  const [low, high] = ends([
      ...view.means.flatMap(({ mean, half }) => [mean - (half ?? 0), mean + (half ?? 0)]),
      ...(view.published ?? []).map(({ score }) => score),
    ]),
    room = Math.max(0.02, 0.08 * (high - low));
  const { tickvals, ...rest } = axis;
  return { ...rest, range: [Math.max(-0.02, low - room), Math.min(1.09, high + room)] };
}

// Chance, ceiling and other references, as lines that say what they are.
function bounds(view, [low, high] = [-Infinity, Infinity]) {
  const lines = [
    ["chance", view.chance],
    ["ceiling", view.ceiling],
    ...Object.entries(view.references).map(([name, y]) => [plain(name), y]),
  ].filter(([, y]) => y >= low && y <= high);
  // What would be written over each other is written in one line, at the highest of them.
  const [ys, groups] = [lines.map(([, y]) => y), []],
    room = (narrow() ? 0.055 : 0.045) * (high < Infinity ? high - low : view.percent ? 1.1 : Math.max(...ys) - Math.min(...ys) || 1);
  for (const line of [...lines].sort(([, a], [, b]) => b - a)) {
    const last = groups.at(-1);
    if (last && last[0][1] - line[1] < room) last.push(line);
    else groups.push([line]);
  }
  const brief = (own) => narrow() && own.length > 1, // a phone has room for the names of several alone
    say = (own) => own.map(([name, y]) => (brief(own) ? name : `${name} ${figure(y, view.percent)}`)).join(" · ");
  return {
    shapes: lines.map(([, y]) => ({
      type: "line",
      xref: "paper",
      x0: 0,
      x1: 1,
      y0: y,
      y1: y,
      layer: "below",
      line: { color: ink("quiet"), width: 1, dash: "dot" },
    })),
    annotations: groups.map((own) => ({
      xref: "paper",
      x: 0,
      xanchor: "left",
      y: own[0][1],
      yanchor: "bottom",
      showarrow: false,
      text: say(own),
      font: { size: 12, color: ink("quiet") },
    })),
  };
}

const places = new Map(); // of trials in a view, by view
function placeIn(view, trial) {
  if (!places.has(view)) places.set(view, new Map(view.trials.map((one, i) => [one, i])));
  return places.get(view).get(trial);
}
const isIn = (view, trial) => placeIn(view, trial) !== undefined;
const scoreIn = (view, trial) => real(view.scores[placeIn(view, trial)]);
const stateIn = (view, trial) => view.states[placeIn(view, trial)];
const archByRow = new Map(trials.row.map((row, trial) => [rows[row], trials.arch[trial]]));
const archOf = (row) => archByRow.get(row);
const shown = (trial) => !now.hidden.has(trials.arch[trial]);

function describe(trial, score, state, view) {
  const grows = archs[trials.arch[trial]].grows ? ` after ${view.length} tokens, grows` : "";
  return [
    `<b>${plain(rows[trials.row[trial]])}</b>`,
    `test ${figure(score, view.percent)}`,
    `state ${bytes(state)}${grows}`,
    plain(data.hypers[trials.hyper[trial]]),
    `seed ${plain(trials.seed[trial])}, ${trials.key[trial]}`,
  ].join("<br>");
}

// A figure that is drawn, and from its first time on picks the trials of what is clicked in it. Never of a hidden one: it has no
// size, and its axes would look for their ticks for ever.
async function plot(id, traces, layout, setup) {
  const box = await Plotly.react($(id), traces, layout, setup);
  if (!box.dataset.linked) {
    box.on("plotly_click", ({ points }) => points[0].customdata && pick(points[0].customdata));
    if (id === "state") followZoom(box);
  }
  box.dataset.linked = "true";
}

// The legend of a figure, below it: [architecture, name, line] of each in colour.
function fillKey(id, every) {
  const keys = every.filter(([a]) => !faint(a)),
    left = every.length - Math.min(KEYS, keys.length);
  $(id).replaceChildren(
    ...keys.slice(0, KEYS).map(([arch, name, stroke]) => {
      const item = make("li"),
        key = make("i", `${GLYPHS[symbol(arch)]} ${stroke}`.trim(), { "aria-hidden": "true" });
      key.style.color = colour(arch);
      item.append(key, make("span", ` ${name}`));
      return item;
    }),
    ...(left ? [make("li", `and ${grouped(left)} more${keys.length > KEYS ? "" : ", in grey"}`)] : []),
  );
}

// The highest of several points at one state, so that a line joins the best of each state.
function highest(points) {
  const best = new Map();
  for (const [x, y] of points) best.set(x, Math.max(y, best.get(x) ?? -Infinity));
  return [...best].sort(([a], [b]) => a - b);
}

// Over states, for points of one architecture that differ in its sizes and in nothing else.
function paths(points, height, line) {
  const kinds = new Map();
  for (const point of points) {
    if (!kinds.has(point.line)) kinds.set(point.line, []);
    kinds.get(point.line).push([Math.max(1, point.state), height(point)]);
  }
  return [...kinds.values()]
    .map(highest)
    .filter((path) => path.length > 1)
    .map((path) => ({
      type: "scatter",
      mode: "lines",
      x: path.map(([x]) => x),
      y: path.map(([, y]) => y),
      hoverinfo: "skip",
      line,
      meta: "path",
    }));
}

// Single trials as small marks, and what to say of them. Where there are very many in sight, those that lie close together and are
// of one architecture share a mark: it is as large as they are many, and pressing it picks them.
function smallMarks(view) {
  const own = archs.map(() => []),
    [left, right, low, high] = now.zoom && view.trials.length > MANY ? [...now.zoom.x, ...now.zoom.y] : [-1, 99, -1e9, 1e9];
  let there = 0;
  view.trials.forEach((trial, i) => {
    const x = Math.log10(view.states[i]),
      y = real(view.scores[i]);
    if (!shown(trial) || x < left || x > right || y < low || y > high) return;
    own[trials.arch[trial]].push({ trial, i, x, y });
    there++;
  });
  const traces = [];
  const put = (a, marks, traits) =>
    marks.length &&
    traces.push({
      type: "scatter",
      mode: "markers",
      name: archs[a].name,
      x: marks.map(({ x, state }) => state ?? 10 ** x),
      y: marks.map(({ y }) => y),
      hovertemplate: marks.map((mark) => `%{text}<extra>${mark.list ? "trials" : "one trial"}</extra>`),
      ...traits,
    });
  const alone = ({ trial, i, y }) => ({ trial, state: view.states[i], y });
  if (there <= MANY) {
    inOrder().forEach(([, a]) =>
      put(a, own[a].map(alone), {
        customdata: own[a].map(({ trial }) => [trial]),
        text: own[a].map(({ trial, i, y }) => describe(trial, y, view.states[i], view)),
        marker: { color: colour(a), symbol: symbol(a), size: 7, opacity: faint(a) ? 0.25 : 0.35 },
        meta: "trials",
      }),
    );
    return [traces, ""];
  }
  const cells = gather(own),
    most = Math.max(...cells.flat().map(({ list }) => list.length));
  inOrder().forEach(([, a]) => {
    const marks = cells[a];
    put(
      a,
      marks.map((mark) => (mark.list.length > 1 ? mark : alone(mark.list[0]))),
      {
        customdata: marks.map(({ list }) => list.map(({ trial }) => trial)),
        text: marks.map(({ list }) => (list.length > 1 ? summary(a, list, view) : describe(list[0].trial, list[0].y, view.states[list[0].i], view))),
        marker: {
          color: colour(a),
          symbol: symbol(a),
          size: marks.map(({ list }) => 5 + 11 * Math.sqrt((list.length - 1) / Math.max(1, most - 1))),
          opacity: 0.45,
        },
        meta: "cells",
      },
    );
  });
  const marks = cells.flat().length,
    how = narrow() ? "Press one" : "Press one, or zoom in,";
  return [traces, `${count(there, "trial")} in ${count(marks, "small mark")}; a larger mark holds more. ${how} to see its trials.`];
}

// Trials by architecture -> marks by architecture, each of those in one field of a grid in which marks hardly overlap, and coarser where
// there would be more than MANY.
function gather(own) {
  const all = own.flat(),
    [left, right] = ends(all.map(({ x }) => x)),
    [low, high] = ends(all.map(({ y }) => y));
  for (let wide = narrow() ? 48 : 128, tall = 48; ; wide /= 2, tall /= 2) {
    const at = (value, from, to, fields) => Math.min(fields - 1, Math.floor((fields * (value - from)) / (to - from || 1)));
    const cells = own.map((marks) => {
      const found = new Map();
      for (const one of marks) {
        const field = at(one.x, left, right, wide) * 1000 + at(one.y, low, high, tall);
        if (!found.has(field)) found.set(field, []);
        found.get(field).push(one);
      }
      const mean = (list, name) => list.reduce((sum, one) => sum + one[name], 0) / list.length;
      return [...found.values()].map((list) => ({ list, x: mean(list, "x"), y: mean(list, "y") }));
    });
    if (tall <= 3 || cells.reduce((sum, marks) => sum + marks.length, 0) <= MANY) return cells;
  }
}

function summary(a, list, view) {
  const span = (values, say) => [...new Set(ends(values).map(say))].join(" to ");
  const row = new Set(list.map(({ trial }) => trials.row[trial]));
  return [
    `<b>${plain(row.size === 1 ? rows[[...row][0]] : archs[a].name)}</b>`,
    `${count(list.length, "trial")}${row.size > 1 ? ` of ${count(row.size, "architecture")}` : ""}`,
    `test ${span(list.map(({ y }) => y), (y) => figure(y, view.percent))}`,
    `state ${span(list.map(({ i }) => view.states[i]), bytes)}`,
  ].join("<br>");
}

// A zoomed range is drawn anew, in marks as fine as it allows, and stays when trials are picked.
function followZoom(box) {
  const redraw = (zoom) => {
    now.zoom = zoom;
    remember();
    drawState();
  };
  box.on("plotly_doubleclick", () => redraw(null));
  box.on("plotly_relayout", (change) => {
    const axes = Object.keys(change).filter((name) => /^[xy]axis\./.test(name));
    if (!axes.length) return;
    const whole = axes.some((name) => name.endsWith("autorange"));
    redraw(whole ? null : { x: [...box.layout.xaxis.range], y: [...box.layout.yaxis.range] });
  });
}

function drawState() {
  const view = views[now.view],
    [traces, note] = view.meansOnly ? [[], ""] : smallMarks(view);
  const axis = heightsOf(view),
    { range: heights = null } = axis;
  const few = view.means.length < view.of ? `Large: the best of each architecture, ${view.means.length} of ${grouped(view.of)}.` : "";
  const away = [
    ["chance", view.chance],
    ["ceiling", view.ceiling],
  ].filter(([, y]) => view.meansOnly && heights && (y < heights[0] || y > heights[1]));
  const beyond = away.length ? `The axis is where the points are; ${away.map(([name, y]) => `${name} is ${figure(y, view.percent)}`).join(", ")}.` : "";
  write("thinned", [note, few, beyond].filter((text) => text).join(" "));
  inOrder().forEach(([arch, a]) => {
    const own = view.means.filter((mean) => mean.arch === a);
    if (now.hidden.has(a) || !own.length) return;
    const opacity = faint(a) ? 0.6 : 1;
    traces.push(...paths(own, (m) => m.mean, { color: colour(a), width: faint(a) ? 1 : 2, dash: arch.grows ? "dot" : "solid" }));
    traces.push({
      type: "scatter",
      mode: "markers",
      name: arch.name,
      x: own.map((m) => Math.max(1, m.state)),
      y: own.map((m) => m.mean),
      customdata: own.map((m) => m.trials),
      opacity,
      error_y: { type: "data", array: own.map((m) => m.half), color: colour(a), thickness: faint(a) ? 1 : 1.5, width: faint(a) ? 0 : 4 },
      marker: {
        color: colour(a),
        symbol: symbol(a),
        size: faint(a) ? 10 : 13,
        line: { color: ink("paper"), width: 1.5 },
      },
      text: own.map((m) =>
        [
          `<b>${plain(rows[m.row])}</b>`,
          spread(m.mean, m.half, view.percent),
          m.apart ? `state unknown, drawn at the tokens read again, ${bytes(m.state)}` : `state ${bytes(m.state)}`,
          m.count ? count(m.count, "seed") : `${count(m.trials.length, "seed")}, ${plain(data.hypers[trials.hyper[m.trials[0]]])}`,
          m.apart ? "on no front" : `on the front in ${Math.round(100 * m.share)} % of resampled seeds`,
        ].join("<br>"),
      ),
      hovertemplate: "%{text}<extra>mean</extra>",
      meta: "means",
    });
  });
  const hollow = (view.published ?? []).filter((mark) => !now.hidden.has(archOf(mark.name)));
  traces.push({
    type: "scatter",
    mode: "markers",
    x: hollow.map((mark) => Math.max(1, mark.state)),
    y: hollow.map((mark) => mark.score),
    text: hollow.map((mark) =>
      [`<b>${plain(mark.name)}</b>`, figure(mark.score, view.percent), plain(mark.source)].join("<br>"),
    ),
    hovertemplate: "%{text}<extra>published</extra>",
    marker: {
      symbol: hollow.map((mark) => `${symbol(archOf(mark.name))}-open`),
      color: hollow.map((mark) => colour(archOf(mark.name))),
      size: 13,
      line: { width: 2 },
    },
    meta: "published",
  });
  const band = view.band.length && !now.hidden.size ? view.band : [];
  const right = Math.max(1, ends(view.states)[1]) * 1.6;
  const edge = (at) => [...band.map((one) => one[at]), ...band.slice(-1).map((one) => one[at])];
  for (const [at, fill] of [
    [1, "none"],
    [2, "tonexty"],
  ])
    traces.unshift({
      type: "scatter",
      mode: "lines",
      x: [...band.map(([state]) => Math.max(1, state)), ...(band.length ? [right] : [])],
      y: edge(at),
      hoverinfo: "skip",
      line: { shape: "hv", width: 0, color: ink("quiet") },
      fill,
      fillcolor: tint(ink("quiet"), 0.18),
      meta: "band",
    });
  traces.splice(0, 2, traces[1], traces[0]); // the lower edge first: the upper one is filled down to it
  const front = frontOf(view.means.filter((m) => !m.apart && !now.hidden.has(m.arch)));
  // Above the band, which comes first; beyond the last state the front goes on as it is.
  traces.splice(2, 0, {
    type: "scatter",
    mode: "lines",
    x: [...front.map((m) => Math.max(1, m.state)), ...(front.length ? [right] : [])],
    y: [...front, ...front.slice(-1)].map((m) => m.mean),
    hoverinfo: "skip",
    line: { shape: "hv", color: ink("quiet"), width: 1.5, dash: "dash" },
    meta: "front",
  });
  const ticks = now.zoom ? ticksBetween(...now.zoom.x.map((power) => 10 ** power)) : byteTicks(view.states);
  const lines = traces.filter(({ mode, meta }) => mode === "lines" && meta !== "band");
  traces.push(...namesWithin(view, ticks.range, now.zoom?.y ?? heights ?? ends(view.scores.map(real)), lines));
  const picked = [...now.picked].filter((trial) => !view.meansOnly && isIn(view, trial) && shown(trial)).slice(0, RINGS);
  const each = view.trials.length > MANY; // then a mark may hide what is picked by it
  traces.push({
    type: "scatter",
    mode: "markers",
    x: picked.map((t) => stateIn(view, t)),
    y: picked.map((t) => scoreIn(view, t)),
    ...(each
      ? {
          customdata: picked.map((t) => [t]),
          text: picked.map((t) => describe(t, scoreIn(view, t), stateIn(view, t), view)),
          hovertemplate: "%{text}<extra>one trial</extra>",
        }
      : { hoverinfo: "skip" }),
    marker: { symbol: "circle-open", size: each && picked.length > 1 ? 9 : 18, color: ink("ink"), line: { width: 2 } },
    meta: "picked",
  });
  const layout = frame({
    ...bounds(view, now.zoom?.y ?? heights ?? undefined),
    yaxis: { ...axis, ...(now.zoom ? { range: now.zoom.y } : {}) },
    xaxis: { type: "log", title: { text: "recurrent state (log scale)", standoff: 8 }, ...ticks },
  });
  const { modeBarButtonsToRemove: removed, ...rest } = setup();
  return plot("state", traces, layout, { ...rest, doubleClick: false, modeBarButtonsToRemove: [...removed, "resetScale2d"] });
}

// The means that no other reaches with as little state.
function frontOf(means) {
  let best = -Infinity;
  const ordered = [...means].sort((a, b) => a.state - b.state || b.mean - a.mean);
  return ordered.filter((m) => m.mean > best && ((best = m.mean), true));
}

function curve(trial) {
  const [clock, values] = trials.curve[trial] ?? [0, []];
  return [data.clocks[clock] ?? [], values.map((v) => (v === null ? null : v / 1000))];
}

// Very many curves are drawn as means and intervals by architecture and hyper-parameters: [line, band].
function meanCurves(view, a, own, traits) {
  const behind = new Map(view.means.map((mean) => [mean.row, mean.trials])),
    line = { x: [], y: [], text: [], customdata: [] },
    band = { x: [], y: [] };
  for (const [, row, number] of own) {
    const { steps, mean, half, count: seeds } = data.curves[number],
      say = (y, i) => [`<b>${plain(rows[row])}</b>`, `${grouped(steps[i])} steps: ${spread(y, half[i], view.percent)}`, count(seeds, "seed")];
    line.x.push(...steps, null);
    line.y.push(...mean, null);
    line.text.push(...mean.map((y, i) => say(y, i).join("<br>")), "");
    line.customdata.push(...steps.map(() => behind.get(row)), behind.get(row));
    const sure = steps.map((_, i) => i).filter((i) => half[i] !== null);
    if (!sure.length) continue;
    const edge = (side, order) => order.map((i) => mean[i] + side * half[i]);
    band.x.push(...[...sure, ...[...sure].reverse()].map((i) => steps[i]), null);
    band.y.push(...edge(-1, sure), ...edge(1, [...sure].reverse()), null);
  }
  const base = { type: "scatter", mode: "lines", name: archs[a].name };
  const shade = { fill: "toself", fillcolor: tint(colour(a), 0.15), line: { width: 0 }, hoverinfo: "skip", meta: "spread" };
  return [
    ...(band.x.length && !faint(a) ? [{ ...base, ...band, ...shade }] : []),
    { ...base, ...line, ...traits, hovertemplate: "%{text}<extra></extra>", meta: "curves" },
  ];
}

function meantBy(view, own) {
  const few = own.length < view.of && !now.hidden.size ? `, of ${own.length} of ${grouped(view.of)} architectures` : "";
  return `Lines are means over seeds, shades their standard deviations${few}. Pick a trial to see its own line.`;
}

function drawCurves() {
  const view = views[now.view],
    traces = [];
  if (view.meansOnly) return;
  const chosen = view.means
    .flatMap((mean) => mean.trials)
    .filter((t) => shown(t) && trials.curve[t])
    .slice(0, LINES);
  const lines = (list, name, traits) => {
    const x = [],
      y = [],
      customdata = [];
    for (const trial of list) {
      const [steps, values] = curve(trial);
      x.push(...steps, null);
      y.push(...values, null);
      customdata.push(...steps.map(() => [trial]), [trial]);
    }
    traces.push({ type: "scatter", mode: "lines", x, y, customdata, name, ...traits });
  };
  const means = (view.curves ?? []).filter(([a]) => !now.hidden.has(a));
  write("curvesmeant", view.curves ? meantBy(view, means) : "");
  const drawn = new Set(view.curves ? means.map(([a]) => a) : chosen.map((trial) => trials.arch[trial]));
  const opacity = now.picked.size ? 0.35 : 0.85;
  inOrder().forEach(([arch, a]) => {
    if (!drawn.has(a)) return;
    const line = { color: colour(a), width: 1.5, dash: arch.grows ? "dot" : "solid" };
    if (view.curves) traces.push(...meanCurves(view, a, means.filter(([own]) => own === a), { line, opacity }));
    else
      lines(
        chosen.filter((trial) => trials.arch[trial] === a),
        arch.name,
        {
          line,
          opacity,
          meta: "curves",
          hovertemplate: `<b>${plain(arch.name)}</b><br>%{x} steps: %{y}<extra></extra>`,
        },
      );
  });
  const picked = [...now.picked].filter((t) => shown(t) && trials.curve[t]).slice(0, LINES),
    heavy = (a, width) => ({ line: { color: colour(a), width }, meta: "picked" });
  if (picked.length <= KEYS)
    for (const trial of picked)
      lines([trial], rows[trials.row[trial]], {
        ...heavy(trials.arch[trial], 3.5),
        hovertemplate: `<b>${plain(rows[trials.row[trial]])}</b>, seed ${plain(trials.seed[trial])}<br>%{x} steps: %{y}<extra></extra>`,
      });
  else
    for (const a of new Set(picked.map((trial) => trials.arch[trial])))
      lines(
        picked.filter((trial) => trials.arch[trial] === a),
        archs[a].name,
        { ...heavy(a, 1.5), hovertemplate: `<b>${plain(archs[a].name)}</b><br>%{x} steps: %{y}<extra></extra>` },
      );
  fillKey(
    "curvekey",
    archs.map((arch, a) => [a, arch.name, DASHES[arch.grows ? 2 : 0][1]]).filter(([a]) => drawn.has(a)),
  );
  const axis = scoreAxis(view);
  axis.title.text = `${axis.title.text}, validation`;
  const named = namedIn(view),
    last = new Map(); // heights at the ends of lines, by architecture
  for (const { meta, name, y } of traces)
    if (meta === "curves") last.set(archs.findIndex((arch) => arch.name === name), y.filter((value, i) => value !== null && (y[i + 1] ?? null) === null));
  const tips = [...last].filter(([a, y]) => named.has(a) && y.length).map(([a, y]) => ({ arch: a, name: archs[a].name, y: Math.max(...y) }));
  const [names, wide] = namesBeside("curves", tips, axis.range ?? ends(traces.flatMap(({ y }) => y.filter((value) => value !== null)))),
    limits = bounds(view.own ?? view);
  return plot(
    "curves",
    traces,
    frame({
      ...limits,
      annotations: [...limits.annotations, ...names],
      margin: { l: 56, r: Math.max(16, wide), t: 16, b: 48 },
      yaxis: axis,
      xaxis: {
        title: { text: "optimizer steps", standoff: 8 },
        range: [0, 1.04 * traces.reduce((most, { x }) => x.reduce((high, step) => Math.max(high, step), most), 1)],
        tickformat: ",",
        nticks: narrow() ? 5 : 10,
      },
    }),
    setup(),
  );
}

// How wide text is, in pixels, as figures write it. With it a figure's margins are known before it is drawn: Plotly, which would find
// them by itself, draws twice and measures every label.
const pen = document.createElement("canvas").getContext("2d");
function wideAs(texts) {
  pen.font = `13px ${ink("body")}`;
  return texts.reduce((most, text) => Math.max(most, pen.measureText(visible(text)).width), 0);
}
