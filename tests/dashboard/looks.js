// What a test asks of the page; each function returns what is wrong.

(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const words = (each) => `${each.tagName} ${each.textContent.slice(0, 60)}`;

  function light(color) {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  }

  function groundOf(each) {
    const color = getComputedStyle(each).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)" && !color.includes("/ 0.")) return color;
    return each.parentElement ? groundOf(each.parentElement) : "white";
  }

  function contrastOf(each) {
    const colors = [getComputedStyle(each).color, groundOf(each)];
    const [brighter, darker] = colors.map(light).sort((a, b) => b - a);
    return (brighter + 0.05) / (darker + 0.05);
  }

  function nameOf(each) {
    const by = each.getAttribute("aria-labelledby");
    const own = each.getAttribute("aria-label") ?? (by && document.getElementById(by)?.textContent);
    return (own ?? each.labels?.[0]?.textContent ?? each.textContent).trim();
  }

  return {
    overlapping: () => {
      const boxes = all("header, main > section").map((each) => [words(each), each.getBoundingClientRect()]);
      const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
      return boxes.flatMap(([name, a], index) => boxes.slice(index + 1)
        .filter(([, b]) => meet(a, b)).map(([other]) => `${name} and ${other}`));
    },
    clipped: () => all("h1, h2, header p, .note, button, #legend li, #events li")
      .filter((each) => each.scrollWidth > each.clientWidth + 1).map(words),
    faint: (least) => all("h1, h2, small, header p, .note, button, th, #rows td, #legend li, #events li")
      .filter((each) => contrastOf(each) < least).map((each) => `${contrastOf(each).toFixed(2)} ${words(each)}`),
    nameless: () => all("button, input, canvas, [role]:not([role=status]), pre, section")
      .filter((each) => !each.hidden && !nameOf(each)).map((each) => each.outerHTML.slice(0, 80)),
    wide: () => (document.documentElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : []),
  };
})()
