// Draws the report's charts with uPlot from the data embedded in the page (crates/cli/src/report/data.rs).
//
// Names come from the user's team file: they enter the page as text or on the canvas, never as HTML.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");

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
    return { stroke: dark.matches ? night : light, dash, width: name === "coorp" ? 2.5 : 1.75 };
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const place = (id) => document.querySelector(`#${id} .chart`);

  let charts = [];
  const add = (parent, options, columns) => {
    const width = parent.clientWidth;
    const chart = new uPlot({ width, ...options }, columns, parent);
    charts.push({ chart, parent });
    return chart;
  };

  const axis = (label, more) => ({
    label, labelSize: 22, labelGap: 0, labelFont: "12px system-ui, sans-serif", font: "12px system-ui, sans-serif",
    stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { show: false }, ...more,
  });

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

  // Without a pointer over the chart, its legend shows no values.
  const markIdle = (chart) => chart.root.classList.toggle("idle", !(chart.cursor.left >= 0));
  const LIVE = { ready: [markIdle], setCursor: [markIdle] };
  const CURSOR = { y: false, drag: { x: true, y: false }, points: { size: 7 } };
  // A border as wide as half the marker fills it.
  const LEGEND = { markers: { width: 6 } };

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
  const short = (value) => String(Number(value.toPrecision(4)));

  const boundLine = (chart) => {
    if (data.bound_ms == null) return;
    const { ctx, bbox } = chart;
    const x = chart.valToPos(data.bound_ms, "x", true);
    if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = css("late");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.font = `600 ${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "bottom";
    const text = `bound ${data.bound_ms} ms`;
    const half = ctx.measureText(text).width / 2;
    ctx.textAlign = x + half > bbox.left + bbox.width ? "right" : x - half < bbox.left ? "left" : "center";
    ctx.fillText(text, x, bbox.top - 2 * devicePixelRatio);
    ctx.restore();
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
        axis("", { labelSize: 0, size: 48, values: (_, marks) => marks.map((mark) => `${Math.round(mark * 100)} %`) }),
      ],
      cursor: CURSOR,
      legend: LEGEND,
      hooks: { ...LIVE, draw: ofLoops ? [boundLine] : [] },
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
      hooks: LIVE,
    }, [xs, ...columns]);
  };

  // ---- The timeline ----

  // Top and bottom within a robot's lane: the kinds differ by position as well as by colour. Drawn in this order.
  const KINDS = {
    permit: { from: 0.04, to: 0.96, says: "permit held" },
    window: { from: 0.10, to: 0.34, says: "protection window" },
    hold: { from: 0.38, to: 0.54, says: "gate holds bulk" },
    bulk: { from: 0.58, to: 0.90, says: "bulk on the air" },
    control: { from: 0.58, to: 0.90, says: "control on the air" },
    collision: { from: 0.58, to: 0.90, says: "collision" },
    loop: { from: 0.30, to: 0.70, says: "control loop" },
  };
  const TIMELINE_HEIGHT_MAX = 7000;
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

  const drawLanes = (chart, lanes) => {
    const { ctx, bbox } = chart;
    const { min, max } = chart.scales.x;
    const height = bbox.height / lanes.length;
    const scale = bbox.width / (max - min);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    lanes.forEach((_, lane) => {
      if (lane % 2) return;
      ctx.fillStyle = css("lane");
      ctx.fillRect(bbox.left, bbox.top + lane * height, bbox.width, height);
    });
    for (const [kind, { from, to }] of Object.entries(KINDS)) {
      const usual = css(kind), late = css("late");
      lanes.forEach((spans, lane) => {
        const top = bbox.top + (lane + from) * height;
        for (const span of spans) {
          if (span.kind !== kind || span.end < min || span.start > max) continue;
          const left = bbox.left + (span.start - min) * scale;
          // Short spans stay visible when a whole second is shown.
          const width = Math.max((span.end - span.start) * scale - (kind === "loop" ? 1 : 0), devicePixelRatio * 0.75);
          ctx.fillStyle = isLate(span) ? late : usual;
          ctx.fillRect(left, top, width, (to - from) * height);
        }
      });
    }
    ctx.restore();
  };

  const describe = (span) => {
    const at = (ms) => ms.toFixed(2);
    const frames = span.frames ? `, ${span.frames} frame${span.frames === 1 ? "" : "s"}` : "";
    const late = isLate(span) ? ", late" : "";
    return `${KINDS[span.kind].says}: ${at(span.start)} to ${at(span.end)} ms (${(span.end - span.start).toFixed(2)} ms${frames}${late})`;
  };

  const tipFor = (chart, names, lanes, tip) => {
    const { left, top } = chart.cursor;
    const lane = left >= 0 && chart.over.matches(":hover") ? Math.floor(chart.posToVal(top, "y")) : -1;
    const x = chart.posToVal(left, "x");
    const near = chart.posToVal(left + 1, "x") - x;
    const found = (lanes[lane] ?? []).filter((span) => span.start - near <= x && span.end + near >= x);
    tip.style.display = found.length ? "block" : "none";
    if (!found.length) return;
    tip.textContent = [names[lane], ...found.slice(0, 8).map((span) => describe(span))].join("\n");
    const flip = left > chart.over.clientWidth / 2;
    tip.style.left = flip ? "" : `${left + 14}px`;
    tip.style.right = flip ? `${chart.over.clientWidth - left + 14}px` : "";
    tip.style.top = `${top + 14}px`;
  };

  const drawTimeline = () => {
    const parent = place("timeline");
    if (!parent) return;
    const keys = document.createElement("ul");
    keys.className = "keys";
    const present = new Set(data.policies.flatMap((policy) => policy.timeline.kind));
    const entries = Object.entries(KINDS).filter(([kind]) => present.has(kind)).map(([kind, { says }]) => [css(kind), says]);
    if (present.has("loop") && data.bound_ms != null) entries.push([css("late"), "control loop over the bound"]);
    for (const [colour, says] of entries) {
      const key = keys.appendChild(document.createElement("li"));
      key.appendChild(document.createElement("i")).style.background = colour;
      key.append(says);
    }
    parent.replaceChildren(keys);
    const named = data.policies.flatMap((policy) => policy.timeline.kind.length ? lanesOf(policy.timeline).names : []);
    const short = (name) => name.length > 18 ? `${name.slice(0, 17)}…` : name;
    const margin = 24 + 7 * Math.max(...named.map((name) => short(name).length));
    for (const { name, timeline } of data.policies) {
      if (!timeline.kind.length) continue;
      const title = parent.appendChild(document.createElement("h3"));
      title.append(swatch(name), `${name}, from ${timeline.start_s} s on`);
      if (timeline.left_out) title.append(` (${timeline.left_out} spans left out)`);
      const { names, lanes } = lanesOf(timeline);
      const rows = names.length;
      const height = Math.min(rows * (rows > 24 ? 18 : 30), TIMELINE_HEIGHT_MAX);
      const tip = document.createElement("div");
      tip.className = "tip";
      const chart = add(parent, {
        height: height + 46,
        padding: [4, 22, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: (_, low, high) => [low, high] }, y: { range: [0, rows], dir: -1 } },
        series: [{}, { paths: () => null, points: { show: false } }],
        axes: [
          axis("ms", { labelSize: 18, size: 28 }),
          axis("", {
            labelSize: 0, size: margin, grid: { show: false },
            splits: () => names.map((_, lane) => lane + 0.5), values: () => names.map(short),
          }),
        ],
        cursor: { y: false, drag: { x: true, y: false }, sync: { key: "timeline", scales: ["x", null] }, points: { show: false } },
        hooks: { drawClear: [(chart) => drawLanes(chart, lanes)], setCursor: [(chart) => tipFor(chart, names, lanes, tip)] },
      }, [[0, timeline.length_ms], [0, rows]]);
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
  dark.addEventListener("change", draw);
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => charts.forEach(({ chart, parent }) => {
      chart.setSize({ width: parent.clientWidth, height: chart.height });
    }));
  });
})();
