"use strict";
// Two architectures side by side: their documents line by line, their cost, and every score with its interval.

const CONTEXT = 3, // equal lines around one that differs
  NAMES = 500, // offered; any other name may be typed
  LINES_READ = 1500; // of a document

const called = (text) => visible(text).replace(/\s+/g, " ").trim();
const details = new Map([...document.querySelectorAll("details[data-row]")].map((one) => [called(one.dataset.row), one]));
const detailOf = (row) => details.get(called(row));
const rowCalled = new Map(rows.map((row) => [called(row), row]));

// The documents of rows, as one text of YAML.
function documentOf(row) {
  return detailOf(row)?.querySelector("pre").textContent ?? null;
}

// The places in a line of YAML that are outside of quotes, with how deep in braces and brackets each stands.
function* depths(line) {
  let [quote, depth] = ["", 0];
  for (let i = 0; i < line.length; i++) {
    const sign = line[i];
    if (quote) quote = sign === quote ? "" : quote;
    else if (/["']/.test(sign) && /^$|[\s{[,:]/.test(line[i - 1] ?? "")) quote = sign;
    else {
      if (/[{[]/.test(sign)) depth++;
      if (/[}\]]/.test(sign)) depth--;
      yield [i, sign, depth];
    }
  }
}

// A document with every option on a line of its own, so that two can be compared however they were folded.
function optionLines(text) {
  const lines = [];
  let held = "";
  for (const line of text.trimEnd().split("\n").slice(0, LINES_READ)) {
    held = held ? `${held} ${line.trim()}` : line;
    if (!held.trimStart().startsWith("#") && [...depths(held)].some(([, , depth], i, all) => i === all.length - 1 && depth > 0)) continue;
    lines.push(held);
    held = "";
  }
  return [...lines, ...(held ? [held] : [])].flatMap(unfolded);
}

function unfolded(line) {
  const [, indent, item, key, inside] = line.match(/^(\s*)((?:- )*)([^\s:{}#]+:\s+)?\{(.+)\}$/) ?? [];
  if (inside === undefined) return [line];
  const ends = [...depths(inside)].filter(([, sign, depth]) => sign === "," && depth === 0).map(([i]) => i),
    parts = [...ends, inside.length].map((end, i) => inside.slice(i ? ends[i - 1] + 1 : 0, end).trim()),
    below = indent + " ".repeat(item.length);
  const own = key ? [`${indent}${item}${key.trim()}`, ...parts.map((part) => `${below}  ${part}`)] : parts.map((part, i) => `${i ? below : indent + item}${part}`);
  return own.flatMap((one) => (one === line ? [one] : unfolded(one)));
}

// Two lists of lines as [kind, line] in one order: kept of both, only of the first, only of the second (longest common subsequence).
function lineDiff(a, b) {
  const length = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length)
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push(["same", a[i++]]);
      j++;
    } else if (j === b.length || (i < a.length && length[i + 1][j] >= length[i][j + 1])) found.push(["first", a[i++]]);
    else found.push(["second", b[j++]]);
  return found;
}

// Two columns: lines that follow each other on different sides stand side by side; long runs of equal lines are counted.
function sideBySide(lines) {
  const found = [];
  for (let i = 0; i < lines.length; ) {
    if (lines[i][0] === "same") {
      found.push([lines[i][1], lines[i][1], true]);
      i++;
      continue;
    }
    const sides = { first: [], second: [] };
    for (; i < lines.length && lines[i][0] !== "same"; i++) sides[lines[i][0]].push(lines[i][1]);
    for (let n = 0; n < Math.max(sides.first.length, sides.second.length); n++)
      found.push([sides.first[n] ?? null, sides.second[n] ?? null, false]);
  }
  const near = found.map((_, i) => found.slice(Math.max(0, i - CONTEXT), i + CONTEXT + 1).some(([, , same]) => !same));
  const brief = [];
  for (let i = 0; i < found.length; i++) {
    if (near[i]) brief.push(found[i]);
    else if (typeof brief.at(-1) === "number") brief[brief.length - 1]++;
    else brief.push(1);
  }
  return brief;
}

function fillDiff([one, other]) {
  const texts = [one, other].map(documentOf),
    body = $("pairlines").tBodies[0];
  const missing = [one, other].filter((_, i) => texts[i] === null);
  if (missing.length) {
    write("pairsaid", `The page holds no document of ${missing.join(" and ")}.`);
    return body.replaceChildren();
  }
  const [a, b] = texts.map(optionLines),
    lines = lineDiff(a, b),
    differ = lines.filter(([kind]) => kind !== "same").length;
  write("pairsaid", differ ? `${count(differ, "line")} differ${differ === 1 ? "s" : ""}; − stands before a line of the first, + before one of the second.` : "The documents are equal.");
  body.replaceChildren(
    ...sideBySide(lines).map((line) => {
      const row = make("tr");
      if (typeof line === "number") {
        row.append(make("td", `${count(line, "equal line")}`, { colspan: 2, class: "equal" }));
        return row;
      }
      const [first, second, same] = line;
      row.append(
        ...[
          [first, "−", "first"],
          [second, "+", "second"],
        ].map(([text, sign, kind]) =>
          make("td", text === null ? "" : `${same ? " " : sign} ${text}`, same || text === null ? {} : { class: kind }),
        ),
      );
      return row;
    }),
  );
}

function fillCost(pair) {
  const costs = pair.map((row) => new Map([...(detailOf(row)?.querySelectorAll("dt[data-cost]") ?? [])].map((one) => [one.textContent, one.nextElementSibling]))),
    names = [...new Set(costs.flatMap((own) => [...own.keys()]))];
  $("paircost").tBodies[0].replaceChildren(
    ...names.map((name) => {
      const cells = costs.map((own) => own.get(name)),
        [a, b] = cells.map((cell) => Number(cell?.dataset.value)),
        row = make("tr");
      row.append(
        make("th", name, { scope: "row" }),
        ...cells.map((cell) => make("td", cell?.textContent ?? "–", { class: "figure" })),
        make("td", a > 0 && b > 0 ? `× ${(a / b).toPrecision(3)}` : "–", { class: "figure" }),
      );
      return row;
    }),
  );
  $("paircost").hidden = !names.length;
}

// Every score that both have: [name, first, half, second, half, in percent].
function scoresOf(pair) {
  const numbers = pair.map((row) => rows.indexOf(row)),
    found = [];
  for (const view of views) {
    const [a, b] = numbers.map((row) => view.means.find((mean) => mean.row === row));
    if (a && b) found.push({ name: view.label, a, b, say: (value) => figure(value, view.percent), percent: view.percent });
  }
  for (const held of data.held)
    for (const [at, share] of [
      [0, 99],
      [1, 90],
    ]) {
      const [a, b] = pair.map((row) => held.lines.find((line) => line.name === row)).map((line) => line && { mean: line.trained[at], half: null });
      if (a && b && a.mean !== undefined && b.mean !== undefined)
        found.push({ name: `pairs held at ${share} %, ${held.label}`, a, b, say: (value) => grouped(value), percent: null });
    }
  return found;
}

const signed = (value, say) => `${value < 0 ? "−" : "+"}${say(Math.abs(value))}`;
const between = ({ a, b }) => (a.half === null || b.half === null ? null : Math.hypot(a.half, b.half));

function fillScores(pair) {
  const found = scoresOf(pair);
  $("pairscores").tBodies[0].replaceChildren(
    ...found.map((score) => {
      const { name, a, b, say } = score,
        half = between(score),
        difference = a.mean - b.mean,
        row = make("tr");
      const sure = half !== null && Math.abs(difference) > half;
      row.append(
        make("th", name, { scope: "row" }),
        ...[a, b].map((one) => make("td", say(one.mean) + (one.half === null ? "" : ` ± ${say(one.half)}`), { class: "figure" })),
        make("td", signed(difference, say) + (half === null ? "" : ` ± ${say(half)}`), { class: sure ? "figure sure" : "figure" }),
      );
      return row;
    }),
  );
  $("pairscores").hidden = !found.length;
  write("pairscored", found.length ? "" : "No setting has scores of both.");
}

// Names that are offered: of means and of documents, since others have nothing to compare.
function offered() {
  const all = new Set([...details.keys(), ...views.flatMap((view) => view.means.map((mean) => called(rows[mean.row])))]);
  return [...all].filter((name) => rowCalled.has(name)).sort(natural);
}

function fillPair() {
  const fields = [$("one"), $("other")];
  fields.forEach((field, i) => {
    if (document.activeElement !== field) field.value = now.pair[i] ? called(now.pair[i]) : "";
  });
  const pair = now.pair.filter((row) => row);
  $("pair").hidden = pair.length < 2;
  if (pair.length < 2) return;
  for (const table of ["paircost", "pairlines", "pairscores"])
    [...$(table).tHead.rows[0].cells].filter((cell) => cell.dataset.of).forEach((cell) => (cell.textContent = called(pair[Number(cell.dataset.of)])));
  fillDiff(pair);
  fillCost(pair);
  fillScores(pair);
}

function startPair() {
  const names = offered();
  $("compare").hidden = names.length < 2;
  $("rownames").replaceChildren(...names.slice(0, NAMES).map((name) => make("option", undefined, { value: name })));
  [$("one"), $("other")].forEach((field, i) =>
    field.addEventListener("change", () => {
      const words = wordsIn(called(field.value)),
        exact = rowCalled.get(called(field.value)),
        likely = words.length ? names.filter((name) => hasWords(name.toLowerCase(), words)) : [];
      const row = exact ?? (likely.length === 1 ? rowCalled.get(likely[0]) : undefined);
      now.pair[i] = row ?? "";
      if (row !== undefined) field.value = called(row);
      write("pairmissed", row !== undefined || !words.length ? "" : likely.length ? `${count(likely.length, "name")} hold${likely.length === 1 ? "s" : ""} that; choose one from the list.` : `No architecture is called “${field.value}”.`);
      remember();
      fillPair();
    }),
  );
  $("swap").addEventListener("click", () => {
    now.pair = [now.pair[1] ?? "", now.pair[0] ?? ""];
    remember();
    fillPair();
  });
}

// From what is picked: the first two architectures.
function comparePicked(names) {
  now.pair = names.slice(0, 2);
  remember();
  fillPair();
  goTo($("compare"));
}
