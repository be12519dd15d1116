// The shop's tasks. Each is a function of the world and a draw that belongs to the task: { goal, correct(state), expected, state, conditions }.

import * as dates from "/kit/dates.js";
import { until } from "/kit/tasks.js";
import { address, cardNumber, person } from "/kit/words.js";
import {
  DEPARTMENTS,
  RETURN_REASONS,
  orderNumber,
  orderTotal,
  reviewsOf,
  search,
  totals,
  weekdayFrom,
} from "/world.js";

const inStock = (world, least = 1) => world.products.filter(({ stock }) => stock >= least);

/** Whether a cart or an order holds exactly these lines. */
const holds = (lines, wanted) =>
  lines.length === wanted.length &&
  wanted.every(({ id, colour, quantity }) =>
    lines.some((line) => line.id === id && line.colour === colour && line.quantity === quantity),
  );

const figure = (text) => Number(/^([\d.]+) /.exec(text)?.[1]);

export const tasks = {
  "shop-price"(world, draw) {
    const product = draw.one(world.products);
    return {
      goal: `How much does the "${product.title}" cost at Harrow & Pike? Answer with the price.`,
      expected: product.price / 100,
    };
  },

  "shop-spec"(world, draw) {
    const product = draw.one(world.products);
    const [[one, first], [two, second]] = draw.some(Object.entries(product.specs).slice(1), 2);
    return {
      goal: `Look up the specifications of the "${product.title}". What is given for "${one}", and what for "${two}"? Answer with both values as they are written there, in this order, with a comma between them.`,
      expected: `${first}, ${second}`,
    };
  },

  "shop-add-to-cart"(world, draw) {
    const product = draw.one(inStock(world, 5));
    const line = { id: product.id, colour: draw.one(product.colours.slice(1)), quantity: draw.between(2, 4) };
    return {
      goal: `Put ${line.quantity} of the "${product.title}" in the colour ${line.colour} into the cart, and nothing else. Answer "done" when the cart is right.`,
      correct: ({ cart }) => holds(cart, [line]),
    };
  },

  "shop-wishlist"(world, draw) {
    const [one, two] = draw.some(world.products, 2);
    return {
      goal: `Add the "${one.title}" and the "${two.title}" to the wish list. Answer "done" when both are on it.`,
      correct: ({ wishlist }) =>
        wishlist.length === 2 && wishlist.includes(one.id) && wishlist.includes(two.id),
    };
  },

  "shop-cheapest"(world, draw) {
    return until(draw, (draw) => {
      const place = draw.one(DEPARTMENTS),
        brand = draw.one(place.brands);
      const [first, second] = search(world, {
        department: place.id,
        brand: [brand],
        stock: true,
        sort: "price-up",
      });
      if (!second || first.price === second.price) return null;
      return {
        goal: `Among the products by ${brand} in the department ${place.name}, which one that is in stock is the cheapest? Answer with its full name as the shop writes it.`,
        expected: first.title,
      };
    });
  },

  "shop-count"(world, draw) {
    return until(draw, (draw) => {
      const place = draw.one(DEPARTMENTS),
        rating = draw.one([3, 3.5, 4]);
      const min = Math.round(place.price[0] * draw.decimal(1, 2)),
        max = Math.round(min * draw.decimal(2, 4));
      const found = search(world, { department: place.id, min, max, rating });
      if (found.length < 3 || found.length > 6) return null;
      if (found.length === search(world, { department: place.id, min, max }).length) return null;
      return {
        goal: `How many reviews have been written in total for the products in the department ${place.name} that cost from $${min} to $${max} and have a customer rating of ${rating} or more? Answer with the number.`,
        expected: found.reduce((sum, { ratings }) => sum + ratings.length, 0),
      };
    });
  },

  "shop-review"(world, draw) {
    return until(draw, (draw) => {
      const product = draw.one(world.products),
        rating = draw.one([5, 4, 3]);
      const list = reviewsOf(product)
        .filter((review) => review.rating === rating)
        .sort((a, b) => b.helpful - a.helpful);
      if (list.length < 3 || list[0].helpful === list[1].helpful) return null;
      return {
        goal: `Of the reviews with exactly ${rating} stars for the "${product.title}", which one did the most people find helpful? Answer with the full name of the person who wrote it.`,
        expected: list[0].author,
      };
    });
  },

  "shop-coupon"(world, draw) {
    return until(draw, (draw) => {
      const product = draw.one(inStock(world)),
        coupon = draw.one(world.coupons);
      if (product.price < coupon.minimum) return null;
      const cart = [{ id: product.id, quantity: 1 }];
      return {
        goal: `Put one "${product.title}" into the cart (any colour) and apply the coupon ${coupon.code}. What does the cart's summary show as the total? Answer with the amount.`,
        expected: totals(world, { cart, coupon: coupon.code }).total / 100,
        correct: ({ cart, coupon: used }) =>
          used === coupon.code && cart.length === 1 && cart[0].id === product.id && cart[0].quantity === 1,
      };
    });
  },

  "shop-cart-edit"(world, draw) {
    const lines = draw.some(inStock(world, 8), 4).map((product) => ({
      id: product.id,
      colour: draw.one(product.colours),
      quantity: draw.between(1, 3),
    }));
    const [gone, more, later, kept] = lines.map(({ id }) => world.byId.get(id).title);
    const quantity = draw.between(4, 6);
    return {
      goal: `Tidy up the cart: remove the "${gone}", change the quantity of the "${more}" to ${quantity}, and save the "${later}" for later. Leave the "${kept}" as it is. Answer "done" at the end.`,
      state: { cart: lines },
      correct: ({ cart, saved }) =>
        holds(cart, [{ ...lines[1], quantity }, lines[3]]) && holds(saved, [lines[2]]),
    };
  },

  "shop-order-total"(world, draw) {
    const { customer } = world;
    const order = draw.one(customer.orders);
    return {
      goal: `Sign in with the email ${customer.email} and the password ${customer.password}. What was the total of the order placed on ${dates.long(order.date)}? Answer with the amount.`,
      expected: orderTotal(world, order) / 100,
    };
  },

  "shop-tracking"(world, draw) {
    const { customer } = world;
    const order = draw.one(customer.orders);
    return {
      goal: `Sign in with the email ${customer.email} and the password ${customer.password} and open the order ${order.number}. Answer with its tracking number.`,
      expected: order.tracking,
    };
  },

  "shop-compare"(world, draw) {
    return until(draw, (draw) => {
      const place = draw.one(DEPARTMENTS);
      const names = Object.keys(place.specs).filter((name) =>
        world.products
          .filter((product) => product.department === place.id)
          .every((product) => figure(product.specs[name]) >= 0),
      );
      const name = draw.one(names);
      const three = draw.some(
        world.products.filter((product) => product.department === place.id),
        3,
      );
      const ordered = [...three].sort((a, b) => figure(b.specs[name]) - figure(a.specs[name]));
      if (figure(ordered[0].specs[name]) === figure(ordered[1].specs[name])) return null;
      return {
        goal: `Compare the specifications of these three: "${three[0].title}", "${three[1].title}" and "${three[2].title}". What does the one with the highest value for "${name}" cost? Answer with the price.`,
        expected: ordered[0].price / 100,
      };
    });
  },

  "shop-deals"(world, draw) {
    return until(draw, (draw) => {
      const place = draw.one(DEPARTMENTS),
        max = Math.round(place.price[0] + (place.price[1] - place.price[0]) * draw.decimal(0.05, 0.6, 2));
      const saved = ({ was, price }) => was - price;
      const deals = world.products
        .filter((product) => product.was && product.department === place.id)
        .sort((a, b) => saved(b) - saved(a));
      const [first, second] = deals.filter(({ price }) => price <= max * 100);
      if (deals.length < 4 || !second || saved(first) === saved(second) || first === deals[0]) return null;
      return {
        goal: `On the page with all deals, look at the offers for ${place.name.toLowerCase()} that now cost at most $${max}. Which of them has come down by the most dollars from its old price? Answer with its full name.`,
        expected: first.title,
      };
    });
  },

  "shop-checkout"(world, draw) {
    const product = draw.one(inStock(world, 5));
    const line = { id: product.id, colour: draw.one(product.colours), quantity: draw.between(1, 3) };
    const buyer = makeBuyer(world, draw);
    const day = weekdayFrom(world.today, draw.between(3, 40));
    return {
      goal: `Buy ${line.quantity} of the "${product.title}" in ${line.colour} without signing in. ${buyer.told} Have it delivered on ${dates.long(day)}. ${buyer.pays} Place the order, then answer "done".`,
      touches: ["orders"],
      correct: ({ orders }) =>
        orders.length === 1 &&
        holds(orders[0].lines, [line]) &&
        orders[0].delivery === "scheduled" &&
        orders[0].day === day &&
        !orders[0].account &&
        buyer.receives(orders[0]) &&
        buyer.paid(orders[0]),
    };
  },

  "shop-best-buy"(world, draw) {
    return until(draw, (draw) => {
      const place = draw.one(DEPARTMENTS),
        max = Math.round(place.price[0] + (place.price[1] - place.price[0]) * draw.decimal(0.2, 0.6));
      const [first, second] = search(world, { department: place.id, max, stock: true, sort: "rating" });
      if (!second || first.rating === second.rating) return null;
      const buyer = makeBuyer(world, draw);
      return {
        goal: `Buy one of the best rated product in the department ${place.name} that is in stock and costs at most $${max}, in any colour, without signing in. ${buyer.told} Choose express delivery. ${buyer.pays} Place the order, then answer with the order number.`,
        expected: orderNumber(world),
        touches: ["orders"],
        correct: ({ orders }) =>
          orders.length === 1 &&
          orders[0].lines.length === 1 &&
          orders[0].lines[0].id === first.id &&
          orders[0].lines[0].quantity === 1 &&
          orders[0].delivery === "express" &&
          !orders[0].account &&
          buyer.receives(orders[0]) &&
          buyer.paid(orders[0]),
      };
    });
  },

  "shop-unsteady"(world, draw) {
    const { customer } = world;
    const lines = draw.some(inStock(world, 5), 2).map((product) => ({
      id: product.id,
      colour: draw.one(product.colours),
      quantity: draw.between(1, 2),
    }));
    const buyer = makeBuyer(world, draw);
    return {
      goal: `Sign in with the email ${customer.email} and the password ${customer.password} and order what is in the cart, by express delivery to the address of the account. ${buyer.pays} The shop is unsteady today: if it reports a problem, try again. Answer "done" when the order is confirmed.`,
      state: { cart: lines },
      conditions: { checkout: { millis: 1200, failures: 2 } },
      touches: ["orders"],
      correct: ({ orders, cart }) =>
        orders.length === 1 &&
        !cart.length &&
        holds(orders[0].lines, lines) &&
        orders[0].delivery === "express" &&
        orders[0].account &&
        goesTo(orders[0], customer) &&
        buyer.paid(orders[0]),
    };
  },

  "shop-return"(world, draw) {
    const { customer } = world;
    const order = draw.one(customer.orders.filter(({ status }) => status === "Delivered"));
    const line = draw.one(order.lines),
      reason = draw.one(RETURN_REASONS),
      refund = draw.one(["Original payment method", "Store credit"]);
    return {
      goal: `Sign in with the email ${customer.email} and the password ${customer.password}. Return the "${world.byId.get(line.id).title}" from the order of ${dates.long(order.date)}. The reason is "${reason}", and the refund goes to "${refund}". Answer "done" when the return is registered.`,
      touches: ["returns"],
      correct: ({ returns }) =>
        returns.length === 1 &&
        returns[0].order === order.number &&
        returns[0].id === line.id &&
        returns[0].reason === reason &&
        returns[0].refund === refund,
    };
  },
};

/** Whether an order goes to somebody, in every field of the form. */
const goesTo = ({ to }, { name, email, home }) =>
  to.name === name &&
  to.email === email &&
  to.street === home.street &&
  to.city === home.city &&
  to.region === home.region &&
  to.zip === home.zip;

/** Somebody who buys: how a goal tells where it goes and who pays, and whether an order goes there and was paid so. */
function makeBuyer(world, draw) {
  const name = person(draw),
    home = address(draw),
    email = `${name.split(" ")[0].toLowerCase()}${draw.between(10, 99)}@mailbox.example`;
  const number = cardNumber(draw),
    expiry = `${String(draw.between(1, 12)).padStart(2, "0")}/${draw.between(29, 34)}`,
    code = String(draw.between(100, 999));
  return {
    told: `It goes to ${name}, ${home.street}, ${home.city}, ${home.region} ${home.zip}; the email is ${email}.`,
    pays: `Pay with the card ${number} in the name of ${name}, expiry ${expiry}, security code ${code}.`,
    receives: (order) => goesTo(order, { name, email, home }),
    paid: ({ card }) =>
      card.number === number.replaceAll(" ", "") &&
      card.holder.toLowerCase() === name.toLowerCase() &&
      card.expiry === expiry &&
      card.code === code,
  };
}
