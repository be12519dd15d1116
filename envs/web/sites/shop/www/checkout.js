// Checkout: contact and address, delivery, payment, review. Each step is checked before the next opens; the last places the order.

import { $, add, dollars, fill, h, icon } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { cardRules } from "/kit/rules.js";
import { apply, request, state } from "/kit/site.js";
import { datePicker, field, toast, validate } from "/kit/ui.js";
import { REGIONS, contactRules, deliveryDays, deliveryProblem } from "/transitions.js";
import { DELIVERY, totals } from "/world.js";

export function checkoutPage(world, main) {
  const { cart, user } = state();
  if (!cart.length) {
    add(
      main,
      h(
        "div",
        { class: "empty" },
        icon("cart", 48),
        h("h1", {}, "Your cart is empty"),
        h("a", { class: "button primary", href: "/" }, "Find something"),
      ),
    );
    return "Checkout";
  }
  const given = { delivery: "standard" };
  let step = 0;
  const steps = [
    ["Contact and address", contact],
    ["Delivery", delivery],
    ["Payment", payment],
    ["Review and place order", review],
  ];
  const list = h("ol", { class: "steps" });
  const side = h("aside", { class: "summary" });
  const open = (to) => {
    step = to;
    draw();
    scrollTo(0, 0);
  };
  const draw = () => {
    fill(
      list,
      steps.map(([title, body], index) =>
        h(
          "li",
          { class: index === step ? "open" : index < step ? "done" : "" },
          h(
            "div",
            { class: "row step-head" },
            h("i", {}, index < step ? icon("check", 16) : String(index + 1)),
            h("h2", {}, title),
            index < step
              ? h("button", { class: "plain link end", onclick: () => open(index) }, "Change")
              : null,
          ),
          index === step ? body() : index < step ? h("p", { class: "soft step-told" }, told(index)) : null,
        ),
      ),
    );
    fill(
      side,
      h("h2", {}, "Your order"),
      state().cart.map((line) =>
        h(
          "p",
          { class: "row" },
          h("span", {}, `${line.quantity} × ${world.byId.get(line.id).title}`),
          h("span", { class: "end" }, dollars(world.byId.get(line.id).price * line.quantity)),
        ),
      ),
      sumTable(totals(world, state(), given.delivery), state().coupon),
    );
  };
  const told = (index) =>
    [
      given.to
        ? `${given.to.name}, ${given.to.street}, ${given.to.city}, ${given.to.region} ${given.to.zip}`
        : "",
      given.delivery === "scheduled"
        ? `Delivery on ${dates.long(given.day ?? world.today)}`
        : DELIVERY.find(({ id }) => id === given.delivery).name,
      given.card ? `Card ending in ${given.card.card.slice(-4)}` : "",
    ][index];
  const next = () => open(step + 1);

  function contact() {
    const home = user
      ? { name: world.customer.name, email: world.customer.email, ...world.customer.home }
      : {};
    const from = (name) => given.to?.[name] ?? home[name] ?? "";
    const form = h(
      "form",
      {
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, contactRules);
          if (values) {
            given.to = values;
            next();
          }
        },
      },
      h(
        "div",
        { class: "form" },
        field({ label: "Email", name: "email", type: "email", value: from("email"), wide: true }),
        field({ label: "Full name", name: "name", value: from("name"), wide: true }),
        field({ label: "Street and number", name: "street", value: from("street"), wide: true }),
        field({ label: "City", name: "city", value: from("city") }),
        field({ label: "ZIP code", name: "zip", value: from("zip") }),
        field({
          label: "State",
          name: "region",
          value: from("region"),
          options: [{ value: "", text: "Choose…" }, ...REGIONS],
        }),
      ),
      h("button", { class: "primary", "data-next": true }, "Continue to delivery"),
    );
    return form;
  }

  function delivery() {
    const frame = h("div", {});
    const choices = () => {
      const sums = (id) => {
        const { shipping } = totals(world, state(), id);
        return shipping ? dollars(shipping) : "Free";
      };
      fill(
        frame,
        DELIVERY.map(({ id, name, detail }) =>
          h(
            "label",
            { class: `option${given.delivery === id ? " on" : ""}` },
            h("input", {
              type: "radio",
              name: "delivery",
              value: id,
              checked: given.delivery === id,
              onchange: () => {
                given.delivery = id;
                choices();
                fill($(".sums", side), ...sumTable(totals(world, state(), id), state().coupon).childNodes);
              },
            }),
            h("div", {}, h("b", {}, name), h("p", { class: "soft" }, detail)),
            h("span", { class: "end" }, sums(id)),
          ),
        ),
        given.delivery === "scheduled"
          ? datePicker({
              label: "Delivery day",
              name: "day",
              value: given.day,
              ...deliveryDays(world),
              onpick: (day) => {
                given.day = day;
              },
              format: dates.long,
            })
          : null,
        h(
          "button",
          {
            class: "primary",
            "data-next": true,
            onclick: () => {
              const problem = deliveryProblem(world, given);
              if (problem) {
                $(".date-field .error", frame).textContent = problem;
                return;
              }
              if (given.delivery !== "scheduled") delete given.day;
              next();
            },
          },
          "Continue to payment",
        ),
      );
    };
    choices();
    return frame;
  }

  function payment() {
    const form = h(
      "form",
      {
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, cardRules(world));
          if (values) {
            given.card = values;
            next();
          }
        },
      },
      h(
        "div",
        { class: "form" },
        field({ label: "Card number", name: "card", placeholder: "1234 5678 9012 3456", wide: true }),
        field({ label: "Name on card", name: "holder", wide: true }),
        field({ label: "Expiry (MM/YY)", name: "expiry" }),
        field({ label: "Security code", name: "code", hint: "3 or 4 digits on the back" }),
      ),
      h("button", { class: "primary", "data-next": true }, "Review your order"),
    );
    return form;
  }

  function review() {
    const place = h(
      "button",
      {
        class: "primary big",
        id: "place-order",
        onclick: () => {
          place.disabled = true;
          fill(place, h("i", { class: "spinner" }), "Placing your order…");
          request("checkout", () => {
            apply("order.place", given);
            thanks(state().orders[0]);
          }).catch((error) => {
            place.disabled = false;
            fill(place, "Place order");
            toast(error.message, "error");
          });
        },
      },
      "Place order",
    );
    return h(
      "div",
      {},
      h(
        "p",
        {},
        `Please check the steps above. Your card will be charged ${dollars(totals(world, state(), given.delivery).total)}.`,
      ),
      place,
    );
  }

  function thanks(order) {
    fill(
      main,
      h(
        "section",
        { class: "box thanks" },
        icon("check", 56),
        h("h1", {}, "Thank you for your order"),
        h("p", {}, "Order number: ", h("b", { id: "order-number" }, order.number)),
        h("p", {}, `We have sent a confirmation to ${order.to.email}.`),
        order.day ? h("p", {}, `It will arrive on ${dates.long(order.day)}.`) : null,
        sumTable(
          { ...totals(world, { cart: order.lines, coupon: order.coupon }, order.delivery) },
          order.coupon,
        ),
        h("a", { class: "button", href: "/" }, "Continue shopping"),
      ),
    );
    scrollTo(0, 0);
  }

  add(main, h("h1", {}, "Checkout"), h("div", { class: "cart" }, list, side));
  draw();
  return "Checkout";
}

/** What a cart comes to, line by line. */
export function sumTable({ subtotal, discount, shipping, total }, coupon) {
  const row = (name, value, id) =>
    h("tr", { class: id }, h("td", {}, name), h("td", { class: "number" }, value));
  return h(
    "table",
    { class: "sums" },
    row("Subtotal", dollars(subtotal), "subtotal"),
    discount ? row(`Coupon ${coupon}`, dollars(-discount), "discount") : null,
    row("Delivery", shipping ? dollars(shipping) : "Free", "shipping"),
    row("Total", dollars(total), "total"),
  );
}
