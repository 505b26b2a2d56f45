// From files to pixels and back.

import { EMPTY, Grid } from "./grid.js";

const MOST_BYTES = 20e6;
const MOST_PIXELS = 50e6;
const FARTHEST = 25; // as far as a color may be from a class, in units of CIE Lab

/** Return the pixels of an image file, cropped to its central square and scaled to size x size. Refuse in a sentence. */
export async function readPixels(file, size, smooth = true) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${Math.round(file.size / 1e6)} MB; at most 20 MB are read.`);
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is not an image that this browser can read. Choose a PNG, JPEG or WebP file.`);
  }
  if (image.width * image.height > MOST_PIXELS) throw new Error(`${file.name} has more than 50 million pixels.`);
  const side = Math.min(image.width, image.height);
  const canvas = new OffscreenCanvas(size, size);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white"; // behind what is transparent
  context.fillRect(0, 0, size, size);
  context.imageSmoothingEnabled = smooth;
  context.imageSmoothingQuality = "high";
  context.drawImage(image, (image.width - side) / 2, (image.height - side) / 2, side, side, 0, 0, size, size);
  image.close();
  return context.getImageData(0, 0, size, size);
}

/** Return the map in an image of class colors; colors far from all of them become empty cells. */
export function gridFromPixels(pixels, classes) {
  const palette = classes.map((each) => ({ id: each.id, lab: lab(...rgb(each.color)) }));
  const known = new Map();
  const cells = new Uint8Array(pixels.width * pixels.height);
  for (let i = 0; i < cells.length; i++) {
    const color = pixels.data.subarray(4 * i, 4 * i + 3);
    const key = (color[0] << 16) | (color[1] << 8) | color[2];
    if (!known.has(key)) known.set(key, nearest(lab(...color), palette));
    cells[i] = known.get(key);
  }
  return new Grid(pixels.width, pixels.height, cells);
}

/** Offer a canvas as a PNG file. */
export async function download(canvas, name) {
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return the red, green and blue of #rrggbb, 0 to 255. */
export function rgb(color) {
  const number = parseInt(color.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

function nearest(color, palette) {
  let best = EMPTY;
  let distance = FARTHEST;
  for (const each of palette) {
    const to = Math.hypot(color[0] - each.lab[0], color[1] - each.lab[1], color[2] - each.lab[2]);
    if (to <= distance) [best, distance] = [each.id, to];
  }
  return best;
}

/** Return the CIE Lab coordinates of an sRGB color under D65. */
function lab(red, green, blue) {
  const linear = [red, green, blue].map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const mix = (a, b, c) => a * linear[0] + b * linear[1] + c * linear[2];
  const root = (value) => (value > 216 / 24389 ? Math.cbrt(value) : (24389 / 27) * value / 116 + 16 / 116);
  const x = root(mix(0.4124564, 0.3575761, 0.1804375) / 0.95047);
  const y = root(mix(0.2126729, 0.7151522, 0.072175));
  const z = root(mix(0.0193339, 0.119192, 0.9503041) / 1.08883);
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}
