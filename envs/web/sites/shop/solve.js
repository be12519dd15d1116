// Demonstrations for the shop.

/** From anywhere to a product's page, by the search field. */
function openItem(title) {
  if (at("/item/") && said(one(".facts h1")) === title) return null;
  const card = all(".grid .card h3 a").find((link) => said(link) === title);
  if (card && at("/search/")) return press(card);
  const field = one('input[name="q"]');
  return write(field, title, "Search field") ?? press(one('[aria-label="Next page"]')) ?? key("Enter");
}
const department = (name) =>
  at("/search/") && said(one("h1")) === name ? null : press(named(".departments a", name));
const sortBy = (text) => drop(one("#sort"), text);
const filter = (text) => tick(text, one(".filters"), false);
const prices = (min, max) => {
  const low = one('input[name="min"]'),
    high = one('input[name="max"]');
  const asked = new URLSearchParams(location.search);
  if (min && asked.get("min") !== min) return write(low, min) ?? press(one('[aria-label="Apply price"]'));
  if (max && asked.get("max") !== max) return write(high, max) ?? press(one('[aria-label="Apply price"]'));
  return null;
};
/** Scrolls until the last of a list is in sight. */
const seeAll = (list) => {
  const { scroll: direction } = reach(list.at(-1));
  return direction ? scroll(direction) : null;
};
const price = () => said(one(".buy .price b"));
/** What the open table of specifications says under a name. */
const spec = (name) =>
  said(
    one(
      "td",
      all(".specs tr").find((row) => said(one("th", row)) === name),
    ),
  );
const firstTitle = () => said(one(".grid .card h3"));
const signIn = () => {
  if (said(one("#account")) !== "Sign in") return null;
  if (!at("/login/")) return press(one("#account"));
  const [, email, password] = goal.match(/email (\S+) and the password (\S+?)\.? /);
  return (
    write(one("#field-email"), email) ?? write(one("#field-password"), password) ?? press(one("#sign-in"))
  );
};
const addToCart = ({ title, colour, quantity = 1 }) => {
  if (memory.added) return null;
  if (named("h2", "Added to your cart")) {
    keep({ added: true });
    return press(named("button", "Go to cart"));
  }
  return (
    openItem(title) ??
    (colour && said(one("#chosen-colour")) !== colour ? press(one(`[data-colour="${colour}"]`)) : null) ??
    choose(one("#quantity"), String(quantity)) ??
    press(one("#add"))
  );
};
const buyer = () => {
  const [, name, street, city, region, zip, email] =
    goal.match(/It goes to ([^,]+), ([^,]+), ([^,]+), (\w\w) (\d+); the email is (\S+)\./) ?? [];
  const [, card, holder, expiry, code] = goal.match(
    /the card ([\d ]+) in the name of ([^,]+), expiry (\S+), security code (\d+)/,
  );
  return { name, street, city, region, zip, email, card, holder, expiry, code };
};
/** From the cart to the placed order. */
const checkOut = ({ delivery, day }) => {
  const given = buyer();
  if (one("#order-number")) return null;
  if (!at("/checkout/")) return at("/cart/") ? press(one("#checkout")) : press(one("#cart"));
  const open = one(".steps .open"),
    step = said(one("h2", open));
  const fields = (names) =>
    names.reduce((hint, name) => hint ?? write(one(`[name="${name}"]`, open), given[name]), null);
  const next = () => press(one("[data-next]", open));
  if (step === "Contact and address")
    return (
      (given.name
        ? (fields(["email", "name", "street", "city", "zip"]) ??
          choose(one('[name="region"]', open), given.region))
        : null) ?? next()
    );
  if (step === "Delivery")
    return tick(delivery, open, false) ?? (day ? pickDay("day", day, open) : null) ?? next();
  if (step === "Payment") return fields(["card", "holder", "expiry", "code"]) ?? next();
  const place = one("#place-order");
  return place.disabled ? { action: "wait", seconds: 2 } : press(place);
};
const orderOf = (test) =>
  signIn() ??
  (at("/account/") || at("/order/") ? null : press(one("#account"))) ??
  (at("/account/") ? test(all(".orders tbody tr")) : null);

const solutions = {
  "shop-price": () => openItem(quoted[0]) ?? answer(price()),

  "shop-spec": () =>
    openItem(quoted[0]) ?? tab("specifications") ?? answer(`${spec(quoted[1])}, ${spec(quoted[2])}`),

  "shop-add-to-cart": () => {
    const [, quantity] = goal.match(/^Put (\d+)/),
      [, colour] = goal.match(/colour (\w+) into/);
    return addToCart({ title: quoted[0], colour, quantity }) ?? answer("done");
  },

  "shop-wishlist": () => {
    const add = (title) =>
      memory[title]
        ? null
        : (openItem(title) ??
          (said(one("#wish")).startsWith("On") ? (keep({ [title]: true }), null) : press(one("#wish"))));
    return add(quoted[0]) ?? add(quoted[1]) ?? answer("done");
  },

  "shop-cheapest": () => {
    const [, brand, place] = goal.match(/by (.+) in the department (.+), which/);
    return (
      department(place) ??
      filter(brand) ??
      filter("In stock only") ??
      sortBy("Price: low to high") ??
      answer(firstTitle())
    );
  },

  "shop-count": () => {
    const [, place, min, max, rating] = goal.match(
      /department (.+) that cost from \$(\d+) to \$(\d+) and .* rating of ([\d.]+) or/,
    );
    const asked = new URLSearchParams(location.search);
    const reviews = () => all(".grid .card .rating .soft");
    const stars = () =>
      asked.get("rating") === rating
        ? null
        : press(all("#filter-rating label").find((label) => said(label).endsWith(`${rating} & up`)));
    return (
      department(place) ??
      prices(min, max) ??
      stars() ??
      seeAll(reviews()) ??
      answer(reviews().reduce((sum, one) => sum + amount(said(one)), 0))
    );
  },

  "shop-review": () => {
    const [, rating] = goal.match(/exactly (\d) stars/);
    const bar = () => {
      const row = one(`[data-stars="${rating}"]`);
      return row.classList.contains("on") ? null : press(row);
    };
    return (
      openItem(quoted[0]) ??
      tab("reviews") ??
      bar() ??
      drop(one("#review-sort"), "Most helpful") ??
      answer(said(one(".review .soft")).split(" · ")[0])
    );
  },

  "shop-coupon": () => {
    const [, code] = goal.match(/the coupon (\w+)\./);
    return (
      addToCart({ title: quoted[0] }) ??
      (named(".summary .chip", code) ? null : write(one('input[name="coupon"]'), code)) ??
      answer(said(one(".sums .total .number")))
    );
  },

  "shop-cart-edit": () => {
    const [gone, more, later] = quoted,
      [, quantity] = goal.match(/to (\d+), and save/);
    if (!at("/cart/")) return press(one("#cart"));
    const line = (title) => all("article.line").find((row) => said(one(".line-text > a", row)) === title);
    const count = Number(said(one(".stepper b", line(more))));
    return (
      (line(gone) ? press(named("button", "Remove", line(gone))) : null) ??
      (count < Number(quantity) ? press(one('[aria-label="One more"]', line(more))) : null) ??
      (line(later) ? press(named("button", "Save for later", line(later))) : null) ??
      answer("done")
    );
  },

  "shop-order-total": () => {
    const [, day] = goal.match(/placed on (\w+ \d+, \d+)\?/);
    return orderOf((rows) => answer(said(rows.find((row) => said(row.cells[1]) === day).cells[3])));
  },

  "shop-tracking": () => {
    const [, number] = goal.match(/the order (HP\d+)\./);
    return (
      orderOf((rows) =>
        press(
          named(
            "a",
            "Details",
            rows.find((row) => said(row.cells[0]) === number),
          ),
        ),
      ) ?? answer(said(all("dl.box dt").find((name) => said(name) === "Tracking number").nextElementSibling))
    );
  },

  "shop-deals": () => {
    const [, place, max] = goal.match(/offers for (.+) that now cost at most \$(\d+)\. Which/);
    const chosen = place.replace(/\b\w/g, (letter) => letter.toUpperCase());
    if (!at("/deals/")) return press(named(".departments a", "Deals"));
    const narrowed = drop(one("#deal-department"), chosen);
    if (narrowed) return narrowed;
    if (!said(one(".infinite-foot")).startsWith("You have reached")) return scroll("down");
    const price = (card) => amount(said(one(".price b", card))),
      saved = (card) => amount(said(one(".price s", card))) - price(card);
    const cards = all(".grid .card").filter((card) => price(card) <= Number(max));
    return answer(said(one("h3", cards.sort((a, b) => saved(b) - saved(a))[0])));
  },

  "shop-compare": () => {
    const [titles, name] = [quoted.slice(0, 3), quoted[3]];
    for (const title of titles) {
      if (memory[title] !== undefined) continue;
      const hint = openItem(title) ?? tab("specifications");
      if (hint) return hint;
      keep({ [title]: { value: parseFloat(spec(name)), price: price() } });
    }
    return answer(titles.map((title) => memory[title]).sort((a, b) => b.value - a.value)[0].price);
  },

  "shop-checkout": () => {
    const [, quantity] = goal.match(/^Buy (\d+)/),
      [, colour] = goal.match(/" in (\w+) without/),
      [, day] = goal.match(/delivered on (\w+ \d+, \d+)\./);
    return (
      addToCart({ title: quoted[0], colour, quantity }) ??
      checkOut({ delivery: "Choose a delivery day", day }) ??
      answer("done")
    );
  },

  "shop-best-buy": () => {
    const [, place, max] = goal.match(/department (.+) that is in stock and costs at most \$(\d+),/);
    if (!memory.title) {
      const hint =
        department(place) ?? prices(null, max) ?? filter("In stock only") ?? sortBy("Customer rating");
      if (hint) return hint;
      keep({ title: firstTitle() });
    }
    return (
      addToCart({ title: memory.title }) ??
      checkOut({ delivery: "Express delivery" }) ??
      answer(said(one("#order-number")))
    );
  },

  "shop-unsteady": () => signIn() ?? checkOut({ delivery: "Express delivery" }) ?? answer("done"),

  "shop-return": () => {
    const [, day] = goal.match(/the order of (\w+ \d+, \d+)\./),
      [title, reason, refund] = quoted;
    const line = () => all("article.line").find((row) => said(one(".line-text > a", row)) === title);
    const dialog = () =>
      one(".modal")
        ? (tick(reason, one(".modal")) ??
          tick(refund, one(".modal")) ??
          press(named(".modal footer button", "Request return")))
        : one(".notice", line())
          ? null
          : press(one(".return", line()));
    return (
      orderOf((rows) =>
        press(
          named(
            "a",
            "Details",
            rows.find((row) => said(row.cells[1]) === day),
          ),
        ),
      ) ??
      dialog() ??
      answer("done")
    );
  },
};
return solutions[template]();
