// The electronics maker's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, stars, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import { autocomplete, chooser, cookieBanner, radios, tabs, ticks, toast } from "/kit/ui.js";
import {
  COLOURS,
  LINES,
  NAME,
  PLANS,
  freshState,
  gigabytes,
  line,
  makeWorld,
  priceOf,
  search,
  specs,
} from "/world.js";
import { bagPage, checkoutPage } from "/bag.js";
import { articlePage, repairPage, storesPage, supportPage, tradePage } from "/service.js";
import { ENGRAVING_MOST, transitions } from "/transitions.js";
import { device } from "/pictures.js";

const PAGES = {
  "": homePage,
  line: linePage,
  product: productPage,
  configure: configurePage,
  compare: comparePage,
  accessories: accessoriesPage,
  bag: bagPage,
  checkout: checkoutPage,
  stores: storesPage,
  support: supportPage,
  article: articlePage,
  repair: repairPage,
  trade: tradePage,
};
const money = (dollars) => `$${grouped(dollars)}`;

site({
  name: "maker",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "bag", "compare"],
  show(world) {
    const main = h("main", {});
    const column = (title, links) =>
      h(
        "div",
        {},
        h("b", {}, title),
        links.map(([text, path]) => h("a", { href: path }, text)),
      );
    document.body.append(
      header(world),
      main,
      h(
        "footer",
        { class: "bottom" },
        column(
          "Devices",
          LINES.map(({ id, title }) => [title, href("/line/", { id })]),
        ),
        column("Service", [
          ["Support", "/support/"],
          ["Repair", "/repair/"],
          ["Trade in", "/trade/"],
          ["Shops", "/stores/"],
        ]),
        column(NAME, [
          ["Accessories", "/accessories/"],
          ["Compare", "/compare/"],
          ["Bag", "/bag/"],
        ]),
      ),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? NAME} – ${NAME}`;
    cookieBanner({
      name: NAME,
      text: "Cookies keep your bag. With your leave we also learn which pages help.",
    });
  },
});

function header(world) {
  const badge = h("b", {}),
    draw = () => {
      const sum = state().bag.reduce((total, { quantity }) => total + quantity, 0);
      badge.textContent = sum ? String(sum) : "";
    };
  onChange(draw);
  draw();
  const input = h("input", {
    type: "search",
    name: "q",
    placeholder: "Find a device",
    "aria-label": "Find a device",
  });
  const found = (text) => {
    const wanted = tidy(text).toLowerCase();
    return wanted.length < 2
      ? []
      : world.products
          .filter(({ name }) => name.toLowerCase().includes(wanted))
          .sort((a, b) => a.name.length - b.name.length)
          .slice(0, 7);
  };
  const open = (product) => visit(href("/product/", { id: product.id }));
  const form = h(
    "form",
    {
      class: "find",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        const list = found(input.value),
          hit = list.find(({ name }) => name.toLowerCase() === tidy(input.value).toLowerCase()) ?? list[0];
        if (hit) open(hit);
        else toast("No device of that name.", "error");
      },
    },
    icon("search", 16),
    input,
  );
  autocomplete(input, (text) =>
    found(text).map((product) => ({
      text: product.name,
      detail: money(product.price),
      act: () => open(product),
    })),
  );
  return h(
    "header",
    { class: "top" },
    h("a", { class: "logo", href: "/" }, h("i", {}), "oriel"),
    h(
      "nav",
      {},
      LINES.map(({ id, title }) => h("a", { href: href("/line/", { id }), id: `line-${id}` }, title)),
      h("a", { href: "/accessories/", id: "accessories" }, "Accessories"),
      h("a", { href: "/support/", id: "support" }, "Support"),
      h("a", { href: "/stores/", id: "stores" }, "Shops"),
    ),
    form,
    h("a", { class: "bag-link", href: "/bag/", id: "bag", "aria-label": "Bag" }, icon("cart", 20), badge),
  );
}

function homePage(world, main) {
  const dear = (id, place) => search(world, { id, sort: "dear" })[place],
    first = dear("phones", 2),
    rest = [dear("laptops", 3), dear("watches", 1), dear("tablets", 3), dear("audio", 3)];
  const tile = (product, kind) =>
    h(
      "section",
      { class: `tile ${kind}` },
      h(
        "div",
        {},
        h("h2", {}, product.name),
        h("p", {}, line(product.line).told),
        h(
          "p",
          { class: "row links" },
          h("a", { class: "button primary", href: href("/configure/", { id: product.id }) }, "Buy"),
          h("a", { href: href("/product/", { id: product.id }) }, "Learn more ›"),
        ),
      ),
      device(product),
    );
  add(
    main,
    tile(first, "big"),
    h(
      "div",
      { class: "tiles" },
      rest.map((product, at) => tile(product, at % 3 === 0 ? "dark" : "")),
    ),
    h(
      "section",
      { class: "band" },
      h(
        "div",
        {},
        h("h2", {}, "Your old one is worth something"),
        h("p", {}, "Tell us its state and get a price at once."),
      ),
      h("a", { class: "button primary", href: "/trade/", id: "trade" }, "Trade in"),
    ),
  );
  return "Devices with a quiet mind";
}

const card = (product) =>
  h(
    "article",
    { class: "card", "data-id": product.id },
    device(product),
    h("h3", {}, h("a", { href: href("/product/", { id: product.id }) }, product.name)),
    h(
      "p",
      { class: "dots" },
      product.colours.map((name) => h("i", { title: name, style: { background: COLOURS[name] } })),
    ),
    h(
      "p",
      { class: "row centre" },
      stars(product.rating, 12),
      h("span", { class: "soft" }, product.rating.toFixed(1)),
    ),
    h("p", { class: "soft" }, `${product.battery} h battery · ${product.weight} g`),
    h("b", {}, `From ${money(product.price)}`),
    compareBox(product),
  );

/** Puts a device next to others; at most three. */
function compareBox(product) {
  const box = h("input", {
    type: "checkbox",
    name: "compare",
    onchange: () => apply(box.checked ? "compare.add" : "compare.remove", { id: product.id }),
  });
  const draw = () => {
    box.checked = state().compare.includes(product.id);
  };
  onChange(draw);
  draw();
  return h("label", { class: "check centre" }, box, "Compare");
}

function linePage(world, main) {
  const asked = query(),
    one = line(asked.id) ?? LINES[0];
  const found = search(world, {
    ...asked,
    id: one.id,
    max: Number(asked.max) || 0,
    storage: Number(asked.storage) || 0,
    battery: Number(asked.battery) || 0,
  });
  const go = (changes) => visit(href("/line/", { ...asked, id: one.id, ...changes }));
  const all = world.products.filter((product) => product.line === one.id),
    middle = [...all].sort((a, b) => a.battery - b.battery)[4].battery,
    prices = [...all].map(({ price }) => price).sort((a, b) => a - b),
    half = Math.ceil(prices[4] / 50) * 50;
  const any = (list) => [{ value: "", text: "Any" }, ...list];
  add(
    main,
    h("div", { class: "line-head" }, h("h1", {}, one.title), h("p", {}, one.told)),
    h(
      "div",
      { class: "columns" },
      h(
        "aside",
        { class: "filters" },
        radios({
          title: "Price",
          name: "max",
          value: asked.max ?? "",
          options: any([{ value: String(half), text: `Up to ${money(half)}` }]),
          onchange: (max) => go({ max }),
        }),
        radios({
          title: "Storage to be had",
          name: "storage",
          value: asked.storage ?? "",
          options: any(
            one.storage.slice(1).map((size) => ({ value: String(size), text: `${gigabytes(size)} or more` })),
          ),
          onchange: (storage) => go({ storage }),
        }),
        radios({
          title: "Battery life",
          name: "battery",
          value: asked.battery ?? "",
          options: any([{ value: String(middle), text: `${middle} hours or more` }]),
          onchange: (battery) => go({ battery }),
        }),
        radios({
          title: "Colour",
          name: "colour",
          value: asked.colour ?? "",
          options: any(Object.keys(COLOURS).map((name) => ({ value: name, text: name }))),
          onchange: (colour) => go({ colour }),
        }),
      ),
      h(
        "div",
        {},
        h(
          "div",
          { class: "row" },
          h("b", { id: "found" }, count(found.length, "device")),
          h("a", { href: "/compare/", id: "compare" }, "Compare the chosen"),
          h(
            "div",
            { class: "end" },
            chooser(
              "Sort",
              "sort",
              asked.sort ?? "price",
              [
                ["price", "Lowest price"],
                ["dear", "Highest price"],
                ["light", "Lightest"],
                ["rating", "Best rated"],
                ["newest", "Newest"],
              ],
              (sort) => go({ sort }),
            ),
          ),
        ),
        h("div", { class: "grid" }, found.map(card)),
        found.length ? null : h("p", { class: "notice" }, "No device fits."),
      ),
    ),
  );
  return one.title;
}

function specTable(products) {
  const names = [...new Set(products.flatMap((product) => specs(product).map(([name]) => name)))];
  const cell = (product, name) => {
    const found = specs(product).find(([own]) => own === name);
    return h("td", {}, found ? `${grouped(found[1])} ${found[2]}` : "–");
  };
  return h(
    "table",
    { class: "specs" },
    products.length > 1
      ? h(
          "tr",
          {},
          h("th", {}, ""),
          products.map((product) => h("th", {}, product.name)),
        )
      : null,
    products.length > 1
      ? h(
          "tr",
          {},
          h("th", {}, "Price from"),
          products.map(({ price }) => h("td", {}, money(price))),
        )
      : null,
    names.map((name) =>
      h(
        "tr",
        {},
        h("th", {}, name),
        products.map((product) => cell(product, name)),
      ),
    ),
    h(
      "tr",
      {},
      h("th", {}, "Storage"),
      products.map(({ storage }) => h("td", {}, storage.map(({ size }) => gigabytes(size)).join(", "))),
    ),
    h(
      "tr",
      {},
      h("th", {}, "Released"),
      products.map(({ released }) => h("td", {}, dates.long(released))),
    ),
  );
}

function productPage(world, main) {
  const product = world.byId.get(query().id);
  if (!product || product.kit) {
    add(main, h("h1", {}, "We do not make this"));
    return "Not found";
  }
  const shot = h("div", { class: "shot" }, device(product)),
    fits = world.accessories.filter(({ fits: own }) => own === product.id);
  add(
    main,
    h(
      "div",
      { class: "stage" },
      h(
        "div",
        {},
        h("small", {}, line(product.line).title),
        h("h1", {}, product.name),
        h("p", { class: "lead" }, line(product.line).told),
        h("p", { class: "row" }, stars(product.rating, 15), product.rating.toFixed(1)),
        h("p", { class: "price" }, `From ${money(product.price)}`),
        h(
          "p",
          { class: "swatches" },
          product.colours.map((name) =>
            h("button", {
              "aria-label": name,
              title: name,
              style: { background: COLOURS[name] },
              onclick: () => fill(shot, device(product, name)),
            }),
          ),
        ),
        h(
          "div",
          { class: "row" },
          h(
            "a",
            { class: "button primary", id: "configure", href: href("/configure/", { id: product.id }) },
            "Configure and buy",
          ),
          compareBox(product),
        ),
      ),
      shot,
    ),
    tabs([
      { id: "specs", title: "Technical data", panel: () => specTable([product]) },
      {
        id: "accessories",
        title: "Accessories",
        panel: () => (fits.length ? h("div", { class: "grid" }, fits.map(kitCard)) : h("p", {}, "None yet.")),
      },
      {
        id: "help",
        title: "Support",
        panel: () =>
          h(
            "ul",
            { class: "articles" },
            world.articles
              .filter((article) => article.line === product.line)
              .map((article) =>
                h("li", {}, h("a", { href: href("/article/", { id: article.id }) }, article.title)),
              ),
          ),
      },
    ]),
  );
  return product.name;
}

function comparePage(world, main) {
  const draw = () => {
    const products = state().compare.map((id) => world.byId.get(id));
    const list = h(
      "select",
      {
        name: "more",
        "aria-label": "Add a device",
        onchange: () => {
          if (list.value) apply("compare.add", { id: list.value });
        },
      },
      h("option", { value: "" }, "Add a device…"),
      world.products
        .filter(({ id, line: own }) => !state().compare.includes(id) && products[0]?.line === own)
        .map(({ id, name }) => h("option", { value: id }, name)),
    );
    fill(
      main,
      h("h1", {}, "Compare"),
      products.length
        ? h(
            "div",
            { class: "row compare-tools" },
            h("div", { class: "picker" }, list),
            h(
              "button",
              {
                id: "clear",
                onclick: () => apply("compare.clear"),
              },
              "Clear",
            ),
          )
        : null,
      products.length
        ? specTable(products)
        : h(
            "p",
            { class: "notice" },
            "Tick two or three devices of a line first: ",
            LINES.map(({ id, title }) => [h("a", { href: href("/line/", { id }) }, title), " "]),
          ),
    );
  };
  onChange(draw);
  draw();
  return "Compare";
}

/** The configurator: colour, storage, memory, engraving and plan, with the price beside it. */
function configurePage(world, main) {
  const product = world.byId.get(query().id);
  if (!product || product.kit) {
    add(main, h("h1", {}, "We do not make this"));
    return "Not found";
  }
  const given = {
    colour: product.colours[0],
    storage: product.storage[0].size,
    memory: product.memory[0].size,
    plan: "none",
    engraving: "",
  };
  const side = h("aside", { class: "summary" }),
    choices = h("div", { class: "choosing" });
  const set = (key) => (value) => {
    given[key] = value;
    draw();
  };
  const more = (extra) => (extra ? ` (+${money(extra)})` : "");
  const input = h("input", {
    type: "text",
    name: "engraving",
    maxlength: String(ENGRAVING_MOST),
    placeholder: `Up to ${ENGRAVING_MOST} letters`,
    "aria-label": "Engraving",
    oninput: () => {
      given.engraving = tidy(input.value);
      drawSide();
    },
  });
  const drawSide = () =>
    fill(
      side,
      device(product, given.colour),
      h("h2", {}, product.name),
      h("p", {}, `${given.colour}, ${gigabytes(Number(given.storage))}, ${given.memory} GB memory`),
      given.engraving ? h("p", { class: "engraved" }, given.engraving) : null,
      h("p", { class: "price", id: "price" }, money(priceOf(product, given))),
      h(
        "button",
        {
          class: "primary",
          id: "add",
          onclick: () => {
            apply("bag.configured", {
              id: product.id,
              ...given,
              storage: Number(given.storage),
              memory: Number(given.memory),
            });
            visit("/bag/");
          },
        },
        "Add to bag",
      ),
    );
  const draw = () => {
    fill(
      choices,
      h(
        "section",
        {},
        radios({
          title: "Colour",
          name: "colour",
          value: given.colour,
          options: product.colours,
          onchange: set("colour"),
        }),
      ),
      h(
        "section",
        {},
        radios({
          title: "Storage",
          name: "storage",
          value: String(given.storage),
          options: product.storage.map(({ size, extra }) => ({
            value: String(size),
            text: `${gigabytes(size)}${more(extra)}`,
          })),
          onchange: set("storage"),
        }),
      ),
      h(
        "section",
        {},
        radios({
          title: "Memory",
          name: "memory",
          value: String(given.memory),
          options: product.memory.map(({ size, extra }) => ({
            value: String(size),
            text: `${size} GB${more(extra)}`,
          })),
          onchange: set("memory"),
        }),
      ),
      h("section", { class: "engrave" }, h("b", {}, "Engraving (+$19, optional)"), input),
      h(
        "section",
        {},
        radios({
          title: "Protection",
          name: "plan",
          value: given.plan,
          options: PLANS.map(({ id, name, price }) => ({ value: id, text: `${name}${more(price)}` })),
          onchange: set("plan"),
        }),
      ),
    );
    drawSide();
  };
  draw();
  add(
    main,
    h("h1", {}, `Configure your ${product.name}`),
    h("div", { class: "configurator" }, choices, side),
  );
  return `Configure ${product.name}`;
}

const kitCard = (kit) =>
  h(
    "article",
    { class: "card", "data-id": kit.id },
    device(kit),
    h("h3", {}, kit.name),
    h("b", {}, money(kit.price)),
    h(
      "button",
      {
        class: "add",
        onclick: () => {
          apply("bag.accessory", { id: kit.id });
          toast(`${kit.name} is in your bag`);
        },
      },
      "Add to bag",
    ),
  );

function accessoriesPage(world, main) {
  const asked = query(),
    go = (changes) => visit(href("/accessories/", { ...asked, ...changes })),
    kinds = asked.kinds ? asked.kinds.split("|") : [];
  const found = world.accessories
    .filter((kit) => (!asked.line || kit.line === asked.line) && (!kinds.length || kinds.includes(kit.kit)))
    .sort((a, b) => a.price - b.price || (a.id < b.id ? -1 : 1));
  add(
    main,
    h("h1", {}, "Accessories"),
    h(
      "div",
      { class: "columns" },
      h(
        "aside",
        { class: "filters" },
        radios({
          title: "For",
          name: "line",
          value: asked.line ?? "",
          options: [
            { value: "", text: "All devices" },
            ...LINES.map(({ id, title }) => ({ value: id, text: title })),
          ],
          onchange: (value) => go({ line: value }),
        }),
        ticks({
          title: "Kind",
          name: "kinds",
          chosen: kinds,
          options: [...new Set(world.accessories.map(({ kit }) => kit))],
          onchange: (values) => go({ kinds: values.join("|") }),
        }),
      ),
      h(
        "div",
        {},
        h("b", { id: "found" }, count(found.length, "accessory", "accessories")),
        h("div", { class: "grid" }, found.map(kitCard)),
      ),
    ),
  );
  return "Accessories";
}
