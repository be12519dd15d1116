// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import * as dates from "/kit/dates.js";
import { cardRules, checked, digits, email, filled, isDay, keptCard, oneOf, refuse } from "/kit/rules.js";
import { DELIVERY, RETURN_REASONS, couponProblem, orderNumber, totals, weekdayFrom } from "/world.js";

export const REFUNDS = ["Original payment method", "Store credit"];
/** States that are delivered to. */
export const REGIONS = "AZ CA CO FL GA ME MI MN NV OH OR PA TN TX VT WA".split(" ");

export const transitions = {
  "cart.add"(now, { id, colour, quantity }, world) {
    const product = productOf(world, id);
    if (!product.colours.includes(colour)) throw new Error("the product does not come in this colour");
    if (!Number.isInteger(quantity) || quantity < 1 || quantity > mostOf(product))
      throw new Error("the list of quantities does not offer this one");
    put(now.cart, { id, colour, quantity }, mostOf(product));
  },
  "cart.step"(now, { id, colour, by }, world) {
    const line = lineOf(now.cart, id, colour);
    const quantity = line.quantity + by;
    if (by !== 1 && by !== -1) throw new Error("the quantity changes by one");
    if (quantity < 1 || quantity > mostOf(productOf(world, id)))
      throw new Error("the quantity ends here, and the button is grey");
    line.quantity = quantity;
  },
  "cart.remove"(now, { id, colour }) {
    take(now.cart, id, colour);
  },
  "cart.save for later"(now, { id, colour }, world) {
    put(now.saved, take(now.cart, id, colour), mostOf(productOf(world, id)));
  },
  "cart.take back"(now, { id, colour }, world) {
    put(now.cart, take(now.saved, id, colour), mostOf(productOf(world, id)));
  },
  "coupon.apply"(now, { code }, world) {
    if (!now.cart.length || now.coupon) throw new Error("there is no field for a coupon");
    refuse(couponProblem(world, now, code));
    now.coupon = code;
  },
  "coupon.remove"(now) {
    if (!now.coupon) throw new Error("there is no coupon");
    now.coupon = null;
  },
  "wishlist.add"(now, { id }, world) {
    if (now.wishlist.includes(productOf(world, id).id)) throw new Error("it is on the wish list already");
    now.wishlist.push(id);
  },
  "wishlist.remove"(now, { id }) {
    if (!now.wishlist.includes(id)) throw new Error("it is not on the wish list");
    now.wishlist = now.wishlist.filter((one) => one !== id);
  },
  "newsletter.join"(now, { email }) {
    checked({ email }, { email: newsletterProblem });
    now.newsletter = email;
  },
  "sign in"(now, { email, password }, world) {
    refuse(signInProblem(world, { email, password }));
    now.user = world.customer.name;
  },
  "sign out"(now) {
    if (!now.user) throw new Error("nobody is signed in");
    now.user = null;
  },
  "order.place": placeOrder,
  "return.request"(now, { order: number, id, reason, refund }, world) {
    if (!now.user) throw new Error("returns need a sign-in");
    const order = ordersOf(world, now).find((one) => one.number === number);
    if (order?.status !== "Delivered" || !order.lines.some((line) => line.id === id))
      throw new Error("the account has no such item to return");
    if (now.returns.some((one) => one.order === number && one.id === id))
      throw new Error("the return is registered already");
    checked({ reason, refund }, returnRules);
    now.returns.push({ order: number, id, reason, refund });
  },
};

/** Buys what is in the cart. Where nobody is signed in, the order belongs to no account. */
function placeOrder(now, { to, delivery, day = null, card }, world) {
  if (!now.cart.length) throw new Error("the cart is empty");
  refuse(deliveryProblem(world, { delivery, day }));
  const paid = checked(card, cardRules(world));
  const { discount, total } = totals(world, now, delivery);
  now.orders.unshift({
    number: orderNumber(world, now.orders.length),
    date: world.today,
    status: "Processing",
    lines: now.cart.map((line) => ({ ...line, price: productOf(world, line.id).price })),
    delivery,
    day: delivery === "scheduled" ? day : null,
    total,
    coupon: discount ? now.coupon : null,
    account: Boolean(now.user),
    tracking: "not yet known",
    to: checked(to, contactRules),
    card: keptCard(paid),
  });
  now.cart = [];
  now.coupon = null;
}

/** The orders of the account, newest first: those of this visit, then those from before it. */
export const ordersOf = (world, { orders }) => [
  ...orders.filter(({ account }) => account),
  ...world.customer.orders,
];

/** The most of a product that one order takes. */
export const mostOf = ({ stock }) => Math.min(10, stock);

// ---- what the forms accept: the pages show these problems, the transitions throw them ----

export const newsletterProblem = email;

export const signInRules = { email, password: filled("your password") };
export const signInProblem = ({ customer }, { email, password }) =>
  String(email).toLowerCase() === customer.email && password === customer.password
    ? ""
    : "Email or password is wrong. Please try again.";

export const contactRules = {
  email,
  name: filled("your full name"),
  street: filled("street and number"),
  city: filled("the city"),
  region: oneOf(REGIONS, "Choose a state"),
  zip: digits("a ZIP code", 5),
};

/** Which days can be chosen for a delivery. */
export const deliveryDays = ({ today }) => ({
  min: weekdayFrom(today, 3),
  max: dates.plus(today, 75),
  open: (day) => ![0, 6].includes(dates.weekdayIndex(day)),
});

export function deliveryProblem(world, { delivery, day }) {
  if (!DELIVERY.some(({ id }) => id === delivery)) return "Choose a way of delivery";
  if (delivery !== "scheduled") return "";
  const { min, max, open } = deliveryDays(world);
  return isDay(day) && day >= min && day <= max && open(day) ? "" : "Choose a delivery day";
}

export const returnRules = {
  reason: oneOf(RETURN_REASONS, "Choose a reason"),
  refund: oneOf(REFUNDS, "Choose where the money goes"),
};

// ---- lines of the cart, and those saved for later: a product in a colour has one line ----

function productOf(world, id) {
  const product = world.byId.get(id);
  if (!product) throw new Error("the shop has no such product");
  return product;
}

function lineOf(lines, id, colour) {
  const line = lines.find((one) => one.id === id && one.colour === colour);
  if (!line) throw new Error("there is no such line");
  return line;
}

function take(lines, id, colour) {
  const line = lineOf(lines, id, colour);
  lines.splice(lines.indexOf(line), 1);
  return line;
}

/** Adds a line, or its quantity to the line that is there, up to the most that can be ordered. */
function put(lines, line, most) {
  const there = lines.find(({ id, colour }) => id === line.id && colour === line.colour);
  if (there) there.quantity = Math.min(most, there.quantity + line.quantity);
  else lines.push(line);
}
