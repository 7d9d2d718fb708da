"use strict";
// Names at the ends of lines, so that few of them are looked up in a legend. A phone has no room for them.

const LABEL = 26; // letters of a name

const shortened = (name) => (name.length > LABEL ? `${name.slice(0, LABEL - 1)}…` : name);

// Which architectures are named in figures: those in colour, or the best of a few.
function namedIn(view) {
  if (lit) return new Set(lit.keys());
  return new Set(presentIn(view).ranked.filter((a) => !now.hidden.has(a)).slice(0, EIGHT));
}

// Names beside the right edge, [{ arch, name, y }], each at its y and none over another: [annotations, pixels that they take].
function namesBeside(id, ends, [low, high]) {
  if (narrow() || !ends.length) return [[], 0];
  const room = (16 * (high - low)) / Math.max(120, $(id).clientHeight - 64),
    sorted = [...ends].sort((a, b) => b.y - a.y),
    places = [];
  for (const { y } of sorted) places.push(Math.min(y, (places.at(-1) ?? Infinity) - room));
  const below = Math.min(low, ...ends.map(({ y }) => y)) - places.at(-1); // what was pushed out at the bottom goes up again
  for (let i = places.length - 1, floor = -Infinity; below > 0 && i >= 0; i--) {
    places[i] = Math.max(places[i], floor === -Infinity ? low : floor);
    floor = places[i] + room;
  }
  const words = sorted.map(({ name }) => shortened(visible(name)));
  return [
    sorted.map(({ arch }, i) => ({
      xref: "paper",
      x: 1,
      xanchor: "left",
      xshift: 6,
      y: places[i],
      yanchor: "middle",
      showarrow: false,
      text: plain(words[i]),
      font: { size: 12, color: colour(arch) },
    })),
    14 + wideAs(words),
  ];
}

// Points every few pixels along lines, which go by steps where their shape says so: [[x, y]], from traces and pixels of a point.
function along(traces, at) {
  const points = [];
  for (const { x, y, line } of traces)
    for (let i = 1; i < x.length; i++) {
      if ([x[i - 1], y[i - 1], x[i], y[i]].some((value) => value === null)) continue;
      const bend = line.shape === "hv" ? [[x[i], y[i - 1]]] : [],
        corners = [[x[i - 1], y[i - 1]], ...bend, [x[i], y[i]]].map(([state, mean]) => at({ state, mean }));
      for (let c = 1; c < corners.length; c++) {
        const [[x0, y0], [x1, y1]] = [corners[c - 1], corners[c]],
          steps = Math.min(400, Math.ceil(Math.hypot(x1 - x0, y1 - y0) / 4));
        for (let step = 0; step <= steps; step++) points.push([x0 + ((x1 - x0) * step) / (steps || 1), y0 + ((y1 - y0) * step) / (steps || 1)]);
      }
    }
  return points;
}

// Names beside a mean of each line in the first figure, where they cover neither a mark nor each other, nor a line if that can be.
function namesWithin(view, xRange, yRange, lines) {
  if (narrow()) return [];
  const box = $("state"),
    [wide, tall] = [box.clientWidth - 84, box.clientHeight - 64],
    named = namedIn(view),
    at = ({ state, mean }) => [
      ((Math.log10(Math.max(1, state)) - xRange[0]) / (xRange[1] - xRange[0])) * wide,
      (1 - (mean - yRange[0]) / (yRange[1] - yRange[0])) * tall,
    ];
  const marks = view.means.filter((m) => named.has(m.arch) && !now.hidden.has(m.arch)),
    strokes = along(lines, at),
    taken = marks.map(at).map(([x, y]) => [x - 8, y - 8, x + 8, y + 8]),
    clear = ([l, t, r, b]) => strokes.every(([x, y]) => x < l || x > r || y < t || y > b),
    free = (own) => taken.every(([l, t, r, b]) => own[2] < l || own[0] > r || own[3] < t || own[1] > b);
  const placeAt = (mark, size, off) => {
    const [x, y] = at(mark);
    if (x < 0 || x > wide || y < 0 || y > tall) return null;
    const found = [
      ["top right", x + 8.5, y - 18], // above and below the front, which goes to the right
      ["bottom right", x + 8.5, y + 2],
      ["top left", x - size - 8.5, y - 18],
      ["bottom left", x - size - 8.5, y + 2],
      ["middle right", x + 8.5, y - 8],
      ["middle left", x - size - 8.5, y - 8],
    ]
      .map(([where, left, top]) => ({ mark, where, own: [left, top, left + size, top + 16] }))
      .find(({ own }) => own[0] >= 0 && own[2] <= wide + 12 && own[1] >= 0 && own[3] <= tall && free(own) && off(own));
    return found ?? null;
  };
  // Best first, each at its last mark that has room off all lines, else at its last that has room.
  const byArch = [...new Set(marks.map(({ arch }) => arch))]
    .map((arch) => marks.filter((m) => m.arch === arch).sort((a, b) => b.state - a.state || b.mean - a.mean))
    .sort(([a], [b]) => b.mean - a.mean);
  const put = [];
  for (const own of byArch) {
    const word = shortened(visible(archs[own[0].arch].name)),
      size = 16 + wideAs([word]),
      place = [clear, () => true].reduce((found, off) => own.reduce((found, mark) => found ?? placeAt(mark, size, off), found), null);
    if (!place) continue;
    taken.push(place.own);
    put.push({ ...place, word });
  }
  return [
    {
      type: "scatter",
      mode: "text",
      x: put.map(({ mark }) => Math.max(1, mark.state)),
      y: put.map(({ mark }) => mark.mean),
      text: put.map(({ word }) => `\u00a0\u00a0\u00a0${plain(word)}\u00a0\u00a0\u00a0`),
      textposition: put.map(({ where }) => where),
      textfont: { size: 12, shadow: `${ink("paper")} 0 0 3px, ${ink("paper")} 0 0 3px`, color: put.map(({ mark }) => colour(mark.arch)) },
      hoverinfo: "skip",
      cliponaxis: false,
      meta: "names",
    },
  ];
}
