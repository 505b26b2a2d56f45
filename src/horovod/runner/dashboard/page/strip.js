// Ranks over time: a row for each rank, a column for each interval, the phases of the rank in it.

export const PHASES = ["compute", "backward", "optimizer", "input", "network", "wait"];
const COLUMNS = 120;
const GAP = 1;
const MOST_HEIGHT = 520;

function heightOf(numRanks) {
  return Math.min(30, Math.max(MOST_HEIGHT / numRanks, 0.5));
}

function paletteOf(canvas) {
  const style = getComputedStyle(canvas);
  const names = [...PHASES, "stopped", "unknown", "panel", "text", "bad"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function drawCell(context, colors, cell, shares, x, y, width, height) {
  if (typeof cell === "string") {
    context.fillStyle = cell === "starting" ? colors.unknown : colors.stopped;
    context.fillRect(x, y, width, height);
    return;
  }
  const shareOf = (phase) => cell[shares.indexOf(phase)];
  if (height < 5) {  // too low for parts: the largest one
    const largest = PHASES.reduce((best, phase) => (shareOf(phase) > shareOf(best) ? phase : best));
    context.fillStyle = colors[largest];
    context.fillRect(x, y, width, height);
    return;
  }
  let bottom = y + height;
  for (const phase of PHASES) {
    const part = (height * shareOf(phase)) / 100;
    context.fillStyle = colors[phase];
    context.fillRect(x, bottom - part, width, part);
    bottom -= part;
  }
}

export class Strip {
  constructor(canvas, note) {
    this.canvas = canvas;
    this.note = note;
    this.columns = [];
    this.shares = [];
    this.rank = 0;
    canvas.addEventListener("pointermove", (event) => this.point(event.offsetY));
    canvas.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(columns, shares) {
    this.columns = columns.slice(-COLUMNS);
    this.shares = shares;
    this.draw();
  }

  get numRanks() {
    return this.columns.length ? this.columns[this.columns.length - 1].ranks.length : 0;
  }

  draw() {
    const number = this.numRanks;
    if (!number) return;
    const row = heightOf(number);
    const ratio = devicePixelRatio;
    const width = this.canvas.clientWidth;
    const height = Math.ceil(number * row);
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const colors = paletteOf(this.canvas);
    context.fillStyle = colors.panel;
    context.fillRect(0, 0, width, height);
    const step = width / COLUMNS;
    const gap = row > 8 ? GAP : 0;
    this.columns.forEach((column, index) => {
      const x = width - (this.columns.length - index) * step;
      column.ranks.forEach((cell, rank) => {
        drawCell(context, colors, cell, this.shares, x, rank * row, Math.max(step - gap, 1), Math.max(row - gap, 0.5));
      });
    });
    this.canvas.setAttribute("aria-label", this.describe());
  }

  describe() {
    const cells = this.columns.length ? this.columns[this.columns.length - 1].ranks : [];
    const stopped = cells.filter((cell) => typeof cell === "string").length;
    return `${cells.length} ranks over the last ${this.columns.length} intervals, ${stopped} of them do not run. ${this.tell()} Arrow keys choose a rank.`;
  }

  tell() {
    const last = this.columns[this.columns.length - 1];
    const cell = last?.ranks[this.rank];
    if (cell === undefined) return "";
    if (typeof cell === "string") return `Rank ${this.rank}: ${cell}.`;
    const parts = PHASES.map((phase) => `${phase} ${cell[this.shares.indexOf(phase)]} %`);
    return `Rank ${this.rank}: ${parts.join(", ")}.`;
  }

  point(y) {
    if (!this.numRanks) return;
    this.choose(Math.floor(y / heightOf(this.numRanks)));
  }

  choose(rank) {
    this.rank = Math.min(Math.max(rank, 0), this.numRanks - 1);
    this.note.textContent = this.tell();
  }

  move(event) {
    const by = { ArrowUp: -1, ArrowDown: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.choose(this.rank + by);
    this.canvas.setAttribute("aria-label", this.describe());
  }
}
