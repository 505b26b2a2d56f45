// The page of a job: reads the stream of events, and shows the newest view.

import uPlot from "./uplot.js";
import { PHASES, Strip } from "./strip.js";

const token = location.hash.slice(1);
const $ = (id) => document.getElementById(id);
const ROW = 28;
const MOST_COLUMNS = 300;
const RETRY_MS = 2000;
const GOOD = ["healthy", "compute"];
const NAMES = {
  compute: "compute", backward: "backward pass", optimizer: "optimizer", input: "input",
  network: "network", wait: "waits for others", stopped: "stopped",
};

const state = { columns: [], shares: [], view: null, chosen: 0, reached: 0 };
const strip = new Strip($("strip"), $("strip-note"));

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function makeLegend() {
  for (const name of [...PHASES, "stopped"]) {
    const item = element("li", "");
    const swatch = element("i", "");
    swatch.style.background = `var(--${name})`;
    item.append(swatch, NAMES[name]);
    $("legend").append(item);
  }
}

function get(path, options = {}) {
  return fetch(path, { ...options, headers: { Authorization: `Bearer ${token}` } });
}

// ---- the stream

async function follow() {
  const answer = await get("stream");
  if (answer.status === 401) {
    $("job").textContent = "";
    $("verdicts").replaceChildren(element("h1", "The address lacks the token of the job: use the whole line that horovodrun printed.", { class: "bad" }));
    return false;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return true;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    events.forEach(take);
  }
}

function take(event) {
  const [first, second] = event.split("\n");
  const data = JSON.parse(second.slice("data: ".length));
  if (first === "event: past") {
    state.shares = data.shares;
    state.columns = data.columns;
  } else {
    const last = state.columns[state.columns.length - 1];
    if (last && last.ranks.length !== data.column.ranks.length) state.columns = [];
    if (!last || last.at !== data.column.at) state.columns.push(data.column);
    state.columns = state.columns.slice(-MOST_COLUMNS);
    state.view = data;
    requestAnimationFrame(draw);
  }
}

async function run() {
  makeLegend();
  for (;;) {
    let goesOn = true;
    try {
      goesOn = await follow();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;  // not the network's fault
    }
    if (!goesOn || state.view?.ended) return;
    $("job").textContent = "The connection is lost; trying again …";
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// ---- the view

function draw() {
  const view = state.view;
  document.body.dataset.number = view.number;
  const change = view.generation ? `, generation ${view.generation}` : "";
  const end = view.ended ? ` · ended: ${view.ended}` : "";
  $("job").textContent = `Job ${view.job}: ${view.ranks.length} ranks${change} run ${view.command}${end}`;
  drawVerdicts(view.verdicts);
  strip.show(state.columns, state.shares);
  drawRows();
  drawEvents(view.events);
  drawPlots();
}

function drawVerdicts(verdicts) {
  const parts = [];
  verdicts.forEach((verdict, index) => {
    const kind = GOOD.includes(verdict.kind) ? "good" : verdict.kind === "unknown" ? "" : "bad";
    parts.push(element(index ? "p" : "h1", verdict.text, { class: index ? "more" : kind }));
    if (verdict.advice) parts.push(element("p", `What to do: ${verdict.advice}`, { class: "advice" }));
  });
  const words = parts.map((part) => part.textContent).join("\n");
  if ($("verdicts").dataset.words === words) return;  // screen readers read what changes
  $("verdicts").dataset.words = words;
  $("verdicts").replaceChildren(...parts);
  document.title = `${verdicts[0].text.split(":")[0]} – Horovod`;
}

const percent = (share) => `${Math.round(100 * share)} %`;

function rowOf(rank, blamed) {
  // One row is reached by Tab, the others by arrow keys: there may be a thousand.
  const row = element("tr", "", { tabindex: rank.rank === state.reached ? "0" : "-1", "data-rank": rank.rank });
  if (blamed) row.classList.add("blamed");
  if (rank.rank === state.chosen) row.classList.add("chosen");
  const known = rank.length_s > 0;
  const works = rank.compute + rank.backward + rank.optimizer;
  const shares = [works, rank.input, rank.wait, rank.network].map((share) => (known ? percent(share) : ""));
  const step = rank.step_s ? `${(1000 * rank.step_s).toFixed(rank.step_s < 0.1 ? 1 : 0)} ms` : "";
  const gpu = rank.gpu_total_bytes ? ` · GPU ${percent(rank.gpu_busy)}, ${Math.round(rank.gpu_memory_bytes / 2 ** 20)} MiB` : "";
  const memory = known ? `${Math.round(rank.memory_bytes / 2 ** 20)} MiB${gpu}` : "";
  for (const text of [rank.rank, rank.host, rank.state, ...shares, step, memory, rank.said]) {
    row.append(element("td", text));
  }
  return row;
}

// Of many ranks, only those in sight have rows.
function drawRows() {
  const { ranks, verdicts } = state.view;
  const blamed = new Set(verdicts.map((verdict) => verdict.rank));
  const box = $("table");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 5);
  const number = Math.min(ranks.length - first, 40);
  const focused = document.activeElement?.dataset?.rank;
  const rows = ranks.slice(first, first + number).map((rank) => rowOf(rank, blamed.has(rank.rank)));
  const spacer = (count) => {
    const row = element("tr", "", { class: "spacer", "aria-hidden": "true" });
    const cell = element("td", "", { colspan: "10" });
    cell.style.height = `${count * ROW}px`;
    row.append(cell);
    return row;
  };
  const after = ranks.length - first - number;
  $("rows").replaceChildren(...(first ? [spacer(first)] : []), ...rows, ...(after ? [spacer(after)] : []));
  if (focused !== undefined) $("rows").querySelector(`[data-rank="${focused}"]`)?.focus({ preventScroll: true });
}

function drawEvents(events) {
  const items = events.slice(-50).reverse().map((event) => {
    const at = new Date(1000 * event.at);
    const item = element("li", "");
    item.append(element("time", at.toLocaleTimeString(), { datetime: at.toISOString() }));
    item.append(event.rank >= 0 && event.kind === "warning" ? `rank ${event.rank}: ${event.text}` : event.text);
    return item;
  });
  $("events").replaceChildren(...(items.length ? items : [element("li", "Nothing yet.")]));
}

// ---- plots

const plots = {};

function drawPlot(id, series, unit, missing) {
  const box = $(id);
  const names = Object.keys(series);
  const shown = names.filter((name) => series[name].some((value) => value !== null));
  if (!shown.length) {
    box.textContent = missing;
    plots[id] = null;
    return;
  }
  const data = [state.columns.map((column) => column.at), ...shown.map((name) => series[name])];
  const key = shown.join("\n") + matchMedia("(prefers-color-scheme: dark)").matches;
  if (plots[id]?.key === key) {
    plots[id].plot.setData(data);
    describePlot(box, series, shown, unit);
    return;
  }
  box.replaceChildren();
  const style = getComputedStyle(box);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const palette = ["accent", "input", "network", "optimizer", "compute", "backward"].map(color);
  const axis = { stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line") } };
  const clock = (_, times) => times.map((at) => new Date(1000 * at).toLocaleTimeString([], { hour12: false }));
  const lines = shown.map((name, index) => ({
    label: name, stroke: palette[index % palette.length], width: 1.5,
    value: (_, value) => (value == null ? "" : `${Number(value.toPrecision(4))}${unit}`),
  }));
  const options = {
    width: box.clientWidth, height: 190, series: [{ label: "time", value: (plot, at) => (at == null ? "" : clock(plot, [at])[0]) }, ...lines],
    axes: [{ ...axis, values: clock, space: 90 }, { ...axis, size: 62 }], cursor: { drag: { x: false, y: false } },
  };
  plots[id] = { key, plot: new uPlot(options, data, box) };
  describePlot(box, series, shown, unit);
}

// What screen readers say of a plot: its newest values.
function describePlot(box, series, shown, unit) {
  const values = shown.map((name) => {
    const known = series[name].filter((value) => value !== null);
    return `${name} ${Number(known[known.length - 1].toPrecision(4))}${unit}`;
  });
  const canvas = box.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Plot over time. Now: ${values.join(", ")}.`);
}

function drawPlots() {
  const columns = state.columns;
  const of = (name) => columns.map((column) => column[name]);
  drawPlot("plot-step", { "median rank": of("step"), "fastest rank": of("least"), "longest step": of("most") }, " ms", "Nobody counts steps in this program: call hvd.step() at the end of each step.");
  const net = { "busiest host": of("mbit") };
  if (columns.some((column) => column.link > 0)) net["measured link"] = of("link");
  drawPlot("plot-net", net, " Mbit/s", "");
  const memory = { "largest rank": of("memory") };
  if (columns.some((column) => column.gpu !== null)) memory["fullest GPU"] = of("gpu");
  drawPlot("plot-memory", memory, " MiB", "");
  const names = [...new Set(columns.flatMap((column) => Object.keys(column.logged)))];
  const logged = Object.fromEntries(names.map((name) => [name, columns.map((column) => column.logged[name] ?? null)]));
  drawPlot("plot-logged", logged, "", names.length ? "" : "Nothing is logged: call hvd.log(loss=…) in the training loop.");
  const broken = Object.entries(state.view.logged).filter(([, value]) => value === null).map(([name]) => name);
  $("logged-note").textContent = broken.length ? `NaN or infinite: ${broken.join(", ")}` : "";
}

new ResizeObserver(() => {
  for (const [id, drawn] of Object.entries(plots)) {
    drawn?.plot.setSize({ width: $(id).clientWidth, height: 190 });
  }
}).observe(document.querySelector("main"));

// ---- one rank, and questions

async function showOutput() {
  const answer = await get(`output/${state.chosen}`);
  if (!answer.ok) return;
  const box = $("output");
  const follows = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  box.textContent = (await answer.json()).text || "(nothing)";
  if (follows) box.scrollTop = box.scrollHeight;
}

function choose(rank) {
  if (Number.isNaN(rank) || rank < 0) return;
  state.chosen = state.reached = rank;
  $("output-rank").value = rank;
  strip.choose(rank);
  if (state.view) drawRows();
  showOutput().catch(() => {});
}

$("rows").addEventListener("click", (event) => {
  const row = event.target.closest("[data-rank]");
  if (row) choose(Number(row.dataset.rank));
});
$("rows").addEventListener("keydown", (event) => {
  if (!event.target.dataset.rank) return;
  const rank = Number(event.target.dataset.rank);
  if (event.key === "Enter") choose(rank);
  else if (event.key === "ArrowDown") reach(rank + 1, event);
  else if (event.key === "ArrowUp") reach(rank - 1, event);
});

function reach(rank, event) {
  event.preventDefault();
  if (rank < 0 || rank >= state.view.ranks.length) return;
  state.reached = rank;
  const box = $("table");
  const top = rank * ROW;  // below the head, which is one row high
  box.scrollTop = Math.min(Math.max(box.scrollTop, top + 2 * ROW - box.clientHeight), top);
  drawRows();
  $("rows").querySelector(`[data-rank="${rank}"]`)?.focus({ preventScroll: true });
}
$("table").addEventListener("scroll", () => state.view && drawRows());
$("output-rank").addEventListener("change", (event) => choose(event.target.valueAsNumber));
setInterval(() => {
  if (state.view && !state.view.ended && !document.hidden) showOutput().catch(() => {});
}, 2000);

async function ask(button, path, waiting, show) {
  button.disabled = true;
  $("answer-note").textContent = waiting;
  try {
    const answer = await get(path, { method: "POST" });
    if (answer.ok) await show(answer);
    else $("answer-note").textContent = (await answer.json()).problem;
  } catch {
    $("answer-note").textContent = "No answer: has the job ended?";
  }
  button.disabled = false;
}

// Ranks with the same stack are told once.
function grouped(stacks) {
  const ranksOf = new Map();
  for (const [rank, text] of Object.entries(stacks)) {
    ranksOf.set(text, [...(ranksOf.get(text) ?? []), rank]);
  }
  return [...ranksOf].map(([text, ranks]) => `rank${ranks.length > 1 ? "s" : ""} ${ranks.join(", ")}\n${text}`).join("\n\n");
}

$("ask-stacks").addEventListener("click", (event) => ask(event.target, "stacks", "Asking all ranks …", async (answer) => {
  $("answer").hidden = false;
  $("answer").textContent = grouped((await answer.json()).ranks);
  $("answer-note").textContent = "The innermost line comes first.";
}));

$("ask-trace").addEventListener("click", (event) => ask(event.target, "trace", "Recording 10 steps …", async (answer) => {
  const link = element("a", "", { download: "trace.json" });
  link.href = URL.createObjectURL(await answer.blob());
  link.click();
  URL.revokeObjectURL(link.href);
  $("answer-note").textContent = "Saved as trace.json: open it at https://ui.perfetto.dev.";
}));

run();
