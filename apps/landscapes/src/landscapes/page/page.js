// The page: the map, the style, and when a picture is asked for.

import { complain, draw, find, press } from "./dom.js";
import { engineOf } from "./engine.js";
import { EMPTY, Grid } from "./grid.js";
import { History } from "./history.js";
import { followFiles, followKeys, followPointer } from "./input.js";
import { buildPalette, buildScenes, buildSizes, buildStyles, showHour } from "./parts.js";
import { styleAt } from "./styles.js";

const PAUSE_MS = 150; // from the last stroke to a new picture

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
    this.changes = 0; // of map and style, each of which asks for a picture
    this.shown = 0; // so many of them are in the picture
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
    this.changes++;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.paint(), PAUSE_MS);
  }

  async paint() {
    clearTimeout(this.timer);
    this.request?.abort();
    const request = (this.request = new AbortController());
    find("picture").classList.add("busy");
    const { changes } = this;
    const began = performance.now();
    try {
      const sky = this.meta.classes[0].id;
      const pixels = await this.engine.paint(this.grid.complete(sky), this.vector(), request.signal);
      if (request.signal.aborted) return;
      find("picture").getContext("2d").putImageData(pixels, 0, 0);
      this.pictures++;
      this.shown = changes;
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
