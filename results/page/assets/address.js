"use strict";
// What the reader chose is in the page's address, behind its #: it can be kept, sent, and gone back to.

const settings = views.map((view) => view.label),
  inFull = views.map((view) => view.setting ?? view.label), // as addresses have them, too
  titles = data.heats.map((i) => tables[i].title),
  holdings = data.held.map((held) => held.label);
// Names as an address has them: every character of them is seen.
const inAddress = (names) => new Map(names.map((name, i) => [visible(name), i]).reverse());
const archAt = inAddress(archs.map((arch) => arch.name)),
  rowAt = inAddress(rows);

let written = null; // the address that was written last

// What is chosen, as pairs. Only what differs from a fresh page is in it, unless all is asked for.
function chosen(all = false) {
  const kept = new URLSearchParams(),
    put = (name, value, fresh) => (all || !fresh) && kept.append(name, visible(value));
  put("view", settings[now.view], now.view === data.first);
  if (now.cut) put("cut", now.cut);
  if (tables.length) put("table", tables[now.table].title, now.table === (data.heats[0] ?? 0));
  if (data.held.length) put("held", holdings[now.held], now.held === 0);
  const left = archs.map((_, a) => a).filter((a) => !now.hidden.has(a));
  if (!left.length) kept.append("hide", "all");
  else if (left.length < now.hidden.size) for (const a of left) put("only", archs[a].name);
  else for (const a of now.hidden) put("hidden", archs[a].name);
  for (const a of now.lit) put("star", archs[a].name);
  if (now.search) put("search", now.search);
  if (now.filter) put("filter", now.filter);
  const { column, down } = now.sort;
  if (column !== "test" || !down) put("sort", `${column} ${down ? "down" : "up"}`);
  if (now.zoom) for (const axis of ["x", "y"]) put(axis, now.zoom[axis].map((end) => Number(end.toPrecision(6))).join(" to "));
  if (now.equal) put("state", String(now.equal));
  for (const name of now.pair) if (name) put("compare", name);
  return kept;
}

// Writes the address: as a step that one can go back from, or in place of the last one.
function remember({ step = true, all = false } = {}) {
  const kept = String(chosen(all)),
    address = kept ? `#${kept}` : location.pathname + location.search;
  if (kept === written) return;
  written = kept;
  $("unfitting").hidden = true;
  try {
    history[step ? "pushState" : "replaceState"](null, "", address);
  } catch {
    if (kept) location.replace(`#${kept}`); // where a browser allows a file no steps
  }
}

// Takes the choices from the address. What does not fit this page is left out, and a note says so.
function recollect() {
  const hash = location.hash.slice(1),
    found = sections.some(({ id }) => id === hash) ? `at=${hash}` : hash, // as an address by hand has it
    kept = new URLSearchParams(found),
    unfit = [],
    miss = (name, value) => unfit.push(value ? `${name} “${value}”` : name);
  written = found ? null : "";
  const at = (name, names, fresh, others = []) => {
    const value = kept.get(name);
    if (value === null) return fresh;
    const place = [...names, ...others].map(visible).indexOf(value);
    if (place < 0) miss(name, value);
    return place < 0 ? fresh : place % names.length;
  };
  const these = (name, where) =>
    kept.getAll(name).flatMap((value) => (where.has(value) ? [where.get(value)] : (miss(name, value), [])));
  const range = (name) => {
    const value = kept.get(name);
    if (value === null) return null;
    const ends = value.split(" to ").map(Number),
      fits = ends.length === 2 && ends.every((end) => Number.isFinite(end) && Math.abs(end) < 1e6) && ends[0] < ends[1];
    if (!fits) miss(name, value);
    return fits ? ends : null;
  };
  now.view = at("view", settings, data.first, inFull);
  now.held = at("held", holdings, 0);
  now.table = data.heats[at("table", titles, 0)] ?? 0;
  now.cut = kept.get("cut") ?? "";
  if (now.cut && !views.some((view) => view.cuts.some((cut) => visible(cut.label) === now.cut))) {
    miss("cut", now.cut);
    now.cut = "";
  } else now.cut = views.flatMap((view) => view.cuts).find((cut) => visible(cut.label) === now.cut)?.label ?? "";
  const hide = kept.get("hide"),
    only = kept.has("only") ? these("only", archAt) : [];
  if (hide !== null && hide !== "all") miss("hide", hide);
  now.hidden = new Set(hide === "all" ? archs.keys() : these("hidden", archAt));
  if (only.length) now.hidden = new Set([...archs.keys()].filter((a) => !only.includes(a)));
  now.lit = these("star", archAt).slice(0, EIGHT);
  now.search = kept.get("search") ?? "";
  now.filter = (kept.get("filter") ?? "").toLowerCase();
  const [, column, way] = kept.get("sort")?.match(/^(.*) (down|up)$/) ?? [];
  now.sort = Object.hasOwn(COLUMNS, column ?? "") ? { column, down: way === "down" } : { column: "test", down: true };
  if (kept.has("sort") && now.sort.column !== column) miss("sort", kept.get("sort"));
  const [x, y] = [range("x"), range("y")];
  now.zoom = x && y ? { x, y } : null;
  const state = kept.get("state");
  now.equal = Number(state) || 0;
  if (state !== null && !(now.equal > 0 && Number.isFinite(now.equal))) miss("state", state);
  now.pair = these("compare", rowAt)
    .slice(0, 2)
    .map((row) => rows[row]);
  const place = kept.get("at"),
    section = sections.find((one) => one.id === place);
  if (place !== null && !section) miss("at", place);
  const known = new Set(["view", "held", "table", "cut", "hide", "hidden", "only", "star", "search", "filter", "sort", "x", "y", "state", "compare", "at"]);
  for (const name of new Set(kept.keys())) if (!known.has(name)) miss(name, "");
  for (const field of document.querySelectorAll(".filter")) field.value = now.filter;
  $("find").value = now.search;
  $("unfitting").hidden = !unfit.length;
  const said = unfit.slice(0, 4).map((text) => (text.length > 80 ? `${text.slice(0, 79)}…` : text));
  write("unfitting", `Parts of this address do not fit the page and are left out: ${said.join(", ")}${unfit.length > 4 ? ` and ${unfit.length - 4} more` : ""}.`);
  return section;
}

// The address of a figure: what is chosen now, and where on the page it is.
function linkTo(section) {
  const kept = chosen(true);
  kept.append("at", section.id);
  return `${location.href.split("#")[0]}#${kept}`;
}
