"use strict";

// Reads the columns that series.py wrote, and cuts them down to what a chart can show.

const MOST_POINTS = 2000; // in a view: as many points as they are, else parts with mean and extremes
const PARTS = 800;

async function unpacked(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function joined(planes, width) {
  const length = planes.length / width;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < width; plane++) {
    for (let i = 0; i < length; i++) bytes[i * width + plane] = planes[plane * length + i];
  }
  return bytes.buffer;
}

async function decoded(column) {
  const planes = await unpacked(column.data);
  if (column.form === "float") return Float64Array.from(new Float32Array(joined(planes, 4)));
  const values = new Float64Array(column.n);
  if (column.form === "count") {
    const differences = new Int32Array(joined(planes, 4));
    let sum = 0;
    for (let i = 0; i < values.length; i++) values[i] = column.low + column.unit * (sum += differences[i]);
    return values;
  }
  const codes = new Uint16Array(joined(planes, 2));
  const { low, unit, scale, centre, spread } = column;
  let code = 0;
  for (let i = 0; i < values.length; i++) {
    code = column.delta ? (code + codes[i]) & 0xffff : codes[i];
    const scaled = low + (code - 1) * unit;
    if (code === 0) values[i] = NaN;
    else if (scale === "log") values[i] = Math.exp(scaled);
    else if (scale === "asinh") values[i] = centre + spread * Math.sinh(scaled);
    else values[i] = scaled;
  }
  return values;
}

// An exponential moving average over a share of the points, without the bias of its start.
function smoothed(values, share) {
  const decay = Math.exp(-1 / Math.max(share * values.length, 1e-9));
  const result = new Float64Array(values.length);
  let sum = 0;
  let weight = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i])) {
      sum = decay * sum + (1 - decay) * values[i];
      weight = decay * weight + (1 - decay);
      result[i] = sum / weight;
    } else result[i] = NaN;
  }
  return result;
}

// The first place whose value is at least the one given.
function placeOf(values, least) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

function inside(line, low, high) {
  const begin = Math.max(placeOf(line.x, low) - 1, 0);
  const end = Math.min(placeOf(line.x, high + Number.EPSILON * Math.abs(high)) + 1, line.x.length);
  return { begin, end: Math.max(begin, end) };
}

// What uPlot draws: null is a gap, undefined a place where a line has no point.
function drawable(value, positive) {
  return Number.isFinite(value) && !(positive && value <= 0) ? value : null;
}

// Lines between two positions: {x, whole, lines: [{low, high, mean, smooth, shown}]}.
function viewOf(lines, low, high, positive) {
  const cuts = lines.map((line) => inside(line, low, high));
  const every = new Set();
  let whole = cuts.every((cut) => cut.end - cut.begin <= MOST_POINTS);
  if (whole) {
    lines.forEach((line, k) => addAll(every, line.x, cuts[k]));
    whole = every.size <= MOST_POINTS;
  }
  const sparse = cuts.map((cut) => whole || cut.end - cut.begin <= PARTS / 4);
  const width = (high - low) / PARTS || 1;
  if (!whole) {
    every.clear();
    lines.forEach((line, k) => sparse[k] && addAll(every, line.x, cuts[k]));
    for (let part = 0; part < PARTS; part++) every.add(low + (part + 0.5) * width);
  }
  const x = Array.from(every).sort((a, b) => a - b);
  const places = new Map(x.map((value, place) => [value, place]));
  const found = lines.map((line, k) => {
    const empty = () => new Array(x.length).fill(undefined);
    const result = { low: empty(), high: empty(), mean: empty(), smooth: empty(), shown: 0 };
    if (sparse[k]) points(line, cuts[k], places, positive, result);
    else parts(line, low, width, places, positive, result);
    return result;
  });
  return { x, whole, lines: found };
}

function addAll(every, x, cut) {
  for (let i = cut.begin; i < cut.end; i++) every.add(x[i]);
}

function points(line, cut, places, positive, result) {
  for (let i = cut.begin; i < cut.end; i++) {
    const place = places.get(line.x[i]);
    result.mean[place] = drawable(line.y[i], positive);
    if (line.smooth) result.smooth[place] = drawable(line.smooth[i], positive);
    result.shown += 1;
  }
}

function parts(line, low, width, places, positive, result) {
  let i = placeOf(line.x, low);
  for (let part = 0; part < PARTS; part++) {
    const last = part === PARTS - 1;
    const end = low + (part + 1) * width;
    let [sum, count, smooth, least, most, seen] = [0, 0, 0, Infinity, -Infinity, 0];
    for (; i < line.x.length && (line.x[i] < end || (last && line.x[i] <= end + width / 2)); i++) {
      seen += 1;
      const value = line.y[i];
      if (!Number.isFinite(value)) continue;
      sum += value;
      count += 1;
      if (value < least) least = value;
      if (value > most) most = value;
      if (line.smooth) smooth += line.smooth[i];
    }
    if (!seen) continue;
    const place = places.get(low + (part + 0.5) * width);
    result.mean[place] = count ? drawable(sum / count, positive) : null;
    result.low[place] = count ? drawable(least, positive) : null;
    result.high[place] = count ? drawable(most, positive) : null;
    if (line.smooth) result.smooth[place] = count ? drawable(smooth / count, positive) : null;
    result.shown += 1;
  }
}
