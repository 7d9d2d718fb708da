"use strict";
// Keeps figures and tables on the same trials: what is picked in one is shown in all.

// A word in every field of a line: what the reader types must all be somewhere in it.
const holds = (text) => now.filter.split(" ").every((word) => text.toLowerCase().includes(word));

const COLUMNS = {
  architecture: (t) => rows[trials.row[t]],
  "hyper-parameters": (t) => data.hypers[trials.hyper[t]],
  seed: (t) => trials.seed[t],
  test: (t, at, view) => real(view.scores[at]),
  validation: (t) => real(trials.validation[t]),
  state: (t, at, view) => view.states[at],
  steps: (t) => trials.steps[t],
  seconds: (t) => trials.seconds[t],
  key: (t) => trials.key[t],
};
const WORDS = {
  test: (v, view) => figure(v, view.percent),
  validation: (v, view) => figure(v, view.percent),
  state: (v) => bytes(v),
  steps: (v) => v.toLocaleString("en"),
  seconds: (v) => v.toFixed(1),
};

function fillTrials() {
  const view = views[now.view],
    { column, down } = now.sort,
    names = Object.keys(COLUMNS);
  const lines = view.trials
    .map((trial, at) => [trial, at])
    .filter(([trial]) => shown(trial))
    .map(([trial, at]) => ({ trial, values: names.map((name) => COLUMNS[name](trial, at, view)) }));
  const written = ({ values }) => values.map((value, i) => (WORDS[names[i]] ?? String)(value, view)).join(" ");
  const kept = now.filter ? lines.filter((line) => holds(written(line))) : lines;
  const by = names.indexOf(column),
    order = (a, b) => (typeof a === "string" ? natural(a, b) : (a ?? -Infinity) - (b ?? -Infinity));
  kept.sort((a, b) => (down ? -1 : 1) * order(a.values[by], b.values[by]) || a.trial - b.trial);
  let more = 10 * ROWS; // of those that are picked further down
  const first = kept.filter(({ trial }, i) => i < now.rows || (now.picked.has(trial) && more-- > 0));
  const right = (name) => (name in WORDS ? { class: "figure" } : {});
  const head = make("tr");
  for (const name of names) {
    const cell = make("th", undefined, {
      scope: "col",
      ...right(name),
      "aria-sort": name !== column ? "none" : down ? "descending" : "ascending",
    });
    const button = make("button", name, { type: "button" });
    button.addEventListener("click", () => {
      now.sort = { column: name, down: name === column ? !down : name in WORDS };
      remember();
      fillTrials();
      $("trials").tHead.rows[0].cells[names.indexOf(name)].firstChild.focus();
    });
    cell.append(button);
    head.append(cell);
  }
  const body = first.map(({ trial, values }) => {
    const line = make("tr", undefined, { "data-trial": trial, tabindex: "-1" });
    names.forEach((name, i) =>
      line.append(make(i ? "td" : "th", (WORDS[name] ?? String)(values[i], view), i ? right(name) : { scope: "row" })),
    );
    return line;
  });
  const at = document.activeElement.dataset.trial; // a line that is drawn anew keeps the keyboard
  $("trials").tHead.replaceChildren(head);
  $("trials").tBodies[0].replaceChildren(...body);
  const again = at && body.find((line) => line.dataset.trial === at);
  enter($("trials"), again);
  if (again) again.focus({ preventScroll: true });
  $("more").hidden = first.length === kept.length;
  write("more", kept.length > 10 * now.rows ? `Show ${grouped(10 * now.rows)} of ${count(kept.length, "trial")}` : `Show all ${count(kept.length, "trial")}`);
  write("count", `${count(kept.length, "trial")}${now.filter ? ` of ${grouped(lines.length)}` : ""} of ${view.label}`);
  markRows();
}

const linesOf = (table) => [...table.querySelectorAll("tr[data-trial], tr[data-line]")].filter((line) => !line.hidden);

// One line of a table is reached by Tab, the others from it by the arrow keys.
function enter(table, line) {
  const lines = linesOf(table),
    chosen = line ?? lines.find((one) => one.tabIndex === 0) ?? lines[0];
  for (const one of table.querySelectorAll("tr[data-trial], tr[data-line]")) one.tabIndex = one === chosen ? 0 : -1;
}

function walk(event) {
  const line = event.target;
  if (!line.matches?.("tr[data-trial], tr[data-line]")) return;
  const lines = linesOf(line.closest("table")),
    at = lines.indexOf(line),
    next = lines[{ ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: lines.length - 1 }[event.key]];
  if (!next) return;
  event.preventDefault();
  enter(line.closest("table"), next);
  next.focus();
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
  if (!same && list.length && !list.some((trial) => isIn(views[now.view], trial))) {
    now.zoom = null;
    now.view = Math.max(
      0,
      views.findIndex((view) => isIn(view, list[0])),
    );
    $("view").value = now.view;
    remember();
  }
  const box = $("picked");
  box.classList.toggle("on", now.picked.size > 0);
  box.replaceChildren();
  if (now.picked.size) {
    const view = views[now.view],
      one = list.filter((t) => isIn(view, t)),
      some = (words) => words.slice(0, 8).join(", ") + (words.length > 8 ? ` and ${grouped(words.length - 8)} more` : "");
    const kinds = [...new Set(one.map((t) => rows[trials.row[t]]))],
      names = some(kinds),
      scores = some(one.map((t) => figure(scoreIn(view, t), view.percent)));
    const clear = make("button", "Clear", { type: "button" });
    clear.addEventListener("click", () => pick([]));
    const compare = make("button", "Compare", { type: "button" }),
      spec = detailOf(rows[trials.row[list[0]]]),
      open = make("button", "Architecture", { type: "button" });
    compare.addEventListener("click", () => comparePicked(kinds));
    open.addEventListener("click", () => {
      for (let part = spec; part; part = part.parentElement.closest("details")) part.open = true;
      spec.scrollIntoView({ block: "start" });
      spec.querySelector("summary").focus();
    });
    box.append(
      make(
        "span",
        `Picked: ${names}, seed ${some(one.map((t) => trials.seed[t]))}: test ${scores}`,
      ),
      ...(spec ? [open] : []),
      ...(kinds.length === 2 ? [compare] : []),
      clear,
    );
  }
  return draw();
}

// Something was chosen: it is in the address, and everything is drawn anew.
function changed(step = true) {
  remember({ step });
  return draw();
}

function draw() {
  fillPage();
  return Promise.all([...figures].filter(([id]) => !waiting.has(id)).map(([, figure]) => figure())).then(fillContents);
}

// All that is no figure: words, legend and the table of trials.
function fillPage() {
  const view = views[now.view];
  write("stateseen", view.seen.replace(/(?<=\d) (?=%|[kMG]?B)/g, "\u00a0"));
  write("curveseen", view.learnt);
  $("hint").hidden = !view.meansOnly;
  $("equal").hidden = !equalIn(view);
  $("cuts").hidden = !cutNow();
  $("learning").hidden = !!view.meansOnly; // curves of several tasks share no axis
  $("progress").hidden = !view.progress;
  write("infull", view.setting ? `In full: ${view.setting}.` : "");
  light(view);
  fillLegend();
  fillTrials();
  fillPair();
  const inside = $("trials").querySelector("tr.picked");
  if (inside) inside.parentElement.parentElement.parentElement.scrollTop = Math.max(0, inside.offsetTop - 120);
}

// The figures by their sections, in the order of the page.
const figures = new Map([
  ["recall", drawState],
  ["equal", drawEqual],
  ...(data.held.length ? [["holdings", drawHeld]] : []),
  ...(tables.length ? [["strengths", drawHeat]] : []),
  ["cuts", drawCut],
  ["learning", drawCurves],
  ["progress", drawProgress],
]);

// The page opens with its first figure. Each of the others is drawn when it comes near for the first time, from then on with all.
const NEAR = 800, // pixels from the window
  waiting = new Set(figures.keys());

async function drawWaiting(ids) {
  for (const [id, figure] of figures) if (ids.includes(id) && waiting.delete(id) && !$(id).hidden) await figure();
  fillContents();
}

function drawAll() {
  return drawWaiting([...waiting]);
}

// A section stays where it is when those before it are drawn.
function drawBefore(section) {
  const before = sections.slice(0, sections.indexOf(section) + 1).map(({ id }) => id);
  return drawWaiting([...waiting].filter((id) => before.includes(id)));
}

function watchSections() {
  const near = new IntersectionObserver(
    (seen) => drawWaiting(seen.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => target.id)),
    { rootMargin: `${NEAR}px 0px` },
  );
  for (const id of waiting) near.observe($(id));
  window.addEventListener("beforeprint", drawAll);
}

function choices(select, names, chosen, change, group = () => "") {
  const groups = new Map();
  names.forEach((name, i) => groups.set(group(name), [...(groups.get(group(name)) ?? []), make("option", name, { value: i })]));
  const folded = groups.size > 1 && names.length > 2 * groups.size;
  select.replaceChildren(
    ...[...groups].flatMap(([label, options]) => {
      if (!folded || options.length < 2) return options;
      const part = make("optgroup", undefined, { label: visible(label) });
      part.append(...options);
      return [part];
    }),
  );
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
      const down =
        cell.getAttribute("aria-sort") === "none"
          ? cell.classList.contains("figure")
          : cell.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (line) =>
        line.cells[column].classList.contains("figure")
          ? Number(line.cells[column].dataset.value ?? -Infinity)
          : line.cells[column].textContent;
      const order = (a, b) => (typeof a === "number" ? a - b : natural(a, b));
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * order(value(a), value(b))));
      enter(table, linesOf(table)[0]);
    });
  });
}

// The score tables hide the measured rows that the filter does not hold.
function filterTables() {
  for (const line of document.querySelectorAll("tr[data-line]")) line.hidden = !holds(line.textContent);
  for (const part of document.querySelectorAll("#tables > details")) part.open = now.filter !== "" && part.querySelector("tr[data-line]:not([hidden])") !== null;
  document.querySelectorAll("table.sortable").forEach((table) => enter(table));
}

function follow(event) {
  const line = event.target.closest("tr[data-trial], tr[data-line]");
  if (!line || event.target.closest("button")) return;
  if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  pick(behind(line));
}

// A page of a running study is loaded again, but not under the hands of its reader.
function lookAgain() {
  const busy = now.picked.size || now.filter || now.search || document.querySelector("details[open], dialog[open], input:focus, tr:focus");
  if (document.hidden || busy) return;
  remember({ step: false, all: true });
  location.reload();
}

// The address was changed: by going back or forward, or by hand.
async function goBack() {
  const section = recollect();
  $("view").value = now.view;
  if (tables.length) $("table").value = data.heats.indexOf(now.table);
  if (data.held.length) $("holding").value = now.held;
  filterTables();
  await draw();
  if (section) await goTo(section);
}

async function start() {
  const section = recollect();
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("table.sortable").forEach((table) => enter(table));
  document.addEventListener("click", follow);
  document.addEventListener("keydown", follow);
  document.addEventListener("keydown", walk);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && now.picked.size && !$("copybox").open) pick([]);
  });
  $("more").addEventListener("click", () => {
    now.rows *= 10;
    fillTrials();
  });
  choices($("view"), settings, now.view, (i) => {
    now.view = i;
    now.rows = ROWS;
    now.zoom = null;
    changed();
  }, (name) => name.split(": ")[0]);
  if (tables.length)
    choices($("table"), titles, data.heats.indexOf(now.table), (i) => {
      now.table = data.heats[i];
      remember();
      drawHeat();
    });
  $("cut").addEventListener("change", () => {
    now.cut = $("cut").value;
    remember();
    drawCut();
  });
  if (data.held.length)
    choices($("holding"), holdings, now.held, (i) => {
      now.held = i;
      remember();
      drawHeld();
    });
  const filters = document.querySelectorAll(".filter");
  for (const field of filters)
    field.addEventListener("input", () => {
      const step = !now.filter;
      now.filter = field.value.trim().toLowerCase();
      for (const other of filters) if (other !== field) other.value = field.value;
      remember({ step });
      fillTrials();
      filterTables();
    });
  $("equalstate").addEventListener("change", () => {
    now.equal = Number($("equalstate").value);
    remember();
    drawEqual();
  });
  startLegend();
  startMenus();
  startPair();
  if (now.filter) filterTables();
  window.addEventListener("hashchange", goBack);
  fillPage();
  await drawWaiting(["recall"]);
  watchSections();
  // Loaded again, a page stays where it was.
  if (section && performance.getEntriesByType("navigation")[0]?.type !== "reload") await goTo(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("(max-width: 639px)").addEventListener("change", draw);
  if (data.again) setInterval(lookAgain, 1000 * data.again);
  document.body.dataset.ready = "true";
}

start();
