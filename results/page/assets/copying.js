"use strict";
// A menu on each figure: its address, the documents of what it shows, its numbers, and its picture.

// A cell of a CSV file: text that a spreadsheet would compute begins with a quote mark, as escape.py has it.
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const line = visible(value).replace(/[\n\t]/g, " "),
    text = /^[=+\-@\t\r\n＝＋－＠]/.test(value) ? `'${line}` : line;
  return /[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
const csvOf = (heads, lines) => [heads, ...lines].map((line) => line.map(cell).join(",")).join("\n") + "\n";

const unitOf = (view) => `${view.metric.replaceAll("_", " ")}${view.percent ? " (share of 1)" : ""}`;
const DEVIATION = "standard deviation over seeds";

function stateLines() {
  const view = views[now.view],
    lines = [];
  for (const m of view.means)
    if (!now.hidden.has(m.arch))
      lines.push(["mean", rows[m.row], m.count ? "" : data.hypers[trials.hyper[m.trials[0]]], "", m.count ?? m.trials.length, m.mean, m.half, m.state, m.share, ""]);
  for (const mark of view.published ?? [])
    if (!now.hidden.has(archOf(mark.name))) lines.push(["published", mark.name, "", "", "", mark.score, null, mark.state, null, mark.source]);
  if (!view.meansOnly)
    for (const trial of chosenTrials(view))
      lines.push(["trial", rows[trials.row[trial]], data.hypers[trials.hyper[trial]], trials.seed[trial], 1, scoreIn(view, trial), null, stateIn(view, trial), null, trials.key[trial]]);
  return [["kind", "architecture", "hyper-parameters", "seed", "seeds", unitOf(view), DEVIATION, "state (bytes)", "on the front (share of resampled seeds)", "key or source"], lines];
}

const chosenTrials = (view) => view.trials.filter((trial) => (now.picked.size ? now.picked.has(trial) : shown(trial)));

function equalLines() {
  const view = views[now.view],
    own = equalIn(view).filter((m) => !now.hidden.has(m.arch)).sort((a, b) => b.mean - a.mean);
  return [["architecture", unitOf(view), DEVIATION, "state (bytes)"], own.map((m) => [rows[m.row], m.mean, m.half, m.state])];
}

function heldLines() {
  const lines = data.held[now.held].lines.filter((line) => !now.hidden.has(line.arch)),
    bounds = [...new Set(lines.flatMap((line) => line.bounds.map(([name]) => name)))];
  return [
    ["architecture", "state (bytes)", "pairs held at 99 %", "pairs held at 90 %", "untrained, by the probe (pairs at 99 %)", "fewest pairs tried", "most pairs tried", ...bounds.map((name) => `theory, a head: ${name} (pairs)`)],
    lines.map((line) => [line.name, line.state, ...[0, 1].map((at) => line.trained[at]), line.probed[0], ...line.tried, ...bounds.map((name) => new Map(line.bounds).get(name))]),
  ];
}

function heatLines() {
  return cellLines([heatTable()]);
}

// The cells of tables as lines; a share is a number from 0 to 1.
function cellLines(list) {
  return [
    ["table", "architecture", "state", "column", "mean", "unit", DEVIATION, "seeds", "chance", "ceiling", "from chance (0) to ceiling (1)", "settings"],
    list.flatMap((table) =>
      table.rows.flatMap((row, r) =>
        table.columns.map((column, c) => {
          const [mean, half, seeds, share] = table.cells[r][c],
            unit = table.percent ? "share of 1" : "score";
          return [table.title, row, table.states[r], column, mean, unit, half, seeds, table.chance[c], table.ceiling[c], share, table.partial[r].includes(c) ? "some" : "all"];
        }),
      ),
    ),
  ];
}

function pairLines() {
  const pair = now.pair.filter((row) => row);
  const lines = pair.length < 2 ? [] : scoresOf(pair).map((score) => {
    const { name, a, b, percent } = score;
    return [name, percent === null ? "pairs" : percent ? "share of 1" : "score", a.mean, a.half, b.mean, b.half, a.mean - b.mean];
  });
  const [one, other] = [...pair, "first", "second"];
  return [["setting", "unit", one, `${DEVIATION}, first`, other, `${DEVIATION}, second`, "first less second"], lines];
}

function cutLines() {
  const cut = cutNow();
  return [
    ["architecture", cut.by, cut.percent ? `${cut.metric} (share of 1)` : cut.metric, DEVIATION, "state (bytes)", "seeds", "chance"],
    cut.lines
      .filter((line) => !now.hidden.has(line.arch))
      .flatMap((line) => line.at.map((at, i) => [line.name, cut.x[at], line.y[i], line.half[i], line.states[i], line.trials[i].length, cut.chance[at]])),
  ];
}

function curveLines() {
  const view = views[now.view],
    score = `validation ${unitOf(view)}`;
  if (view.curves && !now.picked.size)
    return [
      ["architecture", "optimizer steps", score, DEVIATION, "seeds"],
      view.curves
        .filter(([a]) => !now.hidden.has(a))
        .flatMap(([, row, number]) => {
          const { steps, mean, half, count: seeds } = data.curves[number];
          return steps.map((step, i) => [rows[row], step, mean[i], half[i], seeds]);
        }),
    ];
  const own = now.picked.size ? [...now.picked] : view.means.flatMap((mean) => mean.trials);
  return [
    ["architecture", "hyper-parameters", "seed", "key", "optimizer steps", score],
    own
      .filter((t) => shown(t) && trials.curve[t])
      .flatMap((t) => {
        const [steps, values] = curve(t);
        return steps.map((step, i) => [rows[trials.row[t]], data.hypers[trials.hyper[t]], trials.seed[t], trials.key[t], step, values[i]]);
      }),
  ];
}

function progressLines() {
  const { at, volume, importance } = views[now.view].progress;
  return [
    ["kind", "trials finished, or option", "share of 1"],
    [...at.map((n, i) => ["share dominated", n, volume[i]]), ...importance.map(([name, share]) => ["share of the variance of scores", name, share])],
  ];
}

// The cells of a table that came written, as they read.
function tableLines(section) {
  const [heads, ...lines] = [...section.querySelector("table").rows].map((row) => [...row.cells].map((one) => one.textContent.trim()));
  return [heads, lines];
}

const rowsShown = () => views[now.view].means.filter((mean) => !now.hidden.has(mean.arch)).map((mean) => rows[mean.row]);

// By section: the figure's element, its numbers, and the rows that it shows.
const COPIED = {
  recall: { id: "state", numbers: stateLines, rows: rowsShown },
  equal: { id: "equalplot", numbers: equalLines, rows: () => equalLines()[1].map(([row]) => row) },
  holdings: { id: "held", numbers: heldLines, rows: () => heldLines()[1].map(([row]) => row) },
  strengths: { id: "heat", numbers: heatLines, rows: () => heatTable().rows },
  cuts: { id: "cutplot", numbers: cutLines, rows: () => cutLines()[1].map(([row]) => row) },
  learning: { id: "curves", numbers: curveLines, rows: rowsShown },
  progress: { id: "progressplot", numbers: progressLines, rows: rowsShown },
  capacity: { numbers: () => tableLines($("capacity")), rows: () => [...rows] },
  online: {},
  tables: { numbers: () => cellLines(tables), rows: () => tables.flatMap((table) => table.rows) },
  compare: { numbers: pairLines, rows: () => now.pair.filter((row) => row) },
};

// The documents of what is picked, or else of what the figure shows.
function yamlOf(names) {
  const picked = [...now.picked].map((trial) => rows[trials.row[trial]]),
    every = [...new Set(now.picked.size ? picked : names)],
    held = every.filter((row) => detailOf(row)),
    note = held.length < every.length ? [`# ${count(every.length - held.length, "architecture")} without a document on this page\n`] : [];
  return [...held.map((row) => `# ${called(row)}\n${documentOf(row).trimEnd()}\n`), ...note].join("---\n");
}

async function pictureOf(id) {
  const box = $(id),
    layout = { ...box.layout, paper_bgcolor: ink("paper"), plot_bgcolor: ink("paper") };
  return Plotly.toImage({ data: box.data, layout, config: {} }, { format: "png", width: box.clientWidth, height: box.clientHeight, scale: 2 });
}

// Figures that came drawn, one below the other. Their colours are the page's, which a picture does not know: each is written out.
async function pictureBelow(drawings) {
  const canvas = document.createElement("canvas"),
    sizes = drawings.map((one) => one.getBoundingClientRect()),
    scale = 2;
  canvas.width = scale * Math.max(...sizes.map(({ width }) => width));
  canvas.height = scale * sizes.reduce((sum, { height }) => sum + height, 0);
  const paper = canvas.getContext("2d");
  paper.fillStyle = ink("paper");
  paper.fillRect(0, 0, canvas.width, canvas.height);
  let top = 0;
  for (const [i, drawing] of drawings.entries()) {
    const copy = drawing.cloneNode(true),
      parts = [...copy.querySelectorAll("*")];
    [...drawing.querySelectorAll("*")].forEach((part, n) => {
      const look = getComputedStyle(part);
      for (const name of ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "font-weight"])
        parts[n].style.setProperty(name, look.getPropertyValue(name));
    });
    for (const [name, value] of [
      ["xmlns", "http://www.w3.org/2000/svg"],
      ["width", sizes[i].width * scale],
      ["height", sizes[i].height * scale],
    ])
      copy.setAttribute(name, value);
    const picture = new Image();
    picture.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    await picture.decode();
    paper.drawImage(picture, 0, top);
    top += sizes[i].height * scale;
  }
  return canvas.toDataURL("image/png");
}

function save(address, name) {
  const link = make("a", undefined, { href: address, download: name });
  link.click();
}

// Text to the clipboard; where a browser refuses that, as some do to a file, to a box from which it can be copied by hand.
async function offer(text, what, status) {
  try {
    await navigator.clipboard.writeText(text);
    status.textContent = `${what} copied: ${count(text.trimEnd().split("\n").length, "line")}.`;
  } catch {
    $("copytext").value = text;
    write("copywhat", `${what}: this browser gives pages no clipboard. Copy the text from here.`);
    $("copybox").showModal();
    $("copytext").select();
    $("copytext").scrollTop = 0;
  }
}

function menuOf(section, { id, numbers, rows: names }) {
  const box = make("div", undefined, { class: "menu" }),
    list = make("div", undefined, { id: `menu-${section.id}`, class: "choices" }),
    open = make("button", "Copy or save", { type: "button", "aria-expanded": "false", "aria-controls": list.id }),
    status = make("span", "", { role: "status", class: "read" });
  const toggle = (on) => {
    list.hidden = !on;
    open.setAttribute("aria-expanded", String(on));
  };
  const choice = (name, act) => {
    const button = make("button", name, { type: "button" });
    button.addEventListener("click", async () => {
      status.textContent = "";
      toggle(false);
      open.focus({ preventScroll: true });
      await act();
    });
    return button;
  };
  const title = section.dataset.name;
  const drawings = id ? [] : [...section.querySelectorAll("svg[role=img]")];
  list.append(choice("Copy link to this", () => offer(linkTo(section), "Link", status)));
  if (names) list.append(choice("Copy architectures as YAML", () => offer(yamlOf(names()), `YAML of “${title}”`, status)));
  if (numbers) list.append(choice("Copy numbers as CSV", () => offer(csvOf(...numbers()), `CSV of “${title}”`, status)));
  if (id || drawings.length)
    list.append(
      choice("Save picture as PNG", async () => {
        save(await (id ? pictureOf(id) : pictureBelow(drawings)), `${section.id}.png`);
        status.textContent = `Saved as ${section.id}.png.`;
      }),
    );
  toggle(false);
  open.addEventListener("click", () => {
    toggle(list.hidden);
    if (!list.hidden) list.firstElementChild.focus({ preventScroll: true });
  });
  box.addEventListener("keydown", (event) => {
    const all = [...list.children],
      at = all.indexOf(document.activeElement),
      next = { ArrowDown: all[at + 1], ArrowUp: all[at - 1] }[event.key];
    if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      toggle(false);
      open.focus({ preventScroll: true });
    } else if (at >= 0 && next) {
      event.preventDefault();
      next.focus();
    }
  });
  box.addEventListener("focusout", ({ relatedTarget }) => relatedTarget && !box.contains(relatedTarget) && toggle(false));
  document.addEventListener("click", ({ target }) => box.contains(target) || toggle(false));
  box.append(open, list, status);
  return box;
}

function startMenus() {
  for (const section of sections) {
    const copied = COPIED[section.id];
    if (copied) section.querySelector("h2").after(menuOf(section, copied));
  }
  $("closecopy").addEventListener("click", () => $("copybox").close());
}
