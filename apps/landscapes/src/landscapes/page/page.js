// The page: what is pressed, what is painted, and when a picture is asked for.

import { engineOf } from "./engine.js";
import { EMPTY, Grid, perspective } from "./grid.js";
import { History } from "./history.js";
import { download, gridFromPixels, readPixels, rgb } from "./pictures.js";
import { randomMixture, styleAt } from "./styles.js";

const PAUSE_MS = 150; // from the last stroke to a new picture
const find = (id) => document.getElementById(id);

class Page {
  constructor(meta) {
    this.meta = meta;
    this.engine = engineOf(meta);
    this.history = new History();
    this.classes = new Map(meta.classes.map((each) => [each.id, each]));
    this.grid = new Grid(meta.size, meta.size);
    this.tool = "brush";
    this.size = Math.max(1, Math.round(meta.size / 10));
    this.chosen = meta.classes[2].id;
    this.style = { biome: meta.biomes[0], time: Math.min(1, meta.hours.length - 1) };
    this.pictures = 0; // painted since the page was loaded
    for (const canvas of [find("map"), find("picture")]) canvas.width = canvas.height = meta.size;
  }

  // ---- The map

  /** Show the map as it is, or another one, such as the preview of a line. */
  show(grid = this.grid) {
    draw(find("map"), grid, this.classes);
    find("undo").disabled = !this.history.canUndo;
    find("redo").disabled = !this.history.canRedo;
  }

  /** Change the map in one step that undo takes back. */
  change(cells) {
    this.history.keep(this.grid.cells);
    this.grid.cells.set(cells);
    this.show();
    this.paintSoon();
  }

  restore(cells) {
    if (!cells) return;
    this.grid.cells.set(cells);
    this.show();
    this.paintSoon();
  }

  get id() {
    return this.tool === "eraser" ? EMPTY : this.chosen;
  }

  choose(id) {
    this.chosen = id;
    const { line } = this.classes.get(id);
    if (line) this.useTool("line");
    else if (this.tool === "line" || this.tool === "eraser") this.useTool("brush");
    press("#palette button", (button) => Number(button.dataset.id) === id);
  }

  useTool(tool) {
    this.tool = tool;
    press("[data-tool]", (button) => button.dataset.tool === tool);
  }

  useSize(size) {
    this.size = size;
    press("#sizes button", (button) => Number(button.dataset.size) === size);
  }

  // ---- The picture

  /** Ask for a picture when nothing has changed for PAUSE_MS. */
  paintSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.paint(), PAUSE_MS);
  }

  async paint() {
    clearTimeout(this.timer);
    this.request?.abort();
    const request = (this.request = new AbortController());
    find("picture").classList.add("busy");
    const began = performance.now();
    try {
      const sky = this.meta.classes[0].id;
      const pixels = await this.engine.paint(this.grid.complete(sky), this.vector(), request.signal);
      if (request.signal.aborted) return;
      find("picture").getContext("2d").putImageData(pixels, 0, 0);
      this.pictures++;
      find("picture").dataset.pictures = this.pictures;
      find("status").textContent = `Painted ${this.engine.where} in ${Math.round(performance.now() - began)} ms`;
      complain("");
    } catch (error) {
      if (error.name !== "AbortError") complain(error.message);
    } finally {
      if (this.request === request) find("picture").classList.remove("busy");
    }
  }

  // ---- The style

  vector() {
    const { vector, biome, time } = this.style;
    if (vector) return vector;
    return styleAt(this.meta.styles, this.meta.hours, biome, time);
  }

  /** Use a biome and hour, or a vector of its own. */
  useStyle(style) {
    this.style = { ...this.style, vector: undefined, source: undefined, ...style };
    const { biome, time, vector, source } = this.style;
    find("time").value = time;
    find("time").setAttribute("aria-valuetext", this.meta.hours[Math.round(time)]);
    press("#styles [data-style]", (tile) => (vector ? tile.dataset.style === source : tile.dataset.style === biome));
    showHour(this.meta, Math.round(time));
    this.paintSoon();
  }
}

/** Show which of some buttons is pressed. */
function press(selector, isPressed) {
  for (const button of document.querySelectorAll(selector)) button.setAttribute("aria-pressed", isPressed(button));
}

/** Show an error in a sentence; nothing hides the last one. */
function complain(sentence) {
  find("error").textContent = sentence;
  find("error").hidden = !sentence;
}

/** Run what may fail, and show why it did. */
async function attempt(action) {
  try {
    complain("");
    await action();
  } catch (error) {
    complain(error.message);
  }
}

function draw(canvas, grid, classes) {
  canvas.width = grid.width;
  canvas.height = grid.height;
  const image = new ImageData(grid.width, grid.height);
  grid.cells.forEach((id, cell) => {
    if (id !== EMPTY) image.data.set([...rgb(classes.get(id).color), 255], 4 * cell);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Show each biome at an hour: a column of the sheet of styles. */
function showHour(meta, hour) {
  const columns = meta.hours.length;
  document.querySelectorAll("#styles .thumb[data-row]").forEach((thumb) => {
    const row = Number(thumb.dataset.row);
    thumb.style.backgroundImage = `url("${meta.sheet}")`;
    thumb.style.backgroundSize = `${columns * 100}% ${meta.biomes.length * 100}%`;
    const share = (index, count) => (count > 1 ? (index / (count - 1)) * 100 : 0);
    thumb.style.backgroundPosition = `${share(hour, columns)}% ${share(row, meta.biomes.length)}%`;
  });
}

// ---- Parts of the page

function buildPalette(page) {
  page.meta.classes.forEach(({ id, name, color }, index) => {
    const button = element("button", { type: "button", title: `${name} (${index + 1})` });
    button.dataset.id = id;
    const swatch = element("i");
    swatch.style.background = color;
    button.append(swatch, name, element("kbd", { textContent: index + 1 }));
    button.onclick = () => page.choose(id);
    find("palette").append(button);
  });
}

function buildSizes(page) {
  const sizes = [...new Set([1, 3, 6, 12, 20].map((part) => Math.max(1, Math.round((part * page.meta.size) / 64))))];
  sizes.forEach((size, index) => {
    const button = element("button", { type: "button", title: `Brush of ${size} cells` });
    button.setAttribute("aria-label", `${size} cells`);
    button.dataset.size = size;
    const dot = element("i");
    dot.style.width = dot.style.height = `${4 + 4 * index}px`;
    button.append(dot);
    button.onclick = () => page.useSize(size);
    find("sizes").append(button);
  });
  page.sizes = sizes;
  page.useSize(sizes[Math.min(2, sizes.length - 1)]);
}

function buildScenes(page) {
  for (const { name, runs } of page.meta.scenes) {
    const grid = Grid.fromRuns(page.meta.size, page.meta.size, runs);
    const button = element("button", { type: "button", title: `Start from ${name}` });
    button.setAttribute("aria-label", name);
    const canvas = element("canvas");
    draw(canvas, grid, page.classes);
    button.append(canvas);
    button.onclick = () => page.change(grid.cells);
    find("scenes").append(button);
  }
  const empty = element("button", { type: "button", title: "Start from nothing", textContent: "Clear" });
  empty.onclick = () => page.change(new Uint8Array(page.grid.cells.length).fill(EMPTY));
  find("scenes").append(empty);
}

function buildStyles(page) {
  const { biomes } = page.meta;
  biomes.forEach((biome, row) => {
    const tile = styleTile("button", biome, biome);
    tile.firstChild.dataset.row = row;
    tile.onclick = () => page.useStyle({ biome });
    find("styles").append(tile);
  });
  const random = styleTile("button", "random", "random");
  random.title = "A random style (R)";
  random.firstChild.textContent = "⚂";
  random.onclick = () => page.useStyle({ vector: randomMixture(page.meta.styles), source: "random" });
  find("styles").append(random);
  if (page.meta.photo) find("styles").append(photoTile(page));
  for (const hour of page.meta.hours) find("ticks").append(element("span", { textContent: hour }));
  find("time").max = page.meta.hours.length - 1;
  find("time").oninput = () => page.useStyle({ time: Number(find("time").value) });
}

function styleTile(tag, name, text) {
  const tile = element(tag, tag === "button" ? { type: "button" } : { className: "button" });
  tile.dataset.style = name;
  tile.append(element("span", { className: "thumb" }), element("span", { textContent: text }));
  return tile;
}

function photoTile(page) {
  const tile = styleTile("label", "photo", "photo");
  tile.title = "Take the style of a photo of yours; it stays on this machine";
  tile.firstChild.textContent = "＋";
  const input = element("input", { type: "file", accept: "image/png,image/jpeg,image/webp", id: "style-photo" });
  input.onchange = () => attempt(async () => {
    const [file] = input.files;
    if (!file) return;
    const pixels = await readPixels(file, page.meta.size);
    const vector = await page.engine.encode(pixels);
    const canvas = element("canvas", { width: pixels.width, height: pixels.height });
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    tile.firstChild.replaceChildren(canvas);
    input.value = "";
    page.useStyle({ vector, source: "photo" });
  });
  tile.append(input);
  return tile;
}

function element(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}

// ---- Pointer and keys

function followPointer(page) {
  const canvas = find("map");
  let stroke;
  const cellOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const border = canvas.clientLeft;
    return {
      x: ((event.clientX - box.left - border) / canvas.clientWidth) * page.grid.width,
      y: ((event.clientY - box.top - border) / canvas.clientHeight) * page.grid.height,
    };
  };
  canvas.onpointerdown = (event) => {
    if (event.button !== 0 || stroke) return;
    event.preventDefault();
    canvas.focus({ preventScroll: true });
    const at = cellOf(event);
    if (page.tool === "fill") {
      const filled = new Grid(page.grid.width, page.grid.height, page.grid.cells.slice());
      if (filled.fill(Math.floor(at.x), Math.floor(at.y), page.id)) page.change(filled.cells);
      return;
    }
    canvas.setPointerCapture(event.pointerId);
    stroke = { pointer: event.pointerId, start: at, last: at, before: page.grid.cells.slice() };
    extend(page, stroke, at);
  };
  canvas.onpointermove = (event) => {
    if (stroke?.pointer !== event.pointerId) return;
    for (const each of event.getCoalescedEvents?.() ?? [event]) extend(page, stroke, cellOf(each));
    extend(page, stroke, cellOf(event));
  };
  const end = (event) => {
    if (stroke?.pointer !== event.pointerId) return;
    const after = page.grid.cells.slice();
    page.grid.cells.set(stroke.before);
    stroke = undefined;
    page.change(after);
  };
  canvas.onpointerup = end;
  canvas.onpointercancel = end;
}

/** Extend a stroke to a point: a line from its start, anything else from where it was. */
function extend(page, stroke, at) {
  if (page.tool === "line") {
    page.grid.cells.set(stroke.before);
    const horizon = page.grid.horizon(page.meta.classes[0].id);
    page.grid.stroke(stroke.start, at, perspective(page.size, horizon, page.grid.height), page.id);
  } else {
    page.grid.stroke(stroke.last, at, () => page.size, page.id);
  }
  stroke.last = at;
  page.show();
}

function followKeys(page) {
  const tools = { b: "brush", l: "line", f: "fill", e: "eraser" };
  addEventListener("keydown", (event) => {
    if (event.target.matches("input[type=range]") && event.key.startsWith("Arrow")) return;
    const key = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) {
      if (key === "z" && !event.shiftKey) page.restore(page.history.undo(page.grid.cells));
      else if (key === "y" || (key === "z" && event.shiftKey)) page.restore(page.history.redo(page.grid.cells));
      else return;
      event.preventDefault();
    } else if (page.meta.classes[Number(key) - 1]) page.choose(page.meta.classes[Number(key) - 1].id);
    else if (tools[key]) page.useTool(tools[key]);
    else if (key === "r") document.querySelector("[data-style=random]").click();
    else if (key === "[" || key === "]") {
      const next = page.sizes.indexOf(page.size) + (key === "[" ? -1 : 1);
      page.useSize(page.sizes[Math.min(page.sizes.length - 1, Math.max(0, next))]);
    }
  });
}

function followFiles(page) {
  const openInto = (id, read) => {
    const input = find(id);
    input.onchange = () => attempt(async () => {
      const [file] = input.files;
      input.value = "";
      if (file) page.change((await read(file)).cells);
    });
  };
  openInto("open-map", async (file) => {
    const grid = gridFromPixels(await readPixels(file, page.meta.size, false), page.meta.classes);
    const unknown = grid.cells.filter((id) => id === EMPTY).length / grid.cells.length;
    if (unknown > 0.3) throw new Error(`${Math.round(unknown * 100)} % of ${file.name} is in no color of the palette: it is no map.`);
    return grid.complete(page.meta.classes[0].id);
  });
  find("segment").hidden = !page.meta.segment;
  openInto("open-photo", async (file) => {
    const runs = await page.engine.segment(await readPixels(file, page.meta.size));
    return Grid.fromRuns(page.meta.size, page.meta.size, runs);
  });
  find("save-map").onclick = () => download(find("map"), "map.png");
  find("save-picture").onclick = () => download(find("picture"), "landscape.png");
}

async function start() {
  const answer = await fetch("api/meta");
  if (!answer.ok) throw new Error(`The description of the model cannot be read: the server answered ${answer.status}.`);
  const page = new Page(await answer.json());
  window.landscapes = page; // for tests and for the console
  find("about").textContent = page.meta.about;
  buildPalette(page);
  buildSizes(page);
  buildScenes(page);
  buildStyles(page);
  for (const button of document.querySelectorAll("[data-tool]")) button.onclick = () => page.useTool(button.dataset.tool);
  find("undo").onclick = () => page.restore(page.history.undo(page.grid.cells));
  find("redo").onclick = () => page.restore(page.history.redo(page.grid.cells));
  followPointer(page);
  followKeys(page);
  followFiles(page);
  page.choose(page.chosen);
  const [first] = page.meta.scenes;
  if (first) page.grid.cells.set(Grid.fromRuns(page.meta.size, page.meta.size, first.runs).cells);
  page.show();
  page.useStyle({});
}

start().catch((error) => complain(error.message));
