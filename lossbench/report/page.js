"use strict";
// What the page does beyond reading: values under the pointer, modes and runs hidden, tables sorted, code copied.
const make = (tag, properties = {}, parent = null) => {
  const node = Object.assign(document.createElement(tag), properties);
  if (parent) parent.append(node);
  return node;
};

// A link to a folded section opens it.
const reveal = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const fold = target && target.querySelector("details.fold");
  if (fold) { fold.open = true; target.scrollIntoView(); }
};
addEventListener("hashchange", reveal);
reveal();

for (const block of document.querySelectorAll("pre.code")) {
  const button = make("button", { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.textContent);
    } catch {
      getSelection().selectAllChildren(block);
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.before(button);
}

// Tables sort by a click on a column's head: numbers by value, dashes last.
const value = (row, k) => row.cells[k].querySelector(".value").textContent.trim();
const number = (text) => parseFloat(text.replace(/−/g, "-").replace(/,/g, ""));
for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, k) => {
    const button = make("button", { type: "button", className: "sort" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const order = (a, b) => {
        const [x, y] = [value(a, k), value(b, k)];
        const [m, n] = [number(x), number(y)];
        if (isNaN(m) || isNaN(n)) return isNaN(m) - isNaN(n) || (up ? 1 : -1) * x.localeCompare(y);
        return (up ? 1 : -1) * (m - n);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}

const short = (x) => (Math.abs(x) >= 1e4 ? x.toExponential(2) : +x.toPrecision(3));
for (const figure of document.querySelectorAll("figure.plot")) {
  const panels = JSON.parse(figure.dataset.readings);
  const svg = figure.querySelector("svg");
  const arms = new Map();
  for (const line of panels.flatMap((panel) => panel.lines)) {
    if (line.a >= 0) arms.set(line.a, [...(arms.get(line.a) || []), line]);
  }
  // Switches for the modes of the figure, and for single runs where it has any.
  const controls = make("div", { className: "controls" });
  const toggle = (text, color, selector) => {
    const button = make("button", { type: "button", textContent: text, ariaPressed: "true" }, controls);
    if (color) button.style.borderColor = `var(--${color})`;
    button.addEventListener("click", () => {
      const shown = button.ariaPressed !== "true";
      button.ariaPressed = String(shown);
      for (const part of svg.querySelectorAll(selector)) part.style.visibility = shown ? "" : "hidden";
    });
  };
  const names = JSON.parse(document.body.dataset.modes);
  if (arms.size > 1) for (const [arm, lines] of arms) toggle(names[arm], lines[0].c, `.mode${arm}`);
  if (svg.querySelector(".runs")) toggle("single runs", "", ".runs");
  if (controls.children.length) figure.prepend(controls);

  if (!panels.some((panel) => panel.lines.length)) continue;
  const tip = make("div", { className: "tip", hidden: true, role: "status" }, figure);
  const cursor = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
  cursor.setAttribute("class", "cursor");
  const hide = () => { tip.hidden = true; cursor.style.visibility = "hidden"; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const area = svg.getBoundingClientRect();
    const [u, v] = [(event.clientX - area.left) / area.width, 1 - (event.clientY - area.top) / area.height];
    const panel = panels.find(({ box: [x, y, w, h] }) => u >= x && u <= x + w && v >= y && v <= y + h);
    if (!panel || !panel.lines.length) return hide();
    const [low, high, log] = panel.x;
    const share = (u - panel.box[0]) / panel.box[2];
    const x = log ? low * (high / low) ** share : low + share * (high - low);
    const rows = panel.lines.filter((line) => line.y.some((y) => y !== null)).map((line) => {
      const near = line.x.reduce((best, at, i) => (Math.abs(at - x) < Math.abs(line.x[best] - x) ? i : best), 0);
      return [line, line.x[near], line.y[near]];
    });
    tip.replaceChildren(make("b", { textContent: short(rows[0][1]) }));
    for (const [line, , y] of rows) {
      const entry = make("div", { textContent: `${line.n}: ${y === null ? "–" : short(y)}` }, tip);
      entry.style.borderColor = `var(--${line.c})`;
    }
    tip.hidden = false;
    const frame = figure.getBoundingClientRect();
    const left = event.clientX - frame.left;
    tip.style.left = `${left > frame.width / 2 ? left - tip.offsetWidth - 14 : left + 14}px`;
    tip.style.top = `${event.clientY - frame.top + 14}px`;
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const places = { x1: u * width, x2: u * width, y1: (1 - panel.box[1] - panel.box[3]) * height, y2: (1 - panel.box[1]) * height };
    for (const [name, place] of Object.entries(places)) cursor.setAttribute(name, place);
    cursor.style.visibility = "visible";
  });
}
