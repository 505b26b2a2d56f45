// Undo and redo over whole maps, which are a few kilobytes each.

const LIMIT = 200;

export class History {
  #past = [];
  #future = [];

  /** Keep the cells as they were before a change. */
  keep(cells) {
    this.#past.push(cells.slice());
    if (this.#past.length > LIMIT) this.#past.shift();
    this.#future = [];
  }

  /** Return the cells before the last change, or undefined if there was none. */
  undo(cells) {
    if (!this.#past.length) return undefined;
    this.#future.push(cells.slice());
    return this.#past.pop();
  }

  /** Return the cells after the change that undo took back, or undefined. */
  redo(cells) {
    if (!this.#future.length) return undefined;
    this.#past.push(cells.slice());
    return this.#future.pop();
  }

  get canUndo() {
    return this.#past.length > 0;
  }

  get canRedo() {
    return this.#future.length > 0;
  }
}
