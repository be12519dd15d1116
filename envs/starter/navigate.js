// A shop of three levels: departments, the products of one, one product with its branches. The first reservation ends the task.
"use strict";

const DEPARTMENTS = {
  Garden: ["bench", "arch", "planter", "trellis"],
  Kitchen: ["stool", "shelf", "board", "rack"],
  Hall: ["bench", "mirror", "stand", "shelf"],
  Study: ["desk", "lamp", "stool", "shelf"],
  Bedroom: ["lamp", "mirror", "chest", "stand"],
  Nursery: ["desk", "chest", "stool", "board"],
};
const WOODS = ["Ash", "Beech", "Cedar", "Cherry", "Larch", "Maple", "Pine", "Walnut"];
const BRANCHES = ["Harbour branch", "Station branch", "Market branch", "Hill branch", "Mill branch"];
const NOTES = [
  "Oiled by hand.",
  "Delivered in one piece.",
  "Made to order last year.",
  "From storm-felled trees.",
  "Joined without screws.",
];

furrow.task({
  name: "navigate",

  make(draw) {
    const departments = draw.shuffled(Object.keys(DEPARTMENTS)).map((name) => ({
      name,
      products: draw
        .some(
          DEPARTMENTS[name].flatMap((kind) => WOODS.map((wood) => `${wood} ${kind}`)),
          6,
        )
        .map((product) => ({
          name: product,
          department: name,
          price: draw.between(19, 389),
          note: draw.one(NOTES),
          hue: draw.between(18, 40),
        })),
    }));
    const branches = draw.some(BRANCHES, 4).map((name) => ({ name, stock: draw.between(1, 9) }));
    const product = draw.one(draw.one(departments).products);
    const branch = draw.one(branches).name;
    return {
      goal: `In the ${product.department} department, find the ${product.name} and reserve it at the ${branch}.`,
      departments,
      branches,
      product,
      branch,
    };
  },

  show(world) {
    const query = new URLSearchParams(location.search);
    const department = world.departments.find(({ name }) => name === query.get("department"));
    const product = department?.products.find(({ name }) => name === query.get("product"));
    const page = location.pathname.split("/").pop();
    const shown =
      page === "navigate-product.html"
        ? productPage(world, product)
        : page === "navigate-department.html"
          ? departmentPage(department)
          : homePage(world);
    document.querySelector("main").append(...shown);
  },
});

function homePage({ departments }) {
  return [
    furrow.element("h1", {}, "Departments"),
    grid(
      departments.map(({ name, products }, at) =>
        tile(
          `navigate-department.html?${new URLSearchParams({ department: name })}`,
          swatch(16 + at * 5, 44),
          name,
          `${products.length} pieces`,
        ),
      ),
    ),
  ];
}

function departmentPage(department) {
  if (!department) return nothingHere();
  document.title = `${department.name} | Alder and Oak`;
  return [
    trail(),
    furrow.element("h1", {}, department.name),
    grid(
      department.products.map(({ name, price, hue }) =>
        tile(
          `navigate-product.html?${new URLSearchParams({ department: department.name, product: name })}`,
          swatch(hue, 44),
          name,
          `${price}.00`,
        ),
      ),
    ),
  ];
}

function productPage({ branches, branch, product: wanted }, product) {
  if (!product) return nothingHere();
  document.title = `${product.name} | Alder and Oak`;
  const reserve = (at) =>
    furrow.finish(product === wanted && at === branch, {
      reserved: product.name,
      department: product.department,
      branch: at,
    });
  return [
    trail(product.department),
    furrow.element(
      "section",
      { class: "panel row" },
      swatch(product.hue, 76),
      furrow.element(
        "div",
        {},
        furrow.element("h1", {}, product.name),
        furrow.element("p", { class: "soft" }, product.note),
      ),
      furrow.element("b", { class: "end" }, `${product.price}.00`),
    ),
    furrow.element(
      "table",
      {},
      ...branches.map(({ name, stock }) =>
        furrow.element(
          "tr",
          {},
          furrow.element("td", {}, name),
          furrow.element("td", { class: "soft" }, `${stock} in stock`),
          furrow.element(
            "td",
            { class: "number" },
            furrow.element("button", { onclick: () => reserve(name) }, "Reserve"),
          ),
        ),
      ),
    ),
  ];
}

function nothingHere() {
  return [trail(), furrow.element("p", {}, "There is nothing at this address.")];
}

function trail(department) {
  const links = [furrow.element("a", { href: "navigate.html" }, "Departments")];
  if (department)
    links.push(
      " / ",
      furrow.element(
        "a",
        { href: `navigate-department.html?${new URLSearchParams({ department })}` },
        department,
      ),
    );
  return furrow.element("p", {}, ...links);
}

function grid(tiles) {
  return furrow.element(
    "div",
    { style: "display: grid; grid-template-columns: 1fr 1fr; gap: 10px" },
    ...tiles,
  );
}

function tile(href, picture, name, under) {
  return furrow.element(
    "a",
    { class: "panel row tile", href, style: "color: inherit; text-decoration: none" },
    picture,
    furrow.element("div", {}, furrow.element("b", {}, name), furrow.element("div", { class: "soft" }, under)),
  );
}

// A piece of wood with its grain.
function swatch(hue, side) {
  const grain = `repeating-radial-gradient(ellipse at 30% 120%, hsl(${hue} 42% 58%) 0 5px, hsl(${hue} 40% 52%) 5px 9px)`;
  return furrow.element("div", {
    style: `flex: none; width: ${side}px; height: ${side}px; border-radius: 6px; background: ${grain}`,
  });
}
