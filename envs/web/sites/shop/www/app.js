// The shop's pages. Which one is shown follows from the address's folder; everything on it follows from the world and the visitor's state.

import { visit, visitInstead } from "/kit/address.js";
import { $, add, count, dollars, fill, h, icon, stars, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, request, site, state } from "/kit/site.js";
import {
  autocomplete,
  cookieBanner,
  dropdown,
  field,
  infinite,
  modal,
  pagination,
  tabs,
  toast,
  validate,
} from "/kit/ui.js";
import {
  DELIVERY,
  DEPARTMENTS,
  GROUPS,
  RETURN_REASONS,
  SHOP,
  colourOf,
  couponProblem,
  department,
  freshState,
  makeWorld,
  orderTotal,
  questionsOf,
  reviewsOf,
  search,
  totals,
  weekdayFrom,
} from "/world.js";
import { picture } from "/pictures.js";
import { checkoutPage, sumTable } from "/checkout.js";
import {
  REFUNDS,
  mostOf,
  newsletterProblem,
  ordersOf,
  returnRules,
  signInProblem,
  signInRules,
  transitions,
} from "/transitions.js";

const PAGES = {
  "": homePage,
  search: searchPage,
  item: itemPage,
  cart: cartPage,
  checkout: checkoutPage,
  deals: dealsPage,
  wishlist: wishlistPage,
  login: loginPage,
  account: accountPage,
  order: orderPage,
  help: helpPage,
};
const PER_PAGE = 16;

site({
  name: "shop",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "cart", "saved", "coupon", "wishlist", "user"],
  show(world) {
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    const main = h("main", {});
    document.body.append(header(world), main, footer());
    document.title = `${page(world, main) ?? SHOP} | ${SHOP}`;
    cookieBanner({
      name: SHOP,
      text: "We use cookies to remember your basket and to learn which pages are useful. You can choose which ones we may set.",
    });
  },
});

// ---- around every page ----

function header(world) {
  const { q = "", department: place = "" } = query();
  const input = h("input", {
    type: "search",
    name: "q",
    placeholder: "Search for products, brands and more",
    value: q,
    "aria-label": "Search",
  });
  const form = h("form", {
    class: "searchbar",
    role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      visit(href("/search/", { q: tidy(input.value), department: select.value }));
    },
  });
  const select = h(
    "select",
    { "aria-label": "Department" },
    h("option", { value: "" }, "All"),
    DEPARTMENTS.map(({ id, name }) => h("option", { value: id, selected: id === place }, name)),
  );
  form.append(select, input, h("button", { class: "go", "aria-label": "Search" }, icon("search")));
  autocomplete(input, (text) => suggestions(world, tidy(text)));
  const badge = h("b", { class: "badge" });
  const who = h("span", {});
  const refresh = () => {
    const { cart, user } = state();
    badge.textContent = String(cart.reduce((sum, line) => sum + line.quantity, 0));
    who.textContent = user ? user.split(" ")[0] : "Sign in";
  };
  onChange(refresh);
  refresh();
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "bar" },
      h("a", { class: "brand", href: "/" }, h("i", {}, "H"), SHOP),
      form,
      h(
        "nav",
        { class: "tools" },
        h("a", { href: state().user ? "/account/" : "/login/", id: "account" }, icon("user"), who),
        h("a", { href: "/wishlist/", id: "wishlist" }, icon("heart"), h("span", {}, "Wish list")),
        h("a", { href: "/cart/", id: "cart" }, icon("cart"), h("span", {}, "Cart"), badge),
      ),
    ),
    h(
      "nav",
      { class: "departments" },
      DEPARTMENTS.map(({ id, name }) =>
        h(
          "a",
          { href: href("/search/", { department: id }), "aria-current": id === place ? "page" : null },
          name,
        ),
      ),
      h("a", { href: "/deals/", class: "hot" }, "Deals"),
    ),
  );
}

function suggestions(world, text) {
  if (text.length < 2) return [];
  const wanted = text.toLowerCase();
  const places = DEPARTMENTS.filter(({ name }) => name.toLowerCase().includes(wanted))
    .slice(0, 2)
    .map(({ id, name }) => ({
      text: name,
      detail: "Department",
      act: () => visit(href("/search/", { department: id })),
    }));
  const items = search(world, { q: text })
    .slice(0, 7 - places.length)
    .map((product) => ({
      text: product.title,
      detail: dollars(product.price),
      act: () => visit(itemLink(product)),
    }));
  return [...places, ...items];
}

function footer() {
  const column = (title, ...links) =>
    h(
      "div",
      {},
      h("h4", {}, title),
      links.map(([text, to]) => h("a", { href: to }, text)),
    );
  const mail = h("input", {
    type: "email",
    placeholder: "Your email address",
    "aria-label": "Email for the newsletter",
    name: "newsletter",
  });
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        const email = tidy(mail.value);
        const problem = newsletterProblem(email);
        if (problem) return toast(problem, "error");
        apply("newsletter.join", { email });
        mail.value = "";
        toast("Thank you. You are on the list.");
      },
    },
    mail,
    h("button", { class: "primary" }, "Sign up"),
  );
  return h(
    "footer",
    { class: "bottom" },
    column("Shop", ["All departments", "/search/"], ["Deals", "/deals/"], ["Wish list", "/wishlist/"]),
    column(
      "Help",
      ["Delivery", "/help/#delivery"],
      ["Returns", "/help/#returns"],
      ["Payment", "/help/#payment"],
    ),
    column("You", ["Your account", "/account/"], ["Your orders", "/account/#orders"], ["Cart", "/cart/"]),
    h(
      "div",
      { class: "news" },
      h("h4", {}, "News and offers"),
      form,
      h("p", { class: "soft" }, `© ${SHOP}. All prices in US dollars, taxes included.`),
    ),
  );
}

const itemLink = (product) => href("/item/", { id: product.id });
const crumbs = (...parts) =>
  h(
    "nav",
    { class: "crumbs", "aria-label": "Breadcrumb" },
    parts.map(([text, to], index) => [
      index ? h("span", {}, "›") : null,
      to ? h("a", { href: to }, text) : h("span", {}, text),
    ]),
  );
const stockNote = ({ stock }) =>
  stock === 0
    ? h("span", { class: "stock out" }, "Out of stock")
    : stock < 5
      ? h("span", { class: "stock low" }, `Only ${stock} left`)
      : h("span", { class: "stock in" }, "In stock");
const ratingLine = (product) =>
  h(
    "div",
    { class: "rating" },
    stars(product.rating, 14),
    h("b", {}, product.rating.toFixed(1)),
    h("span", { class: "soft" }, `(${product.ratings.length})`),
  );
const priceLine = (product) =>
  h(
    "div",
    { class: "price" },
    h("b", {}, dollars(product.price)),
    product.was ? h("s", {}, dollars(product.was)) : null,
    product.was ? h("em", {}, `-${product.percent}%`) : null,
  );

function card(product) {
  return h(
    "article",
    { class: "card", "data-id": product.id },
    h("a", { href: itemLink(product), class: "shot" }, picture(product)),
    product.was ? h("span", { class: "flag" }, "Deal") : null,
    h("h3", {}, h("a", { href: itemLink(product) }, product.title)),
    ratingLine(product),
    priceLine(product),
    h(
      "p",
      { class: "small" },
      stockNote(product),
      product.freeDelivery ? h("span", { class: "soft" }, " · Free delivery") : null,
    ),
  );
}

// ---- home ----

function homePage(world, main) {
  const [hero, side] = [
    world.products.find((product) => product.percent >= 30) ?? world.products[0],
    [...world.products].sort((a, b) => a.added - b.added)[0],
  ];
  const deals = search(world, { deals: true, stock: true, sort: "reviews" }).slice(0, 5);
  const best = search(world, { stock: true, sort: "rating" }).slice(0, 5);
  add(
    main,
    h(
      "section",
      { class: "heroes" },
      h(
        "a",
        { class: "hero", href: itemLink(hero) },
        h(
          "div",
          {},
          h("small", {}, "This week's offer"),
          h("h1", {}, hero.title),
          h("p", {}, `Now ${dollars(hero.price)}${hero.was ? `, was ${dollars(hero.was)}` : ""}`),
          h("span", { class: "button" }, "See the offer"),
        ),
        picture(hero),
      ),
      h(
        "a",
        { class: "hero second", href: itemLink(side) },
        h("div", {}, h("small", {}, "Just in"), h("h2", {}, side.title), h("p", {}, dollars(side.price))),
        picture(side),
      ),
    ),
    h(
      "section",
      { class: "groups" },
      GROUPS.map((group) => {
        const places = DEPARTMENTS.filter((one) => one.group === group);
        return h(
          "div",
          { class: "group" },
          h("h2", {}, group),
          h(
            "div",
            { class: "pair" },
            places.map(({ id, name }) =>
              h(
                "a",
                { href: href("/search/", { department: id }) },
                picture(world.products.find((product) => product.department === id)),
                h("span", {}, name),
              ),
            ),
          ),
        );
      }),
    ),
    h(
      "section",
      {},
      h(
        "div",
        { class: "row" },
        h("h2", {}, "Popular deals"),
        h("a", { class: "end", href: "/deals/" }, "All deals"),
      ),
      h("div", { class: "shelf" }, deals.map(card)),
    ),
    h("section", {}, h("h2", {}, "Best rated"), h("div", { class: "shelf" }, best.map(card))),
  );
  return "Everything for home and desk";
}

// ---- results ----

function searchPage(world, main) {
  const asked = query();
  const list = (text) => (text ? text.split("|") : []);
  const filters = {
    ...asked,
    brand: list(asked.brand),
    min: Number(asked.min) || 0,
    max: Number(asked.max) || 0,
    rating: Number(asked.rating) || 0,
  };
  const place = department(asked.department);
  const found = search(world, filters);
  const pages = Math.ceil(found.length / PER_PAGE);
  const page = Math.min(Math.max(1, Number(asked.page) || 1), Math.max(1, pages));
  const go = (changes) => visit(href("/search/", { ...asked, page: "", ...changes }));
  const base = search(world, { q: asked.q, department: asked.department });
  const brands = [...new Set(base.map(({ brand }) => brand))].sort();
  const tick = (text, checked, act, amount) =>
    h(
      "label",
      { class: "check" },
      h("input", { type: "checkbox", checked, onchange: (event) => act(event.target.checked) }),
      h("span", {}, text),
      amount === undefined ? null : h("small", { class: "soft" }, `(${amount})`),
    );
  const least = h("input", {
    type: "text",
    name: "min",
    inputmode: "numeric",
    placeholder: "Min",
    value: asked.min ?? "",
    "aria-label": "Lowest price",
  });
  const most = h("input", {
    type: "text",
    name: "max",
    inputmode: "numeric",
    placeholder: "Max",
    value: asked.max ?? "",
    "aria-label": "Highest price",
  });
  const amount = (input) => (/^\d+(\.\d{1,2})?$/.test(input.value.trim()) ? input.value.trim() : "");
  const sidebar = h(
    "aside",
    { class: "filters" },
    place
      ? null
      : h(
          "fieldset",
          {},
          h("legend", {}, "Department"),
          DEPARTMENTS.map(({ id, name }) => ({
            id,
            name,
            amount: base.filter((product) => product.department === id).length,
          }))
            .filter((one) => one.amount)
            .map(({ id, name, amount }) =>
              h(
                "a",
                { href: href("/search/", { ...asked, department: id, page: "" }) },
                name,
                h("small", { class: "soft" }, ` (${amount})`),
              ),
            ),
        ),
    h(
      "fieldset",
      { id: "filter-price" },
      h("legend", {}, "Price"),
      h(
        "form",
        {
          class: "prices",
          onsubmit: (event) => {
            event.preventDefault();
            go({ min: amount(least), max: amount(most) });
          },
        },
        least,
        h("span", {}, "to"),
        most,
        h("button", { "aria-label": "Apply price" }, "Go"),
      ),
    ),
    h(
      "fieldset",
      { id: "filter-rating" },
      h("legend", {}, "Customer rating"),
      [4.5, 4, 3.5, 3].map((least) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "radio",
            name: "rating",
            value: least,
            checked: filters.rating === least,
            onchange: () => go({ rating: least }),
          }),
          stars(least, 14),
          h("span", {}, `${least} & up`),
        ),
      ),
    ),
    h(
      "fieldset",
      { id: "filter-stock" },
      h("legend", {}, "Availability"),
      tick("In stock only", Boolean(asked.stock), (on) => go({ stock: on ? 1 : "" })),
      tick("Free delivery", Boolean(asked.free), (on) => go({ free: on ? 1 : "" })),
      tick("On offer", Boolean(asked.deals), (on) => go({ deals: on ? 1 : "" })),
    ),
    h(
      "fieldset",
      { id: "filter-brand" },
      h("legend", {}, "Brand"),
      brands.map((brand) =>
        tick(
          brand,
          filters.brand.includes(brand),
          (on) =>
            go({
              brand: (on ? [...filters.brand, brand] : filters.brand.filter((one) => one !== brand)).join(
                "|",
              ),
            }),
          base.filter((product) => product.brand === brand).length,
        ),
      ),
    ),
  );
  const chips = [
    ...filters.brand.map((brand) => [
      brand,
      { brand: filters.brand.filter((one) => one !== brand).join("|") },
    ]),
    asked.min || asked.max
      ? [`$${asked.min || 0} to ${asked.max ? `$${asked.max}` : "any"}`, { min: "", max: "" }]
      : null,
    asked.rating ? [`${asked.rating} stars & up`, { rating: "" }] : null,
    asked.stock ? ["In stock", { stock: "" }] : null,
    asked.free ? ["Free delivery", { free: "" }] : null,
    asked.deals ? ["On offer", { deals: "" }] : null,
  ].filter(Boolean);
  const sorts = [
    ["relevance", "Best match"],
    ["price-up", "Price: low to high"],
    ["price-down", "Price: high to low"],
    ["rating", "Customer rating"],
    ["reviews", "Most reviews"],
    ["newest", "Newest"],
  ].map(([value, text]) => ({ value, text }));
  const first = (page - 1) * PER_PAGE;
  add(
    main,
    crumbs(["Home", "/"], place ? [place.group] : ["Search"], ...(place ? [[place.name]] : [])),
    h(
      "div",
      { class: "row results-head" },
      h(
        "div",
        {},
        h("h1", {}, place ? place.name : asked.q ? `Results for “${asked.q}”` : "All products"),
        h(
          "p",
          { class: "soft", id: "result-count" },
          found.length
            ? `${first + 1}–${Math.min(first + PER_PAGE, found.length)} of ${count(found.length, "result")}`
            : "0 results",
        ),
      ),
      h(
        "div",
        { class: "end" },
        dropdown({
          label: "Sort by",
          options: sorts,
          value: asked.sort ?? "relevance",
          id: "sort",
          onchange: (value) => go({ sort: value }),
        }),
      ),
    ),
    chips.length
      ? h(
          "div",
          { class: "row chips" },
          chips.map(([text, changes]) =>
            h("button", { class: "chip", onclick: () => go(changes) }, text, icon("close", 14)),
          ),
          h("a", { href: href("/search/", { q: asked.q, department: asked.department }) }, "Clear all"),
        )
      : null,
    h(
      "div",
      { class: "results" },
      sidebar,
      h(
        "div",
        {},
        found.length
          ? h("div", { class: "grid" }, found.slice(first, first + PER_PAGE).map(card))
          : h(
              "div",
              { class: "empty" },
              icon("search", 48),
              h("h2", {}, "Nothing found"),
              h("p", {}, "Check the spelling, use fewer words, or remove a filter."),
            ),
        pagination({ page, pages, address: (to) => href("/search/", { ...asked, page: to > 1 ? to : "" }) }),
      ),
    ),
  );
  return place ? place.name : asked.q || "All products";
}

// ---- one product ----

function itemPage(world, main) {
  const product = world.byId.get(query().id);
  if (!product) return missing(main);
  const place = department(product.department);
  let colour = product.colours.includes(query().colour) ? query().colour : product.colours[0],
    view = 0;
  const shot = h("div", { class: "main-shot" });
  const thumbs = h("div", { class: "thumbs" });
  const chosen = h("b", { id: "chosen-colour" });
  const swatches = h("div", { class: "swatches" });
  const draw = () => {
    fill(shot, picture(product, { colour, view }));
    fill(
      thumbs,
      [0, 1, 2].map((one) =>
        h(
          "button",
          {
            class: one === view ? "on" : "",
            "aria-label": `View ${one + 1}`,
            onclick: () => {
              view = one;
              draw();
            },
          },
          picture(product, { colour, view: one }),
        ),
      ),
    );
    chosen.textContent = colour;
    fill(
      swatches,
      product.colours.map((one) =>
        h(
          "button",
          {
            class: one === colour ? "on" : "",
            "data-colour": one,
            "aria-label": one,
            "aria-pressed": String(one === colour),
            onclick: () => {
              colour = one;
              draw();
            },
          },
          h("i", { style: { background: colourOf(one) } }),
          one,
        ),
      ),
    );
  };
  draw();
  const quantity = h(
    "select",
    { id: "quantity", "aria-label": "Quantity" },
    Array.from({ length: mostOf(product) }, (_, index) => h("option", {}, String(index + 1))),
  );
  const addToCart = () =>
    request("cart", () => {
      apply("cart.add", { id: product.id, colour, quantity: Number(quantity.value) });
      modal({
        title: "Added to your cart",
        body: h(
          "div",
          { class: "row" },
          h("div", { class: "mini" }, picture(product, { colour })),
          h(
            "div",
            {},
            h("b", {}, product.title),
            h("p", { class: "soft" }, `${colour} · Quantity ${quantity.value}`),
            h("p", {}, `Cart subtotal: ${dollars(totals(world, state()).subtotal)}`),
          ),
        ),
        actions: [
          { text: "Keep shopping", act() {} },
          { text: "Go to cart", primary: true, act: () => visit("/cart/") },
        ],
      });
    }).catch((error) => toast(error.message, "error"));
  const heart = h("button", {
    id: "wish",
    onclick: () => {
      apply(`wishlist.${state().wishlist.includes(product.id) ? "remove" : "add"}`, { id: product.id });
      wish();
    },
  });
  const wish = () => {
    const on = state().wishlist.includes(product.id);
    heart.classList.toggle("on", on);
    fill(heart, icon("heart", 18), on ? "On your wish list" : "Add to wish list");
  };
  wish();
  const working = weekdayFrom(world.today, 1);
  add(
    main,
    crumbs(["Home", "/"], [place.name, href("/search/", { department: place.id })], [product.name]),
    h(
      "div",
      { class: "product" },
      h("div", { class: "gallery" }, thumbs, shot),
      h(
        "div",
        { class: "facts" },
        h(
          "a",
          { class: "brand-link", href: href("/search/", { department: place.id, brand: product.brand }) },
          product.brand,
        ),
        h("h1", {}, product.title),
        h(
          "div",
          { class: "row" },
          stars(product.rating, 18),
          h("b", {}, product.rating.toFixed(1)),
          h(
            "a",
            { href: "#reviews", onclick: () => $('[data-tab="reviews"]').click() },
            count(product.ratings.length, "review"),
          ),
          h("span", { class: "soft" }, `Item ${product.code}`),
        ),
        h("hr"),
        h(
          "ul",
          { class: "bullets" },
          Object.entries(product.specs)
            .slice(0, 3)
            .map(([name, value]) => h("li", {}, h("b", {}, `${name}: `), value)),
        ),
        h("p", {}, "Colour: ", chosen),
        swatches,
        h(
          "p",
          { class: "deliver" },
          icon("truck", 18),
          product.freeDelivery ? "Free standard delivery. " : "Standard delivery from $4.99. ",
          `Express delivery by ${dates.brief(working)}.`,
        ),
      ),
      h(
        "aside",
        { class: "buy" },
        priceLine(product),
        product.was ? h("p", { class: "save" }, `You save ${dollars(product.was - product.price)}`) : null,
        h("p", {}, stockNote(product)),
        product.stock ? h("label", { class: "row quantity" }, "Quantity", quantity) : null,
        product.stock
          ? h(
              "button",
              { class: "primary big", id: "add", onclick: addToCart },
              icon("cart", 18),
              "Add to cart",
            )
          : h(
              "button",
              { class: "big", onclick: () => toast("We will write to you when it is back.") },
              "Tell me when it is back",
            ),
        heart,
        h(
          "ul",
          { class: "promises" },
          h("li", {}, icon("lock", 16), "Secure payment"),
          h("li", {}, icon("check", 16), "30 days to return"),
          h("li", {}, icon("truck", 16), "Free over $75"),
        ),
      ),
    ),
    tabs([
      { id: "description", title: "Description", panel: () => description(product, place) },
      {
        id: "specifications",
        title: "Specifications",
        panel: () =>
          h(
            "table",
            { class: "specs" },
            Object.entries({
              Brand: product.brand,
              Model: product.name,
              ...product.specs,
              Colours: product.colours.join(", "),
              "Item number": product.code,
            }).map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value))),
          ),
      },
      { id: "reviews", title: `Reviews (${product.ratings.length})`, panel: () => reviewPanel(product) },
      {
        id: "questions",
        title: "Questions & answers",
        panel: () =>
          h(
            "div",
            { class: "questions" },
            questionsOf(product).map(({ question, answer, author }) =>
              h(
                "details",
                {},
                h("summary", {}, question),
                h("p", {}, answer),
                h("p", { class: "soft" }, `Asked by ${author}, answered by ${SHOP}`),
              ),
            ),
          ),
      },
    ]),
    h(
      "section",
      {},
      h("h2", {}, `More ${place.name.toLowerCase()}`),
      h(
        "div",
        { class: "shelf" },
        search(world, { department: place.id, sort: "reviews" })
          .filter((one) => one !== product)
          .slice(0, 5)
          .map(card),
      ),
    ),
  );
  return product.title;
}

function description(product, place) {
  const [one, two, three] = Object.entries(product.specs).slice(1, 4);
  return h(
    "div",
    { class: "prose" },
    h(
      "p",
      {},
      `The ${product.name} from ${product.brand} is made for people who use their ${place.noun.toLowerCase()} every day. ${one[0]}: ${one[1]}, and a design that stays out of the way.`,
    ),
    h(
      "p",
      {},
      `With ${two[0].toLowerCase()} of ${two[1]} and ${three[0].toLowerCase()} ${three[1]}, it is one of the more balanced models in our ${place.group.toLowerCase()} range. Available in ${product.colours.join(", ").toLowerCase()}.`,
    ),
    h("p", { class: "soft" }, "All figures are the maker's own. See Specifications for the full list."),
  );
}

function reviewPanel(product) {
  const all = reviewsOf(product);
  let sort = "recent",
    only = 0,
    shown = 5;
  const body = h("div", { class: "reviews" });
  const draw = () => {
    const order = {
      recent: (a, b) => a.age - b.age,
      helpful: (a, b) => b.helpful - a.helpful || a.age - b.age,
      highest: (a, b) => b.rating - a.rating || a.age - b.age,
      lowest: (a, b) => a.rating - b.rating || a.age - b.age,
    };
    const list = all.filter(({ rating }) => !only || rating === only).sort(order[sort]);
    fill(
      body,
      h(
        "div",
        { class: "histogram" },
        h("p", { class: "row" }, h("strong", {}, product.rating.toFixed(1)), stars(product.rating, 20)),
        h("p", { class: "soft" }, `from ${count(all.length, "review")}`),
        [5, 4, 3, 2, 1].map((rating) => {
          const amount = all.filter((one) => one.rating === rating).length;
          return h(
            "button",
            {
              class: `bar-row${only === rating ? " on" : ""}`,
              "data-stars": rating,
              onclick: () => {
                only = only === rating ? 0 : rating;
                shown = 5;
                draw();
              },
            },
            `${rating} star`,
            h("i", {}, h("b", { style: { width: `${(amount / all.length) * 100}%` } })),
            h("span", {}, String(amount)),
          );
        }),
      ),
      h(
        "div",
        {},
        h(
          "div",
          { class: "row" },
          h(
            "b",
            {},
            only ? `${count(list.length, "review")} with ${only} star${only > 1 ? "s" : ""}` : "All reviews",
          ),
          h(
            "div",
            { class: "end" },
            dropdown({
              label: "Sort",
              id: "review-sort",
              value: sort,
              options: [
                ["recent", "Most recent"],
                ["helpful", "Most helpful"],
                ["highest", "Highest rating"],
                ["lowest", "Lowest rating"],
              ].map(([value, text]) => ({ value, text })),
              onchange: (value) => {
                sort = value;
                draw();
              },
            }),
          ),
        ),
        list
          .slice(0, shown)
          .map((review) =>
            h(
              "article",
              { class: "review" },
              h("div", { class: "row" }, stars(review.rating, 14), h("h3", {}, review.headline)),
              h(
                "p",
                { class: "soft" },
                `${review.author} · ${review.age} days ago`,
                review.verified ? h("em", {}, " Verified purchase") : null,
              ),
              h("p", {}, review.text),
              h(
                "p",
                { class: "soft helpful" },
                `${count(review.helpful, "person", "people")} found this helpful`,
              ),
            ),
          ),
        shown < list.length
          ? h(
              "button",
              {
                class: "more",
                onclick: () => {
                  shown += 10;
                  draw();
                },
              },
              "Show more reviews",
            )
          : null,
      ),
    );
  };
  draw();
  return body;
}

// ---- cart ----

function cartPage(world, main) {
  const draw = () => {
    const { cart, saved, coupon } = state();
    const sums = totals(world, state());
    const edit =
      (name, { id, colour }, more) =>
      () =>
        apply(`cart.${name}`, { id, colour, ...more });
    const row = (line) => {
      const product = world.byId.get(line.id);
      return h(
        "article",
        { class: "line", "data-id": line.id, "data-colour": line.colour },
        h("a", { href: itemLink(product), class: "mini" }, picture(product, { colour: line.colour })),
        h(
          "div",
          { class: "line-text" },
          h("a", { href: itemLink(product) }, product.title),
          h("p", { class: "soft" }, `Colour: ${line.colour}`),
          stockNote(product),
          h(
            "div",
            { class: "row line-acts" },
            h(
              "div",
              { class: "stepper" },
              h(
                "button",
                {
                  "aria-label": "One less",
                  disabled: line.quantity <= 1,
                  onclick: edit("step", line, { by: -1 }),
                },
                icon("minus", 14),
              ),
              h("b", {}, String(line.quantity)),
              h(
                "button",
                {
                  "aria-label": "One more",
                  disabled: line.quantity >= mostOf(product),
                  onclick: edit("step", line, { by: 1 }),
                },
                icon("plus", 14),
              ),
            ),
            h(
              "button",
              {
                class: "plain link",
                onclick: edit("save for later", line),
              },
              "Save for later",
            ),
            h(
              "button",
              {
                class: "plain link remove",
                onclick: edit("remove", line),
              },
              "Remove",
            ),
          ),
        ),
        h("b", { class: "line-price" }, dollars(product.price * line.quantity)),
      );
    };
    const code = h("input", {
      type: "text",
      name: "coupon",
      placeholder: "Coupon code",
      "aria-label": "Coupon code",
    });
    const redeem = (event) => {
      event.preventDefault();
      const given = tidy(code.value).toUpperCase();
      const problem = couponProblem(world, state(), given);
      if (problem) return toast(problem, "error");
      apply("coupon.apply", { code: given });
      const { percent } = world.coupons.find((one) => one.code === given);
      toast(`Coupon ${given} takes ${percent}% off.`);
    };
    fill(
      main,
      h("h1", {}, "Your cart"),
      h(
        "div",
        { class: "cart" },
        h(
          "div",
          {},
          cart.length
            ? cart.map(row)
            : h(
                "div",
                { class: "empty" },
                icon("cart", 48),
                h("h2", {}, "Your cart is empty"),
                h("a", { class: "button primary", href: "/deals/" }, "See today's deals"),
              ),
          saved.length
            ? h(
                "section",
                {},
                h("h2", {}, "Saved for later"),
                saved.map((line) =>
                  h(
                    "div",
                    { class: "row line" },
                    h("span", {}, `${world.byId.get(line.id).title} (${line.colour})`),
                    h(
                      "button",
                      {
                        class: "end",
                        onclick: edit("take back", line),
                      },
                      "Move to cart",
                    ),
                  ),
                ),
              )
            : null,
        ),
        cart.length
          ? h(
              "aside",
              { class: "summary" },
              h("h2", {}, "Summary"),
              sumTable(sums, coupon),
              coupon
                ? h(
                    "p",
                    { class: "row" },
                    h("span", { class: "chip" }, coupon),
                    h(
                      "button",
                      {
                        class: "plain link",
                        onclick: () => apply("coupon.remove"),
                      },
                      "Remove coupon",
                    ),
                  )
                : h("form", { class: "row", onsubmit: redeem }, code, h("button", {}, "Apply")),
              h(
                "a",
                { class: "button primary big", id: "checkout", href: "/checkout/" },
                icon("lock", 16),
                "Check out",
              ),
              h(
                "p",
                { class: "soft" },
                "Standard delivery is free over $75. Other ways of delivery are offered at checkout.",
              ),
            )
          : null,
      ),
    );
  };
  onChange(draw);
  draw();
  return "Cart";
}

// ---- deals, wish list ----

function dealsPage(world, main) {
  const all = search(world, { deals: true, sort: "newest" });
  const { department: place = "" } = query();
  const kept = all.filter((product) => !place || product.department === place);
  const grid = h("div", { class: "grid wide" });
  const options = [
    { value: "", text: "All departments" },
    ...DEPARTMENTS.map(({ id, name }) => ({ value: id, text: name })),
  ];
  add(
    main,
    h(
      "div",
      { class: "row results-head" },
      h(
        "div",
        {},
        h("h1", {}, "Deals"),
        h(
          "p",
          { class: "soft" },
          `${count(kept.length, "offer")} this week, until ${dates.long(dates.plus(world.today, 6))}`,
        ),
      ),
      h(
        "div",
        { class: "end" },
        dropdown({
          label: "Show",
          id: "deal-department",
          options,
          value: place,
          onchange: (value) => visit(href("/deals/", { department: value })),
        }),
      ),
    ),
    grid,
  );
  let at = 0;
  // Fills as the visitor scrolls; what is shown first is in the document already when it is measured.
  queueMicrotask(() => infinite(grid, () => kept.slice(at, (at += 10)).map(card)));
  return "Deals";
}

function wishlistPage(world, main) {
  const draw = () => {
    const list = state()
      .wishlist.map((id) => world.byId.get(id))
      .filter(Boolean);
    fill(
      main,
      h("h1", {}, "Your wish list"),
      list.length
        ? h(
            "div",
            { class: "grid wide" },
            list.map((product) => {
              const node = card(product);
              node.append(
                h(
                  "button",
                  {
                    class: "remove",
                    onclick: () => apply("wishlist.remove", { id: product.id }),
                  },
                  "Remove",
                ),
              );
              return node;
            }),
          )
        : h(
            "div",
            { class: "empty" },
            icon("heart", 48),
            h("h2", {}, "Nothing here yet"),
            h("p", {}, "Use “Add to wish list” on a product's page."),
          ),
    );
  };
  onChange(draw);
  draw();
  return "Wish list";
}

// ---- account ----

function loginPage(world, main) {
  const note = h("div", {});
  const form = h(
    "form",
    {
      class: "box narrow",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, signInRules);
        if (!values) return;
        const problem = signInProblem(world, values);
        if (problem) return fill(note, h("p", { class: "notice error", role: "alert" }, problem));
        apply("sign in", values);
        visit(query().next, "/account/");
      },
    },
    h("h1", {}, "Sign in"),
    note,
    field({ label: "Email", name: "email", type: "email" }),
    field({ label: "Password", name: "password", type: "password" }),
    h("button", { class: "primary big", id: "sign-in" }, "Sign in"),
    h("p", { class: "soft" }, "You can also check out without an account."),
  );
  add(main, form);
  return "Sign in";
}

const withUser = (path, act) =>
  state().user ? act() : (visitInstead(href("/login/", { next: path })), "Sign in");
const statusOf = (order) =>
  h("span", { class: `status ${order.status.toLowerCase().replace(/ /g, "-")}` }, order.status);

function accountPage(world, main) {
  return withUser("/account/", () => {
    const { customer } = world;
    const orders = ordersOf(world, state());
    const table = h(
      "table",
      { class: "orders" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Order", "Date", "Items", "Total", "Status", ""].map((title) => h("th", {}, title)),
        ),
      ),
      h(
        "tbody",
        {},
        orders.map((order) =>
          h(
            "tr",
            {},
            h("td", {}, h("b", {}, order.number)),
            h("td", {}, dates.long(order.date)),
            h(
              "td",
              {},
              order.lines.map((line) => h("div", {}, `${line.quantity} × ${world.byId.get(line.id).title}`)),
            ),
            h("td", {}, dollars(orderTotal(world, order))),
            h("td", {}, statusOf(order)),
            h("td", {}, h("a", { href: href("/order/", { number: order.number }) }, "Details")),
          ),
        ),
      ),
    );
    add(
      main,
      h(
        "div",
        { class: "row" },
        h("h1", {}, `Hello, ${customer.name.split(" ")[0]}`),
        h(
          "button",
          {
            class: "end",
            onclick: () => {
              apply("sign out");
              visit("/");
            },
          },
          "Sign out",
        ),
      ),
      tabs([
        { id: "orders", title: "Orders", panel: () => table },
        {
          id: "details",
          title: "Your details",
          panel: () =>
            h(
              "dl",
              { class: "box" },
              [
                ["Name", customer.name],
                ["Email", customer.email],
                [
                  "Address",
                  `${customer.home.street}, ${customer.home.city}, ${customer.home.region} ${customer.home.zip}`,
                ],
              ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
            ),
        },
      ]),
    );
    return "Your account";
  });
}

function orderPage(world, main) {
  return withUser(`/order/?number=${query().number}`, () => {
    const order = ordersOf(world, state()).find(({ number }) => number === query().number);
    if (!order) return missing(main);
    const draw = () => {
      const returned = (line) =>
        state().returns.find((one) => one.order === order.number && one.id === line.id);
      const steps = ["Processing", "Shipped", "Out for delivery", "Delivered"];
      fill(
        main,
        crumbs(["Your account", "/account/"], [`Order ${order.number}`]),
        h("div", { class: "row" }, h("h1", {}, `Order ${order.number}`), statusOf(order)),
        order.status === "Cancelled"
          ? null
          : h(
              "ol",
              { class: "progress" },
              steps.map((step, index) =>
                h("li", { class: index <= steps.indexOf(order.status) ? "on" : "" }, step),
              ),
            ),
        h(
          "dl",
          { class: "box" },
          [
            ["Ordered on", dates.long(order.date)],
            [
              "Delivery",
              order.day
                ? `${DELIVERY.find(({ id }) => id === order.delivery).name}: ${dates.long(order.day)}`
                : DELIVERY.find(({ id }) => id === order.delivery).name,
            ],
            ["Tracking number", order.tracking],
            ["Total", dollars(orderTotal(world, order))],
          ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
        ),
        order.lines.map((line) => {
          const product = world.byId.get(line.id);
          return h(
            "article",
            { class: "line", "data-id": line.id },
            h("div", { class: "mini" }, picture(product, { colour: line.colour })),
            h(
              "div",
              { class: "line-text" },
              h("a", { href: itemLink(product) }, product.title),
              h("p", { class: "soft" }, `Colour: ${line.colour} · Quantity: ${line.quantity}`),
              returned(line)
                ? h(
                    "p",
                    { class: "notice" },
                    `Return requested: ${returned(line).reason}. Refund to: ${returned(line).refund}.`,
                  )
                : order.status === "Delivered"
                  ? h(
                      "button",
                      { class: "return", onclick: () => returnDialog(order, line, product) },
                      "Return this item",
                    )
                  : null,
            ),
            h("b", { class: "line-price" }, dollars((line.price ?? product.price) * line.quantity)),
          );
        }),
      );
    };
    onChange(draw);
    draw();
    return `Order ${order.number}`;
  });
}

function returnDialog(order, line, product) {
  const form = h(
    "form",
    { class: "stack", onsubmit: (event) => event.preventDefault() },
    h("p", {}, product.title),
    h(
      "div",
      { class: "field" },
      h("span", {}, "Why do you return it?"),
      RETURN_REASONS.map((reason) =>
        h("label", { class: "check" }, h("input", { type: "radio", name: "reason", value: reason }), reason),
      ),
      h("small", { class: "error", role: "alert" }),
    ),
    h(
      "div",
      { class: "field" },
      h("span", {}, "Refund to"),
      REFUNDS.map((way) =>
        h("label", { class: "check" }, h("input", { type: "radio", name: "refund", value: way }), way),
      ),
      h("small", { class: "error", role: "alert" }),
    ),
  );
  modal({
    title: "Return an item",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Request return",
        primary: true,
        act: () => {
          const values = validate(form, returnRules);
          if (!values) return false;
          apply("return.request", { order: order.number, id: line.id, ...values });
          toast("Your return is registered.");
        },
      },
    ],
  });
}

function helpPage(world, main) {
  const section = (id, title, ...lines) =>
    h(
      "section",
      { id, class: "box prose" },
      h("h2", {}, title),
      lines.map((line) => h("p", {}, line)),
    );
  add(
    main,
    h("h1", {}, "Help"),
    section(
      "delivery",
      "Delivery",
      ...DELIVERY.map(({ name, detail, cost }) => `${name}: ${detail}, ${dollars(cost)}.`),
      "Standard delivery is free for orders over $75 and for products marked with free delivery.",
    ),
    section(
      "returns",
      "Returns",
      "You may return any item within 30 days. Open the order in your account and choose “Return this item”.",
    ),
    section(
      "payment",
      "Payment",
      "We accept credit and debit cards. Coupons are entered in the cart; one coupon can be used per order.",
    ),
  );
  return "Help";
}

function missing(main) {
  add(
    main,
    h(
      "div",
      { class: "empty" },
      h("h1", {}, "This page is not here"),
      h("p", {}, "The product or order may have moved."),
      h("a", { class: "button primary", href: "/" }, "To the start page"),
    ),
  );
  return "Not found";
}
