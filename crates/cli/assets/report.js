// Draws the report's charts from the data embedded in the page (crates/cli/src/report/data.rs), with charts.js.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const {
    css, axis, short, shortName, boundLine, LIVE_LEGEND, CURSOR, LEGEND, KINDS, drawLanes, tipFor, lanesOptions, lanesHeight, keys,
  } = Charts;

  // Okabe and Ito's palette, with different dashes too, so that no policy is identified by its colour alone: for each
  // policy the colour on a light background, on a dark background, and its dashes.
  const POLICY_LOOK = {
    "mpc-only": ["#6b7580", "#a3aebb", [2, 3]],
    "bulk-only": ["#17202b", "#f2f4f7", [8, 3, 2, 3]],
    "best-effort": ["#8a4b20", "#c98a5c", [6, 4]],
    "edca": ["#d55e00", "#ff8a3d", []],
    "edca+global": ["#b08900", "#f0d048", [6, 4]],
    "edca+local": ["#b0548a", "#e39ac6", [6, 4]],
    "schedwifi": ["#00875f", "#2fcf9f", [10, 3]],
    "coorp-paper": ["#56b4e9", "#8fd0f7", [6, 3]],
    "coorp": ["#0072b2", "#4aa8f0", []],
  };
  const look = (name) => {
    const [light, night, dash] = POLICY_LOOK[name] ?? ["#444444", "#cccccc", [3, 3]];
    return { stroke: Charts.isDark() ? night : light, dash, width: name === "coorp" ? 2.5 : 1.75 };
  };
  const place = (id) => document.querySelector(`#${id} .chart`);

  let charts = [];
  const add = (parent, options, columns) => {
    const width = parent.clientWidth;
    const chart = new uPlot({ width, ...options }, columns, parent);
    charts.push({ chart, parent });
    return chart;
  };

  // ---- Curves over a common x ----

  // A curve's value at x, interpolated linearly; `low` before the first point, `high` after the last.
  const valueAt = ({ x: xs, y: ys }, x, low, high) => {
    if (x < xs[0]) return low;
    if (x >= xs[xs.length - 1]) return high;
    let from = 0, to = xs.length - 1;
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (xs[middle] <= x) from = middle; else to = middle;
    }
    const width = xs[to] - xs[from];
    return width > 0 ? ys[from] + (ys[to] - ys[from]) * (x - xs[from]) / width : ys[to];
  };

  const seriesOf = (policies, unit) => policies.map(({ name }) => ({
    ...look(name), label: name, points: { show: false },
    value: (_, value) => value == null ? "–" : unit(value),
  }));

  // Ticks of a logarithmic axis: 1, 2, 5, or evenly spaced if the range is short.
  const logMarks = (_, __, low, high) => {
    const marks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const digit of [1, 2, 5]) {
        const mark = digit * 10 ** power;
        if (mark >= low && mark <= high) marks.push(mark);
      }
    }
    if (marks.length >= 4) return marks;
    const rough = (high - low) / 6;
    const step = [1, 2, 5, 10].map((digit) => digit * 10 ** Math.floor(Math.log10(rough))).find((s) => s >= rough);
    const even = [];
    for (let mark = Math.ceil(low / step) * step; mark <= high; mark += step) even.push(mark);
    return even;
  };

  // The end of the axis: a policy that gives up should not squeeze the others into a corner. Three times the bound, or
  // the point below which the better half of the policies has 99.9 % of its loops.
  const endOfReactions = (policies) => {
    const highest = Math.max(...policies.map(({ reaction: { x } }) => x[x.length - 1]));
    const far = policies.map(({ reaction: { x, y } }) => x[y.findIndex((share) => share >= 0.999)] ?? highest);
    const better = far.sort((a, b) => a - b)[Math.ceil(far.length / 2) - 1];
    return Math.min(highest, Math.max(better, 3 * (data.bound_ms ?? 0)));
  };

  const noteBeyond = (policies, end) => {
    const beyond = policies.filter(({ reaction: { x } }) => x[x.length - 1] > end);
    const names = beyond.map(({ name, reaction: { x } }) => `${name} (to ${Math.ceil(x[x.length - 1])} ms)`);
    document.getElementById("reaction-note").textContent = names.length ? ` Beyond the axis: ${names.join(", ")}.` : "";
  };

  const drawShares = (id) => {
    const parent = place(id);
    if (!parent) return;
    const policies = data.policies.filter((policy) => policy[id].x.length > 0);
    const positive = (x) => Math.max(x, 0.01);
    const all = policies.flatMap((policy) => policy[id].x.map(positive));
    // A bound on loops says nothing about single messages.
    const ofLoops = id === "reaction";
    const end = ofLoops ? Math.max(endOfReactions(policies), 0.01) : Infinity;
    if (ofLoops) {
      noteBeyond(policies, end);
      all.push(end);
      // Show the bound even if every loop is well within it.
      if (data.bound_ms != null) all.push(data.bound_ms);
    }
    const shown = (x) => x <= end || x === data.bound_ms;
    const xs = [...new Set(all)].filter(shown).sort((a, b) => a - b);
    const columns = policies.map((policy) => xs.map((x) => valueAt(policy[id], x, 0, 1)));
    const within = (value) => `${(100 * value).toFixed(1)} %`;
    add(parent, {
      height: 300,
      padding: [18, 20, 0, 0],
      scales: { x: { time: false, distr: 3, range: (_, low, high) => [low, high] }, y: { range: [0, 1] } },
      series: [{ label: "within ms", value: (_, x) => x == null ? "–" : short(x) }, ...seriesOf(policies, within)],
      axes: [
        axis("ms (logarithmic)", { size: 30, splits: logMarks, filter: (_, marks) => marks, values: (_, marks) => marks.map(short), space: 20 }),
        axis("", { size: 48, values: (_, marks) => marks.map((mark) => `${Math.round(mark * 100)} %`) }),
      ],
      cursor: CURSOR,
      legend: LEGEND,
      hooks: { ...LIVE_LEGEND, draw: ofLoops ? [(chart) => boundLine(chart, data.bound_ms, "x")] : [] },
    }, [xs, ...columns]);
  };

  // ---- Throughput ----

  const POINTS_MAX = 150;

  const drawThroughput = () => {
    const parent = place("throughput");
    if (!parent) return;
    const policies = data.policies.filter((policy) => policy.throughput.y.some((mbps) => mbps > 0));
    const seconds = Math.max(1, ...policies.map((policy) => policy.throughput.x.length));
    const bin = Math.max(1, Math.ceil(seconds / POINTS_MAX));
    const bins = Math.ceil(seconds / bin);
    const columns = policies.map(({ throughput: { y } }) => Array.from({ length: bins }, (_, index) => {
      const part = y.slice(index * bin, (index + 1) * bin);
      return part.length ? part.reduce((sum, value) => sum + value, 0) / part.length : null;
    }));
    const xs = Array.from({ length: bins }, (_, index) => index * bin);
    document.getElementById("throughput-note").textContent =
      `Bulk delivered, mean of each ${bin === 1 ? "second" : `${bin} seconds`}. Learning that waits for its robots sends in bursts.`;
    add(parent, {
      height: 260,
      padding: [12, 20, 0, 0],
      scales: { x: { time: false }, y: { range: (_, __, high) => [0, Math.max(high * 1.08, 1)] } },
      series: [{ label: "at s", value: (_, x) => x == null ? "–" : short(x) }, ...seriesOf(policies, (value) => value.toFixed(1))],
      axes: [axis("virtual time, s", { size: 30 }), axis("Mbit/s", { size: 48 })],
      cursor: CURSOR,
      legend: LEGEND,
      hooks: LIVE_LEGEND,
    }, [xs, ...columns]);
  };

  // ---- The timeline ----

  // In a whole second, single frames could not be distinguished.
  const FIRST_MS = 100;

  // Spans by lane and kind. A separate lane above the robots shows the control loops.
  const lanesOf = ({ robots, robot, kind, start, end, frames }) => {
    const first = kind.includes("loop") ? 1 : 0;
    const names = first ? ["control loop", ...robots] : robots.slice();
    const lanes = names.map(() => []);
    for (let index = 0; index < kind.length; index += 1) {
      const lane = kind[index] === "loop" ? 0 : robot[index] + first;
      lanes[lane]?.push({ kind: kind[index], start: start[index], end: end[index], frames: frames[index] });
    }
    return { names, lanes };
  };
  const isLate = (span) => span.kind === "loop" && data.bound_ms != null && span.end - span.start > data.bound_ms;

  const drawTimeline = () => {
    const parent = place("timeline");
    if (!parent) return;
    const present = new Set(data.policies.flatMap((policy) => policy.timeline.kind));
    const entries = Object.entries(KINDS).filter(([kind]) => present.has(kind)).map(([kind, { says }]) => [css(kind), says]);
    if (present.has("loop") && data.bound_ms != null) entries.push([css("late"), "control loop over the bound"]);
    parent.replaceChildren(keys(entries));
    const named = data.policies.flatMap((policy) => policy.timeline.kind.length ? lanesOf(policy.timeline).names : []);
    const margin = 24 + 7 * Math.max(...named.map((name) => shortName(name).length));
    for (const { name, timeline } of data.policies) {
      if (!timeline.kind.length) continue;
      const title = parent.appendChild(document.createElement("h3"));
      title.append(swatch(name), `${name}, from ${timeline.start_s} s on`);
      if (timeline.left_out) title.append(` (${timeline.left_out} spans left out)`);
      const { names, lanes } = lanesOf(timeline);
      const tip = document.createElement("div");
      tip.className = "tip";
      const each = (lane, kind, min, max, draw) => {
        for (const span of lanes[lane]) {
          if (span.kind === kind && span.end >= min && span.start <= max) draw(span.start, span.end, isLate(span));
        }
      };
      const find = (lane, from, to) => lanes[lane].filter(({ start, end }) => start <= to && end >= from)
        .map((span) => ({ ...span, late: isLate(span) }));
      const options = lanesOptions(names, lanesHeight(names.length), axis("ms", { labelSize: 18, size: 28 }));
      options.axes[1].size = margin;
      const chart = add(parent, {
        ...options,
        cursor: { y: false, drag: { x: true, y: false }, sync: { key: "timeline", scales: ["x", null] }, points: { show: false } },
        hooks: {
          drawClear: [(chart) => drawLanes(chart, names.length, KINDS, each)],
          setCursor: [(chart) => tipFor(chart, names, KINDS, find, tip)],
        },
      }, [[0, timeline.length_ms], [0, names.length]]);
      chart.over.append(tip);
      chart.setScale("x", { min: 0, max: Math.min(FIRST_MS, timeline.length_ms) });
    }
  };

  const swatch = (name) => {
    const mark = document.createElement("i");
    mark.className = "swatch";
    mark.style.background = look(name).stroke;
    return mark;
  };

  const draw = () => {
    charts.forEach(({ chart }) => chart.destroy());
    charts = [];
    document.querySelectorAll("i[data-policy]").forEach((mark) => { mark.style.background = look(mark.dataset.policy).stroke; });
    drawShares("reaction");
    drawShares("control");
    drawThroughput();
    drawTimeline();
  };

  draw();
  Charts.onTheme(draw);
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => charts.forEach(({ chart, parent }) => {
      chart.setSize({ width: parent.clientWidth, height: chart.height });
    }));
  });
})();
