"use strict";
// The heat map, and its column of means that stays in view.

// Dark or light, whichever reads better on a colour between `low` and `high`.
function onto(share, low, high) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [from, to] = [parts(low), parts(high)];
  const light = (rgb) =>
    [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * (rgb[i] / 255) ** 2.2, 0.05);
  const ground = light(from.map((value, i) => value + share * (to[i] - value)));
  return light(parts("#ffffff")) / ground > ground / light(parts("#101820")) ? "#ffffff" : "#101820";
}

const MEANS = 56; // pixels of a column of means beside a figure that has none

// The table of the heat map without the rows that are hidden.
function heatTable() {
  const table = tables[now.table],
    kept = table.rows.map((_, i) => i).filter((i) => !now.hidden.has(archOf(table.rows[i])));
  if (kept.length === table.rows.length) return table;
  const part = (list) => list && kept.map((i) => list[i]);
  return { ...table, ...Object.fromEntries(["rows", "states", "cells", "trials", "means", "partial"].map((name) => [name, part(table[name])])) };
}

// The column of means beside the heat map, which stays where the figure scrolls. It covers the figure's own column of means, or
// stands beside a figure that has none.
function drawMeans(table, small, { top, below, wide, right }) {
  const box = $("heatmean"),
    at = table.mean_at ?? null,
    cells = at === null ? table.means : table.cells.map((line) => line[at]);
  box.hidden = !cells?.some(([mean]) => mean !== null) || (at !== null && !small);
  if (box.hidden) return;
  const width = at === null ? MEANS : wide + right;
  box.style.width = `${width}px`;
  box.style.marginLeft = `${at === null ? 0 : -width}px`;
  box.style.padding = `0 ${at === null ? 0 : right}px ${below}px 0`;
  box.style.right = `${at === null ? 0 : 8 - right}px`; // the figure's margin leaves the window first
  const head = make("div", "mean");
  head.style.height = `${top}px`;
  box.replaceChildren(
    head,
    ...cells.map(([mean, , , share]) => {
      const cell = make("div", figure(mean, table.percent).replace(" %", ""));
      if (share !== null) {
        cell.style.background = `color-mix(in srgb, var(--high) ${100 * share}%, var(--low))`;
        cell.style.color = onto(share, ink("low"), ink("high"));
      }
      return cell;
    }),
  );
}

async function drawHeat() {
  const table = heatTable(),
    groups = table.groups ?? [],
    above = groups.length ? 36 : 0, // for the names of the groups
    low = ink("low"),
    high = ink("high");
  $("heat").hidden = !table.rows.length;
  $("heatmean").hidden = true;
  if (!table.rows.length) return write("heatseen", "All of them are hidden.");
  const x = table.columns.map((_, i) => i),
    y = table.rows.map((_, i) => i);
  const words = (text, width) => plain(text.length > width ? `${text.slice(0, width - 1)}…` : text);
  // Where columns are narrow, headings lean and the figure may scroll sideways.
  const small = $("strengths").clientWidth - (table.means ? MEANS : 0) < 160 + 110 * x.length;
  // Rows and columns differ also in their last options: no name is cut, a long one of a row takes several lines.
  const folded = (name, width) =>
    name.split(" ").reduce((lines, word) => {
      const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
      return !lines.length || longer.length > width ? [...lines, word] : [...lines.slice(0, -1), longer];
    }, []);
  const named = table.rows.map((name) => folded(name, small || narrow() ? 26 : 44)),
    beside = 20 + wideAs(named.flat()), // of the rows' names, in pixels
    pitch = Math.max(36, 6 + 17 * Math.max(...named.map((lines) => lines.length))); // from row to row
  $("heat").style.minWidth = `${beside + 44 * x.length}px`;
  const alone = new Set(groups.filter(([, size]) => small && size === 1).map(([name]) => name)), // whose name leans, too
    short = (name) => (groups.length && !alone.has(name) ? (name.split(": ")[1] ?? "") : name),
    parted = (name) => short(name).split(/(?<=,| &) /), // over several lines
    heading = (name) => parted(name).map(plain).join("<br>"),
    lines = Math.max(2, ...table.heads.map((name) => parted(name).length)),
    slant = wideAs(table.heads.map(short)), // of the longest that leans, in pixels
    tall = small ? 24 + 0.82 * slant : 6 + 17 * lines; // of the columns' headings
  $("heat").style.height = `${tall + (small ? 40 : 80) + above + pitch * y.length}px`;
  const share = table.cells.map((line) => line.map((cell) => cell[3]));
  const partial = (row, column) => table.partial[row].includes(column);
  const hover = table.cells.map((line, row) =>
    line.map(([mean, half, seeds], column) =>
      [
        `<b>${plain(table.rows[row])}</b>`,
        plain(table.columns[column]),
        spread(mean, half, table.percent),
        `chance ${figure(table.chance[column], table.percent)}, ceiling ${figure(table.ceiling[column], table.percent)}`,
        `${count(seeds, "seed")}, ${plain(table.states[row])}`,
        ...(partial(row, column) ? ["over some settings of the column only, so not to be compared"] : []),
      ].join("<br>"),
    ),
  );
  const heat = {
    type: "heatmap",
    x,
    y,
    z: share,
    customdata: hover,
    hovertemplate: "%{customdata}<extra></extra>",
    hoverongaps: false,
    xgap: 2,
    ygap: 2,
    zmin: 0,
    zmax: 1,
    colorscale: [
      [0, low],
      [1, high],
    ],
    colorbar: {
      orientation: "h",
      yref: "container",
      y: 0,
      yanchor: "bottom",
      thickness: 10,
      len: small ? 0.9 : narrow() ? 0.7 : 0.4, // room for its two words on a phone
      x: 0.5,
      outlinewidth: 0,
      tickvals: [0, 1],
      ticktext: ["chance", "ceiling"],
      tickfont: { color: ink("quiet"), size: 12 },
    },
  };
  const there = y
    .flatMap((row) => x.map((column) => [row, column]))
    .filter(([row, column]) => share[row][column] !== null);
  const written = there.length <= MANY ? there : []; // of more, the numbers are in the tables and under the pointer
  const text = {
    type: "scatter",
    mode: "text",
    x: written.map(([, column]) => column),
    y: written.map(([row]) => row),
    hoverinfo: "skip",
    text: written.map(
      ([row, column]) =>
        figure(table.cells[row][column][0], table.percent).replace(" %", "") + (partial(row, column) ? "*" : ""),
    ),
    textfont: { size: small ? 11 : 13, color: written.map(([row, column]) => onto(share[row][column], low, high)) },
  };
  // Groups of columns have their name above and a rule between; columns then go without it.
  const ends = groups.map((_, i) => groups.slice(0, i + 1).reduce((sum, [, size]) => sum + size, 0)),
    room = $("heat").clientWidth - beside,
    leans = table.heads.map((name) => 16 + 0.57 * wideAs([short(name)])), // to the right, in pixels: Plotly hides one that is cut
    beyond = (wide) => Math.max(8, ...leans.map((lean, i) => lean - (x.length - i - 0.5) * wide)),
    right = small ? beyond((room - beyond(room / x.length)) / x.length) : 8,
    wide = (room - right) / x.length; // of a column, in pixels
  const titles = groups.flatMap(([name, size], i) => alone.has(name) ? [] : [{
    x: ends[i] - size - 0.5,
    y: 1,
    yref: "paper",
    yshift: tall, // over the columns' own
    xanchor: "left",
    yanchor: "bottom",
    showarrow: false,
    text: `<b>${words(name, Math.max(4, Math.floor((size * wide) / 7.5)))}</b>`,
    font: { size: 12, color: ink("ink") },
  }]);
  const rules = ends.slice(0, -1).map((end) => ({
    type: "line",
    x0: end - 0.5,
    x1: end - 0.5,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color: ink("quiet"), width: 1.5 },
  }));
  const picked = there
    .filter(([row, column]) => table.trials[row][column].some((trial) => now.picked.has(trial)))
    .map(([row, column]) => ({
      type: "rect",
      x0: column - 0.47,
      x1: column + 0.47,
      y0: row - 0.44,
      y1: row + 0.44,
      line: { color: ink("ink"), width: 2.5 },
      name: "picked",
    }));
  const margin = { l: beside, r: right, t: tall + (groups.length ? 24 : 0), b: 48 };
  drawMeans(table, small, { top: margin.t, below: margin.b, wide, right });
  const layout = frame({
    margin,
    annotations: titles,
    shapes: [...rules, ...picked],
    xaxis: {
      side: "top",
      automargin: false,
      tickvals: x,
      showgrid: false,
      ticks: "",
      fixedrange: true,
      tickangle: small ? -55 : 0,
      range: [-0.5, x.length - 0.5],
      ticktext: table.heads.map((name) => (small ? plain(short(name)) : heading(name))),
    },
    yaxis: {
      automargin: false,
      tickvals: y,
      showgrid: false,
      ticks: "",
      ticklabelstandoff: 6,
      fixedrange: true,
      range: [y.length - 0.5, -0.5],
      ticktext: named.map((lines) => lines.map(plain).join("<br>")),
    },
  });
  write("heatseen", `${table.seen}${written.length < there.length ? " The numbers are in the table below." : ""}`);
  const box = await Plotly.react($("heat"), [heat, text], layout, setup(false));
  if (!box.dataset.linked) box.on("plotly_click", ({ points: [{ pointIndex: [row, column] }] }) => pickCell(row, column));
  box.dataset.linked = "true";
}

// The trials of a cell, or where it has none those of its row.
function pickCell(row, column) {
  const line = heatTable().trials[row];
  pick(line[column].length ? line[column] : [...new Set(line.flat())]);
}
