// The electronics maker's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { payer, same, spellings, until } from "/kit/tasks.js";
import { person } from "/kit/words.js";
import {
  CONDITIONS,
  FAULTS,
  PLANS,
  SERVICES,
  TIMES,
  gigabytes,
  isShut,
  line,
  orderNumber,
  priceOf,
  repairPrice,
  search,
  specs,
  storesOf,
  takenTimes,
  tradeValue,
} from "/world.js";

/** A device as somebody wants it. */
function wish(draw, product) {
  return {
    colour: draw.one(product.colours),
    storage: draw.one(product.storage).size,
    memory: draw.one(product.memory).size,
    plan: draw.one(PLANS).id,
    engraving: draw.chance() ? draw.one(["For Ada", "Run home", "Hello again", "M and J"]) : "",
  };
}
const told = (product, { colour, storage, memory, plan, engraving }) =>
  `the ${product.name} in ${colour} with ${gigabytes(storage)} of storage, ${memory} GB of memory, ${engraving ? `the engraving "${engraving}"` : "no engraving"} and the protection "${PLANS.find(({ id }) => id === plan).name}"`;
const asWished = (line, product, wanted) =>
  line.id === product.id &&
  line.quantity === 1 &&
  Object.keys(wanted).every((key) => line[key] === wanted[key]);

export const tasks = {
  "maker-spec"(world, draw) {
    return until(draw, (draw) => {
      const product = draw.one(world.products),
        [name, value, unit] = draw.one(specs(product));
      // A few values only: they can be guessed.
      return value < 2 || name === "Warranty" || name === "Water resistance"
        ? null
        : {
            goal: `According to its technical data, what is the value of "${name}" of the ${product.name}, in ${unit}? Answer with the number.`,
            expected: value,
          };
    });
  },

  "maker-warranty"(world, draw) {
    const own = draw.one(world.owned);
    return {
      goal: `Until which day does the warranty of the device with the serial number ${own.serial} last? Answer with the date.`,
      expected: spellings(own.ends).filter((text) => /\d{4}/.test(text)),
    };
  },

  "maker-helpful"(world, draw) {
    const article = draw.one(world.articles);
    return {
      goal: `Find the support page "${article.title}" and say on it that it was helpful. Answer "done" at the end.`,
      touches: ["helpful"],
      correct: ({ helpful }) => same(Object.keys(helpful), [article.id]) && helpful[article.id] === "yes",
    };
  },

  "maker-accessory"(world, draw) {
    const kit = draw.one(world.accessories),
      quantity = draw.between(2, 3);
    return {
      goal: `Put ${quantity} pieces of "${kit.name}" into the bag. Answer "done" at the end.`,
      correct: ({ bag }) => bag.length === 1 && bag[0].id === kit.id && bag[0].quantity === quantity,
    };
  },

  "maker-lighter"(world, draw) {
    return until(draw, (draw) => {
      const [a, b] = draw.some(
        world.products.filter((product) => product.line === draw.one(["phones", "laptops", "tablets"])),
        2,
      );
      const more = a && b ? b.weight - a.weight : 0;
      return more < 3 || a.line !== b.line
        ? null
        : {
            goal: `By how many grams is the ${a.name} lighter than the ${b.name}? Answer with the number.`,
            expected: more,
          };
    });
  },

  "maker-cheapest"(world, draw) {
    return until(draw, (draw) => {
      const id = draw.one(["phones", "laptops", "tablets", "watches"]),
        storage = draw.one(line(id).storage.slice(2)),
        colour = draw.one(["Graphite", "Snow", "Sky", "Moss", "Coral"]),
        [first, second] = search(world, { id, storage, colour });
      return !second || first.price === second.price
        ? null
        : {
            goal: `Which of the ${line(id).title.toLowerCase()} that come in ${colour} and can be had with ${gigabytes(storage)} of storage or more has the lowest price? Answer with its name.`,
            expected: [first.name, `Oriel ${first.name}`],
          };
    });
  },

  "maker-config-price"(world, draw) {
    const product = draw.one(world.products),
      wanted = wish(draw, product);
    return {
      goal: `What does ${told(product, wanted)} cost? Answer with the number of dollars.`,
      expected: priceOf(product, wanted),
    };
  },

  "maker-shop"(world, draw) {
    return until(draw, (draw) => {
      const store = draw.one(world.stores),
        services = draw.some(SERVICES, 2),
        [first, second] = storesOf(world, store.town, services);
      return !first || (second && second.distance === first.distance)
        ? null
        : {
            goal: `Which is the phone number of the shop in ${store.town} nearest to the centre that offers "${services[0]}" and "${services[1]}"? Answer with the number.`,
            expected: [first.phone, first.phone.replaceAll(" ", "")],
          };
    });
  },

  "maker-visit"(world, draw) {
    return until(draw, (draw) => {
      const store = draw.one(world.stores),
        day = dates.plus(world.today, draw.between(2, 50)),
        service = draw.one(store.services),
        time = draw.one(TIMES),
        name = person(draw);
      return isShut(store, day) || takenTimes(world, store, day).has(time)
        ? null
        : {
            goal: `Book a visit to the shop "${store.name}" for "${service}" on ${dates.long(day)} at ${time} in the name of ${name}. Answer "done" at the end.`,
            touches: ["appointments"],
            correct: ({ appointments: [visit, more] }) =>
              visit &&
              !more &&
              visit.store === store.id &&
              visit.day === day &&
              visit.time === time &&
              visit.service === service &&
              visit.name === name,
          };
    });
  },

  "maker-trade"(world, draw) {
    const product = draw.one(world.products),
      { size } = draw.one(product.storage),
      condition = draw.one(CONDITIONS),
      charger = draw.chance();
    const value = tradeValue(product, { condition: condition.id, storage: size, charger });
    return {
      goal: `Somebody trades in a ${product.name} with ${gigabytes(size)} of storage in the state "${condition.name}", ${charger ? "with" : "without"} its charger. Accept the offer for it. How much is paid? Answer with the number of dollars.`,
      expected: value,
      touches: ["trade"],
      correct: ({ trade }) =>
        trade?.product === product.id &&
        trade.value === value &&
        trade.storage === size &&
        trade.condition === condition.id &&
        trade.charger === charger &&
        trade.applied,
    };
  },

  "maker-configure"(world, draw) {
    const product = draw.one(world.products),
      wanted = wish(draw, product);
    return {
      goal: `Put ${told(product, wanted)} into the bag. Answer "done" at the end.`,
      correct: ({ bag }) => bag.length === 1 && asWished(bag[0], product, wanted),
    };
  },

  "maker-checkout"(world, draw) {
    const product = draw.one(world.products),
      wanted = wish(draw, product),
      buyer = payer(draw),
      store = draw.one(world.stores);
    return {
      goal: `Buy ${told(product, wanted)}, and pick it up in the shop "${store.name}". The buyer is ${buyer.name}, email ${buyer.email}. ${buyer.told} Answer with the order number.`,
      expected: orderNumber(world, 0),
      touches: ["orders"],
      correct: ({ orders: [bought, more] }) =>
        bought &&
        !more &&
        bought.lines.length === 1 &&
        asWished(bought.lines[0], product, wanted) &&
        bought.way === "Pick up in a shop" &&
        bought.store === store.id &&
        bought.name === buyer.name &&
        bought.email === buyer.email &&
        buyer.paid(bought.card),
    };
  },

  "maker-repair"(world, draw) {
    return until(draw, (draw) => {
      const own = draw.one(world.owned),
        product = world.byId.get(own.product),
        fault = draw.one(FAULTS).name,
        name = person(draw),
        email = `${name.split(" ")[0].toLowerCase()}${draw.between(10, 99)}@mailbox.example`,
        text = draw.one([
          "It fell from the table",
          "It began after a swim",
          "It came back from a trip like this",
        ]),
        back = draw.one(["By post", "To a shop"]);
      const cost = repairPrice(product, fault, own.ends >= world.today);
      return cost < 10
        ? null
        : {
            goal: `Ask for the repair of the device with the serial number ${own.serial}: the part is "${fault}", what happened is "${text}". The name is ${name}, the email ${email}; it shall come back "${back}". What is the estimate? Answer with the number of dollars.`,
            expected: cost,
            touches: ["repairs"],
            correct: ({ repairs: [repair, more] }) =>
              repair &&
              !more &&
              repair.serial === own.serial &&
              repair.fault === fault &&
              repair.since === text &&
              repair.name === name &&
              repair.email === email &&
              repair.back === back,
          };
    });
  },

  "maker-budget"(world, draw) {
    return until(draw, (draw) => {
      const id = draw.one(["phones", "laptops", "tablets"]),
        [first, second] = search(world, { id, sort: "light" }),
        wanted = first.storage.at(-1).size,
        memory = first.memory.at(-1).size,
        price = priceOf(first, { storage: wanted, memory, plan: "care" });
      return first.weight === second.weight || first.storage.length < 2
        ? null
        : {
            goal: `What does the lightest of the ${line(id).title.toLowerCase()} cost with the most storage and the most memory it can be had with, no engraving, and the protection "Care, 2 years"? Answer with the number of dollars.`,
            expected: price,
          };
    });
  },
};
