"use strict";

// The controls and the charts of the page. Its data are in the element of that name.

const PAGE = JSON.parse(document.getElementById("data").textContent);
const state = { axis: "step", range: null, smoothing: 0, log: false, hidden: new Set() };
const charts = [];
const columns = new Map();

function once(key, column) {
  if (!columns.has(key)) columns.set(key, decoded(column));
  return columns.get(key);
}

function color(name) {
  const probe = document.getElementById("probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function faint(rgb, opacity) {
  return rgb.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
}

function shownNumber(value, digits = 5) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(3);
  return String(Number(value.toPrecision(digits)));
}

function shownTick(value) {
  const size = Math.abs(value);
  const units = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [unit, letter] of units) if (size >= unit) return `${Number((value / unit).toPrecision(4))}${letter}`;
  return size !== 0 && size < 1e-3 ? value.toExponential() : String(Number(value.toPrecision(5)));
}

function shownPosition(value) {
  if (state.axis === "time") return `${Number(value.toPrecision(5)).toLocaleString("en")} s`;
  const whole = state.axis !== "epoch";
  return `${state.axis} ${(whole ? Math.round(value) : Number(value.toFixed(3))).toLocaleString("en")}`;
}

function isSmoothed(line, share) {
  return share > 0 && !line.name.endsWith(" epoch"); // those are means already
}

function endsOfY(chart) {
  return (u, low, high) => {
    if (low === null || low === undefined) return [0, 1];
    if (state.log) return uPlot.rangeLog(low, high, 10, false);
    if (chart.spec.zero && low >= 0) return [0, high * 1.12 || 1];
    if (high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high))) {
      const room = Math.abs(high) / 2 || 1;
      return [low - room, high + room];
    }
    return [low - 0.05 * (high - low), high + 0.07 * (high - low)];
  };
}

class Chart {
  constructor(spec, number) {
    this.spec = spec;
    this.card = document.querySelectorAll(".card")[number];
    this.place = this.card.querySelector(".live");
    this.legend = this.card.querySelector(".legend");
    this.kinds = [...new Set(spec.lines.map((line) => line.name))];
    this.started = false;
  }

  async load() {
    if (this.started) return;
    this.started = true;
    await this.read();
    this.ready = true;
    this.build();
  }

  async read() {
    const { axis, smoothing } = state;
    const read = this.spec.lines.map(async (line, k) => {
      const column = PAGE.tracks[line.track][axis];
      const y = await once(`${this.spec.title}\n${k}`, line.values);
      const x = column ? await once(`${line.track} ${axis}`, column) : new Float64Array(0);
      const known = column ? x.every((value) => !Number.isNaN(value)) : true;
      const kept = known ? null : Array.from(x.keys()).filter((i) => !Number.isNaN(x[i]));
      const [xs, ys] = kept ? [kept.map((i) => x[i]), kept.map((i) => y[i])] : [x, y];
      return { x: xs, y: column ? ys : [], smooth: isSmoothed(line, smoothing) ? smoothed(ys, smoothing) : null };
    });
    const found = await Promise.all(read);
    if (axis !== state.axis || smoothing !== state.smoothing) return this.read(); // changed meanwhile
    this.lines = found;
  }

  // Colours: a run has one; its training is paler, and means over epochs are dashed.
  style(k) {
    const line = this.spec.lines[k];
    const rgb = color(this.spec.byLine ? `r${this.kinds.indexOf(line.name) % 8}` : `r${line.run % 8}`);
    const paler = line.name.startsWith("train") && this.kinds.length > 1;
    const dash = line.name.endsWith(" epoch") ? [5, 3] : [];
    return { rgb, dash, width: paler ? 1.25 : 2, opacity: paler ? 0.6 : 1 };
  }

  data() {
    const [low, high] = state.range;
    this.view = viewOf(this.lines, low, high, state.log);
    return [this.view.x, ...this.view.lines.flatMap((line) => [line.low, line.high, line.mean, line.smooth])];
  }

  series() {
    const found = [{}];
    this.spec.lines.forEach((line, k) => {
      const { rgb, dash, width, opacity } = this.style(k);
      const show = !state.hidden.has(line.run);
      const few = () => this.view.lines[k].shown <= 60 && !line.name.endsWith(" epoch");
      const averaged = isSmoothed(line, state.smoothing);
      const strong = averaged ? 0.3 * opacity : opacity;
      const edge = { show, stroke: "transparent", width: 0, points: { show: false } };
      const points = { show: few, size: opacity < 1 ? 4 : 6, stroke: faint(rgb, strong), fill: faint(rgb, strong) };
      const mean = { show, stroke: faint(rgb, strong), width: averaged ? 1.25 : width, dash, points };
      const smooth = { show, stroke: faint(rgb, Math.max(opacity, 0.8)), width, dash, points: { show: false } };
      found.push(edge, edge, mean, smooth);
    });
    return found;
  }

  build() {
    this.plot?.destroy();
    const muted = color("muted");
    const grid = { stroke: color("grid"), width: 1 };
    const axis = { stroke: muted, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const ticks = (u, values) => values.map((value) => (value === null ? "" : shownTick(value)));
    const isMean = (i) => i % 4 === 3;
    const hover = (u, i) => (isMean(i) ? this.style((i - 3) / 4).rgb : "transparent");
    const bands = this.spec.lines.map((_, k) => {
      return { series: [4 * k + 2, 4 * k + 1], fill: faint(this.style(k).rgb, state.smoothing ? 0.08 : 0.16) };
    });
    const options = {
      width: this.place.clientWidth,
      height: 250,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { size: 7, width: 1, stroke: hover, fill: hover },
        drag: { x: true, y: false, setScale: false },
        sync: { key: "runs", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: { dblclick: () => () => zoom(null) },
      },
      scales: {
        x: { time: false, range: () => state.range },
        y: { distr: state.log ? 3 : 1, range: endsOfY(this) },
      },
      axes: [
        { ...axis, size: 30, values: ticks, incrs: state.axis === "epoch" || state.axis === "time" ? undefined : WHOLE },
        { ...axis, size: 52, values: ticks },
      ],
      series: this.series(),
      bands,
      hooks: {
        setCursor: [(u) => this.fill(u.cursor.idx)],
        setSelect: [(u) => this.select(u)],
      },
    };
    this.plot = new uPlot(options, this.data(), this.place);
    this.fill(null);
  }

  refresh() {
    if (!this.ready) return;
    this.plot.setData(this.data());
    this.fill(null);
  }

  select(u) {
    if (u.select.width > 4) {
      const left = u.posToVal(u.select.left, "x");
      const right = u.posToVal(u.select.left + u.select.width, "x");
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      zoom([left, right]);
    }
  }

  // The legend: values at the cursor, of each line at its nearest point; else the last ones.
  fill(at) {
    const { x } = this.view;
    const runs = [...new Set(this.spec.lines.map((line) => line.run))].filter((run) => !state.hidden.has(run));
    const head = this.legend.tHead.rows[0];
    head.replaceChildren(cell("th", at === null || at === undefined ? "last" : shownPosition(x[at])));
    if (!this.view.whole) head.firstChild.append(" (means)");
    const names = this.kinds.length > 1 || this.kinds[0] !== "value" ? this.kinds : [""];
    names.forEach((name) => head.append(cell("th", name)));
    const rows = runs.map((run) => {
      const row = document.createElement("tr");
      row.append(cell("td", PAGE.runs[run], this.spec.byLine ? "" : `swatch r${run % 8}`));
      this.kinds.forEach((name) => {
        const k = this.spec.lines.findIndex((line) => line.run === run && line.name === name);
        row.append(k < 0 ? cell("td", "") : this.value(k, at));
      });
      return row;
    });
    this.legend.tBodies[0].replaceChildren(...rows);
  }

  value(k, at) {
    const line = this.view.lines[k];
    const place = nearestPoint(line.mean, at ?? this.view.x.length - 1);
    const digits = state.smoothing ? 4 : 5;
    const shown = cell("td", shownNumber(line.mean[place], digits));
    const spread = line.low[place] !== undefined && line.low[place] !== null;
    if (spread) shown.title = `mean; from ${shownNumber(line.low[place])} to ${shownNumber(line.high[place])}`;
    const smooth = shownNumber(line.smooth[place], digits);
    if (smooth) shown.append(cell("small", ` ~ ${smooth}`));
    if (this.spec.byLine) shown.className = `swatch r${this.kinds.indexOf(this.spec.lines[k].name) % 8}`;
    return shown;
  }
}

const WHOLE = [1, 2, 5].flatMap((n) => Array.from({ length: 13 }, (_, power) => n * 10 ** power)).sort((a, b) => a - b);

function nearestPoint(values, at) {
  for (let away = 0; away < values.length; away++) {
    if (values[at - away] !== undefined) return at - away;
    if (values[at + away] !== undefined) return at + away;
  }
  return at;
}

function cell(kind, text, className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  made.className = className;
  return made;
}

function whole() {
  const [low, high] = PAGE.ranges[state.axis];
  const room = 0.01 * (high - low) || 1;
  return [low - room, high + room];
}

function zoom(range) {
  state.range = range ?? whole();
  document.documentElement.classList.toggle("zoomed", range !== null);
  charts.forEach((chart) => chart.refresh());
}

async function again(read) {
  const ready = charts.filter((chart) => chart.ready);
  if (read) await Promise.all(ready.map((chart) => chart.read()));
  ready.forEach((chart) => chart.build());
}

function listen() {
  const on = (id, event, act) => document.getElementById(id).addEventListener(event, act);
  on("axis", "change", (event) => {
    state.axis = event.target.value;
    state.range = whole();
    document.documentElement.classList.remove("zoomed");
    again(true);
  });
  on("smoothing", "input", (event) => {
    state.smoothing = event.target.value ** 2 / 1e5; // a share of the points, finer at the beginning
    document.getElementById("smoothed").textContent = `${Number((100 * state.smoothing).toPrecision(2))} %`;
    again(true);
  });
  on("log", "change", (event) => {
    state.log = event.target.checked;
    again(false);
  });
  on("reset", "click", () => zoom(null));
  on("theme", "click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    again(false);
  });
  document.querySelectorAll(".runs button").forEach((button, run) => {
    button.addEventListener("click", () => {
      const hide = !state.hidden.delete(run);
      if (hide) state.hidden.add(run);
      button.setAttribute("aria-pressed", String(!hide));
      again(false);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again(false));
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => again(false), 150);
  });
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

async function start() {
  document.documentElement.classList.add("live");
  state.range = whole();
  charts.push(...PAGE.charts.map((spec, number) => new Chart(spec, number)));
  listen();
  const visible = charts.filter((chart) => chart.card.getBoundingClientRect().top < innerHeight);
  await Promise.all(visible.map((chart) => chart.load()));
  requestAnimationFrame(() => {
    window.paceline = { drawn: performance.now(), charts, state };
  });
  // Charts below the visible part are drawn when they come near it.
  const observer = new IntersectionObserver(
    (seen) => seen.forEach((one) => one.isIntersecting && charts[one.target.dataset.chart].load()),
    { rootMargin: "300px" },
  );
  charts.forEach((chart) => observer.observe(chart.card));
}

if ("DecompressionStream" in window && PAGE.charts.length) start();
