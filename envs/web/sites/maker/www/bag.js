// The bag and the checkout.

import { visit } from "/kit/address.js";
import { add, fill, grouped, h, icon } from "/kit/dom.js";
import { apply, href, request, state } from "/kit/site.js";
import { cardFields, field, radios, toast, validate } from "/kit/ui.js";
import { cardRules } from "/kit/rules.js";
import { WAYS, addressRules, contactRules } from "/transitions.js";
import { PLANS, bagTotal, gigabytes, linePrice } from "/world.js";
import { device } from "/pictures.js";

const money = (dollars) => `$${grouped(dollars)}`;
const told = (product, line) =>
  product.kit
    ? product.colour
    : [
        line.colour,
        gigabytes(line.storage),
        `${line.memory} GB memory`,
        line.engraving && `engraved “${line.engraving}”`,
        line.plan !== "none" && PLANS.find(({ id }) => id === line.plan).name,
      ]
        .filter(Boolean)
        .join(", ");

export function bagPage(world, main) {
  const draw = () => {
    const now = state();
    if (!now.bag.length) {
      fill(
        main,
        h(
          "div",
          { class: "empty" },
          icon("cart", 44),
          h("h1", {}, "Your bag is empty"),
          h("a", { class: "button primary", href: "/" }, "Look around"),
        ),
      );
      return;
    }
    const set = (transition, at) => {
      apply(transition, { at });
      draw();
    };
    fill(
      main,
      h("h1", {}, "Your bag"),
      h(
        "div",
        { class: "bagging" },
        h(
          "div",
          {},
          now.bag.map((line, at) => {
            const product = world.byId.get(line.id);
            return h(
              "article",
              { class: "line", "data-id": line.id },
              device(product, line.colour),
              h(
                "div",
                {},
                h("h3", {}, product.name),
                h("p", { class: "soft" }, told(product, line)),
                h("button", { class: "plain link remove", onclick: () => set("bag.remove", at) }, "Remove"),
              ),
              h(
                "span",
                { class: "stepper" },
                h(
                  "button",
                  { "aria-label": "One less", onclick: () => set("bag.less", at) },
                  icon("minus", 14),
                ),
                h("b", {}, String(line.quantity)),
                h(
                  "button",
                  { "aria-label": "One more", onclick: () => set("bag.more", at) },
                  icon("plus", 14),
                ),
              ),
              h("b", { class: "amount" }, money(linePrice(world, line))),
            );
          }),
        ),
        h(
          "aside",
          { class: "box" },
          h("h2", {}, "Sum"),
          now.trade
            ? h(
                "label",
                { class: "check" },
                h("input", {
                  type: "checkbox",
                  checked: now.trade.applied,
                  onchange: ({ target }) => {
                    apply("trade.use", { applied: target.checked });
                    draw();
                  },
                }),
                `Use trade-in (−${money(now.trade.value)})`,
              )
            : null,
          h(
            "p",
            { class: "row total" },
            "Total",
            h("b", { class: "end", id: "total" }, money(bagTotal(world, now))),
          ),
          h("a", { class: "button primary", id: "checkout", href: "/checkout/" }, "Check out"),
          h("p", { class: "soft" }, "Free delivery. Fourteen days to change your mind."),
        ),
      ),
    );
  };
  draw();
  return "Bag";
}

export function checkoutPage(world, main) {
  if (!state().bag.length) {
    visit(href("/bag/"));
    return "Checkout";
  }
  const given = { way: WAYS[0] };
  const frame = h("div", {}),
    side = h(
      "aside",
      { class: "box" },
      h("h2", {}, "Your order"),
      state().bag.map((line) =>
        h(
          "p",
          { class: "row" },
          h("span", {}, `${line.quantity} × ${world.byId.get(line.id).name}`),
          h("span", { class: "end" }, money(linePrice(world, line))),
        ),
      ),
      h("p", { class: "row total" }, "Total", h("b", { class: "end" }, money(bagTotal(world, state())))),
    );
  const towns = [...new Set(world.stores.map(({ town }) => town))];
  const reach = () => {
    const place = h("div", {});
    const shops = (town) => world.stores.filter((store) => store.town === town);
    const drawPlace = () => {
      if (given.way === WAYS[0]) {
        fill(
          place,
          h(
            "div",
            { class: "form" },
            field({ label: "Street and number", name: "street", wide: true }),
            field({ label: "City", name: "city" }),
            field({ label: "ZIP code", name: "zip" }),
          ),
        );
        return;
      }
      given.town ??= towns[0];
      const town = field({ label: "Town", name: "town", options: towns, value: given.town });
      town.querySelector("select").addEventListener("change", ({ target }) => {
        given.town = target.value;
        drawPlace();
      });
      fill(
        place,
        h(
          "div",
          { class: "form" },
          town,
          field({
            label: "Shop",
            name: "store",
            options: shops(given.town).map(({ id, name }) => ({ value: id, text: name })),
          }),
        ),
      );
    };
    const ways = h("div", {});
    const drawWays = () => {
      fill(
        ways,
        radios({
          title: "How do you get it?",
          name: "way",
          value: given.way,
          options: WAYS,
          onchange: (way) => {
            given.way = way;
            drawWays();
            drawPlace();
          },
        }),
      );
    };
    drawWays();
    drawPlace();
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, {
            ...contactRules,
            ...(given.way === WAYS[0] ? addressRules : {}),
          });
          if (!values) return;
          Object.assign(given, values);
          fill(frame, payment());
          scrollTo(0, 0);
        },
      },
      h("h2", {}, "1. You and your order"),
      h(
        "div",
        { class: "form" },
        field({ label: "Full name", name: "name" }),
        field({ label: "Email", name: "email", type: "email" }),
      ),
      ways,
      place,
      h("button", { class: "primary", "data-next": true }, "Continue to payment"),
    );
    return form;
  };
  const payment = () => {
    const pay = h("button", { class: "primary", id: "pay" }, `Pay ${money(bagTotal(world, state()))}`);
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, cardRules(world));
          if (!values) return;
          pay.disabled = true;
          request("checkout", () => {
            apply("order.place", { ...given, ...values });
            fill(
              main,
              h(
                "section",
                { class: "thanks" },
                icon("check", 50),
                h("h1", {}, "Thank you"),
                h("p", {}, "Your order number is ", h("b", { id: "number" }, state().orders.at(-1).number)),
                h("p", { class: "soft" }, `We have written to ${given.email}.`),
              ),
            );
          }).catch((error) => {
            pay.disabled = false;
            toast(error.message, "error");
          });
        },
      },
      h("h2", {}, "2. Payment"),
      h("div", { class: "form" }, cardFields()),
      pay,
    );
    return form;
  };
  fill(frame, reach());
  add(main, h("h1", {}, "Checkout"), h("div", { class: "bagging" }, frame, side));
  return "Checkout";
}
