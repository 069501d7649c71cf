"use strict";
// Everything that comes from the pipeline is put in as text, never as markup.

const SECOND = 1e6;
const ENDS = 9.2e18; // where times stand for "never" and "always"
const SPAN = 300 * SECOND; // of a sparkline, once there is so much to show
const POINTS = 100;
const NODE = { width: 212, height: 122 };
const SINK = { width: 128, height: 40 };
const GAP = 92; // between two columns

const $ = (id) => document.getElementById(id);
const live = { view: null, history: [], chosen: null, key: null, interval: null, epoch: null };

function make(namespace) {
  return (tag, attributes, ...children) => {
    const node = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };
}
const h = make(null);
const s = make("http://www.w3.org/2000/svg");

// Figures for people ---------------------------------------------------------------------------------

const number = new Intl.NumberFormat("en-US");
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const count = (value) => (value < 100000 ? number.format(value) : compact.format(value));
const rate = (value) => (value > 0 && value < 10 ? value.toFixed(1) : count(Math.round(value)));

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

function span(seconds) {
  if (seconds < 0) return `${span(-seconds)} ahead`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${(seconds / 3600).toFixed(1)} h`;
  return `${number.format(Math.round(seconds / 86400))} days`;
}

function moment(time) {
  if (time >= ENDS) return "its end";
  if (time <= -ENDS) return "not known yet";
  const date = new Date(time / 1000);
  if (Number.isNaN(date.getTime())) return String(time);
  const text = date.toISOString().replace("T", " ").replace("Z", "");
  return text.slice(0, 10) === new Date().toISOString().slice(0, 10) ? text.slice(11) : text.slice(0, 19);
}

const clock = (time) => new Date(time / 1000).toISOString().slice(11, 19);

/** What stands for a watermark: how far it is behind, or where it is if that is long ago. */
function mark(part) {
  if (part.low_watermark >= ENDS) return "at its end";
  if (part.low_watermark <= -ENDS) return "not known yet";
  return part.lag < 86400 ? span(part.lag) : moment(part.low_watermark).slice(0, 16);
}

function share(value) {
  return `${(value * 100).toFixed(value < 0.1 ? 1 : 0)}%`;
}

// History ---------------------------------------------------------------------------------------------

function sampleOf(view) {
  const computations = {};
  for (const part of view.computations) computations[part.name] = part;
  const streams = {};
  for (const part of view.streams) streams[part.name] = part.records;
  return { time: view.time, records_in: view.records_in, computations, streams };
}

/** The value of something at even moments of the last minutes; null where it is not known. */
function series(value, { perSecond = false } = {}) {
  const end = live.view.time;
  const width = Math.min(SPAN, Math.max(end - live.history[0].time, SPAN / 5));
  const step = width / POINTS;
  const over = Math.max(step, 3 * SECOND); // a rate over less would show the second's beat of the samples
  return Array.from({ length: POINTS + 1 }, (_, i) => {
    const time = end - width + i * step;
    const now = valueAt(value, time);
    if (!perSecond || now === null) return now;
    const before = valueAt(value, time - over);
    return before === null ? null : (Math.max(now - before, 0) / over) * SECOND;
  });
}

/** The value in the newest sample that is not after a time. */
function valueAt(value, time) {
  let low = 0, high = live.history.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (live.history[middle].time <= time) low = middle + 1;
    else high = middle;
  }
  return low ? value(live.history[low - 1], time) : null;
}

const of = (name, field) => (sample) => sample.computations[name] ? sample.computations[name][field] : null;

function lagOf(name) {
  return (sample, time) => {
    const part = sample.computations[name];
    if (!part || Math.abs(part.low_watermark) >= ENDS) return null;
    return (time - part.low_watermark) / SECOND;
  };
}

function worstLag(sample, time) {
  const lags = Object.keys(sample.computations).map((name) => lagOf(name)(sample, time)).filter((lag) => lag !== null);
  return lags.length ? Math.max(...lags) : null;
}

/** Paths of a sparkline in a box; a gap where nothing is known. */
function paths(values, width, height) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (values.length < 2 || known.every((value) => value === 0)) return ["", ""];
  const top = Math.max(...known, 0);
  const bottom = Math.min(...known, 0) < 0 || top === 0 ? Math.min(...known, 0) : 0;
  const y = (value) => height - 1 - ((value - bottom) / (top - bottom || 1)) * (height - 3);
  let line = "";
  let area = "";
  let begun = null;
  const close = (x) => { if (begun !== null) area += `L${x} ${height}L${begun} ${height}Z`; begun = null; };
  values.forEach((value, i) => {
    const x = Math.round((i / (values.length - 1)) * width * 10) / 10;
    if (value === null || !Number.isFinite(value)) { close(Math.round(((i - 1) / (values.length - 1)) * width * 10) / 10); return; }
    const point = `${begun === null ? "M" : "L"}${x} ${y(value).toFixed(1)}`;
    line += point;
    area += point;
    if (begun === null) begun = x;
  });
  close(width);
  return [line, area];
}

class Figure {
  constructor(name) {
    this.value = h("div", { class: "value" }, "–");
    this.note = h("div", { class: "note" });
    this.area = s("path", { class: "area" });
    this.line = s("path", { class: "line" });
    this.node = h("div", { class: "figure" },
      h("div", { class: "name" }, name), this.value, this.note,
      s("svg", { class: "spark", viewBox: "0 0 200 30", preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line));
  }

  show(value, note, values, kind) {
    this.value.textContent = value;
    this.value.className = `value ${kind || ""}`;
    this.note.textContent = note || "";
    const [line, area] = values ? paths(values, 200, 30) : ["", ""];
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }
}

// At a glance -----------------------------------------------------------------------------------------

const glance = {};
for (const [id, name] of [["rate", "Records in, a second"], ["lag", "Furthest behind"], ["epoch", "Epoch, median"], ["keys", "Keys"], ["state", "State"], ["late", "Late records"]]) {
  glance[id] = new Figure(name);
}

function showGlance(view) {
  const sum = (field) => view.computations.reduce((total, part) => total + part[field], 0);
  const all = (field) => (sample) => Object.values(sample.computations).reduce((total, part) => total + (part[field] || 0), 0);
  glance.rate.show(rate(view.rate), `${number.format(view.records_in)} in all`, series((sample) => sample.records_in, { perSecond: true }));
  const behind = view.computations.filter((part) => part.lag !== null).sort((a, b) => b.lag - a.lag)[0];
  const ended = view.computations.length && view.computations.every((part) => part.low_watermark >= ENDS);
  glance.lag.show(behind ? span(behind.lag) : ended ? "at its end" : "–", behind ? behind.name : "", series(worstLag));
  const seconds = view.recent.map((epoch) => epoch.seconds).sort((a, b) => a - b);
  const middle = seconds[seconds.length >> 1];
  glance.epoch.show(seconds.length ? `${Math.round(middle * 1000)} ms` : "–", `${number.format(view.epochs)} epochs`,
    view.recent.map((epoch) => epoch.seconds).slice(-POINTS));
  glance.keys.show(count(sum("rows")), `${count(sum("watermark_timers") + sum("wall_timers"))} timers pending`, series(all("rows")));
  glance.state.show(bytes(sum("bytes")), "", series(all("bytes")));
  const [late, dropped, duplicates, failed] = ["late", "dropped", "duplicates", "failed"].map(sum);
  glance.late.show(count(late), `${count(dropped)} dropped · ${count(duplicates)} duplicate · ${count(failed)} failed`,
    series(all("late"), { perSecond: true }), failed ? "bad" : late ? "warn" : "");
}

// The graph -------------------------------------------------------------------------------------------

const graph = { shape: "", nodes: {}, injectors: {}, edges: [], plan: null, svg: null, scale: 1, asList: null, words: "" };
const LEAST_SCALE = 0.05, MOST_SCALE = 2;
const READABLE = 0.55; // below this scale the texts of a box cannot be read
const SCREENS = 3; // that a graph may be high before a list shows more
const LONG_COLUMN = 14; // boxes that a phone shows one below the other; of more, it shows a list

/** Boxes in columns by their distance from the injectors (rows, where there is no room for columns). */
function layOut(view, width) {
  const boxes = new Map();
  const add = (id, kind, depth, part) => boxes.set(id, { id, kind, depth, part, ...(kind === "sink" ? SINK : NODE) });
  // Boxes of three kinds: their ids begin with the kind, so that no name is taken for another's.
  for (const part of view.injectors) add(`injector ${part.name}`, "injector", 0, part);
  const writers = (stream) => [...stream.injectors.map((name) => `injector ${name}`), ...stream.producers.map((name) => `node ${name}`)];
  const producers = Object.fromEntries(view.streams.map((stream) => [stream.name, writers(stream)]));
  const left = [...view.computations];
  while (left.length) {
    const at = left.findIndex((part) => part.inputs.every((stream) => (producers[stream] || []).every((who) => boxes.has(who))));
    const [part] = left.splice(Math.max(at, 0), 1);
    const senders = part.inputs.flatMap((stream) => producers[stream] || []).filter((who) => boxes.has(who));
    add(`node ${part.name}`, "node", Math.max(0, ...senders.map((who) => boxes.get(who).depth)) + 1, part);
  }
  const links = [];
  for (const stream of view.streams) {
    const from = writers(stream);
    const depth = Math.max(...from.map((who) => boxes.get(who).depth)) + 1;
    const ends = stream.consumers.map((name) => `node ${name}`);
    stream.sinks.forEach((sink, i) => {
      const id = `sink ${i} ${stream.name}`;
      add(id, "sink", depth, { name: sink });
      ends.push(id);
    });
    if (!ends.length && !stream.derived.length && stream.records) {
      const id = `sink - ${stream.name}`;
      add(id, "sink", depth, { name: "read by nobody" });
      ends.push(id);
    }
    for (const who of from) {
      const box = boxes.get(who);
      if (ends.length) box.ports = [...(box.ports || []), stream.name];
      ends.forEach((to, i) => links.push({ from: box, to: boxes.get(to), stream: stream.name, forked: ends.length > 1, first: i === 0 }));
    }
  }
  const columns = [];
  for (const box of boxes.values()) (columns[box.depth] = columns[box.depth] || []).push(box);
  const gap = GAP;
  const wide = columns.reduce((total, column) => total + Math.max(...column.map((box) => box.width)) + gap, -gap) + 2;
  const upright = wide > width && width < 760;
  if (upright) {
    let y = 1;
    for (const box of columns.flat()) {
      if (box.kind !== "sink") box.width = Math.min(NODE.width, width - 4);
      box.x = (width - box.width) / 2;
      box.y = y;
      y += box.height + 44;
    }
    return { boxes, links, width, height: y - 43, upright };
  }
  const tall = Math.max(...columns.map((column) => column.reduce((total, box) => total + box.height + 26, -26)));
  let x = 1;
  columns.forEach((column) => {
    const rank = (box) => {
      const before = links.filter((link) => link.to === box && link.from.y !== undefined).map((link) => link.from.y + link.from.height / 2);
      return before.length ? before.reduce((a, b) => a + b, 0) / before.length : 0;
    };
    const ranks = new Map(column.map((box) => [box, rank(box)]));
    column.sort((a, b) => ranks.get(a) - ranks.get(b));
    let y = 1 + (tall - column.reduce((total, box) => total + box.height + 26, -26)) / 2;
    for (const box of column) {
      box.x = x;
      box.y = y;
      y += box.height + 26;
    }
    x += Math.max(...column.map((box) => box.width)) + gap;
  });
  return { boxes, links, width: x - gap + 1, height: tall + 2, upright };
}

/** The path of a stream, and where its name goes: once, where it forks. */
function curve({ from, to, stream, forked, first }, upright) {
  if (upright) {
    const x = from.x + from.width / 2, end = from.y + from.height;
    if (to.y - end < 60) return [`M${x} ${end}L${x} ${to.y}`, x, (end + to.y) / 2];
    // Past the boxes between, on the right, where there is no room for a name.
    const x1 = from.x + from.width, y1 = from.y + from.height / 2, x2 = to.x + to.width, y2 = to.y + to.height / 2;
    const rail = Math.max(x1, x2) + Math.min(40 + (y2 - y1) / 20, 66);
    return [`M${x1} ${y1}C${rail} ${y1} ${rail} ${y2} ${x2} ${y2}`, null, null];
  }
  const port = (from.ports.indexOf(stream) + 1) / (from.ports.length + 1);
  const x1 = from.x + from.width, y1 = from.y + from.height * port, x2 = to.x, y2 = to.y + to.height / 2;
  const turn = Math.max(x1, x2 - GAP); // past whatever stands between, then to the target
  const bend = (x2 - turn) / 2;
  return [`M${x1} ${y1}L${turn} ${y1}C${turn + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, forked && !first ? null : x1 + GAP / 2, forked || turn > x1 ? y1 : (y1 + y2) / 2];
}

const clip = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function buildGraph(view, width) {
  const plan = layOut(view, width);
  const svg = s("svg", { width: plan.width, height: plan.height, viewBox: `0 0 ${plan.width} ${plan.height}`, role: "group", "aria-label": "The graph of computations" },
    s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0 0L8 4L0 8Z", fill: "context-stroke" }))));
  graph.nodes = {};
  graph.injectors = {};
  graph.edges = [];
  const labels = [];
  for (const link of plan.links) {
    const [path, x, y] = curve(link, plan.upright);
    svg.append(s("path", { class: "edge", d: path, "marker-end": "url(#arrow)" }));
    if (x === null) continue;
    const name = s("text", { class: "stream", x, y: y - 5 }, clip(link.stream, 16));
    const flow = s("text", { class: "stream", x, y: y + 12 });
    labels.push(name, flow);
    graph.edges.push({ stream: link.stream, flow });
  }
  for (const box of plan.boxes.values()) {
    if (box.kind === "sink") {
      svg.append(s("g", { class: "sink" },
        s("rect", { x: box.x, y: box.y, width: box.width, height: box.height, rx: 20 }),
        s("text", { class: "small", x: box.x + box.width / 2, y: box.y + 24, "text-anchor": "middle" }, clip(box.part.name, 18))));
      continue;
    }
    const text = (dy, kind, dx = 14, anchor = "start") => s("text", { class: kind, x: box.x + dx, y: box.y + dy, "text-anchor": anchor });
    const refs = { title: text(24, "title"), level: text(24, "small", box.width - 14, "end"), big: text(48, "big"), flow: text(67, "small"), fault: text(47, "small fault", box.width - 14, "end") };
    refs.area = s("path", { class: "area", transform: `translate(${box.x + 14} ${box.y + 80})` });
    refs.line = s("path", { class: "line", transform: `translate(${box.x + 14} ${box.y + 80})` });
    refs.box = s("rect", { class: "box", x: box.x, y: box.y, width: box.width, height: box.height, rx: 9 });
    refs.width = box.width - 28;
    refs.title.textContent = clip(box.part.name, 19);
    const parts = [refs.box, refs.title, refs.level, refs.big, refs.flow, refs.fault, refs.area, refs.line];
    if (box.kind === "injector") {
      svg.append(s("g", { class: "injector" }, ...parts));
      graph.injectors[box.part.name] = refs;
    } else {
      const name = box.part.name;
      refs.group = s("g", { class: "node", tabindex: 0, role: "button", "data-computation": name, onclick: () => choose(name),
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(name); } } },
      s("title", {}, name), ...parts);
      svg.append(refs.group);
      graph.nodes[name] = refs;
    }
  }
  svg.append(...labels);
  $("graph").replaceChildren(svg);
  graph.plan = plan;
  graph.svg = svg;
  const fits = Math.min(1, width / plan.width);
  const small = plan.upright ? plan.boxes.size > LONG_COLUMN : fits < READABLE || plan.height * fits > SCREENS * innerHeight;
  zoom(fits < 1 && fits >= READABLE ? fits : 1);
  showAs(graph.asList ?? small);
  $("graph-tools").hidden = plan.boxes.size <= 6 && fits === 1;
}

// Zoom, pan, search, and a list where a graph does not fit

function zoom(scale) {
  if (!graph.plan) return;
  const view = $("graph");
  const before = graph.scale;
  graph.scale = Math.min(Math.max(scale, LEAST_SCALE), MOST_SCALE);
  graph.svg.setAttribute("width", graph.plan.width * graph.scale);
  graph.svg.setAttribute("height", graph.plan.height * graph.scale);
  const grown = graph.scale / before; // about the middle of what is seen
  view.scrollLeft = (view.scrollLeft + view.clientWidth / 2) * grown - view.clientWidth / 2;
  view.scrollTop = (view.scrollTop + view.clientHeight / 2) * grown - view.clientHeight / 2;
}

const fitted = () => Math.min($("graph").clientWidth / graph.plan.width, (innerHeight * 0.76) / graph.plan.height, 1);

function showAs(list) {
  $("graph").hidden = list;
  $("graph-list").hidden = !list;
  $("graph-zoom").hidden = list;
  $("graph-as").textContent = list ? "As a graph" : "As a list";
}

function found(name) {
  return graph.words === "" || name.toLowerCase().includes(graph.words);
}

function seek(words) {
  graph.words = words.trim().toLowerCase();
  const names = Object.keys(graph.nodes).filter(found);
  for (const [name, refs] of Object.entries(graph.nodes)) refs.group.classList.toggle("dim", !found(name));
  for (const row of $("graph-list").children) row.hidden = !found(row.dataset.computation);
  $("graph-found").textContent = graph.words ? `${names.length} of ${Object.keys(graph.nodes).length}` : "";
  if (graph.words && names.length && !$("graph").hidden) {
    const box = graph.plan.boxes.get(`node ${names[0]}`), view = $("graph");
    view.scrollLeft = (box.x + box.width / 2) * graph.scale - view.clientWidth / 2;
    view.scrollTop = (box.y + box.height / 2) * graph.scale - view.clientHeight / 2;
  }
}

$("graph-in").addEventListener("click", () => zoom(graph.scale * 1.25));
$("graph-out").addEventListener("click", () => zoom(graph.scale / 1.25));
$("graph-fit").addEventListener("click", () => zoom(fitted()));
$("graph-as").addEventListener("click", () => { graph.asList = !$("graph").hidden; showAs(graph.asList); seek(graph.words); });
$("graph-search").addEventListener("input", (event) => seek(event.target.value));
$("graph").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(graph.scale * Math.exp(-event.deltaY / 300));
}, { passive: false });
$("graph").addEventListener("pointerdown", (event) => {
  if (event.button || event.pointerType !== "mouse" || event.target.closest(".node")) return;
  const view = $("graph"), from = { x: event.clientX + view.scrollLeft, y: event.clientY + view.scrollTop };
  const move = (moved) => { view.scrollLeft = from.x - moved.clientX; view.scrollTop = from.y - moved.clientY; };
  const end = () => { view.classList.remove("grabbed"); removeEventListener("pointermove", move); removeEventListener("pointerup", end); };
  view.classList.add("grabbed");
  addEventListener("pointermove", move);
  addEventListener("pointerup", end);
});

function showList(view) {
  const rows = view.computations.map((part) => {
    const fault = part.failed ? `${count(part.failed)} failed` : part.dropped ? `${count(part.dropped)} dropped` : "";
    return h("button", { type: "button", class: `entry${part.name === live.chosen ? " chosen" : ""}`, "data-computation": part.name, onclick: () => choose(part.name) },
      h("b", {}, part.name), h("span", {}, mark(part)), h("span", { class: "muted" }, `${rate(part.rate_in)}/s in`),
      h("span", { class: part.failed ? "bad" : "warn" }, fault));
  });
  $("graph-list").replaceChildren(...rows);
  for (const row of rows) row.hidden = !found(row.dataset.computation);
}

/** Says why nothing happens, where nothing has. */
function showWaiting(view) {
  const reasons = view.records_in ? [] : view.injectors.filter((part) => part.why && part.holder === null).map((part) => `${part.stream}: ${part.why}`);
  const text = view.records_in ? "" : view.injectors.length ? "No record has come yet." : "No epoch has run yet.";
  $("waiting").hidden = text === "";
  $("waiting").replaceChildren(h("b", {}, text), ...reasons.map((reason) => h("div", {}, reason)));
}

function showMark(node, part) {
  node.textContent = mark(part);
  node.classList.toggle("long", node.textContent.length > 14);
}

function showGraph(view) {
  showWaiting(view);
  showList(view);
  const width = Math.floor($("graph").parentElement.clientWidth);
  const shape = JSON.stringify([width, view.injectors.map((part) => part.name), view.computations.map((part) => [part.name, part.inputs, part.outputs]),
    view.streams.map((part) => [part.name, part.sinks, part.records > 0])]);
  if (shape !== graph.shape) {
    graph.shape = shape;
    buildGraph(view, width);
  }
  const draw = (refs, values) => {
    const [line, area] = paths(values, refs.width, 30);
    refs.line.setAttribute("d", line);
    refs.area.setAttribute("d", area);
  };
  for (const part of view.computations) {
    const refs = graph.nodes[part.name];
    refs.level.textContent = `level ${part.level}`;
    showMark(refs.big, part);
    refs.flow.textContent = `${rate(part.rate_in)}/s in, ${rate(part.rate_out)}/s out`;
    refs.fault.textContent = part.failed ? `${count(part.failed)} failed` : part.dropped ? `${count(part.dropped)} dropped` : "";
    refs.fault.classList.toggle("failed", part.failed > 0);
    refs.group.classList.toggle("chosen", part.name === live.chosen);
    refs.group.setAttribute("aria-label", `${part.name}: low watermark ${mark(part)}, ${rate(part.rate_in)} records a second`);
    draw(refs, series(of(part.name, "records"), { perSecond: true }));
  }
  const streams = Object.fromEntries(view.streams.map((stream) => [stream.name, stream]));
  for (const part of view.injectors) {
    const refs = graph.injectors[part.name];
    refs.level.textContent = "injector";
    showMark(refs.big, part);
    refs.flow.textContent = `${count(part.partition_count)} partition${part.partition_count === 1 ? "" : "s"}`;
    draw(refs, series((sample) => (sample.streams[part.stream] ?? null), { perSecond: true }));
  }
  for (const edge of graph.edges) edge.flow.textContent = `${rate(streams[edge.stream].rate)}/s`;
}

// One computation -------------------------------------------------------------------------------------

const detail = {};

function choose(name) {
  live.chosen = live.chosen === name ? null : name;
  location.hash = live.chosen ? encodeURIComponent(live.chosen) : "";
  $("detail").hidden = !live.chosen;
  $("why").replaceChildren();
  if (live.chosen) {
    $("search-computation").value = name;
    $("detail").scrollIntoView({ block: "nearest" });
    why();
  }
  if (live.view) show();
}

const FIGURES = [
  ["lag", "Behind real time"], ["rate_in", "In, a second"], ["rate_out", "Out, a second"],
  ["pending", "Timers pending"], ["holds", "Holds"], ["waiting", "Waiting"], ["rows", "Keys"], ["bytes", "State"],
];
for (const [id, name] of FIGURES) detail[id] = new Figure(name);

function showDetail(view) {
  const part = view.computations.find((each) => each.name === live.chosen);
  if (!part) { $("detail").hidden = true; return; }
  const name = part.name;
  $("detail").hidden = false;
  $("detail-name").textContent = name;
  $("detail-mark").textContent = `Low watermark ${moment(part.low_watermark)}, input ${moment(part.input_watermark)} · reads ${part.inputs.join(", ") || "nothing"} · writes ${part.outputs.join(", ") || "nothing"}`;
  const grows = (field) => series(of(name, field), { perSecond: true });
  detail.lag.show(mark(part), "", series(lagOf(name)));
  detail.rate_in.show(rate(part.rate_in), `${number.format(part.records)} in all`, grows("records"));
  detail.rate_out.show(rate(part.rate_out), `${number.format(part.produced)} in all`, grows("produced"));
  for (const { name: field, kind, sampled } of view.trouble) {
    if (!sampled) continue;
    if (!detail[field]) {
      detail[field] = new Figure(field[0].toUpperCase() + field.slice(1));
      detail.pending.node.before(detail[field].node);
    }
    detail[field].show(count(part[field]), "", grows(field), part[field] ? kind : "");
  }
  detail.pending.show(count(part.watermark_timers + part.wall_timers), `${count(part.watermark_timers)} watermark, ${count(part.wall_timers)} wall`,
    series((sample) => (sample.computations[name] ? sample.computations[name].watermark_timers + sample.computations[name].wall_timers : null)));
  detail.holds.show(count(part.holds), "", series(of(name, "holds")));
  detail.waiting.show(count(part.waiting), "records for the watermark", series(of(name, "waiting")));
  detail.rows.show(count(part.rows), "", series(of(name, "rows")));
  detail.bytes.show(bytes(part.bytes), "", series(of(name, "bytes")));
}

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

async function why() {
  const name = live.chosen;
  try {
    const found = await ask("api/explain", { computation: name });
    if (name !== live.chosen) return;
    const form = found.form ? [h("li", {}, h("b", {}, name), `: ${found.form}`)] : [];
    $("why").replaceChildren(...found.steps.map((step) => {
      const who = step.kind === "injector" ? `injector ${step.who}` : step.who;
      return h("li", {}, h("b", {}, who), ` stands at ${moment(step.low_watermark)}: ${step.text}`, " ",
        step.key === null ? null : h("button", { class: "link", type: "button", onclick: () => find(step.who, step.key) }, "Show this key"));
    }), ...form);
  } catch (error) {
    if (name === live.chosen) $("why").replaceChildren(h("li", {}, error.message));
  }
}

// One key ---------------------------------------------------------------------------------------------

function find(computation, key) {
  $("search-computation").value = computation;
  $("search-key").value = key;
  live.key = { computation, key, seen: [], last: null };
  $("key").replaceChildren();
  lookUp();
  $("search").scrollIntoView({ block: "nearest" });
}

async function lookUp() {
  const wanted = live.key;
  let found;
  try {
    found = await ask("api/key", { computation: wanted.computation, key: wanted.key });
  } catch (error) {
    found = { error: error.message };
  }
  if (wanted !== live.key) return;
  const text = JSON.stringify(found);
  if (text === wanted.last) return;
  if (wanted.last !== null) wanted.seen = [{ time: live.view.time, text: summary(found) }, ...wanted.seen].slice(0, 20);
  wanted.last = text;
  showKey(found, wanted);
}

const summary = (found) => (found.error ? found.error : found.found ? clip(JSON.stringify(found.state) ?? "no state", 200) : "no row");

function times(title, entries, describe) {
  return h("div", {}, h("h3", {}, title), entries.length
    ? h("table", {}, ...entries.map((entry) => h("tr", {}, h("td", { class: "left mono" }, clip(entry.tag || "(no tag)", 60)), h("td", {}, describe(entry)))))
    : h("p", { class: "muted" }, "None."));
}

function showKey(found, wanted) {
  $("key").hidden = false;
  const name = h("div", {}, h("span", { class: "name", id: "key-name" }, wanted.key === "" ? "(the empty key)" : wanted.key),
    h("span", { class: "muted" }, ` in ${wanted.computation}`));
  if (found.error || !found.found) {
    $("key").replaceChildren(name, h("p", { class: "muted" }, found.error || "No row: the key has no state, no timer and no hold."));
  } else {
    const state = found.codec === null ? h("p", { class: "muted" }, "No state.") : h("pre", { id: "key-state" }, JSON.stringify(found.state, null, 2));
    $("key").replaceChildren(name,
      h("p", { class: "muted" }, `Tablet ${found.tablet}, shard ${found.shard}${found.codec ? `; ${bytes(found.bytes)} of ${found.codec}` : ""}`), state,
      h("div", { class: "pair" }, times("Timers", found.timers, (timer) => `${moment(timer.time)} (${timer.clock})`), times("Holds", found.holds, (hold) => moment(hold.time))));
  }
  if (wanted.seen.length) {
    $("key").append(h("h3", {}, "Changes since you looked"), h("table", { class: "changes" }, ...wanted.seen.map((each) =>
      h("tr", {}, h("td", { class: "left" }, clock(each.time)), h("td", { class: "left mono clip" }, each.text)))));
  }
}

// Intervals and epochs --------------------------------------------------------------------------------

const strips = { shape: "", cells: [] };

function showIntervals(view) {
  const shape = JSON.stringify(view.intervals.map((part) => [part.level, part.first, part.last]));
  if (shape !== strips.shape) {
    strips.shape = shape;
    strips.cells = [];
    const rows = new Map();
    view.intervals.forEach((part, index) => {
      if (!rows.has(part.level)) rows.set(part.level, h("div", { class: "cells" }));
      const pick = () => { live.interval = index; showIntervals(live.view); };
      const cell = h("button", { class: "cell", type: "button", onclick: pick, onmouseenter: pick, onfocus: pick });
      cell.style.flexGrow = part.last - part.first;
      rows.get(part.level).append(cell);
      strips.cells.push(cell);
    });
    $("intervals").replaceChildren(...[...rows].map(([level, cells]) => h("div", { class: "strip" }, h("span", {}, `Level ${level}`), cells)));
    live.interval = null;
  }
  const busiest = view.intervals.reduce((best, part, index) => (best === null || part.busy > view.intervals[best].busy ? index : best), null);
  view.intervals.forEach((part, index) => {
    const cell = strips.cells[index];
    cell.style.setProperty("--busy", Math.sqrt(Math.min(part.busy, 1)).toFixed(3)); // what is little is seen, too
    cell.textContent = part.hot_key ?? "";
    cell.setAttribute("aria-label", `tablets ${part.first} to ${part.last - 1}, busy ${share(part.busy)}`);
    cell.classList.toggle("chosen", index === live.interval);
  });
  $("changes").replaceChildren(...view.changes.slice(-5).reverse().map((each) =>
    h("li", {}, `${clock(each.time)}, level ${each.level}: ${each.before.length} intervals became ${each.after.length}. ${each.why}.`)));
  const at = live.interval ?? busiest;
  if (at === null) { $("interval").textContent = "No epoch has been noted yet."; return; }
  const part = view.intervals[at];
  const caption = [`${live.interval === null ? "Busiest: level" : "Level"} ${part.level}, tablets ${part.first} to ${part.last - 1}, shard ${part.shard}: ` +
    `busy ${share(part.busy)}, ${rate(part.records_per_second)} records/s, ${count(part.rows)} keys, ${bytes(part.bytes)}.`];
  if (part.hot_key !== null) {
    caption.push(` Hot key in ${part.hot_computation}, ${share(part.hot_share)} of the records: `,
      h("button", { class: "link mono", type: "button", id: "hot-key", onclick: () => find(part.hot_computation, part.hot_key) }, clip(part.hot_key, 80)));
  }
  $("interval").replaceChildren(...caption);
}

function phaseClass(name) {
  const fixed = { journal: 0, inject: 8, carry: 5, deliver: 6, commit: 7 };
  return name in fixed ? `p${fixed[name]}` : `p${1 + ((parseInt(name.slice(6), 10) - 1) % 4)}`;
}

function showEpochs(view) {
  const epochs = view.recent.slice(-90);
  const names = [...new Set(epochs.flatMap((epoch) => Object.keys(epoch.phases)))];
  names.sort((a, b) => phaseClass(a).localeCompare(phaseClass(b)));
  $("legend").replaceChildren(...names.map((name) => h("span", {}, h("i", { class: phaseClass(name) }), name)));
  if (!epochs.length) { $("epochs").replaceChildren(); $("epoch").textContent = "No epoch has been noted yet."; return; }
  const width = Math.max($("epochs").clientWidth, 200), height = 170, base = height - 18, left = 46;
  const top = Math.max(...epochs.map((epoch) => epoch.seconds));
  const unit = 10 ** Math.floor(Math.log10(top));
  const limit = [1, 2, 5, 10].map((times) => times * unit).find((each) => each >= top * 0.999);
  const y = (seconds) => base - (seconds / limit) * (base - 8);
  const slot = (width - left) / Math.max(epochs.length, 30);
  const bar = Math.max(slot - (slot > 5 ? 2 : 0.5), 1);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Epochs by duration" });
  for (const part of [0, 0.5, 1]) {
    svg.append(s("line", { class: "grid", x1: left, x2: width, y1: y(limit * part), y2: y(limit * part) }),
      s("text", { x: left - 8, y: y(limit * part) + 4, "text-anchor": "end" }, limit < 1 ? `${+(limit * part * 1000).toFixed(1)} ms` : `${+(limit * part).toFixed(2)} s`));
  }
  epochs.forEach((epoch, i) => {
    const x = width - (epochs.length - i) * slot;
    let from = 0;
    for (const name of names) {
      const seconds = epoch.phases[name] || 0;
      const tall = (seconds / limit) * (base - 8);
      if (tall > 0.05) svg.append(s("rect", { class: phaseClass(name), x, y: base - from - tall, width: bar, height: tall }));
      from += tall;
    }
    svg.append(s("rect", { class: "hit", x, y: 0, width: slot, height: base, onmouseenter: () => { live.epoch = epoch.epoch; caption(view); }, onmouseleave: () => { live.epoch = null; } }));
  });
  const first = epochs[0], last = epochs[epochs.length - 1];
  svg.append(s("text", { x: width - epochs.length * slot, y: height - 2 }, clock(first.began)),
    s("text", { x: width, y: height - 2, "text-anchor": "end" }, clock(last.began)));
  $("epochs").replaceChildren(svg);
  caption(view);
}

function caption(view) {
  const epoch = view.recent.find((each) => each.epoch === live.epoch) || view.recent[view.recent.length - 1];
  if (!epoch) return;
  const parts = Object.entries(epoch.phases).filter(([, seconds]) => seconds >= 0.0005).map(([name, seconds]) => `${name} ${(seconds * 1000).toFixed(0)} ms`);
  $("epoch").replaceChildren(`Epoch ${number.format(epoch.epoch)} at ${moment(epoch.began)}: ${number.format(epoch.records)} records in ${(epoch.seconds * 1000).toFixed(0)} ms` +
    `${epoch.compact ? ", in one task" : ""} (${parts.join(", ")})`, ...sparkJob(view, epoch));
}

/** A link to the Spark job that ran an epoch. */
function sparkJob(view, epoch) {
  if (typeof epoch.job !== "number" || !view.spark || !/^https?:/.test(view.spark)) return [];
  return [" · ", h("a", { href: `${view.spark}/jobs/job/?id=${epoch.job}`, target: "_blank", rel: "noopener noreferrer" }, `Spark job ${epoch.job}`)];
}

// Tables ----------------------------------------------------------------------------------------------

function fill(id, head, rows) {
  $(id).replaceChildren(
    h("thead", {}, h("tr", {}, ...head.map((name, i) => h("th", { class: i ? "" : "left" }, name)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) =>
      cell && cell.text !== undefined ? h("td", { class: cell.kind, title: cell.title }, cell.text) : h("td", { class: i ? "" : "left" }, cell))))));
}

function showTables(view) {
  const stayed = (part) => part.steps_stayed + part.steps_moved ? share(part.steps_stayed / (part.steps_stayed + part.steps_moved)) : "";
  const placed = view.computations.some((part) => part.steps_stayed + part.steps_moved);
  const some = (value, kind) => ({ text: count(value), kind: value ? kind : "zero" });
  fill("computations",
    ["", "low watermark", "behind", "records", "in/s", "produced", "out/s", ...view.trouble.map((each) => each.name), ...(placed ? ["stayed"] : []), "timers", "holds", "waiting", "keys", "state"],
    view.computations.map((part) => [part.name, moment(part.low_watermark), part.lag === null ? "" : span(part.lag), count(part.records), rate(part.rate_in),
      count(part.produced), rate(part.rate_out), ...view.trouble.map((each) => some(part[each.name], each.kind)), ...(placed ? [stayed(part)] : []),
      some(part.watermark_timers + part.wall_timers, ""), some(part.holds, ""), some(part.waiting, ""), count(part.rows), bytes(part.bytes)]));
  const rows = [];
  for (const part of view.injectors) {
    rows.push([part.name, moment(part.low_watermark), part.lag === null ? "" : span(part.lag), count(part.partition_count),
      { text: part.holder === null ? "" : `partition ${part.holder} ${part.why}`, kind: "clip", title: part.holder || "" }]);
    const slowest = part.partition_count > 1 ? part.partitions.slice(0, 8) : [];
    for (const each of slowest) {
      rows.push([{ text: `partition ${clip(each.name, 60)}`, kind: "left part", title: each.name }, moment(each.watermark), "", "",
        { text: `read to ${clip(JSON.stringify(each.offset), 40)}, newest ${moment(each.newest)}`, kind: "part" }]);
    }
    if (part.partition_count > 8) rows.push([{ text: `and ${count(part.partition_count - 8)} more`, kind: "left part" }, "", "", "", ""]);
  }
  fill("injectors", ["", "low watermark", "behind", "partitions", "held by"], rows);
  const user = Object.entries(view.user).sort();
  $("user-card").hidden = !user.length;
  fill("user", ["", ""], user.map(([name, value]) => [name, number.format(value)]));
}

function showComputations(view) {
  const select = $("search-computation");
  const names = view.computations.map((part) => part.name);
  if (JSON.stringify([...select.options].map((option) => option.value)) === JSON.stringify(names)) return;
  const before = select.value;
  select.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
  if (names.includes(before)) select.value = before;
}

// Live ------------------------------------------------------------------------------------------------

function show() {
  const view = live.view;
  document.title = `${view.pipeline} · millwheel`;
  $("pipeline").textContent = view.pipeline;
  const standbys = (view.standbys || []).map((one) => one.owner).join(", ");
  $("owner").textContent = (view.running === false ? `last run by ${view.owner}` : view.owner)
    + (standbys ? `; standby: ${standbys}` : "");
  $("spark").hidden = !view.spark;
  if (view.spark && /^https?:/.test(view.spark)) $("spark").href = `${view.spark}/jobs/`;
  showComputations(view);
  showSlow(view);
  showGlance(view);
  showGraph(view);
  if (live.chosen) showDetail(view);
  showIntervals(view);
  showEpochs(view);
  showTables(view);
}

function showSlow(view) {
  const notes = view.slow || [];
  const warnings = view.warnings || [];
  $("warnings").hidden = !warnings.length;
  $("warnings").replaceChildren(...warnings.slice(0, 8).map((text) => h("p", {}, `Warning: ${text}`)));
  $("slow").hidden = !notes.length;
  $("slow").replaceChildren(...notes.slice(0, 5).map((note) => {
    const place = note.computation === null ? note.what : `${note.hook} of ${note.computation}, key ${clip(note.key, 80)}`;
    return h("p", { title: note.hand || "" }, `Slow: ${place}, for ${span(view.time / 1e6 - note.since)}`);
  }));
}

function status(text, kind) {
  $("state").textContent = text;
  $("state").className = `pill ${kind}`;
}

function listen() {
  const events = new EventSource("api/events");
  let beats = 0;
  events.onopen = () => { beats = 0; };
  events.onmessage = (event) => {
    const message = JSON.parse(event.data);
    live.view = message.view;
    if (beats === 0) live.history = message.history;
    live.history.push(sampleOf(message.view));
    while (live.history.length > 2 && live.history[1].time < message.view.time - 2 * SPAN) live.history.shift();
    beats += 1;
    if (message.view.running === false) status("stopped", "");
    else status("live", "live");
    document.documentElement.dataset.beats = beats;
    show();
    if (live.chosen && beats % 3 === 0) why();
    if (live.key && beats % 2 === 0) lookUp();
  };
  events.onerror = () => {
    status("no connection", "lost");
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

$("figures").append(...Object.values(glance).map((figure) => figure.node));
$("detail-figures").append(...Object.values(detail).map((figure) => figure.node));
$("detail-close").addEventListener("click", () => choose(live.chosen));
$("search").addEventListener("submit", (event) => { event.preventDefault(); find($("search-computation").value, $("search-key").value); });
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});
addEventListener("resize", () => { if (live.view) show(); });
if (location.hash) choose(decodeURIComponent(location.hash.slice(1)));
listen();
