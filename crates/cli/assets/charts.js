// What the report of `coorp sim` and the live page of `coorp watch --web` share: colours and themes, axes, the reaction bound
// and the lanes that show robots' spans. Drawn with uPlot.
//
// Names come from the user's team file: they enter a page as text or on the canvas, never as HTML.
"use strict";

const Charts = (() => {
  const root = document.documentElement;
  const media = matchMedia("(prefers-color-scheme: dark)");

  // ---- Themes ----

  // The reader's choice, or else the system's.
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : media.matches);
  let colours = new Map();
  const css = (name) => {
    let colour = colours.get(name);
    if (colour === undefined) {
      colour = getComputedStyle(root).getPropertyValue(`--${name}`).trim();
      colours.set(name, colour);
    }
    return colour;
  };
  const listeners = [];
  const changed = () => {
    colours = new Map();
    listeners.forEach((listener) => listener());
  };
  media.addEventListener("change", changed);
  // Calls back whenever the colours have changed.
  const onTheme = (listener) => listeners.push(listener);
  const setTheme = (theme) => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    changed();
  };

  // ---- Parts of charts ----

  const FONT = "12px system-ui, sans-serif";
  const axis = (label, more) => ({
    label, labelSize: label ? 22 : 0, labelGap: 0, labelFont: FONT, font: FONT,
    stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { show: false }, ...more,
  });

  // Without a pointer over the chart, its legend shows no values.
  const markIdle = (chart) => chart.root.classList.toggle("idle", !(chart.cursor.left >= 0));
  const LIVE_LEGEND = { ready: [markIdle], setCursor: [markIdle] };
  const CURSOR = { y: false, drag: { x: true, y: false }, points: { size: 7 } };
  // A border as wide as half the marker fills it.
  const LEGEND = { markers: { width: 6 } };

  const short = (value) => String(Number(value.toPrecision(4)));
  const shortName = (name) => (name.length > 18 ? `${name.slice(0, 17)}…` : name);

  // The bound as a dashed line across the chart: upright on an x scale, level on a y scale.
  const boundLine = (chart, bound_ms, scale) => {
    if (bound_ms == null) return;
    const { ctx, bbox } = chart;
    const { left, top, width, height } = bbox;
    const at = chart.valToPos(bound_ms, scale, true);
    const [low, high] = scale === "x" ? [left, left + width] : [top, top + height];
    if (!(at >= low && at <= high)) return;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = css("late");
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.beginPath();
    if (scale === "x") {
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
    } else {
      ctx.moveTo(left, at);
      ctx.lineTo(left + width, at);
    }
    ctx.stroke();
    ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "bottom";
    const text = `bound ${bound_ms} ms`;
    if (scale === "x") {
      const half = ctx.measureText(text).width / 2;
      ctx.textAlign = at + half > left + width ? "right" : at - half < left ? "left" : "center";
      ctx.fillText(text, at, top - 2 * ratio);
    } else {
      // The newest values are on the right.
      ctx.textAlign = "left";
      ctx.fillText(text, left + 4 * ratio, at - 2 * ratio);
    }
    ctx.restore();
  };

  // ---- Lanes ----

  // Top and bottom within a robot's lane: the kinds differ by position as well as by colour. Drawn in this order.
  const KINDS = {
    permit: { from: 0.04, to: 0.96, says: "permit held" },
    window: { from: 0.10, to: 0.34, says: "protection window" },
    hold: { from: 0.38, to: 0.54, says: "gate holds bulk" },
    bulk: { from: 0.58, to: 0.90, says: "bulk on the air" },
    control: { from: 0.58, to: 0.90, says: "control on the air" },
    collision: { from: 0.58, to: 0.90, says: "collision" },
    loop: { from: 0.30, to: 0.70, says: "control loop", gap: 1 },
  };

  // Draws `count` lanes. `each(lane, kind, min, max, draw)` calls `draw(start, end, late)` for each span of a kind that is in
  // sight, in any order; in the order of their starts, those of the same pixels cost one rectangle.
  const drawLanes = (chart, count, kinds, each) => {
    const { ctx, bbox } = chart;
    const { min, max } = chart.scales.x;
    const height = bbox.height / count;
    const scale = bbox.width / (max - min);
    // Short spans stay visible when a whole second is shown.
    const least = devicePixelRatio * 0.75;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = css("lane");
    for (let lane = 0; lane < count; lane += 2) ctx.fillRect(bbox.left, bbox.top + lane * height, bbox.width, height);
    // Setting a colour costs more than a rectangle.
    let ink = null;
    for (const [kind, { from, to, gap = 0 }] of Object.entries(kinds)) {
      const usual = css(kind), overBound = css("late");
      for (let lane = 0; lane < count; lane += 1) {
        const top = bbox.top + (lane + from) * height;
        const tall = (to - from) * height;
        let left = 0, right = 0, late = false;
        const fill = () => {
          if (right <= left) return;
          const colour = late ? overBound : usual;
          if (colour !== ink) ctx.fillStyle = ink = colour;
          ctx.fillRect(left, top, right - left, tall);
        };
        each(lane, kind, min, max, (start, end, isLate) => {
          const first = bbox.left + (start - min) * scale;
          const last = first + Math.max((end - start) * scale - gap, least);
          if (isLate === late && first >= left && first <= right) {
            right = Math.max(right, last);
            return;
          }
          fill();
          [left, right, late] = [first, last, isLate];
        });
        fill();
      }
    }
    ctx.restore();
  };

  const describe = (span, kinds) => {
    const at = (ms) => ms.toFixed(2);
    const frames = span.frames ? `, ${span.frames} ${span.unit ?? "frame"}${span.frames === 1 ? "" : "s"}` : "";
    const late = span.late ? ", late" : "";
    return `${kinds[span.kind].says}: ${at(span.start)} to ${at(span.end)} ms (${(span.end - span.start).toFixed(2)} ms${frames}${late})`;
  };

  // Shows at the pointer what lies below it. `find(lane, from, to)` returns the lane's spans of that time.
  const tipFor = (chart, names, kinds, find, tip) => {
    const { left, top } = chart.cursor;
    const lane = left >= 0 && chart.over.matches(":hover") ? Math.floor(chart.posToVal(top, "y")) : -1;
    const x = chart.posToVal(left, "x");
    const near = chart.posToVal(left + 1, "x") - x;
    const found = names[lane] === undefined ? [] : find(lane, x - near, x + near);
    tip.style.display = found.length ? "block" : "none";
    if (!found.length) return;
    tip.textContent = [names[lane], ...found.slice(0, 8).map((span) => describe(span, kinds))].join("\n");
    const flip = left > chart.over.clientWidth / 2;
    tip.style.left = flip ? "" : `${left + 14}px`;
    tip.style.right = flip ? `${chart.over.clientWidth - left + 14}px` : "";
    tip.style.top = `${top + 14}px`;
  };

  // The options of a chart of lanes, apart from what only one page has.
  const lanesOptions = (names, height, xAxis) => ({
    height: height + 46,
    padding: [4, 22, 0, 0],
    legend: { show: false },
    scales: { x: { time: false, range: (_, low, high) => [low, high] }, y: { range: [0, names.length], dir: -1 } },
    series: [{}, { paths: () => null, points: { show: false } }],
    axes: [
      xAxis,
      axis("", {
        size: 24 + 7 * Math.max(3, ...names.map((name) => shortName(name).length)), grid: { show: false },
        splits: () => names.map((_, lane) => lane + 0.5), values: () => names.map(shortName),
      }),
    ],
  });
  const LANES_HEIGHT_MAX = 7000;
  const lanesHeight = (count) => Math.min(count * (count > 24 ? 18 : 30), LANES_HEIGHT_MAX);

  // The colours and what they mean.
  const keys = (entries) => {
    const list = document.createElement("ul");
    list.className = "keys";
    for (const [colour, says] of entries) {
      const key = list.appendChild(document.createElement("li"));
      key.appendChild(document.createElement("i")).style.background = colour;
      key.append(says);
    }
    return list;
  };

  return {
    isDark, css, onTheme, setTheme, axis, boundLine, short, shortName, LIVE_LEGEND, CURSOR, LEGEND,
    KINDS, drawLanes, tipFor, lanesOptions, lanesHeight, keys,
  };
})();
