// Makes elements. Text from outside becomes text nodes and nothing else: there is no way from here to markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("p", { class: "note" }, "text", child)`. `on` holds listeners, `style` CSS properties, everything else is an attribute. */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for a picture. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) node.style.setProperty(property, String(text));
    } else if (name === "href" || name === "src") {
      // Only our own addresses: a page's URL is shown as text and never followed.
      if (!/^[/#](?!\/)/.test(value)) throw new Error(`${name} ${value} leads elsewhere`);
      node.setAttribute(name, value);
    } else if (name.startsWith("on")) {
      throw new Error(`${name}: listeners belong into \`on\``);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Puts these children in the place of all others. */
export function put(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

/** A section with a heading. */
export function card(title, props, ...children) {
  return el("section", { ...props, class: `card ${props?.class ?? ""}` }, el("h2", {}, title), ...children);
}

/** A table: columns are `{ name, of, numeric }`. */
export function table(columns, rows, caption) {
  const cell = (column, row) => el("td", { class: column.numeric ? "number" : null }, column.of(row));
  return el(
    "div",
    { class: "scroll-x", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.numeric ? "number" : null }, column.name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((column) => cell(column, row))))),
    ),
  );
}
