// Runs the exported models by onnxruntime-web, apart from the page, so that strokes never wait for a picture.

import * as ort from "./runtime/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // threads need headers that not every static server sends
ort.env.wasm.wasmPaths = new URL("./runtime/", import.meta.url).href;

const sessions = new Map();
const canceled = new Set();
let turn = Promise.resolve();

function sessionOf(url) {
  if (!sessions.has(url)) sessions.set(url, ort.InferenceSession.create(url));
  return sessions.get(url);
}

function tensorOf(name, values, size) {
  if (name === "labels") return new ort.Tensor("int32", values, [1, size, size]);
  if (name === "photo") return new ort.Tensor("float32", values, [1, 3, size, size]);
  return new ort.Tensor("float32", values, [1, values.length]);
}

async function answer({ number, model, url, size, inputs }) {
  await new Promise((resolve) => setTimeout(resolve)); // cancellations that have arrived meanwhile
  if (canceled.delete(number)) return;
  try {
    const session = await sessionOf(url);
    const feeds = {};
    for (const [name, values] of Object.entries(inputs)) feeds[name] = tensorOf(name, values, size);
    const output = (await session.run(feeds))[session.outputNames[0]];
    postMessage({ number, data: output.data, dims: output.dims });
  } catch (error) {
    sessions.delete(url);
    postMessage({ number, error: `The model ${model} cannot run in this browser: ${error.message}` });
  }
}

onmessage = ({ data }) => {
  if (data.cancel) canceled.add(data.number);
  else turn = turn.then(() => answer(data));
};
