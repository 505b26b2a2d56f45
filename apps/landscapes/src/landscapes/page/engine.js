// Where pictures are painted: by the server of this page, or in a worker of this browser.

/** Return the engine that the description of the page names. */
export function engineOf(meta) {
  return meta.engine === "browser" ? new BrowserEngine(meta) : new ServerEngine();
}

/** Pixels as an ImageData, from PNG bytes. */
async function pixelsOf(blob) {
  const image = await createImageBitmap(blob);
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, image.width, image.height);
}

export class ServerEngine {
  where = "by the server";

  /** Return the picture of a complete map in a style, as an ImageData. */
  async paint(grid, style, signal) {
    const body = { width: grid.width, height: grid.height, runs: grid.runs(), style: { vector: style } };
    const answer = await this.#post("api/synthesize", JSON.stringify(body), "application/json", signal);
    return pixelsOf(await answer.blob());
  }

  /** Return the style vector of a photo. */
  async encode(pixels) {
    const answer = await this.#post("api/style", await pngOf(pixels), "image/png");
    return (await answer.json()).vector;
  }

  /** Return the map that the segmenter sees in a photo, as runs. */
  async segment(pixels) {
    const answer = await this.#post("api/segment", await pngOf(pixels), "image/png");
    return (await answer.json()).runs;
  }

  async #post(path, body, type, signal) {
    let answer;
    try {
      answer = await fetch(path, { method: "POST", body, headers: { "Content-Type": type }, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is `landscapes serve` still running?");
    }
    if (answer.ok) return answer;
    const reason = await answer.json().catch(() => ({}));
    throw new Error(reason.error ?? `The server answered ${answer.status}.`);
  }
}

async function pngOf(pixels) {
  const canvas = new OffscreenCanvas(pixels.width, pixels.height);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas.convertToBlob({ type: "image/png" });
}

export class BrowserEngine {
  where = "in this browser";
  #worker;
  #waiting = new Map();
  #last = 0;

  constructor(meta) {
    this.meta = meta;
    this.#worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#settle(data);
    this.#worker.onerror = (event) => {
      const error = event.message || "This browser cannot run the model: it needs WebAssembly and module workers.";
      for (const number of [...this.#waiting.keys()]) this.#settle({ number, error });
    };
  }

  async paint(grid, style, signal) {
    const { data, dims } = await this.run("generator", { labels: Int32Array.from(grid.cells), style: Float32Array.from(style) }, signal);
    const [, , height, width] = dims;
    return imageFrom(data, width, height);
  }

  async encode(pixels) {
    return Array.from((await this.run("encoder", { photo: planesFrom(pixels) })).data);
  }

  async segment(pixels) {
    const { data } = await this.run("segmenter", { photo: planesFrom(pixels) });
    const runs = [];
    for (const id of data) {
      if (runs.length && runs[runs.length - 2] === Number(id)) runs[runs.length - 1]++;
      else runs.push(Number(id), 1);
    }
    return runs;
  }

  /** Run a model on typed arrays by the name of its input. Return data and dims of its first output. */
  run(model, inputs, signal) {
    const number = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#waiting.set(number, { resolve, reject });
      signal?.addEventListener("abort", () => {
        this.#worker.postMessage({ number, cancel: true });
        this.#settle({ number, error: "canceled", name: "AbortError" });
      });
      const url = new URL(this.meta.models[model], document.baseURI).href;
      this.#worker.postMessage({ number, model, url, size: this.meta.size, inputs });
    });
  }

  #settle({ number, error, name, data, dims }) {
    const waiting = this.#waiting.get(number);
    if (!waiting) return;
    this.#waiting.delete(number);
    if (error) waiting.reject(Object.assign(new Error(error), name ? { name } : {}));
    else waiting.resolve({ data, dims });
  }
}

/** Return an ImageData from planes of red, green and blue between -1 and 1. */
export function imageFrom(planes, width, height) {
  const image = new ImageData(width, height);
  const area = width * height;
  for (let i = 0; i < area; i++) {
    for (let channel = 0; channel < 3; channel++) {
      image.data[4 * i + channel] = Math.round((planes[channel * area + i] + 1) * 127.5);
    }
    image.data[4 * i + 3] = 255;
  }
  return image;
}

function planesFrom(pixels) {
  const area = pixels.width * pixels.height;
  const planes = new Float32Array(3 * area);
  for (let i = 0; i < area; i++) {
    for (let channel = 0; channel < 3; channel++) planes[channel * area + i] = pixels.data[4 * i + channel] / 127.5 - 1;
  }
  return planes;
}
