// What several parts of the page do with its elements.

import { EMPTY } from "./grid.js";
import { rgb } from "./pictures.js";

export const find = (id) => document.getElementById(id);

/** Show which of some buttons is pressed. */
export function press(selector, isPressed) {
  for (const button of document.querySelectorAll(selector)) button.setAttribute("aria-pressed", isPressed(button));
}

/** Show an error in a sentence; nothing hides the last one. */
export function complain(sentence) {
  find("error").textContent = sentence;
  find("error").hidden = !sentence;
}

/** Run what may fail, and show why it did. */
export async function attempt(action) {
  try {
    complain("");
    await action();
  } catch (error) {
    complain(error.message);
  }
}

/** Draw a map in the colors of its classes; empty cells stay transparent. */
export function draw(canvas, grid, classes) {
  canvas.width = grid.width;
  canvas.height = grid.height;
  const image = new ImageData(grid.width, grid.height);
  grid.cells.forEach((id, cell) => {
    if (id !== EMPTY) image.data.set([...rgb(classes.get(id).color), 255], 4 * cell);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Return a new element with properties. */
export function element(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}
