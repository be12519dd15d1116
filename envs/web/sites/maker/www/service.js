// Support pages, repairs, trade-in and the shops.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, query, state } from "/kit/site.js";
import { datePicker, facts, field, modal, radios, ticks, toast, validate } from "/kit/ui.js";
import { RETURNS, repairRules, serialProblem, visitDays, visitProblem, visitRules } from "/transitions.js";
import {
  CONDITIONS,
  FAULTS,
  LINES,
  SERVICES,
  TIMES,
  gigabytes,
  repairPrice,
  storesOf,
  takenTimes,
  tradeValue,
} from "/world.js";
import { device } from "/pictures.js";

const money = (dollars) => `$${grouped(dollars)}`;
const clock = (time) =>
  `${String(Math.floor(time / 60)).padStart(2, "0")}:${String(time % 60).padStart(2, "0")}`;

export function supportPage(world, main) {
  const asked = query(),
    words = tidy(asked.q ?? "")
      .toLowerCase()
      .split(" ")
      .filter(Boolean);
  const found = world.articles
    .filter(
      (article) =>
        (!asked.line || article.line === asked.line) &&
        words.every((word) => `${article.title} ${article.text}`.toLowerCase().includes(word)),
    )
    .sort((a, b) => (a.title < b.title ? -1 : 1));
  const input = h("input", {
    type: "search",
    name: "help",
    value: asked.q ?? "",
    placeholder: "What is the matter?",
    "aria-label": "Search support",
  });
  const serial = h("input", {
      type: "text",
      name: "serial",
      placeholder: "Serial number",
      "aria-label": "Serial number",
    }),
    answer = h("div", { class: "warranty" });
  const check = (event) => {
    event.preventDefault();
    const own = world.owned.find((one) => one.serial === tidy(serial.value).toUpperCase());
    fill(
      answer,
      own
        ? facts([
            ["Device", world.byId.get(own.product).name],
            ["Bought on", dates.long(own.bought)],
            ["Warranty until", dates.long(own.ends)],
            ["State", own.ends >= world.today ? "Covered" : "Run out"],
          ])
        : h("p", { class: "notice error", role: "alert" }, "We know no device with this serial number."),
    );
  };
  add(
    main,
    h("h1", {}, "Support"),
    h(
      "form",
      {
        class: "help-search",
        onsubmit: (event) => {
          event.preventDefault();
          visit(href("/support/", { q: tidy(input.value), line: asked.line }));
        },
      },
      input,
      h("button", { class: "primary" }, "Search"),
    ),
    h(
      "nav",
      { class: "chips" },
      h("a", { href: href("/support/", { q: asked.q }), "aria-current": asked.line ? null : "page" }, "All"),
      LINES.map(({ id, title }) =>
        h(
          "a",
          {
            href: href("/support/", { q: asked.q, line: id }),
            "aria-current": asked.line === id ? "page" : null,
          },
          title,
        ),
      ),
    ),
    h(
      "div",
      { class: "helping" },
      h(
        "section",
        {},
        h("h2", {}, count(found.length, "article")),
        h(
          "ul",
          { class: "articles" },
          found.map((article) =>
            h(
              "li",
              {},
              h("a", { href: href("/article/", { id: article.id }) }, article.title),
              h("small", { class: "soft" }, `${article.seen} people found this helpful`),
            ),
          ),
        ),
      ),
      h(
        "aside",
        {},
        h(
          "section",
          { class: "box" },
          h("h2", {}, "Check your warranty"),
          h("form", { class: "row", onsubmit: check }, serial, h("button", { id: "check" }, "Check")),
          answer,
        ),
        h(
          "section",
          { class: "box" },
          h("h2", {}, "Broken?"),
          h("p", {}, "Send it in; we tell the price before we begin."),
          h("a", { class: "button", href: "/repair/", id: "repair" }, "Ask for a repair"),
        ),
        h(
          "section",
          { class: "box" },
          h("h2", {}, "No longer needed?"),
          h("a", { class: "button", href: "/trade/", id: "trade" }, "Trade it in"),
        ),
      ),
    ),
  );
  return "Support";
}

export function articlePage(world, main) {
  const article = world.articles.find(({ id }) => id === query().id);
  if (!article) {
    add(main, h("h1", {}, "There is no such page"));
    return "Not found";
  }
  const vote = h("p", { class: "row vote" });
  const say = (said) => {
    apply("article.vote", { id: article.id, vote: said });
    draw();
  };
  const draw = () => {
    const said = state().helpful[article.id];
    fill(
      vote,
      said
        ? "Thank you."
        : [
            "Was this helpful?",
            h(
              "button",
              {
                onclick: () => say("yes"),
              },
              "Yes",
            ),
            h(
              "button",
              {
                onclick: () => say("no"),
              },
              "No",
            ),
          ],
    );
  };
  draw();
  add(
    main,
    h(
      "p",
      { class: "soft" },
      h("a", { href: "/support/" }, "Support"),
      " › ",
      LINES.find(({ id }) => id === article.line).title,
    ),
    h(
      "article",
      { class: "article" },
      h("h1", {}, article.title),
      h(
        "ol",
        {},
        article.steps.map((step) => h("li", {}, step)),
      ),
      vote,
    ),
  );
  return article.title;
}

export function repairPage(world, main) {
  const frame = h("div", {});
  let own = null,
    fault = FAULTS[0].name,
    back = RETURNS[0];
  const ask = () => {
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, {
            serial: (value) => serialProblem(world, value),
          });
          if (!values) return;
          own = world.owned.find((one) => one.serial === values.serial.toUpperCase());
          fill(frame, describe());
        },
      },
      h("h2", {}, "1. Which device?"),
      field({ label: "Serial number", name: "serial", hint: "On the back, beginning with OR" }),
      h("button", { class: "primary", "data-next": true }, "Continue"),
    );
    return form;
  };
  const describe = () => {
    const product = world.byId.get(own.product),
      covered = own.ends >= world.today,
      price = h("p", { class: "price", id: "estimate" });
    const drawPrice = () => {
      const cost = repairPrice(product, fault, covered);
      price.textContent = cost ? `Estimate: ${money(cost)}` : "Covered by the warranty: $0";
    };
    drawPrice();
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, repairRules);
          if (!values) return;
          apply("repair.ask", { ...values, serial: own.serial, fault, back });
          fill(
            main,
            h(
              "section",
              { class: "thanks" },
              icon("check", 50),
              h("h1", {}, "We are waiting for it"),
              h("p", { id: "sent" }, `A box for your ${product.name} is on its way.`),
            ),
          );
        },
      },
      h("h2", {}, `2. What is wrong with your ${product.name}?`),
      radios({
        title: "Part",
        name: "fault",
        value: fault,
        options: FAULTS.map(({ name }) => name),
        onchange: (value) => {
          fault = value;
          drawPrice();
        },
      }),
      price,
      field({ label: "What happened?", name: "since", type: "textarea" }),
      h(
        "div",
        { class: "form" },
        field({ label: "Full name", name: "name" }),
        field({ label: "Email", name: "email" }),
      ),
      radios({
        title: "How does it come back?",
        name: "back",
        value: back,
        options: RETURNS,
        onchange: (value) => {
          back = value;
        },
      }),
      h("button", { class: "primary", id: "send" }, "Ask for the repair"),
    );
    return form;
  };
  fill(frame, ask());
  add(main, h("h1", {}, "Repair"), frame);
  return "Repair";
}

export function tradePage(world, main) {
  const given = { line: LINES[0].id, product: null, storage: null, condition: "good", charger: false };
  const frame = h("div", { class: "trading" });
  const draw = () => {
    const list = world.products.filter(({ line }) => line === given.line),
      product = list.find(({ id }) => id === given.product) ?? list[0];
    Object.assign(given, {
      product: product.id,
      storage: product.storage.some(({ size }) => size === Number(given.storage))
        ? Number(given.storage)
        : product.storage[0].size,
    });
    const value = tradeValue(product, given),
      set = (key) => (text) => {
        given[key] = text;
        draw();
      };
    const model = h(
      "select",
      { name: "model", "aria-label": "Model", onchange: () => set("product")(model.value) },
      list.map(({ id, name }) => h("option", { value: id, selected: id === product.id }, name)),
    );
    fill(
      frame,
      h(
        "form",
        { class: "box", onsubmit: (event) => event.preventDefault() },
        radios({
          title: "What is it?",
          name: "line",
          value: given.line,
          options: LINES.map(({ id, title }) => ({ value: id, text: title })),
          onchange: set("line"),
        }),
        h("label", { class: "field" }, h("span", {}, "Model"), model),
        radios({
          title: "Storage",
          name: "storage",
          value: String(given.storage),
          options: product.storage.map(({ size }) => ({ value: String(size), text: gigabytes(size) })),
          onchange: set("storage"),
        }),
        radios({
          title: "State",
          name: "condition",
          value: given.condition,
          options: CONDITIONS.map(({ id, name }) => ({ value: id, text: name })),
          onchange: set("condition"),
        }),
        ticks({
          title: "With it",
          name: "charger",
          chosen: given.charger ? ["1"] : [],
          options: [{ value: "1", text: "The charger is there" }],
          onchange: (values) => set("charger")(values.length > 0),
        }),
      ),
      h(
        "aside",
        { class: "summary" },
        device(product),
        h("h2", {}, product.name),
        h("p", { class: "soft" }, "We pay you"),
        h("p", { class: "price", id: "value" }, money(value)),
        h(
          "button",
          {
            class: "primary",
            id: "accept",
            onclick: () => {
              const { storage, condition, charger } = given;
              apply("trade.accept", { product: product.id, storage, condition, charger });
              toast(`${money(value)} will be taken off your next order.`);
            },
          },
          "Accept the offer",
        ),
      ),
    );
  };
  draw();
  add(main, h("h1", {}, "Trade in"), h("p", { class: "soft" }, "Four questions, one price."), frame);
  return "Trade in";
}

// ---- shops ----

export function storesPage(world, main) {
  const asked = query(),
    towns = [...new Set(world.stores.map(({ town }) => town))],
    services = asked.services ? asked.services.split("|") : [];
  const known = towns.find((town) => town.toLowerCase() === tidy(asked.town ?? "").toLowerCase()),
    found = known ? storesOf(world, known, services) : [];
  const go = (changes) => visit(href("/stores/", { ...asked, ...changes }));
  const input = h("input", {
    type: "text",
    name: "town",
    value: asked.town ?? "",
    placeholder: "Town",
    "aria-label": "Town",
  });
  const days = (store) =>
    `${clock(store.opens)} to ${clock(store.closes)}${store.rest === null ? ", every day" : `, closed on ${dates.WEEKDAYS[store.rest]}`}`;
  add(
    main,
    h("h1", {}, "Find a shop"),
    h(
      "div",
      { class: "columns" },
      h(
        "aside",
        { class: "filters" },
        h(
          "form",
          {
            class: "row",
            onsubmit: (event) => {
              event.preventDefault();
              go({ town: tidy(input.value) });
            },
          },
          input,
          h("button", {}, "Find"),
        ),
        ticks({
          title: "Services",
          name: "services",
          chosen: services,
          options: SERVICES,
          onchange: (values) => go({ services: values.join("|") }),
        }),
        h(
          "p",
          { class: "soft towns" },
          "We are in ",
          towns.map((town, at) => [at ? ", " : "", h("a", { href: href("/stores/", { town }) }, town)]),
        ),
      ),
      h(
        "div",
        {},
        asked.town
          ? h(
              "b",
              { id: "found" },
              known
                ? `${count(found.length, "shop")} in ${known}, nearest to the centre first`
                : "No shop there",
            )
          : h("p", { class: "notice" }, "Enter a town."),
        found.map((store) =>
          h(
            "article",
            { class: "store", "data-id": store.id },
            h(
              "div",
              {},
              h("h3", {}, store.name),
              h("p", {}, store.street),
              h("p", { class: "soft" }, `${store.distance.toFixed(1)} km from the centre · ${store.phone}`),
              h("p", { class: "soft" }, days(store)),
              h(
                "p",
                { class: "chips" },
                store.services.map((one) => h("i", {}, one)),
              ),
            ),
            h(
              "button",
              { class: "primary appoint", onclick: () => appointmentDialog(world, store) },
              "Book a visit",
            ),
          ),
        ),
      ),
    ),
  );
  return "Shops";
}

function appointmentDialog(world, store) {
  const given = { day: "", time: "", service: store.services[0] },
    times = h("div", { class: "times" }),
    error = h("p", { class: "error", role: "alert" });
  const drawTimes = () => {
    const taken = given.day ? takenTimes(world, store, given.day) : new Set();
    fill(
      times,
      given.day
        ? TIMES.map((time) =>
            h(
              "button",
              {
                type: "button",
                disabled: taken.has(time),
                "aria-pressed": String(time === given.time),
                onclick: () => {
                  given.time = time;
                  drawTimes();
                },
              },
              time,
            ),
          )
        : h("p", { class: "soft" }, "Choose a day to see what is free."),
    );
  };
  drawTimes();
  const form = h(
    "form",
    { class: "visit", onsubmit: (event) => event.preventDefault() },
    radios({
      title: "What for?",
      name: "service",
      value: given.service,
      options: store.services,
      onchange: (service) => {
        given.service = service;
      },
    }),
    h(
      "div",
      {},
      datePicker({
        label: "Day",
        name: "day",
        value: "",
        shown: world.today,
        ...visitDays(world, store),
        onpick: (day) => {
          Object.assign(given, { day, time: "" });
          drawTimes();
        },
      }),
      times,
      field({ label: "Your name", name: "visitor" }),
      error,
    ),
  );
  modal({
    title: `Visit ${store.name}`,
    wide: true,
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Book",
        primary: true,
        act: () => {
          const values = validate(form, visitRules);
          error.textContent = visitProblem(world, store, given);
          if (!values || error.textContent) return false;
          apply("visit.book", { store: store.id, ...given, visitor: values.visitor });
          toast(`See you on ${dates.long(given.day)} at ${given.time}.`);
        },
      },
    ],
  });
}
