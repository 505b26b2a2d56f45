// What pointer, keys and files do to a page.

import { attempt, find } from "./dom.js";
import { EMPTY, Grid, perspective } from "./grid.js";
import { download, gridFromPixels, readPixels } from "./pictures.js";

export function followPointer(page) {
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

export function followKeys(page) {
  const tools = { b: "brush", l: "line", f: "fill", e: "eraser" };
  addEventListener("keydown", (event) => {
    if (event.altKey || (event.target.matches("input[type=range]") && event.key.startsWith("Arrow"))) return;
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

export function followFiles(page) {
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
