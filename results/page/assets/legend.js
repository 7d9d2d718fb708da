"use strict";
// The legend: which architectures are shown, which are in colour, and the search among them.

const EIGHT = 8, // in colour at once
  CROWDED = 16; // architectures of a view: of more, eight are in colour, the rest are grey

const wordsOf = archs.map(({ name }) => [visible(name).toLowerCase()]); // names of an architecture and of its rows
for (const [row, a] of new Map(trials.row.map((row, trial) => [row, trials.arch[trial]]))) wordsOf[a].push(visible(rows[row]).toLowerCase());
const hasWords = (name, words) => words.every((word) => name.includes(word));
const wordsIn = (text) => text.toLowerCase().split(/\s+/).filter((word) => word);

const presence = new Map(); // architectures of a view, by view: in the order of the page, and the best first
function presentIn(view) {
  if (!presence.has(view)) {
    const there = new Set(view.trials.map((trial) => trials.arch[trial])),
      height = new Map();
    for (const { arch, mean } of view.means) height.set(arch, Math.max(mean, height.get(arch) ?? -Infinity));
    const all = archs.map((_, a) => a).filter((a) => there.has(a)),
      worth = (a) => height.get(a) ?? -Infinity;
    presence.set(view, { all, ranked: [...all].sort((a, b) => worth(b) - worth(a) || a - b) });
  }
  return presence.get(view);
}

function foundIn(view) {
  const words = wordsIn(now.search);
  return presentIn(view).all.filter((a) => wordsOf[a].some((name) => hasWords(name, words)));
}

// Decides which architectures are in colour: those that the reader starred, else those that were searched for, else all of a
// few, else the best eight.
function light(view) {
  const { all, ranked } = presentIn(view),
    there = new Set(all),
    starred = now.lit.filter((a) => there.has(a)),
    left = all.filter((a) => !now.hidden.has(a)),
    found = new Set(now.search ? foundIn(view) : left.length <= EIGHT ? left : all);
  if (!starred.length && !now.search && all.length <= CROWDED) return (lit = null);
  const chosen = starred.length ? starred : ranked.filter((a) => found.has(a)).slice(0, EIGHT);
  lit = new Map();
  const free = new Set(Array(EIGHT).keys());
  for (const a of chosen) {
    const own = free.has(a % COLOURS) ? a % COLOURS : [...free][0]; // its own one where it is free
    free.delete(own);
    lit.set(a, own);
  }
}

function fillLegend() {
  const view = views[now.view],
    { all, ranked } = presentIn(view),
    found = now.search ? foundIn(view) : all,
    many = all.length > CROWDED,
    brief = new Set([...ranked.slice(0, EIGHT), ...(lit?.keys() ?? [])]),
    folded = many && !now.search && !now.unfolded,
    listed = folded ? found.filter((a) => brief.has(a)) : found;
  const items = [...$("legend").children],
    same = items.length === listed.length && items.every((item, i) => item.dataset.arch === String(listed[i]));
  // A line that stays is changed in place: it keeps the keyboard, and a second press of a double click reaches it.
  if (!same || items[0]?.dataset.view !== String(now.view)) $("legend").replaceChildren(...listed.map((a) => legendItem(a, view, many)));
  for (const item of $("legend").children) {
    const a = Number(item.dataset.arch),
      [show, star] = item.querySelectorAll("button");
    show.setAttribute("aria-pressed", String(!now.hidden.has(a)));
    show.firstChild.style.color = colour(a);
    if (!star) continue;
    star.setAttribute("aria-pressed", String(!!lit?.has(a)));
    star.textContent = lit?.has(a) ? "★" : "☆";
  }
  $("choose").hidden = all.length < 2;
  $("these").hidden = !now.search || !found.length;
  $("best").hidden = !now.lit.length;
  write("best", many ? "Colour the best eight" : "Colour all");
  $("unfold").hidden = !many || !!now.search;
  $("unfold").setAttribute("aria-expanded", String(!folded));
  write("unfold", folded ? `List all ${count(all.length, "architecture")}` : `List the ${brief.size} in colour`);
  const away = all.filter((a) => now.hidden.has(a)).length,
    grey = lit ? all.filter((a) => faint(a) && !now.hidden.has(a)).length : 0;
  write(
    "found",
    [
      now.search ? `${count(found.length, "architecture")} of ${grouped(all.length)} found` : "",
      grey ? `${grouped(lit.size)} in colour, ${grouped(grey)} grey` : "",
      away ? `${grouped(away)} hidden` : "",
    ]
      .filter((text) => text)
      .join("; "),
  );
}

function legendItem(a, view, many) {
  const arch = archs[a],
    item = make("li", undefined, { "data-arch": a, "data-view": now.view }),
    show = make("button", undefined, { type: "button", title: "Show or hide. Double click, or Shift and Enter: this one alone" }),
    star = make("button", "☆", { type: "button", class: "star", title: "In colour, or grey", "aria-label": `${visible(arch.name)} in colour` });
  show.append(
    make("i", GLYPHS[symbol(a)], { "aria-hidden": "true" }),
    make("span", arch.name),
    ...(arch.grows ? [make("small", `grows; here after ${view.length} tokens`)] : []),
  );
  show.addEventListener("click", (event) => press(a, event));
  star.addEventListener("click", () => starred(a));
  item.append(show, ...(many ? [star] : []));
  return item;
}

let before = new Set(); // hidden before the first press of a double click
function press(a, event) {
  const view = views[now.view];
  if (event.detail < 2) before = new Set(now.hidden);
  if (event.detail === 2 || event.shiftKey) {
    const others = presentIn(view).all.filter((one) => one !== a),
      alone = !before.has(a) && others.every((one) => before.has(one));
    now.hidden = new Set(alone ? [] : others);
  } else now.hidden.has(a) ? now.hidden.delete(a) : now.hidden.add(a);
  changed();
}

function starred(a) {
  const chosen = new Set(now.lit.length ? now.lit : lit.keys());
  chosen.has(a) ? chosen.delete(a) : chosen.add(a);
  now.lit = [...chosen].slice(-EIGHT);
  changed();
}

function startLegend() {
  const onFound = (change) => () => {
    for (const a of now.search ? foundIn(views[now.view]) : presentIn(views[now.view]).all) change(a);
    changed();
  };
  $("showall").addEventListener("click", onFound((a) => now.hidden.delete(a)));
  $("shownone").addEventListener("click", onFound((a) => now.hidden.add(a)));
  $("these").addEventListener("click", () => {
    const found = new Set(foundIn(views[now.view]));
    now.hidden = new Set(presentIn(views[now.view]).all.filter((a) => !found.has(a)));
    changed();
  });
  $("best").addEventListener("click", () => {
    now.lit = [];
    changed();
    $("find").focus(); // the button goes
  });
  $("unfold").addEventListener("click", () => {
    now.unfolded = !now.unfolded;
    fillLegend();
  });
  let pause = 0, // figures are drawn when the typing rests
    began = false; // a search is one step of the address, however much is typed
  $("find").addEventListener("input", () => {
    began ||= !now.search;
    now.search = $("find").value.trim();
    light(views[now.view]);
    fillLegend();
    clearTimeout(pause);
    pause = setTimeout(() => {
      changed(began);
      began = false;
    }, 150);
  });
}
