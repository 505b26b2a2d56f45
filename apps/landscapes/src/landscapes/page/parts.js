// The palette, the scenes and the styles, as the model names them.

import { attempt, draw, element, find } from "./dom.js";
import { EMPTY, Grid } from "./grid.js";
import { readPixels } from "./pictures.js";
import { randomMixture } from "./styles.js";

const DICE = '<svg viewBox="0 0 24 24"><path fill-rule="evenodd" d="M6 3h12a3 3 0 0 1 3 3v12a3 3 0 0 1-3 3H6a3 3 0 0 1-3-3V6a3 3 0 0 1 3-3zm2 3a2 2 0 1 0 0 4 2 2 0 0 0 0-4zm4 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4zm4 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4z"/></svg>';
const CAMERA = '<svg viewBox="0 0 24 24"><path fill-rule="evenodd" d="M8 6l1.5-2h5L16 6h3a2 2 0 0 1 2 2v10a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V8a2 2 0 0 1 2-2zm4 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8z"/></svg>';

export function buildPalette(page) {
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

export function buildSizes(page) {
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

export function buildScenes(page) {
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

export function buildStyles(page) {
  const { biomes } = page.meta;
  biomes.forEach((biome, row) => {
    const tile = styleTile("button", biome, biome);
    tile.firstChild.dataset.row = row;
    tile.onclick = () => page.useStyle({ biome });
    find("styles").append(tile);
  });
  const random = styleTile("button", "random", "random");
  random.title = "A random style (R)";
  random.firstChild.innerHTML = DICE;
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
  tile.firstChild.innerHTML = CAMERA;
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

/** Show each biome at an hour: a column of the sheet of styles. */
export function showHour(meta, hour) {
  const columns = meta.hours.length;
  document.querySelectorAll("#styles .thumb[data-row]").forEach((thumb) => {
    const row = Number(thumb.dataset.row);
    thumb.style.backgroundImage = `url("${meta.sheet}")`;
    thumb.style.backgroundSize = `${columns * 100}% ${meta.biomes.length * 100}%`;
    const share = (index, count) => (count > 1 ? (index / (count - 1)) * 100 : 0);
    thumb.style.backgroundPosition = `${share(hour, columns)}% ${share(row, meta.biomes.length)}%`;
  });
}
