"use strict";
// Architectures at nearly equal state, best first.

const ALIKE = 1.5, // states of one comparison: at most so many times the least of them
  BARS = 40; // architectures that are drawn

const classes = new Map(); // of states that are nearly equal, by view
function classesOf(view) {
  if (classes.has(view)) return classes.get(view);
  const means = view.means.filter((mean) => !mean.apart).sort((a, b) => a.state - b.state),
    found = [];
  for (const mean of means) {
    const last = found.at(-1);
    if (last && mean.state <= ALIKE * last[0].state) last.push(mean);
    else found.push([mean]);
  }
  const told = found.filter((own) => new Set(own.map(({ row }) => row)).size > 1);
  classes.set(view, told);
  return told;
}

// The chosen class of a view: the one that holds the chosen state, else the one of most architectures.
function equalIn(view) {
  const found = classesOf(view),
    holds = (own) => own[0].state <= now.equal && now.equal <= ALIKE * Math.max(1, own[0].state),
    size = (own) => new Set(own.map(({ arch }) => arch)).size;
  return found.find(holds) ?? found.reduce((most, own) => (!most || size(own) >= size(most) ? own : most), undefined);
}

const span = (own) => [...new Set(ends(own.map(({ state }) => state)).map(bytes))].join(" to ");

function drawEqual() {
  const view = views[now.view],
    own = equalIn(view);
  if (!own) return;
  const found = classesOf(view),
    select = $("equalstate");
  select.replaceChildren(
    ...found.map((one) => make("option", `${span(one)}: ${count(one.length, "architecture")}`, { value: one[0].state })),
  );
  select.value = own[0].state;
  select.closest(".controls").hidden = found.length < 2;
  const every = own.filter((mean) => !now.hidden.has(mean.arch)).sort((a, b) => b.mean - a.mean),
    kept = every.slice(0, BARS),
    [best, ...others] = every;
  const near = best?.half === null ? [] : others.filter((m) => m.half !== null && m.mean + m.half >= best.mean - best.half);
  write(
    "equalseen",
    best
      ? [
          `Best with ${span(own)}: ${rows[best.row]}, ${spread(best.mean, best.half, view.percent)}.`,
          near.length ? `The bars of ${near.length} other${near.length === 1 ? "" : "s"} overlap its own.` : "",
          kept.length < every.length ? `Drawn: the best ${kept.length} of ${grouped(every.length)}.` : "",
        ]
          .filter((text) => text)
          .join(" ")
      : "All of them are hidden.",
  );
  const least = narrow() ? 22 : 44,
    names = kept.map(({ row }) => visible(rows[row])).map((name) => (name.length > least ? `${name.slice(0, least - 1)}…` : name)),
    said = kept.map((m) => `${spread(m.mean, m.half, view.percent)}, ${bytes(m.state)}`),
    beside = 20 + wideAs(names),
    right = narrow() ? 12 : 20 + wideAs(said);
  $("equalplot").style.height = `${64 + 28 * Math.max(1, kept.length)}px`;
  const y = kept.map((_, i) => i);
  const trace = {
    type: "scatter",
    mode: "markers",
    x: kept.map((m) => m.mean),
    y,
    customdata: kept.map((m) => m.trials),
    error_x: { type: "data", array: kept.map((m) => m.half), color: ink("quiet"), thickness: 1.5, width: 4 },
    marker: {
      size: 12,
      color: kept.map((m) => (m.trials.some((trial) => now.picked.has(trial)) ? ink("ink") : colour(m.arch))),
      symbol: kept.map((m) => symbol(m.arch)),
    },
    text: kept.map((m, i) => [`<b>${plain(rows[m.row])}</b>`, said[i]].join("<br>")),
    hovertemplate: "%{text}<extra></extra>",
    meta: "equal",
  };
  const { range: _, tickvals: __, ...axis } = scoreAxis(view),
    [low, high] = ends(kept.flatMap(({ mean, half }) => [mean - (half ?? 0), mean + (half ?? 0)])),
    room = 0.08 * (high - low) || 0.05; // the axis is where the points are
  return plot(
    "equalplot",
    [trace],
    frame({
      margin: { l: beside, r: right, t: 8, b: 48 },
      xaxis: { ...axis, automargin: false, range: kept.length ? [low - room, high + room] : [0, 1], nticks: narrow() ? 4 : 10 },
      yaxis: {
        automargin: false,
        tickvals: y,
        ticktext: names.map(plain),
        range: [Math.max(1, kept.length) - 0.5, -0.5],
        ticks: "",
        ticklabelstandoff: 6,
        fixedrange: true,
      },
      annotations: narrow()
        ? []
        : said.map((text, i) => ({
            xref: "paper",
            x: 1,
            xanchor: "left",
            xshift: 8,
            y: i,
            showarrow: false,
            text,
            font: { size: 12, color: ink("quiet") },
          })),
      shapes: [view.chance, view.ceiling].filter((x) => x >= low - room && x <= high + room).map((x) => ({
        type: "line",
        yref: "paper",
        y0: 0,
        y1: 1,
        x0: x,
        x1: x,
        layer: "below",
        line: { color: ink("quiet"), width: 1, dash: "dot" },
      })),
    }),
    setup(false),
  );
}
