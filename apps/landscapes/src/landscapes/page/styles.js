// Styles are vectors. Named ones are means over pictures of a biome at an hour; between two hours the page interpolates.

/** Return the vector of a biome at a time on the slider, where hours[i] is at i. */
export function styleAt(styles, hours, biome, time) {
  const first = Math.min(Math.floor(time), hours.length - 1);
  const second = Math.min(first + 1, hours.length - 1);
  const from = styles[`${biome}-${hours[first]}`];
  const to = styles[`${biome}-${hours[second]}`];
  return from.map((value, i) => value + (to[i] - value) * (time - first));
}

/** Return numbers of the standard normal distribution, the prior of styles. */
export function randomStyle(length, random = Math.random) {
  return Array.from(
    { length },
    () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()),
  );
}

/** Return a random mixture of named styles with a little noise: nearer to pictures than the prior alone. */
export function randomMixture(styles, random = Math.random) {
  const names = Object.keys(styles);
  const pick = () => styles[names[Math.floor(random() * names.length)]];
  const [a, b] = [pick(), pick()];
  const share = random();
  const noise = randomStyle(a.length, random);
  return a.map((value, i) => value * share + b[i] * (1 - share) + 0.3 * noise[i]);
}
