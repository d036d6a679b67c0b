// The page of `coorp watch --web`: takes what the robots did from a WebSocket (crates/cli/src/live/web/feed.rs) and draws it
// with charts.js.
//
// Times are milliseconds on the page's clock, which began with `coorp watch`. What is shown lags a little behind, so that all
// robots have answered by then. Memory is bounded: rings of spans, a minute of values, and tables with a limit on their rows.
"use strict";

(() => {
  const { css, axis, short, shortName, boundLine, LIVE_LEGEND, CURSOR, LEGEND, drawLanes, tipFor, lanesOptions, lanesHeight } = Charts;
  const $ = (id) => document.getElementById(id);

  // As in the report, but each robot has its loops at the bottom of its own lane.
  const { permit, window: protection, hold, bulk, control } = Charts.KINDS;
  const KINDS = {
    permit, window: protection, hold: { ...hold, says: "gate holds bulk for a window" }, bulk: { ...bulk, says: "bulk in the card or on the air" },
    control: { ...control, says: "control in the card or on the air" },
    loop: { from: 0.93, to: 1, says: "control loop", gap: 1 },
  };
  const UNITS = { bulk: "packet", control: "message" };
  const MINUTE_S = 60;
  const RECENT_S = 10;
  const RING_MAX = 8192;
  const VALUES_MAX = 4000;
  const ROWS_MAX = 60;
  const LINES_MAX = 8;
  // A robot has so long to answer at first.
  const GRACE_MS = 3000;

  // ---- What is kept ----

  // The newest spans of one kind and robot, in the order of their ends.
  class Ring {
    constructor(size = 128) {
      this.size = size;
      this.starts = new Float64Array(size);
      this.ends = new Float64Array(size);
      this.counts = new Uint32Array(size);
      this.head = 0;
      this.length = 0;
    }

    add(start, end, count) {
      if (this.length === this.size && this.size < RING_MAX) this.grow();
      const place = (this.head + this.length) % this.size;
      this.starts[place] = start;
      this.ends[place] = end;
      this.counts[place] = count;
      if (this.length < this.size) this.length += 1; else this.head = (this.head + 1) % this.size;
    }

    grow() {
      const larger = new Ring(this.size * 2);
      for (let index = 0; index < this.length; index += 1) {
        const place = (this.head + index) % this.size;
        larger.add(this.starts[place], this.ends[place], this.counts[place]);
      }
      Object.assign(this, larger);
    }

    copy() {
      const copy = new Ring(1);
      Object.assign(copy, this, { starts: this.starts.slice(), ends: this.ends.slice(), counts: this.counts.slice() });
      return copy;
    }

    // Calls back with each span between two times. Ends are in order but for some milliseconds.
    each(min, max, take) {
      let low = 0, high = this.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.ends[(this.head + middle) % this.size] < min - 50) low = middle + 1; else high = middle;
      }
      for (let index = low; index < this.length; index += 1) {
        const place = (this.head + index) % this.size;
        const start = this.starts[place], end = this.ends[place];
        if (start <= max && end >= min) take(start, end, this.counts[place]);
      }
    }
  }

  // Values of each second of the last minute.
  class Seconds {
    constructor() { this.seconds = new Map(); }

    add(ms, value) {
      const second = Math.floor(ms / 1000);
      let values = this.seconds.get(second);
      if (!values) {
        this.seconds.set(second, values = []);
        for (const old of this.seconds.keys()) if (old < second - MINUTE_S - 2) this.seconds.delete(old);
      }
      if (values.length < VALUES_MAX) values.push(value);
    }

    of(second) { return this.seconds.get(second) ?? []; }

    since(ms) {
      const all = [];
      for (const [second, values] of this.seconds) if (second >= Math.floor(ms / 1000)) all.push(...values);
      return all;
    }

    copy() {
      const copy = new Seconds();
      for (const [second, values] of this.seconds) copy.seconds.set(second, values.slice());
      return copy;
    }
  }

  const quantile = (values, share) => {
    if (!values.length) return null;
    const sorted = Float64Array.from(values).sort();
    return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
  };

  const copyRobot = (robot) => ({
    ...robot, rings: Object.fromEntries(Object.entries(robot.rings).map(([kind, ring]) => [kind, ring.copy()])),
    loops: robot.loops.copy(), ages: robot.ages.copy(), sent: robot.sent.copy(),
    history: new Map([...robot.history].map(([key, past]) => [key, past.slice()])),
  });

  const newRobot = (name, place) => ({
    name, place, rings: Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, new Ring()])), open: [], until: -Infinity,
    withinMs: null, lost: 0, arrived: 0, status: null, absent: false, why: null,
    loops: new Seconds(), ages: new Seconds(), sent: new Seconds(), rates: null, history: new Map(),
  });

  let hello = null;
  let helloAt = 0;
  // All robots by number, and those that are shown: places appear once a robot has taken them.
  let all = [];
  let robots = [];
  let loops = new Seconds(), ages = new Seconds();
  let batches = 0, lastNumber = null, skipped = 0;

  // ---- The page's clock ----

  // The server's clock minus the browser's. What comes soonest tells most; the shown one follows without a jump.
  const offsets = [];
  let offset = null;
  const onClock = (now) => {
    offsets.push(now - performance.now());
    if (offsets.length > 50) offsets.shift();
    if (offset === null) offset = Math.max(...offsets);
  };
  const edge = () => performance.now() + offset - hello.behind_ms;
  const slew = () => {
    const target = Math.max(...offsets);
    offset = Math.abs(target - offset) > 500 ? target : offset + (target - offset) * 0.05;
  };

  const clockText = (ms) => {
    const date = new Date(hello.began_unix_ms + ms);
    return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
  };

  // ---- What comes ----

  const onHello = (message) => {
    const same = hello && hello.began_unix_ms === message.began_unix_ms;
    hello = message;
    helloAt = performance.now();
    lastNumber = null;
    if (same) return;
    all = message.robots.map(newRobot);
    robots = all.slice(0, message.founders);
    loops = new Seconds();
    ages = new Seconds();
    offsets.length = 0;
    offset = null;
    skipped = 0;
    resume();
    $("team").textContent = message.team;
    build();
  };

  const onBatch = (batch) => {
    onClock(batch.now);
    if (lastNumber !== null && batch.number > lastNumber + 1) skipped += batch.number - lastNumber - 1;
    lastNumber = batch.number;
    const absent = new Map(batch.absent);
    all.forEach((robot, index) => {
      robot.absent = absent.has(index);
      robot.why = absent.get(index) ?? null;
    });
    for (const update of batch.robots) onUpdate(update);
  };

  const onUpdate = (update) => {
    const robot = all[update.robot];
    if (!robot) return;
    if (!robots.includes(robot)) {
      robots = all.filter((other) => other === robot || robots.includes(other));
      if (!frozen) build();
    }
    for (const [kind, columns] of Object.entries(update.spans)) {
      const ring = robot.rings[kind];
      for (let index = 0; ring && index + 2 < columns.length; index += 3) {
        const start = columns[index], end = columns[index + 1];
        ring.add(start, end, columns[index + 2]);
        if (kind === "loop") {
          robot.loops.add(end, end - start);
          loops.add(end, end - start);
        }
      }
    }
    for (const [at, age] of update.ages) {
      robot.ages.add(at, age);
      ages.add(at, age);
    }
    robot.open = update.open;
    robot.until = update.until;
    robot.withinMs = update.within_ms;
    robot.lost = update.lost;
    robot.arrived += update.arrived;
    if (update.status) onStatus(robot, update.status, update.until);
  };

  const onStatus = (robot, status, at) => {
    const before = robot.status;
    robot.status = status;
    const spent = before ? status.up_ms - before.up_ms : 0;
    // A robot that restarted counts from zero.
    if (before?.bulk && status.bulk && spent > 0 && status.bulk.sent_bytes >= before.bulk.sent_bytes) {
      const rate = (name) => (status.bulk[name] - before.bulk[name]) * 8 / spent / 1e3;
      robot.rates = { sent: rate("sent_bytes"), received: rate("received_bytes") };
      robot.sent.add(at, robot.rates.sent);
    }
    const known = new Set();
    for (const heard of status.heard) {
      const key = `${heard.from} ${heard.topic}`;
      known.add(key);
      const past = robot.history.get(key) ?? [];
      if (past.length && heard.aged < past[past.length - 1].aged) past.length = 0;
      past.push(heard);
      if (past.length > RECENT_S) past.shift();
      robot.history.set(key, past);
    }
    for (const key of robot.history.keys()) if (!known.has(key)) robot.history.delete(key);
  };

  // ---- The current second ----

  let lanes = null;
  let span = 1000;
  // While paused: everything shown as it was, the edge then, and where the view of the lanes ends.
  let frozen = null;
  let dirty = true;

  const shownRobots = () => (frozen ? frozen.robots : robots);
  const shownEdge = () => (frozen ? frozen.edge : edge());
  const isEarly = () => (frozen ? frozen.early : performance.now() - helloAt < GRACE_MS);
  const isLate = (kind, start, end) => kind === "loop" && hello.bound_ms != null && end - start > hello.bound_ms;
  const openEnd = (robot, end) => end ?? robot.until;

  const each = (lane, kind, min, max, draw) => {
    const robot = shownRobots()[lane];
    robot.rings[kind].each(min, max, (start, end) => draw(start, end, isLate(kind, start, end)));
    for (const [of, start, end] of robot.open) {
      if (of === kind && start <= max && openEnd(robot, end) >= min) draw(start, openEnd(robot, end), false);
    }
  };
  const find = (lane, from, to) => {
    const robot = shownRobots()[lane];
    const found = [];
    for (const kind of Object.keys(KINDS)) {
      robot.rings[kind].each(from, to, (start, end, count) => {
        found.push({ kind, start, end, frames: count, unit: UNITS[kind], late: isLate(kind, start, end) });
      });
      for (const [of, start, end] of robot.open) {
        if (of === kind && start <= to && openEnd(robot, end) >= from) found.push({ kind, start, end: openEnd(robot, end) });
      }
    }
    // Relative to the left edge of the chart: page time says nothing to anybody.
    const { min } = lanes.chart.scales.x;
    return found.map((item) => ({ ...item, start: item.start - min, end: item.end - min }));
  };

  // What is not known yet, or not any more.
  const drawUnknown = (chart) => {
    const { ctx, bbox } = chart;
    const { min, max } = chart.scales.x;
    const shown = shownRobots();
    const height = bbox.height / shown.length;
    ctx.save();
    ctx.fillStyle = css("unknown");
    shown.forEach((robot, lane) => {
      const from = Math.max(robot.until, min);
      const left = bbox.left + (from - min) / (max - min) * bbox.width;
      if (from < max) ctx.fillRect(left, bbox.top + lane * height, bbox.left + bbox.width - left, height);
    });
    ctx.fillStyle = css("soft");
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    shown.forEach((robot, lane) => {
      if (robot.until < min && !isEarly()) {
        ctx.fillText("absent", bbox.left + 8 * devicePixelRatio, bbox.top + (lane + 0.5) * height);
      }
    });
    ctx.restore();
  };

  // Ticks at round times of day.
  const STEPS = [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000];
  const timeAxis = (least_px) => axis("", {
    size: 28,
    splits: (chart, _, min, max) => {
      const room = Math.max(1, chart.bbox.width / devicePixelRatio / least_px);
      const step = STEPS.find((one) => (max - min) / one <= room) ?? 60_000;
      const zero = hello.began_unix_ms;
      const ticks = [];
      for (let at = Math.ceil((min + zero) / step) * step; at <= max + zero; at += step) ticks.push(at - zero);
      return ticks;
    },
    filter: (_, ticks) => ticks,
    values: (chart, ticks) => {
      const room = chart.bbox.width / devicePixelRatio;
      const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1000;
      const digits = step >= 999 ? 0 : step >= 99 ? 1 : step >= 9 ? 2 : 3;
      return ticks.map((ms) => {
        const part = (hello.began_unix_ms + ms) % 1000;
        const isWhole = digits === 0 || part < 0.5 || part > 999.5;
        if (!isWhole) return `.${String(Math.round(part)).padStart(3, "0").slice(0, digits)}`;
        // A time that would be cut off at the right.
        return chart.valToPos(ms, "x") > room - 24 ? "" : clockText(ms + 0.5);
      });
    },
  });

  const buildLanes = () => {
    lanes?.chart.destroy();
    const parent = document.querySelector("#second .chart");
    const names = shownRobots().map(({ name }) => name);
    const tip = document.createElement("div");
    tip.className = "tip";
    const narrow = parent.clientWidth < 500;
    const options = lanesOptions(names, lanesHeight(names.length), timeAxis(narrow ? 50 : 84));
    const width = 14 + 7 * Math.max(3, ...names.map((name) => shortName(name).length));
    options.axes[1].size = Math.min(width, parent.clientWidth / 4);
    const chart = new uPlot({
      width: parent.clientWidth, ...options, padding: [4, 6, 0, 0],
      cursor: {
        y: false, drag: { x: true, y: false, setScale: false }, points: { show: false },
        bind: { dblclick: () => () => setSpan(Number($("span").value)) },
      },
      hooks: {
        drawClear: [(chart) => { drawLanes(chart, names.length, KINDS, each); drawUnknown(chart); }],
        setCursor: [(chart) => tipFor(chart, names, KINDS, find, tip)],
        setSelect: [(chart) => {
          const { left, width: wide } = chart.select;
          if (wide < 4) return;
          const from = chart.posToVal(left, "x"), to = chart.posToVal(left + wide, "x");
          pause();
          if (!frozen) return;
          span = to - from;
          frozen.right = to;
          dirty = true;
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          sayWhen();
        }],
      },
    }, [[0, 1], [0, names.length]], parent);
    chart.over.append(tip);
    lanes = { chart, parent, count: names.length };
    const entries = Object.entries(KINDS).map(([kind, { says }]) => [css(kind), says]);
    if (hello.bound_ms != null) entries.push([css("late"), "control loop over the bound"]);
    entries.push([css("unknown"), "not known"]);
    document.querySelector("#second .keys-here").replaceChildren(Charts.keys(entries));
    dirty = true;
  };

  const pause = () => {
    if (frozen || !lanes || offset === null) return;
    // What is drawn, to the pixel.
    const right = lanes.chart.scales.x.max ?? edge();
    frozen = { robots: robots.map(copyRobot), loops: loops.copy(), ages: ages.copy(), early: isEarly(), right, edge: right };
    sayWhen();
    showAll();
    showMinutes();
  };
  const resume = () => {
    frozen = null;
    span = Number($("span").value);
    $("back").value = "0";
    dirty = true;
    sayWhen();
    // Robots that joined during the pause need lanes.
    if (lanes && lanes.count !== robots.length) {
      build();
      return;
    }
    showAll();
    showMinutes();
  };
  const lookBack = (seconds) => {
    pause();
    if (!frozen) return;
    frozen.right = frozen.edge + Math.min(0, Math.max(-MINUTE_S, seconds)) * 1000;
    dirty = true;
    sayWhen();
  };
  const step = (by) => {
    const at = frozen ? (frozen.right - frozen.edge) / 1000 : 0;
    lookBack(at + by * span / 2000);
  };
  const setSpan = (ms) => {
    span = ms;
    dirty = true;
  };
  const sayWhen = () => {
    const back = frozen ? (frozen.right - frozen.edge) / 1000 : 0;
    $("pause").textContent = frozen ? "Resume" : "Pause";
    $("pause").setAttribute("aria-pressed", String(Boolean(frozen)));
    $("when").textContent = frozen ? (back > -0.005 ? "paused" : `${back.toFixed(2)} s`) : "live";
    if (frozen) $("back").value = String(back);
  };

  $("pause").addEventListener("click", () => (frozen ? resume() : pause()));
  $("back").addEventListener("input", () => lookBack(Number($("back").value)));
  $("earlier").addEventListener("click", () => step(-1));
  $("later").addEventListener("click", () => step(1));
  $("span").addEventListener("change", () => setSpan(Number($("span").value)));
  addEventListener("keydown", (event) => {
    if (event.target.closest("button, input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { " ": () => $("pause").click(), ArrowLeft: () => step(-1), ArrowRight: () => step(1) }[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });

  // ---- The last minute ----

  const LINES = [
    ["#0072b2", "#4aa8f0", []], ["#d55e00", "#ff8a3d", [6, 3]], ["#00875f", "#2fcf9f", [2, 3]], ["#b0548a", "#e39ac6", [8, 3, 2, 3]],
    ["#b08900", "#f0d048", []], ["#6b7580", "#a3aebb", [6, 3]], ["#56b4e9", "#8fd0f7", [2, 3]], ["#8a4b20", "#c98a5c", [8, 3, 2, 3]],
  ];
  const line = (index, label, unit) => {
    const [light, night, dash] = LINES[index % LINES.length];
    return {
      label, stroke: Charts.isDark() ? night : light, dash, width: 2, points: { show: false },
      value: (_, value) => (value == null ? "–" : `${value.toFixed(1)} ${unit}`),
    };
  };
  let minutes = {};

  // Shows columns of the last minute's seconds; a chart is replaced if its lines change.
  const showMinute = (id, names, unit, columns, bound) => {
    const parent = document.querySelector(`#${id} .chart`);
    const end = Math.floor((shownEdge() + hello.behind_ms) / 1000);
    const xs = Array.from({ length: MINUTE_S }, (_, index) => (end - MINUTE_S + index) * 1000 + 500);
    const made = minutes[id];
    const key = `${Charts.isDark()} ${names.join("\n")}`;
    if (made?.key !== key) {
      made?.chart.destroy();
      const least = bound == null ? 1 : 1.25 * bound;
      const chart = new uPlot({
        width: parent.clientWidth, height: 210, padding: [14, 8, 0, 0],
        scales: { x: { time: false }, y: { range: (_, __, high) => [0, Math.max((high ?? 0) * 1.08, least)] } },
        series: [{ label: "at", value: (_, ms) => (ms == null ? "–" : clockText(ms)) }, ...names.map((name, index) => line(index, name, unit))],
        axes: [timeAxis(72), axis(unit, { size: 40 })],
        cursor: CURSOR, legend: LEGEND,
        hooks: { ...LIVE_LEGEND, draw: bound == null ? [] : [(chart) => boundLine(chart, bound, "y")] },
      }, [xs, ...columns(xs)], parent);
      minutes[id] = { key, chart, parent };
      return;
    }
    // Sections that come and go change the room of the others.
    const { clientWidth } = parent;
    if (clientWidth !== made.chart.width) made.chart.setSize({ width: clientWidth, height: made.chart.height });
    made.chart.setData([xs, ...columns(xs)]);
  };

  const QUANTILES = [["median", 0.5], ["p99", 0.99]];
  const showQuantiles = (id, seconds, bound, note) => {
    const since = (shownEdge() + hello.behind_ms) - MINUTE_S * 1000;
    const all = seconds.since(since);
    $(id).hidden = all.length === 0;
    if (!all.length) return;
    document.querySelector(`#${id} .note`).textContent = note(all);
    const columns = (xs) => QUANTILES.map(([, share]) => xs.map((ms) => quantile(seconds.of(Math.floor(ms / 1000)), share)));
    showMinute(id, QUANTILES.map(([name]) => name), "ms", columns, bound);
  };

  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const counted = (count) => count.toLocaleString("en");

  const showBulk = () => {
    const since = (shownEdge() + hello.behind_ms) - MINUTE_S * 1000;
    const total = (robot) => robot.sent.since(since).reduce((sum, rate) => sum + rate, 0);
    const sending = shownRobots().map((robot) => [robot, total(robot)]).filter(([, sum]) => sum > 0);
    $("bulk").hidden = sending.length === 0;
    if (!sending.length) return;
    // The order of the team file, so that lines keep their colours.
    const most = new Set([...sending].sort((a, b) => b[1] - a[1]).slice(0, LINES_MAX).map(([robot]) => robot));
    const lines = sending.filter(([robot]) => most.has(robot)).map(([robot]) => robot);
    const more = sending.length - lines.length;
    document.querySelector("#bulk .note").textContent =
      `Sent by each robot, repeated packets included${more > 0 ? `; ${more} more sent less` : ""}.`;
    const at = (robot, ms) => {
      const values = robot.sent.of(Math.floor(ms / 1000));
      return values.length ? values[values.length - 1] : null;
    };
    const columns = (xs) => lines.map((robot) => xs.map((ms) => at(robot, ms)));
    showMinute("bulk", lines.map(({ name }) => shortName(name)), "Mbit/s", columns, null);
  };

  // ---- Tables ----

  const DASH = "–";
  const ms = (value) => (value == null ? DASH : `${value.toFixed(1)} ms`);
  const nameOf = (index) => all[index]?.name ?? "?";

  // Writes only what has changed. A cell is text, or text and a class.
  const fill = (id, titles, rows) => {
    $(id).hidden = rows.length === 0;
    const table = document.querySelector(`#${id} table`);
    if (!table.tHead) {
      const head = table.createTHead().insertRow();
      titles.forEach(([title, of], index) => {
        const cell = head.appendChild(document.createElement("th"));
        cell.scope = "col";
        cell.textContent = title;
        cell.title = of ?? "";
        if (index === 0) cell.className = "name";
      });
      table.createTBody();
    }
    const body = table.tBodies[0];
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((cells, place) => {
      const row = body.rows[place] ?? body.insertRow();
      cells.forEach((cell, index) => {
        const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
        let element = row.cells[index];
        if (!element) {
          element = row.appendChild(document.createElement(index === 0 ? "th" : "td"));
          if (index === 0) element.scope = "row"; else element.dataset.label = titles[index][0];
        }
        if (element.textContent !== text) element.textContent = text;
        const name = text === DASH ? "off empty" : kind;
        if (element.className !== name) element.className = name;
      });
    });
  };

  const PERMITS = { NotNeeded: "not needed", Idle: DASH, Waiting: "waits", Holding: ["holds", "good"] };
  const isHere = (robot) => robot.status && !robot.absent;
  const leaderOf = (team) => team.find((robot) => isHere(robot) && robot.status.leads);
  // From the leader's status, as in the header: a robot's own is up to a second older or newer.
  const permitOf = ({ place, status }, leader) => {
    if (!leader || status.permit === "NotNeeded") return status.permit;
    const { holders, queue } = leader.status;
    return holders.includes(place) ? "Holding" : queue.includes(place) ? "Waiting" : "Idle";
  };
  const lateOf = (values) => (hello.bound_ms == null || !values.length ? null
    : values.filter((value) => value > hello.bound_ms).length / values.length);
  const lateCell = (share) => (share === null ? DASH : [percent(share), share > 0.1 ? "late" : ""]);

  const showRobots = () => {
    const since = shownEdge() + hello.behind_ms - RECENT_S * 1000;
    const rate = (value) => (value == null ? DASH : value.toFixed(1));
    const leader = leaderOf(shownRobots());
    const rows = shownRobots().map((robot) => {
      const { status } = robot;
      if (!status || robot.absent) {
        return [robot.name, isEarly() ? "…" : ["absent", "late"], ...Array(13).fill(DASH)];
      }
      const took = robot.loops.since(since);
      const aged = robot.ages.since(since);
      return [
        robot.name,
        status.leads ? ["leads", "good"] : "here",
        PERMITS[permitOf(robot, leader)] ?? DASH,
        ms(quantile(took, 0.5)),
        lateCell(lateOf(took)),
        ms(quantile(aged, 0.5)),
        rate(robot.rates?.sent),
        rate(robot.rates?.received),
        status.bulk?.waiting ? String(status.bulk.waiting) : DASH,
        status.bulk ? `${status.bulk.in_flight}${status.bulk.held ? ", held" : ""}` : DASH,
        status.bulk ? [status.completions, "text minor"] : DASH,
        `${status.alive.length} of ${shownRobots().length}`,
        robot.withinMs == null ? DASH : `± ${robot.withinMs.toFixed(1)} ms`,
        [status.paths.join(", "), "text minor"],
        status.refused_frames ? String(status.refused_frames) : DASH,
      ];
    });
    fill("robots", [
      ["robot"], ["is"], ["permit"], ["reaction", "median of its loops, last 10 s"], ["late", "of its loops, last 10 s"],
      ["age", "median age of its incoming control, last 10 s"], ["out, Mbit/s", "bulk"], ["in, Mbit/s", "bulk"], ["waits", "bulk messages"],
      ["in the card", "bulk packets"], ["known by", "how it knows what has left the card"], ["hears"],
      ["clock", "how well its clock is known here"], ["paths"], ["refused", "frames"],
    ], rows);
  };

  const showTopics = () => {
    const rows = [];
    for (const robot of shownRobots().filter(isHere)) {
      for (const heard of robot.status.heard) {
        const past = robot.history.get(`${heard.from} ${heard.topic}`) ?? [heard];
        const first = past.length > 1 ? past[0] : { aged: 0, ages_us: 0, late: 0 };
        const aged = heard.aged - first.aged;
        rows.push({
          late: aged > 0 ? (heard.late - first.late) / aged : 0, silent: heard.quiet_us,
          cells: [
            heard.topic, nameOf(heard.from), robot.name, counted(heard.count),
            heard.missed ? counted(heard.missed) : DASH, heard.duplicates ? counted(heard.duplicates) : DASH,
            aged > 0 ? ms((heard.ages_us - first.ages_us) / aged / 1e3) : DASH,
            aged > 0 && hello.bound_ms != null ? lateCell((heard.late - first.late) / aged) : DASH,
            heard.quiet_us >= 1e6 ? [`${(heard.quiet_us / 1e6).toFixed(1)} s`, "late"] : ms(heard.quiet_us / 1e3),
            robot.status.paths[heard.path] ?? DASH,
          ],
        });
      }
    }
    let shown = rows;
    if (rows.length > ROWS_MAX) {
      const worst = [...rows].sort((a, b) => b.late - a.late || b.silent - a.silent).slice(0, ROWS_MAX);
      const chosen = new Set(worst);
      shown = rows.filter((row) => chosen.has(row));
    }
    document.querySelector("#topics .note").textContent = `Age and late: over the last ${RECENT_S} s.${
      rows.length > shown.length ? ` The ${shown.length} latest of ${counted(rows.length)}.` : ""}`;
    fill("topics", [
      ["topic"], ["from"], ["to"], ["messages"], ["missed"], ["copies"], ["age"], ["late"], ["silent for"], ["path"],
    ], shown.map(({ cells }) => cells));
  };

  const showGathered = () => {
    const rows = shownRobots().flatMap((robot) => (robot.absent ? [] : robot.status?.gathered ?? []).map((of) => [
      of.topic, nameOf(of.from), robot.name, counted(of.due), of.missed ? counted(of.missed) : DASH,
      of.age_us ? `${(of.age_us[0] / 1e3).toFixed(1)} ± ${(of.age_us[1] / 1e3).toFixed(1)} ms` : DASH,
    ]));
    fill("gathered", [["topic"], ["from"], ["by"], ["lists"], ["missed"], ["age"]], rows.slice(0, ROWS_MAX));
  };

  const STATES = { Alive: ["alive", "good"], Dead: ["dead", "late"] };
  const CARRIES = { Nothing: [], Original: ["control"], Duplicate: ["duplicates"] };
  const showPaths = () => {
    const rows = shownRobots().flatMap((robot) => (robot.absent ? [] : robot.status?.choices ?? [])
      .filter(({ state }) => state !== "Resting")
      .map((path) => [
        robot.name, nameOf(path.to), robot.status.paths[path.path] ?? DASH, STATES[path.state] ?? DASH,
        ms(path.round_trip_us == null ? null : path.round_trip_us / 1e3), percent(path.failures_ppm / 1e6),
        [...CARRIES[path.carries] ?? [], ...path.bulk ? ["bulk"] : []].join(", ") || DASH,
      ]));
    fill("paths", [["from"], ["to"], ["path"], ["is"], ["round trip"], ["fails"], ["carries"]], rows.slice(0, ROWS_MAX));
  };

  const showFlows = () => {
    const rows = shownRobots().flatMap((robot) => (robot.absent ? [] : robot.status?.flows ?? []).map((flow) => [
      robot.name, flow.flow, flow.class, flow.reason, ms(flow.period_ms), `${(flow.rate_bps / 1e6).toFixed(2)} Mbit/s`,
      ms(flow.late_ms), flow.waiting_bytes ? `${(flow.waiting_bytes / 1e3).toFixed(0)} kB` : DASH, flow.dropped ? counted(flow.dropped) : DASH,
    ]));
    fill("flows", [["robot"], ["flow"], ["taken for"], ["because"], ["period"], ["rate"], ["late"], ["waits"], ["dropped"]], rows.slice(0, ROWS_MAX));
  };

  // ---- The top ----

  // Live even during a pause.
  const showAlarms = () => {
    const items = [];
    const early = performance.now() - helloAt < GRACE_MS;
    const silent = robots.filter((robot) => robot.absent && !early);
    for (const robot of silent.filter(({ why }) => why)) items.push([`${robot.name} does not answer: ${robot.why}`, ""]);
    const unheard = silent.filter(({ why }) => !why).map(({ name }) => name);
    if (unheard.length) {
      const names = unheard.length > 6 ? `${unheard.slice(0, 5).join(", ")} and ${unheard.length - 5} more do` : `${unheard.join(", ")} ${unheard.length > 1 ? "do" : "does"}`;
      items.push([`${names} not answer`, "Is 'coorp up' running there, and is the robot in range? 'coorp doctor' on the robot shows what its card says."]);
    }
    const here = robots.filter(isHere);
    if (here.length && !leaderOf(here)) {
      items.push(["Nobody leads, so nobody gets a permit", "A leader needs links to most of the robots that may lead: see who hears whom below."]);
    }
    for (const robot of here) {
      for (const [says, todo] of robot.status.alarms) items.push([`${robot.name}: ${says}`, todo]);
    }
    $("alarms").hidden = items.length === 0;
    const title = frozen ? "Needs attention now" : "Needs attention";
    const list = document.querySelector("#alarms ul");
    const told = JSON.stringify([title, items]);
    if (list.dataset.told === told) return;
    list.dataset.told = told;
    document.querySelector("#alarms h2").textContent = title;
    list.replaceChildren(...items.slice(0, ROWS_MAX).map(([says, todo]) => {
      const item = document.createElement("li");
      item.append(says);
      if (todo) {
        const what = item.appendChild(document.createElement("span"));
        what.className = "todo";
        what.textContent = todo;
      }
      return item;
    }));
  };

  const LOST = "No connection to coorp watch: trying again";
  const isLost = () => document.querySelector("main").classList.contains("lost");
  const showSummary = () => {
    const team = shownRobots();
    const here = team.filter(isHere);
    const leader = leaderOf(here);
    const names = (places) => (places.length ? places.map(nameOf).join(", ") : "nobody");
    const parts = [...frozen ? [`Paused at ${clockText(frozen.edge)}`] : [], `${here.length} of ${team.length} robots here`];
    if (leader) {
      parts.push(`${leader.name} leads`, `permits: ${names(leader.status.holders)}`, `waiting: ${names(leader.status.queue)}`);
    }
    $("summary").textContent = isLost() ? LOST : parts.join(" · ");
    document.title = `${hello.team}: ${here.length} of ${team.length}`;
    const lost = team.reduce((sum, robot) => sum + robot.lost, 0);
    $("foot").textContent = [
      `coorp ${hello.coorp}`, here[0] ? `policy ${here[0].status.policy}` : "",
      `shown ${(hello.behind_ms / 1000).toFixed(1)} s after it happened`,
      frames.rate ? `${frames.rate} frames a second` : "",
      skipped ? `${counted(skipped)} updates dropped: this browser or its connection is too slow` : "",
      lost ? `${counted(lost)} events overwritten before they were asked for` : "",
    ].filter(Boolean).join(" · ");
  };

  const showAll = () => {
    if (!hello || offset === null) return;
    showSummary();
    showAlarms();
    showRobots();
    showTopics();
    showGathered();
    showPaths();
    showFlows();
  };
  const showMinutes = () => {
    if (!hello || offset === null || document.hidden) return;
    const bound = hello.bound_ms;
    showQuantiles("reaction", frozen?.loops ?? loops, bound, (all) => {
      const late = lateOf(all);
      return `${counted(all.length)} loops in the last minute${late === null ? "" : `, ${percent(late)} over the bound`}.`;
    });
    showQuantiles("ages", frozen?.ages ?? ages, null, (all) => `${counted(all.length)} messages in the last minute, from their making to their arrival.`);
    showBulk();
  };

  // ---- Drawing ----

  // The time between two frames and the work for each, in milliseconds, for the foot and for tests.
  const frames = {
    last: null, count: 0, since: 0, rate: 0, gaps: new Float32Array(1024), next: 0,
    took: 0, drawnAt: -Infinity, work: new Float32Array(1024), drawn: 0,
  };
  const measure = (now) => {
    if (frames.last !== null) {
      frames.gaps[frames.next % frames.gaps.length] = now - frames.last;
      frames.next += 1;
    }
    frames.last = now;
    frames.count += 1;
    if (now - frames.since >= 2000) {
      frames.rate = frames.since ? Math.round(frames.count * 1000 / (now - frames.since)) : 0;
      [frames.since, frames.count] = [now, 0];
    }
  };

  const frame = (now) => {
    requestAnimationFrame(frame);
    measure(now);
    if (!lanes || offset === null) return;
    slew();
    if (frozen && !dirty) return;
    // What takes long to draw is drawn less often: half of the time is for everything else.
    if (!dirty && now - frames.drawnAt < 2 * frames.took) return;
    frames.drawnAt = now;
    dirty = false;
    const right = frozen ? frozen.right : edge();
    const began = performance.now();
    lanes.chart.setScale("x", { min: right - span, max: right });
    // The chart draws in a microtask that it has queued by now.
    queueMicrotask(() => {
      frames.took = performance.now() - began;
      frames.work[frames.drawn % frames.work.length] = frames.took;
      frames.drawn += 1;
    });
  };

  const build = () => {
    if (!hello) return;
    buildLanes();
    Object.values(minutes).forEach(({ chart }) => chart.destroy());
    minutes = {};
    showAll();
    showMinutes();
  };

  const sayTheme = () => { $("theme").textContent = Charts.isDark() ? "Light" : "Dark"; };
  const store = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (theme) => { try { localStorage.setItem("theme", theme); } catch { /* Kept for this page only. */ } } };
  Charts.onTheme(() => { sayTheme(); build(); });
  $("theme").addEventListener("click", () => {
    const theme = Charts.isDark() ? "light" : "dark";
    store.set(theme);
    Charts.setTheme(theme);
  });
  if (["light", "dark"].includes(store.get())) Charts.setTheme(store.get());
  sayTheme();

  let resizing = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => {
      if (lanes && lanes.parent.clientWidth !== lanes.chart.width) build();
    });
  });

  // ---- The connection ----

  const connect = (wait) => {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
    let taken = 0;
    let opened = false;
    socket.addEventListener("message", ({ data }) => {
      const message = JSON.parse(data);
      if (message.kind === "hello") {
        opened = true;
        document.querySelector("main").classList.remove("lost");
        onHello(message);
        return;
      }
      if (message.kind !== "batch" || !hello) return;
      onBatch(message);
      batches += 1;
      taken += 1;
      // The server sends no more than a browser takes.
      if (socket.readyState === WebSocket.OPEN) socket.send(String(taken));
    });
    socket.addEventListener("close", () => {
      document.querySelector("main").classList.add("lost");
      $("summary").textContent = LOST;
      setTimeout(() => connect(Math.min(wait * 2, 8000)), opened ? 500 : wait);
    });
  };

  requestAnimationFrame(frame);
  setInterval(showAll, 500);
  setInterval(() => { if (!frozen) showMinutes(); }, 1000);
  connect(500);

  // For tests, which read it.
  globalThis.CoorpLive = {
    get robots() { return robots; }, get frames() { return frames; }, get batches() { return batches; }, get skipped() { return skipped; },
    get minutes() { return Object.fromEntries(Object.entries(minutes).map(([id, { chart }]) => [id, chart.data])); },
    get view() { return lanes && { min: lanes.chart.scales.x.min, max: lanes.chart.scales.x.max, paused: Boolean(frozen) }; },
  };
})();
