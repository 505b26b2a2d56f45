// The engine's cost model, native/plan/cost.cc, and the simulation of a training step, benchmarks/simulate.py, for the
// page "What limits my step". tests/site compares both with the originals. Times in seconds, sizes in bytes.

export const COSTS = {
  localLatency: 5e-6, // of a hop between two ranks of a host
  memoryRate: 2e10, // bytes that the ranks of a host read and write together per second
  reduceRate: 8e9, // operands that one rank combines, bytes per second
  frame: 2e-6, // core time of a frame, for the sender and for the receiver
  networkFrame: 6e-6, // the same between hosts
  networkByte: 2.5e-10, // core time of a byte that goes through a socket
  networkLatency: 4e-5, // of a hop between two hosts
  linkRate: 1.25e9, // of a host's link in one direction, bytes per second
};

const TREE_EFFICIENCY = 0.8;
const CROWD_EFFICIENCY = 0.75;
const WORTH_IT = 0.98;
const MOST_WHOLE_BYTES = 1 << 20;
const LEAST_FRAME_BYTES = 8 << 10;
const MOST_FRAME_BYTES = 32 << 10;
const IN_RANK_ORDER = ["direct", "exchange"];
export const ALGORITHMS = ["hierarchical", "direct", "trees", "doubling", "exchange", "ring"];

const BYTES_PER_ELEMENT = 4;

// The number of ranks on each host; the last host may have fewer.
export function ranksOfHosts(ranks, ranksPerHost) {
  const hosts = Math.ceil(ranks / ranksPerHost);
  const found = new Array(hosts).fill(ranksPerHost);
  found[hosts - 1] = ranks - (hosts - 1) * ranksPerHost;
  return found;
}

const sizeOf = (hosts) => hosts.reduce((sum, ranks) => sum + ranks, 0);
const log2Floor = (number) => 31 - Math.clz32(number);
const log2Ceil = (number) => (number > 1 ? log2Floor(number - 1) + 1 : 0);
const hopOf = (hosts, costs) => (hosts.length > 1 ? costs.networkLatency : costs.localLatency);
const anyShared = (hosts) => hosts.some((ranks) => ranks > 1);

// Hosts that differ in their ranks, one of each kind.
const kindsOf = (hosts) => [...new Set(hosts)].map((ranks) => hosts.indexOf(ranks));

// Frames follow each other through link, memory and core of a host; the host that needs longest decides.
function slowest(hosts, numFrames, costs, loadOf, compared = kindsOf(hosts)) {
  let seconds = 0;
  for (const host of compared) {
    const load = loadOf(host);
    const link = load.link / costs.linkRate;
    const memory = load.memory / costs.memoryRate;
    const core = load.reduce / costs.reduceRate + load.localFrames * costs.frame +
      load.networkFrames * costs.networkFrame + load.network * costs.networkByte;
    const longest = Math.max(link, memory, core);
    seconds = Math.max(seconds, longest + (link + memory + core - longest) / numFrames);
  }
  return seconds;
}

function allToAll(hosts, sent, frames, reduced, costs) {
  const size = sizeOf(hosts);
  const efficiency = hosts.length > 2 ? CROWD_EFFICIENCY : 1;
  return slowest(hosts, (size - 1) * frames, costs, (host) => {
    const ranks = hosts[host];
    const remote = size - ranks;
    return {
      link: ranks * remote * sent / efficiency,
      memory: ranks * (2 * (ranks - 1) + 4 * remote) * sent + ranks * reduced,
      reduce: reduced,
      localFrames: 2 * (ranks - 1) * frames,
      networkFrames: 2 * remote * frames,
      network: 2 * remote * sent,
    };
  });
}

function ring(hosts, bytes, frameBytes, costs) {
  const size = sizeOf(hosts);
  const crosses = hosts.length > 1;
  const between = crosses ? hosts.length : 0;
  const hops = 2 * (size - 1) / size;
  const frames = Math.max(size, bytes / frameBytes);
  const latency = hops * (between * costs.networkLatency + (size - between) * costs.localLatency);
  return latency + slowest(hosts, frames / size, costs, (host) => {
    const sides = hosts[host] > 1 ? 1 : 2;
    return {
      link: crosses ? hops * bytes : 0,
      memory: 4 * hops * bytes * hosts[host],
      reduce: 2 * bytes,
      localFrames: hosts[host] > 1 ? 2 * hops * frames : 0,
      networkFrames: crosses ? hops * frames * sides : 0,
      network: crosses ? hops * bytes * sides : 0,
    };
  });
}

function byHosts(hosts, bytes, frameBytes, sideBySide, costs) {
  const size = sizeOf(hosts);
  const hops = 2 * (hosts.length - 1) / hosts.length;
  const frames = Math.max(size, bytes / frameBytes);
  const latency = anyShared(hosts) ? 2 * costs.localLatency : 0;
  return latency + slowest(hosts, sideBySide * frames / size, costs, (host) => {
    const ranks = hosts[host];
    return {
      link: hops * bytes,
      memory: 4 * (ranks - 1) * bytes + 4 * hops * bytes + 2 * bytes,
      reduce: (ranks + 1) / ranks * bytes,
      localFrames: 4 * (ranks - 1) / ranks * frames,
      networkFrames: 2 * hops * frames / ranks,
      network: 2 * hops * bytes / ranks,
    };
  });
}

function trees(hosts, bytes, frameBytes, costs) {
  const slower = { ...costs, linkRate: costs.linkRate * TREE_EFFICIENCY };
  const depth = Math.max(log2Ceil(hosts.length), 1);
  const sideBySide = Math.max(1, hosts.length / (2 * depth));
  return 2 * depth * hopOf(hosts, costs) + byHosts(hosts, bytes, frameBytes, sideBySide, slower);
}

function doubling(hosts, bytes, frameBytes, costs) {
  const rounds = log2Floor(hosts.length);
  const power = 1 << rounds;
  const frames = Math.max(1, bytes / frameBytes);
  const hops = rounds + (hosts.length > power ? 2 : 0);
  const latency = hops * hopOf(hosts, costs) + (anyShared(hosts) ? 2 * costs.localLatency : 0);
  return latency + slowest(hosts, frames, costs, (host) => {
    const ranks = hosts[host];
    const exchanged = host >= power ? 1 : rounds + (host + power < hosts.length ? 1 : 0);
    const carried = Math.max(1 / ranks, 1 / frames);
    return {
      link: exchanged * bytes,
      memory: 4 * (ranks - 1) * bytes + (4 * exchanged + 2) * bytes,
      reduce: (ranks + exchanged) * bytes * carried,
      localFrames: 2 * (ranks - 1) * frames * carried + 2 * frames,
      networkFrames: 2 * exchanged * frames * carried,
      network: 2 * exchanged * bytes * carried,
    };
  }, hosts.keys());
}

// Seconds until all ranks have the sum of `bytes`, in frames of at most `frameBytes`.
export function estimateAllreduce(algorithm, hosts, bytes, frameBytes, costs) {
  const size = sizeOf(hosts);
  if (size <= 1 || bytes === 0) return 0;
  const hop = hopOf(hosts, costs);
  switch (algorithm) {
    case "exchange":
      return hop + allToAll(hosts, bytes, Math.max(1, bytes / frameBytes), size * bytes, costs);
    case "direct":
      return 2 * hop + 2 * allToAll(hosts, bytes / size, Math.max(1, bytes / size / frameBytes), bytes / 2, costs);
    case "ring":
      return ring(hosts, bytes, frameBytes, costs);
    case "doubling":
      return doubling(hosts, bytes, frameBytes, costs);
    case "trees":
      return trees(hosts, bytes, frameBytes, costs);
    case "hierarchical":
      return 2 * (hosts.length - 1) * hop + byHosts(hosts, bytes, frameBytes, 1, costs);
    default:
      throw new Error(`there is no algorithm ${algorithm}`);
  }
}

// The algorithm that the engine chooses between these hosts, and its seconds.
export function chooseAllreduce(hosts, bytes, costs) {
  let best = { algorithm: "direct", seconds: -1 };
  for (const algorithm of ALGORITHMS) {
    const whole = algorithm === "exchange" || algorithm === "doubling";
    if (whole && bytes > MOST_WHOLE_BYTES) continue;
    if (hosts.length === 1 && !IN_RANK_ORDER.includes(algorithm)) continue;
    for (let frame = MOST_FRAME_BYTES; frame >= LEAST_FRAME_BYTES; frame /= 2) {
      const seconds = estimateAllreduce(algorithm, hosts, bytes, frame, costs);
      if (best.seconds < 0 || seconds < WORTH_IT * best.seconds) best = { algorithm, seconds };
    }
  }
  return best;
}

// One training step: gradients that are ready when the network is free become a batch, as in the engine.
//   model: {forward, backward, gradients: [[elements, ready as a share of the backward pass], ...]}
//   cluster: {ranks, ranksPerHost, negotiation, costs}
export function simulate(model, cluster, fusionBytes, bytesPerElement = BYTES_PER_ELEMENT) {
  const { costs, ranks } = cluster;
  const hosts = ranksOfHosts(ranks, cluster.ranksPerHost);
  const negotiation = ranks > 1 ? 2 * costs.networkLatency + ranks * cluster.negotiation : 0;
  const readyAt = (gradient) => model.forward + gradient[1] * model.backward;
  const batches = [];
  let [free, next] = [model.forward, 0];
  while (next < model.gradients.length) {
    const begin = Math.max(free, readyAt(model.gradients[next]));
    let [bytes, taken] = [0, 0];
    for (const gradient of model.gradients.slice(next)) {
      const more = gradient[0] * bytesPerElement;
      if (readyAt(gradient) > begin || (taken > 0 && bytes + more > fusionBytes)) break;
      [bytes, taken] = [bytes + more, taken + 1];
    }
    next += taken;
    const { algorithm, seconds } = ranks > 1 ? chooseAllreduce(hosts, bytes, costs) : { algorithm: "none", seconds: 0 };
    free = begin + seconds + negotiation;
    batches.push({ begin, end: free, bytes, algorithm });
  }
  const alone = model.forward + model.backward;
  const step = Math.max(free, alone);
  return { step, efficiency: alone / step, batches };
}
