"use strict";
// Figures on parts and options, on pairs held, and on the progress of a study.

// The cut that is drawn: the chosen one, where the setting has it.
const cutNow = () => views[now.view].cuts.find((one) => one.label === now.cut) ?? views[now.view].cuts[0];

// The effect of a part of the answers or an option on the scores of the setting, a line for each otherwise equal model.
function drawCut() {
  const view = views[now.view],
    { cuts } = view,
    cut = cutNow();
  if (!cut) return;
  const select = $("cut");
  select.replaceChildren(...cuts.map((one) => make("option", one.label, { value: one.label })));
  select.value = cut.label;
  select.closest(".controls").hidden = cuts.length < 2;
  const x = cut.x.map((_, i) => i),
    lines = cut.lines.filter((line) => !now.hidden.has(line.arch)).sort((a, b) => faint(b.arch) - faint(a.arch)),
    same = {}, // lines of one architecture are told apart by their dash
    nth = lines.map(({ arch }) => (same[arch] = (same[arch] ?? -1) + 1) % DASHES.length);
  const traces = lines.map((line, number) => {
    return {
      type: "scatter",
      mode: "lines+markers",
      name: line.name,
      x: line.at,
      y: line.y,
      customdata: line.trials,
      error_y: { type: "data", array: line.half, color: colour(line.arch), thickness: faint(line.arch) ? 1 : 1.5, width: faint(line.arch) ? 0 : 4 },
      opacity: faint(line.arch) ? 0.6 : 1,
      line: { color: colour(line.arch), width: faint(line.arch) ? 1 : 2, dash: DASHES[nth[number]][0] },
      marker: {
        size: 8,
        symbol: symbol(line.arch),
        color: line.trials.map((list) => (list.some((t) => now.picked.has(t)) ? ink("ink") : colour(line.arch))),
      },
      text: line.y.map((y, i) =>
        [
          `<b>${plain(line.name)}</b>`,
          `${plain(cut.by)} ${plain(cut.x[line.at[i]])}: ${spread(y, line.half[i], cut.percent)}`,
          `state ${bytes(line.states[i])}, ${count(line.trials[i].length, "seed")}`,
        ].join("<br>"),
      ),
      hovertemplate: "%{text}<extra></extra>",
      meta: "cut",
    };
  });
  if (cut.chance.some((y) => y !== null))
    traces.unshift({
      type: "scatter",
      mode: "lines",
      x,
      y: cut.chance,
      hoverinfo: "skip",
      line: { color: ink("quiet"), width: 1, dash: "dot" },
      meta: "chance",
    });
  const axis = cut.percent ? scoreAxis({ metric: cut.metric, percent: true }) : { title: { text: plain(cut.metric), standoff: 8 } };
  const every = Math.ceil(x.length / (narrow() ? 6 : 16));
  const highest = new Map(), // the line of each architecture that ends highest
    named = namedIn(view);
  for (const { arch, name, y } of lines)
    if (named.has(arch) && !(highest.get(arch)?.y >= y.at(-1))) highest.set(arch, { arch, name, y: y.at(-1) });
  const [names, wide] = namesBeside("cutplot", [...highest.values()], axis.range ?? ends(lines.flatMap(({ y }) => y)));
  const layout = frame({
    annotations: names,
    margin: { l: 56, r: Math.max(16, wide), t: 16, b: 48 },
    yaxis: axis,
    xaxis: {
      title: { text: plain(cut.by), standoff: 8 },
      tickvals: x.filter((i) => i % every === 0),
      ticktext: cut.x.filter((_, i) => i % every === 0).map(plain),
      range: [-0.3, x.length - 0.7],
      showgrid: false,
    },
  });
  write("cutmeant", cut.lines.length < cut.of ? `Drawn: ${cut.lines.length} of ${grouped(cut.of)} lines, of every architecture the highest.` : "");
  fillKey(
    "cutlegend",
    lines.map((line, i) => [line.arch, line.name, DASHES[nth[i]][1]]),
  );
  return plot("cutplot", traces, layout, setup());
}

// How many pairs memories hold, trained and by the probe, and what theory allows.
function drawHeld() {
  const held = data.held[now.held],
    floor = Math.min(...held.lines.map((line) => line.tried[0])) / 2, // where "not even the fewest" is drawn
    traces = [];
  const put = (pairs) => (pairs ? pairs : floor);
  inOrder().forEach(([arch, a]) => {
    const own = held.lines.filter((line) => line.arch === a);
    if (now.hidden.has(a) || !own.length) return;
    const say = (line, pairs, what) =>
      [
        `<b>${plain(line.name)}</b>`,
        `${what}: ${pairs ? `${pairs}${pairs === line.tried[1] ? " or more" : ""} pairs` : `fewer than ${line.tried[0]} pairs`}`,
        `state ${bytes(line.state)}`,
        ...line.bounds.map(([name, bound]) => `theory, a head: ${plain(name)} = ${bound}`),
      ].join("<br>");
    const line = (key, at, name, stroke, traits) => {
      const there = own.filter((one) => one[key].length);
      traces.push(...paths(there, (one) => put(one[key][at]), stroke));
      if (there.length)
        traces.push({
          type: "scatter",
          mode: "markers",
          x: there.map((one) => Math.max(1, one.state)),
          y: there.map((one) => put(one[key][at])),
          customdata: there.map((one) => one.trials),
          text: there.map((one) => say(one, one[key][at], name)),
          hovertemplate: "%{text}<extra></extra>",
          name: arch.name,
          ...traits,
        });
    };
    const tint = own.map((one) => (one.trials.some((trial) => now.picked.has(trial)) ? ink("ink") : colour(a)));
    const marker = (size, open) => ({ symbol: symbol(a) + open, size, color: tint, line: { width: open ? 2 : 0 } });
    const stroke = (dash, width) => ({ color: colour(a), dash, width });
    line("trained", 0, "trained, 99 %", stroke("solid", 2), { marker: marker(11, ""), meta: "trained" });
    line("trained", 1, "trained, 90 %", stroke("dash", 1.5), { marker: marker(9, "-open"), meta: "trained90" });
    line("probed", 0, "probe, 99 %", stroke("dot", 1), { marker: marker(5, ""), meta: "probed" });
    const bound = own.flatMap((one) => one.bounds.map(([name, pairs]) => [one, name, pairs]));
    if (bound.length)
      traces.push({
        type: "scatter",
        mode: "markers",
        x: bound.map(([one]) => Math.max(1, one.state)),
        y: bound.map(([, , pairs]) => pairs),
        customdata: bound.map(([one]) => one.trials),
        text: bound.map(([one, name, pairs]) => `<b>${plain(one.name)}</b><br>theory, a head: ${plain(name)} = ${pairs}`),
        hovertemplate: "%{text}<extra></extra>",
        marker: { symbol: "line-ew-open", size: 22, color: colour(a), line: { width: 2 } },
        name: arch.name,
        meta: "bound",
      });
  });
  const top = Math.max(1, ...traces.flatMap((trace) => trace.y).filter((pairs) => pairs <= 65536)),
    ticks = [];
  for (let pairs = 1; pairs <= top * 2; pairs *= 2) if (pairs >= floor) ticks.push(pairs);
  write("heldseen", held.lines.length < held.of ? `${held.seen} Drawn: ${held.lines.length} of ${grouped(held.of)}.` : held.seen);
  fillKey(
    "heldkey",
    archs
      .map((arch, a) => [a, arch.name, ""])
      .filter(([a]) => !now.hidden.has(a) && held.lines.some((line) => line.arch === a)),
  );
  return plot(
    "held",
    traces,
    frame({
      xaxis: {
        type: "log",
        title: { text: "recurrent state (log scale)", standoff: 8 },
        ...byteTicks(held.lines.map((line) => Math.max(1, line.state))),
      },
      yaxis: {
        type: "log",
        title: { text: "pairs held (log scale)", standoff: 8 },
        range: [Math.log10(floor / 1.3), Math.log10(top * 1.5)],
        tickvals: ticks.filter((_, i) => ticks.length < 10 || i % 2 === 0),
        ticktext: ticks.map((pairs) => (pairs <= floor ? "fewer" : String(pairs))).filter((_, i) => ticks.length < 10 || i % 2 === 0),
      },
    }),
    setup(),
  );
}

// The progress of the study in the setting: the share that its front dominates, trial by trial, and the options that matter.
function drawProgress() {
  const { progress } = views[now.view];
  if (!progress) return;
  const { at, volume, importance } = progress;
  $("dials").replaceChildren(
    ...importance.map(([name, share]) => {
      const line = make("tr"),
        cell = make("td"),
        bar = make("span", undefined, { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${Math.round(100 * Math.min(1, share))}%`;
      cell.append(bar);
      line.append(make("th", name, { scope: "row" }), make("td", figure(share, true), { class: "figure" }), cell);
      return line;
    }),
  );
  $("dials").closest("figure").hidden = !importance.length;
  return plot(
    "progressplot",
    [
      {
        type: "scatter",
        mode: "lines",
        x: at,
        y: volume,
        line: { shape: "hv", color: ink("c0"), width: 2 },
        hovertemplate: "after %{x} trials: %{y:.1%}<extra></extra>",
        meta: "volume",
      },
    ],
    frame({
      yaxis: { title: { text: "share dominated", standoff: 8 }, tickformat: ".0%", rangemode: "tozero" },
      xaxis: { title: { text: "trials finished", standoff: 8 }, rangemode: "tozero", tickformat: ",", nticks: narrow() ? 5 : 10 },
    }),
    setup(),
  );
}
