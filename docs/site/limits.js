// The page "What limits my step": reads the sliders, simulates the step, and says what limits it.
import { COSTS, simulate } from "./cost_model.js";

const FUSION_BYTES = 64 * 1024 * 1024;
const NEGOTIATION = 1e-6; // of the coordinator, for each rank and batch
const MEMORY_RATE = 8e10;
const MODEL_BATCH = 64; // of the times in the models
const LINKS = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 40, 100, 200, 400, 800]; // Gbit/s
const NEGLIGIBLE = 0.02; // of a step

// What a job needs: `change` replaces some of it.
export function stepOf(models, job, change = {}) {
  const wanted = { ...job, ...change };
  const known = models[wanted.model];
  const scale = wanted.batch / MODEL_BATCH / wanted.device;
  const model = { ...known, forward: known.forward * scale, backward: known.backward * scale };
  const costs = { ...COSTS, memoryRate: MEMORY_RATE, linkRate: wanted.link * 1e9 / 8, ...wanted.costs };
  const ranks = wanted.hosts * wanted.ranksPerHost;
  const cluster = { ranks, ranksPerHost: wanted.ranksPerHost, negotiation: NEGOTIATION, costs };
  const found = simulate(model, cluster, FUSION_BYTES, wanted.bytesPerElement ?? 4);
  return { ...found, alone: model.forward + model.backward, forward: model.forward, rate: ranks * wanted.batch / found.step };
}

// Each cause that a step may have beside the device, and the job without it.
const CAUSES = {
  "the link between hosts": { costs: { linkRate: Infinity } },
  "the latency between hosts": { costs: { networkLatency: 0 } },
  "the memory of the hosts": { costs: { memoryRate: Infinity } },
  "the core of a rank that moves and adds the data": { costs: { reduceRate: Infinity, frame: 0, networkFrame: 0, networkByte: 0 } },
};

// What limits a step: the device if communication is hidden, else the cause without which the step is shortest.
export function verdictOf(models, job) {
  const now = stepOf(models, job);
  const exposed = 1 - now.alone / now.step;
  if (exposed < NEGLIGIBLE) return { cause: "the device", exposed, gain: 0 };
  const gains = Object.entries(CAUSES).map(([cause, change]) => [cause, 1 - stepOf(models, job, change).step / now.step]);
  const [cause, gain] = gains.reduce((best, each) => (each[1] > best[1] ? each : best));
  return { cause, exposed, gain };
}

// What could be changed, and the job after it.
export function changesOf(job) {
  return [
    ["nothing", {}],
    ["twice the batch", { batch: 2 * job.batch }],
    ["twice the hosts", { hosts: 2 * job.hosts }],
    ["a device twice as fast", { device: 2 * job.device }],
    ["a link twice as fast", { link: 2 * job.link }],
    ["gradients of 16 bits", { bytesPerElement: 2 }],
    ["no communication at all", { costs: { linkRate: Infinity, networkLatency: 0, localLatency: 0, memoryRate: Infinity, reduceRate: Infinity, frame: 0, networkFrame: 0, networkByte: 0 } }],
  ];
}

const percent = (share) => `${Math.round(100 * share)} %`;
const milliseconds = (seconds) => `${(1000 * seconds).toPrecision(3).replace(/\.0+$/, "")} ms`;
const megabytes = (bytes) => `${(bytes / 1e6).toPrecision(3)} MB`;

function sentenceOf({ cause, exposed, gain }, now) {
  if (cause === "the device") {
    return `The device limits this step: it computes for ${percent(now.alone / now.step)} of ${milliseconds(now.step)}, and communication is hidden behind that.`;
  }
  const sentence = cause[0].toUpperCase() + cause.slice(1);
  return `${sentence} limits this step: ${percent(exposed)} of ${milliseconds(now.step)} is communication that nothing hides, and without this limit the step would take ${percent(gain)} less time.`;
}

function pictureOf(now) {
  const [width, end] = [1000, now.step];
  const x = (seconds) => (seconds / end * width).toFixed(1);
  const bar = (begin, finish, y, kind, title) =>
    `<rect x="${x(begin)}" y="${y}" width="${Math.max(1.5, x(finish) - x(begin))}" height="26" class="${kind}"><title>${title}</title></rect>`;
  const batches = now.batches.map((batch) =>
    bar(batch.begin, batch.end, 34, "network", `${megabytes(batch.bytes)} by ${batch.algorithm}: ${milliseconds(batch.end - batch.begin)}`));
  const text = `A step of ${milliseconds(end)}: ${milliseconds(now.alone)} of computing, ${now.batches.length} allreduces`;
  return `<svg viewBox="0 0 ${width} 64" preserveAspectRatio="none" role="img" aria-label="${text}">
    ${bar(0, now.forward, 0, "forward", "forward pass")}${bar(now.forward, now.alone, 0, "backward", "backward pass")}${batches.join("")}</svg>
    <p class="limits-legend"><span class="forward">forward</span> <span class="backward">backward</span> <span class="network">allreduces: ${now.batches.length}, by ${[...new Set(now.batches.map((batch) => batch.algorithm))].join(", ")}</span></p>`;
}

function rowsOf(models, job, now) {
  const rows = changesOf(job).map(([name, change]) => {
    const { step, rate } = stepOf(models, job, change);
    const relative = change === undefined || rate === now.rate ? "" : ` (${rate > now.rate ? "+" : ""}${percent(rate / now.rate - 1)})`;
    return `<tr><td>${name}</td><td>${milliseconds(step)}</td><td>${Math.round(rate).toLocaleString("en")}${relative}</td></tr>`;
  });
  return rows.join("");
}

function show(models) {
  const field = (name) => document.getElementById(`limits-${name}`);
  const number = (name) => Number(field(name).value);
  const job = {
    model: field("model").value,
    batch: 2 ** number("batch"),
    device: 2 ** (number("device") / 2),
    hosts: 2 ** number("hosts"),
    ranksPerHost: 2 ** number("ranks"),
    link: LINKS[number("link")],
  };
  const parameters = models[job.model].gradients.reduce((sum, [elements]) => sum + elements, 0);
  const texts = {
    model: `${(parameters / 1e6).toFixed(1)} million parameters`,
    batch: `${job.batch} samples`,
    device: `${job.device.toPrecision(2)} x`,
    hosts: String(job.hosts),
    ranks: `${job.ranksPerHost}; ${job.hosts * job.ranksPerHost} in all`,
    link: `${job.link} Gbit/s`,
  };
  for (const [name, text] of Object.entries(texts)) {
    field(name).nextElementSibling.textContent = text;
    if (name !== "model") field(name).setAttribute("aria-valuetext", text);
  }
  const now = stepOf(models, job);
  field("verdict").textContent = sentenceOf(verdictOf(models, job), now);
  field("picture").innerHTML = pictureOf(now);
  field("changes").innerHTML = rowsOf(models, job, now);
}

function begin(root) {
  const models = JSON.parse(document.getElementById("limits-models").textContent);
  document.getElementById("limits-model").innerHTML =
    Object.entries(models).map(([name, model]) => `<option value="${name}">${model.title}</option>`).join("");
  root.addEventListener("input", () => show(models));
  show(models);
}

if (typeof document !== "undefined" && document.getElementById("limits")) begin(document.getElementById("limits"));
