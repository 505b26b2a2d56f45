// The label map: a class id per cell, painted without antialiasing, so that every cell is exactly one class.

/** The id of a cell that nothing was painted on. */
export const EMPTY = 255;

/** A label map of width x height cells, stored row by row as a Uint8Array. */
export class Grid {
  constructor(width, height, cells = new Uint8Array(width * height).fill(EMPTY)) {
    if (cells.length !== width * height) {
      throw new Error(`A map of ${width} x ${height} cells needs ${width * height} ids, got ${cells.length}.`);
    }
    this.width = width;
    this.height = height;
    this.cells = cells;
  }

  /** Return the id at a cell, or EMPTY outside of the map. */
  at(x, y) {
    return this.holds(x, y) ? this.cells[y * this.width + x] : EMPTY;
  }

  holds(x, y) {
    return x >= 0 && y >= 0 && x < this.width && y < this.height;
  }

  /** Paint a disc of a diameter in cells around the point (x, y), in cells with fractions. */
  stamp(x, y, diameter, id) {
    const radius = Math.max(diameter, 1) / 2;
    if (diameter <= 1) {
      this.#set(Math.floor(x), Math.floor(y), id);
      return;
    }
    for (let row = Math.floor(y - radius); row <= Math.ceil(y + radius); row++) {
      for (let column = Math.floor(x - radius); column <= Math.ceil(x + radius); column++) {
        if ((column + 0.5 - x) ** 2 + (row + 0.5 - y) ** 2 <= radius ** 2) this.#set(column, row, id);
      }
    }
  }

  /** Paint a straight stroke; widthAt(y) gives its diameter in cells at each height. */
  stroke(from, to, widthAt, id) {
    const steps = Math.max(1, Math.ceil(2 * Math.hypot(to.x - from.x, to.y - from.y)));
    for (let step = 0; step <= steps; step++) {
      const x = from.x + ((to.x - from.x) * step) / steps;
      const y = from.y + ((to.y - from.y) * step) / steps;
      this.stamp(x, y, widthAt(y), id);
    }
  }

  /** Fill the area of equal cells around (x, y), connected by edges. Return how many cells changed. */
  fill(x, y, id) {
    const old = this.at(x, y);
    if (!this.holds(x, y) || old === id) return 0;
    let changed = 0;
    const open = [y * this.width + x];
    while (open.length) {
      const cell = open.pop();
      if (this.cells[cell] !== old) continue;
      this.cells[cell] = id;
      changed++;
      open.push(...this.#neighbors(cell));
    }
    return changed;
  }

  /** Return a copy in which each empty cell has the class of the nearest painted one; `other` if none is painted. */
  complete(other) {
    const cells = this.cells.slice();
    let edge = [];
    cells.forEach((id, cell) => id !== EMPTY && edge.push(cell));
    if (!edge.length) return new Grid(this.width, this.height, cells.fill(other));
    while (edge.length) {
      const next = [];
      for (const cell of edge) {
        for (const neighbor of this.#neighbors(cell)) {
          if (cells[neighbor] !== EMPTY) continue;
          cells[neighbor] = cells[cell];
          next.push(neighbor);
        }
      }
      edge = next;
    }
    return new Grid(this.width, this.height, cells);
  }

  /** Return the mean height at which the sky ends, in cells from the top; a third of the map without sky. */
  horizon(sky) {
    let sum = 0;
    let columns = 0;
    for (let x = 0; x < this.width; x++) {
      let y = this.height - 1;
      while (y >= 0 && this.at(x, y) !== sky) y--;
      if (y < 0) continue;
      sum += y + 1;
      columns++;
    }
    return columns ? sum / columns : this.height / 3;
  }

  /** Return the ids as runs, [id, length, id, length, ...], row by row. */
  runs() {
    const runs = [];
    for (const id of this.cells) {
      if (runs.length && runs[runs.length - 2] === id) runs[runs.length - 1]++;
      else runs.push(id, 1);
    }
    return runs;
  }

  static fromRuns(width, height, runs) {
    const cells = [];
    for (let i = 0; i < runs.length; i += 2) {
      for (let n = 0; n < runs[i + 1]; n++) cells.push(runs[i]);
    }
    return new Grid(width, height, Uint8Array.from(cells));
  }

  #set(x, y, id) {
    if (this.holds(x, y)) this.cells[y * this.width + x] = id;
  }

  #neighbors(cell) {
    const x = cell % this.width;
    const found = [];
    if (x > 0) found.push(cell - 1);
    if (x < this.width - 1) found.push(cell + 1);
    if (cell >= this.width) found.push(cell - this.width);
    if (cell + this.width < this.cells.length) found.push(cell + this.width);
    return found;
  }
}

/** Return the width of a road or river at each height: as wide as asked for at the bottom, one cell at the horizon. */
export function perspective(width, horizon, height) {
  return (y) => {
    const near = Math.min(1, Math.max(0, (y - horizon) / Math.max(1, height - horizon)));
    return 1 + (width - 1) * near;
  };
}
