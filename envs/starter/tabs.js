// A list of invoices; each opens in a new tab, where it is decided. Finish, on the list's tab, ends the task.
"use strict";

const SUPPLIERS = [
  "Birch Paper",
  "Cobalt Press",
  "Dovetail Crates",
  "Elmwood Glue",
  "Foundry Type",
  "Gannet Freight",
  "Heather Cloth",
];
const GOODS = [
  "Binding thread",
  "Book cloth",
  "Cardboard",
  "Cover paper",
  "End papers",
  "Headbands",
  "Ink, black",
  "Letterpress type",
  "Ribbon",
];
const DECISIONS = { approve: "approved", reject: "rejected" };

furrow.task({
  name: "tabs",

  make(draw) {
    const suppliers = draw.some(SUPPLIERS, 4);
    const invoices = draw.shuffled([...suppliers, suppliers[0]]).map((supplier, at) => {
      const lines = draw
        .some(GOODS, 3)
        .map((goods) => ({ goods, count: draw.between(2, 40), price: draw.between(3, 19) }));
      const total = lines.reduce((sum, { count, price }) => sum + count * price, 0) + at / 10;
      return {
        number: `${draw.between(100, 190)}-${at + 1}`,
        supplier,
        lines,
        total: total.toFixed(2),
        freight: (at / 10).toFixed(2),
      };
    });
    const wanted = draw.one(invoices.filter(({ supplier }) => supplier === suppliers[0]));
    const decision = draw.one(Object.keys(DECISIONS));
    return {
      goal:
        `Open the invoice of ${wanted.supplier} over ${wanted.total}. It opens in a new tab: ${decision} it there. ` +
        "Then go back to the first tab and press Finish.",
      facts: { opened: [], decided: {} },
      invoices,
      wanted,
      decision,
    };
  },

  show: draw,
  changed: draw,
});

function draw(world) {
  const number = new URLSearchParams(location.search).get("invoice");
  const invoice = world.invoices.find((one) => one.number === number);
  const shown = !location.pathname.endsWith("tabs-invoice.html")
    ? listPage(world)
    : invoice
      ? invoicePage(invoice)
      : [furrow.element("p", {}, "There is no such invoice.")];
  document.querySelector("main").replaceChildren(...shown);
}

function listPage({ invoices, wanted, decision }) {
  const { opened, decided } = furrow.probe();
  const open =
    (number) =>
    ({ target }) => {
      furrow.note({ opened: [...new Set([...furrow.probe().opened, number])] });
      if (!decided[number]) target.closest("tr").querySelector(".state").textContent = "in a tab";
    };
  const finish = () => {
    const numbers = Object.keys(decided);
    furrow.finish(numbers.length === 1 && decided[wanted.number] === DECISIONS[decision], {});
  };
  return [
    furrow.element("h1", {}, "Open invoices"),
    furrow.element(
      "table",
      {},
      furrow.element(
        "tr",
        {},
        ...["No.", "Supplier", "Total", "State", ""].map((name) =>
          furrow.element("th", { class: name === "Total" ? "number" : null }, name),
        ),
      ),
      ...invoices.map(({ number, supplier, total }) =>
        furrow.element(
          "tr",
          {},
          furrow.element("td", {}, number),
          furrow.element("td", {}, supplier),
          furrow.element("td", { class: "number" }, total),
          furrow.element(
            "td",
            { class: "state" },
            decided[number] ?? (opened.includes(number) ? "in a tab" : "new"),
          ),
          furrow.element(
            "td",
            { class: "number" },
            furrow.element(
              "a",
              {
                class: "button",
                href: `tabs-invoice.html?invoice=${number}`,
                target: "_blank",
                onclick: open(number),
              },
              "Open",
            ),
          ),
        ),
      ),
    ),
    furrow.element(
      "div",
      { class: "row" },
      furrow.element(
        "span",
        { class: "soft" },
        `${Object.keys(decided).length} of ${invoices.length} decided`,
      ),
      furrow.element("button", { class: "primary end", id: "finish", onclick: finish }, "Finish"),
    ),
  ];
}

function invoicePage(invoice) {
  const { decided } = furrow.probe();
  const state = decided[invoice.number];
  document.title = `Invoice ${invoice.number} | Copperfield Books`;
  const decide = (word) => {
    furrow.note({ decided: { ...furrow.probe().decided, [invoice.number]: DECISIONS[word] } });
    document.querySelector("main").replaceChildren(...invoicePage(invoice));
  };
  const line = (kind, goods, count, price) =>
    furrow.element(
      "tr",
      {},
      furrow.element(kind, {}, goods),
      furrow.element(kind, { class: "number" }, count),
      furrow.element(kind, { class: "number" }, price),
    );
  return [
    furrow.element(
      "div",
      { class: "row" },
      furrow.element("h1", {}, `Invoice ${invoice.number}`),
      furrow.element("span", { class: "soft end" }, `from ${invoice.supplier}`),
    ),
    furrow.element(
      "table",
      {},
      line("th", "Goods", "Count", "Each"),
      ...invoice.lines.map(({ goods, count, price }) => line("td", goods, String(count), `${price}.00`)),
      line("td", "Freight", "1", invoice.freight),
      line("td", furrow.element("b", {}, "Total"), "", furrow.element("b", {}, invoice.total)),
    ),
    furrow.element(
      "div",
      { class: "row", id: "decision" },
      furrow.element(
        "span",
        { class: "soft" },
        state ? `This invoice is ${state}.` : "Waiting for a decision.",
      ),
      furrow.element(
        "button",
        { class: "end", disabled: Boolean(state), onclick: () => decide("reject") },
        "Reject",
      ),
      furrow.element("button", { disabled: Boolean(state), onclick: () => decide("approve") }, "Approve"),
    ),
  ];
}
