// A made-up team for the page of `coorp watch --web`, in place of the WebSocket and before the page's own script (crowd.py).
//
// It tells what as many real robots would: every 100 ms the spans and ages of that time, each second a status.
"use strict";

(() => {
  const { robots: ROBOTS, rate_hz: RATE_HZ } = globalThis.CROWD;
  const EVERY_MS = 100;
  // In each robot's own status, a moment older than the leader's below: 1 does not hold a permit yet, and 9 still waits.
  const PERMITS = ["Idle", ...Array(9).fill("Waiting")];
  const began = performance.now();
  const clock = () => performance.now() - began;
  const statusOf = (robot, now, messages) => ({
    robot: `r${robot}`, leader: 0, leads: robot === 0, secure: true, policy: "coorp", up_ms: Math.round(now),
    alive: Array.from({ length: ROBOTS }, (_, other) => other), permit: PERMITS[robot] ?? "Idle",
    holders: robot ? [] : [1], queue: robot ? [] : [2, 3, 4, 5, 6, 7, 8], paths: ["wlan0"], choices: [], gathered: [], flows: [],
    alarms: [], twins: [], refused_frames: 0, completions: "the kernel's send queue", published: [],
    bulk: { waiting: 1, sent_bytes: robot === 1 ? Math.round(now * 20000) : robot * 1e6, received_bytes: 0, in_flight: 3, held: false },
    heard: (robot ? [0] : Array.from({ length: ROBOTS - 1 }, (_, other) => other + 1)).map((from) => ({
      topic: robot ? "command" : "pose", from, count: messages, missed: 0, duplicates: 0, quiet_us: 9000, path: 0,
      aged: messages, ages_us: messages * 4000, late: Math.floor(messages / 100),
    })),
  });
  class Crowd extends EventTarget {
    constructor() {
      super();
      this.readyState = 1;
      this.number = this.messages = this.told = 0;
      setTimeout(() => {
        this.say({
          kind: "hello", coorp: "0", team: "crowd", robots: Array.from({ length: ROBOTS }, (_, robot) => `r${robot}`), bound_ms: 33,
          behind_ms: 700, began_unix_ms: Date.now() - Math.round(clock()),
        });
        setInterval(() => this.tell(), EVERY_MS);
      });
    }
    send() {}
    say(message) { this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(message) })); }
    tell() {
      const now = clock(), robots = [];
      const from = this.told || now - EVERY_MS;
      const times = [];
      for (let at = from; at < now; at += 1000 / RATE_HZ) times.push(Number(at.toFixed(3)));
      this.told = times.length ? times[times.length - 1] + 1000 / RATE_HZ : from;
      this.messages += times.length;
      for (let robot = 0; robot < ROBOTS; robot += 1) {
        const off = robot * 0.3;
        const spans = {
          control: times.flatMap((at) => [at - 2 - off, at - off, 1]),
          window: times.flatMap((at) => [at - 4 - off, at + 2 - off, 0]),
          loop: robot ? times.flatMap((at, place) => [at - 29 - (place + robot) % 7, at, 0]) : [],
          hold: robot === 1 ? times.flatMap((at) => [at - 3, at + 1, 0]) : [],
          bulk: robot === 1 ? times.flatMap((at) => [at - 30, at - 4, 200]) : [],
        };
        const senders = robot ? [0] : Array.from({ length: ROBOTS - 1 }, (_, other) => other + 1);
        const ages = times.flatMap((at) => senders.map((sender) => [at, 3 + (sender % 5), sender]));
        const update = {
          robot, until: now, within_ms: 0.4, spans, open: robot === 1 ? [["permit", 0, null]] : [], ages, arrived: ages.length, lost: 0,
        };
        if (this.number % 10 === 0) update.status = statusOf(robot, now, this.messages);
        robots.push(update);
      }
      this.number += 1;
      this.say({ kind: "batch", number: this.number, now, robots, absent: [] });
    }
  }
  Crowd.OPEN = 1;
  globalThis.WebSocket = Crowd;
})();
