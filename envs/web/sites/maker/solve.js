// Demonstrations for the electronics maker.

/** From anywhere to a device's page. */
const openProduct = (name) =>
  at("/product/") && said(one("h1")) === name
    ? null
    : (write(one('.find [name="q"]'), name, "Search field") ?? key("Enter"));
const openLine = (id) => (at("/line/") && asked.get("id") === id ? null : press(one(`#line-${id}`)));
const open = (path, id) => (at(path) ? null : one(`#${id}`) ? press(one(`#${id}`)) : press(one("#support")));
const filter = (text) => tick(text, one(".filters"), false);
const sortBy = (text) => drop(one("#sort"), text);
const dialog = one(".modal");
const wishes = goal.match(
  /the ((?:Pico|Folio|Pane|Orbit|Chime) .+?) in (\w+) with (\d+ [GT]B) of storage, (\d+) GB of memory, (?:no engraving|the engraving "([^"]+)") and the protection "([^"]+)"/,
);
/** From anywhere to the configurator, everything chosen as the goal has it. */
const configure = () => {
  const [, name, colour, storage, memory, engraving, plan] = wishes;
  if (!at("/configure/")) return openProduct(name) ?? press(one("#configure"));
  const group = (legend) => all("fieldset").find((node) => said(node.querySelector("legend")) === legend);
  const pick = (legend, text) => tick(text, group(legend), false);
  return (
    pick("Colour", colour) ??
    pick("Storage", storage) ??
    pick("Memory", `${memory} GB`) ??
    (engraving ? write(one('[name="engraving"]'), engraving) : null) ??
    pick("Protection", plan)
  );
};
const specOf = (name) =>
  said(
    all(".specs tr")
      .find((row) => said(row.querySelector("th")) === name)
      .querySelector("td"),
  );
const weigh = (name) => {
  const hint = openProduct(name);
  if (!hint) keep({ [name]: amount(specOf("Weight")) });
  return hint;
};

const solutions = {
  "maker-spec": () =>
    openProduct(goal.match(/of the (.+), in [a-zA-Z]+\?/)[1]) ??
    answer(specOf(quoted[0]).replace(/[^\d.]/g, "")),
  "maker-warranty": () =>
    open("/support/", "support") ??
    (one(".warranty .facts")
      ? answer(fact("Warranty until"))
      : (write(one('[name="serial"]'), goal.match(/number (OR\w+)/)[1]) ?? press(one("#check")))),
  "maker-helpful": () => {
    if (at("/article/"))
      return named(".vote", "Thank you.") ? answer("done") : press(named(".vote button", "Yes"));
    return open("/support/", "support") ?? press(named(".articles a", quoted[0]));
  },
  "maker-accessory": () => {
    const wanted = Number(goal.match(/Put (\d)/)[1]),
      count = Number(said(one(".bag-link b")) || 0);
    const card = () => all(".card").find((node) => said(one("h3", node)) === quoted[0]);
    return (
      open("/accessories/", "accessories") ?? (count < wanted ? press(one(".add", card())) : answer("done"))
    );
  },
  "maker-lighter": () => {
    const [, a, b] = goal.match(/is the (.+) lighter than the (.+)\? Answer/);
    return (memory[a] ? null : weigh(a)) ?? (memory[b] ? null : weigh(b)) ?? answer(memory[b] - memory[a]);
  },
  "maker-cheapest": () => {
    const [, title, colour, storage] = goal.match(
      /of the (\w+) that come in (\w+) and can be had with (\d+ [GT]B)/,
    );
    return (
      openLine(title) ??
      filter(storage) ??
      filter(colour) ??
      sortBy("Lowest price") ??
      answer(said(one(".card h3")))
    );
  },
  "maker-config-price": () => configure() ?? answer(amount(said(one("#price")))),
  "maker-shop": () => {
    const town = goal.match(/shop in (.+) nearest/)[1];
    if (!at("/stores/")) return press(one("#stores"));
    return (
      (asked.get("town") === town ? null : write(one('.filters [name="town"]'), town)) ??
      filter(quoted[0]) ??
      filter(quoted[1]) ??
      answer(said(one(".store p:nth-of-type(2)")).split("· ")[1])
    );
  },
  "maker-visit": () => {
    const town = quoted[0].split(", ")[1],
      [, day, time, name] = goal.match(/on (\w+ \d+, \d+) at (\d\d:\d\d) in the name of (.+)\. Answer/);
    if (!at("/stores/")) return press(one("#stores"));
    if (one(".toast")) return answer("done");
    if (asked.get("town") !== town) return write(one('.filters [name="town"]'), town);
    if (!dialog)
      return press(
        one(
          ".appoint",
          all(".store").find((node) => said(one("h3", node)) === quoted[0]),
        ),
      );
    const slot = named(".times button", time, dialog);
    return (
      tick(quoted[1], dialog) ??
      pickDay("day", day, dialog) ??
      (slot.getAttribute("aria-pressed") === "true" ? null : press(slot)) ??
      write(one('[name="visitor"]'), name) ??
      press(named("footer button", "Book", dialog))
    );
  },
  "maker-trade": () => {
    const [, name, storage] = goal.match(/trades in a (.+) with (\d+ [GT]B) of/),
      line = { Pico: "Phones", Folio: "Laptops", Pane: "Tablets", Orbit: "Watches", Chime: "Audio" }[
        name.split(" ")[0]
      ];
    const hint =
      open("/trade/", "trade") ??
      tick(line, one(".trading")) ??
      choose(one('[name="model"]'), name) ??
      tick(storage, one(".trading")) ??
      tick(quoted[0], one(".trading")) ??
      (goal.includes(", with its") ? tick("The charger is there") : null);
    return hint ?? (one(".toast") ? answer(amount(said(one("#value")))) : press(one("#accept")));
  },
  "maker-configure": () => (at("/bag/") ? answer("done") : (configure() ?? press(one("#add")))),
  "maker-checkout": () => {
    if (one("#number")) return answer(said(one("#number")));
    if (at("/bag/")) return press(one("#checkout"));
    if (!at("/checkout/")) return configure() ?? press(one("#add"));
    if (one('[name="card"]')) return fillCard() ?? press(one("#pay"));
    const [, shop] = goal.match(/in the shop "([^"]+)"/),
      [, name, email] = goal.match(/buyer is ([^,]+), email (\S+)\. Pay/);
    return (
      tick("Pick up in a shop") ??
      choose(one('[name="town"]'), shop.split(", ")[1]) ??
      choose(one('[name="store"]'), shop) ??
      write(one('[name="name"]'), name) ??
      write(one('[name="email"]'), email) ??
      press(one("[data-next]"))
    );
  },
  "maker-repair": () => {
    if (one("#sent")) return answer(memory.cost);
    const hint = open("/repair/", "repair");
    if (hint) return hint;
    if (one('[name="serial"]'))
      return write(one('[name="serial"]'), goal.match(/number (OR\w+)/)[1]) ?? press(one("[data-next]"));
    const [part, text, back] = quoted,
      [, name, email] = goal.match(/The name is ([^,]+), the email (\S+); /);
    const next =
      tick(part) ??
      (memory.told ? null : (keep({ told: true }), write(one('[name="since"]'), text))) ??
      tick(back);
    if (next) return next;
    keep({ cost: amount(said(one("#estimate"))) });
    return write(one('[name="email"]'), email) ?? write(one('[name="name"]'), name) ?? press(one("#send"));
  },
  "maker-budget": () => {
    if (at("/configure/")) {
      const last = (legend) => {
        const labels = all(
          "label",
          all("fieldset").find((node) => said(node.querySelector("legend")) === legend),
        );
        return labels.at(-1).querySelector("input").checked ? null : press(labels.at(-1));
      };
      return (
        last("Storage") ??
        last("Memory") ??
        tick(quoted[0], document, false) ??
        answer(amount(said(one("#price"))))
      );
    }
    if (at("/product/")) return press(one("#configure"));
    return (
      openLine(goal.match(/lightest of the (\w+) cost/)[1]) ?? sortBy("Lightest") ?? press(one(".card h3 a"))
    );
  },
};
return solutions[template]();
