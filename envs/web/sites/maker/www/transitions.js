// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import * as dates from "/kit/dates.js";
import { cardRules, checked, digits, email, filled, isDay, keptCard, oneOf, refuse } from "/kit/rules.js";
import {
  CONDITIONS,
  FAULTS,
  PLANS,
  TIMES,
  bagTotal,
  isShut,
  orderNumber,
  repairPrice,
  takenTimes,
  tradeValue,
} from "/world.js";

export const WAYS = ["Delivery", "Pick up in a shop"];
export const RETURNS = ["By post", "To a shop"];
export const ENGRAVING_MOST = 20;
const COMPARED_MOST = 3;

// ---- what the forms accept ----

export const contactRules = { name: filled("your full name"), email };
export const addressRules = {
  street: filled("street and number"),
  city: filled("the city"),
  zip: digits("a ZIP code", 5),
};
export const serialProblem = (world, serial) =>
  world.owned.some((own) => own.serial === serial.toUpperCase())
    ? ""
    : "We know no device with this serial number";
export const repairRules = {
  name: filled("your name"),
  email,
  since: (value) => (value ? "" : "Say what happened"),
};
export const visitRules = { visitor: filled("your name") };

/** The days on which a shop takes visitors. */
export const visitDays = ({ today }, store) => ({
  min: dates.plus(today, 1),
  max: dates.plus(today, 60),
  open: (day) => !isShut(store, day),
});

export function visitProblem(world, store, { day, time }) {
  const { min, max, open } = visitDays(world, store);
  return isDay(day) &&
    day >= min &&
    day <= max &&
    open(day) &&
    TIMES.includes(time) &&
    !takenTimes(world, store, day).has(time)
    ? ""
    : "Choose a day and a time";
}

// ---- what changes the state ----

export const transitions = {
  "compare.add"(now, { id }, world) {
    deviceOf(world, id);
    refuse(now.compare.includes(id) && "it is compared already");
    now.compare = [...now.compare, id].slice(-COMPARED_MOST);
  },

  "compare.remove"(now, { id }) {
    refuse(!now.compare.includes(id) && "it is not compared");
    now.compare = now.compare.filter((one) => one !== id);
  },

  "compare.clear"(now) {
    now.compare = [];
  },

  "bag.configured"(now, { id, colour, storage, memory, plan, engraving }, world) {
    const device = deviceOf(world, id);
    refuse(oneOf(device.colours)(colour));
    refuse(oneOf(device.storage.map(({ size }) => size))(storage));
    refuse(oneOf(device.memory.map(({ size }) => size))(memory));
    refuse(oneOf(PLANS.map((one) => one.id))(plan));
    refuse(typeof engraving !== "string" && "the engraving is no text");
    refuse(engraving.length > ENGRAVING_MOST && "the engraving is too long");
    now.bag.push({ id, quantity: 1, colour, storage, memory, plan, engraving });
  },

  "bag.accessory"(now, { id }, world) {
    refuse(!world.byId.get(id)?.kit && "there is no such accessory");
    const line = now.bag.find((one) => one.id === id);
    if (line) line.quantity += 1;
    else now.bag.push({ id, quantity: 1 });
  },

  "bag.more"(now, { at }) {
    lineOf(now, at).quantity += 1;
  },

  "bag.less"(now, { at }) {
    const line = lineOf(now, at);
    line.quantity -= 1;
    if (!line.quantity) now.bag.splice(at, 1);
  },

  "bag.remove"(now, { at }) {
    lineOf(now, at);
    now.bag.splice(at, 1);
  },

  "trade.accept"(now, { product, storage, condition, charger }, world) {
    const device = deviceOf(world, product);
    refuse(oneOf(device.storage.map(({ size }) => size))(storage));
    refuse(oneOf(CONDITIONS.map(({ id }) => id))(condition));
    refuse(oneOf([true, false])(charger));
    const value = tradeValue(device, { condition, storage, charger });
    now.trade = { product, storage, condition, charger, value, applied: true };
  },

  "trade.use"(now, { applied }) {
    refuse((!now.trade || !now.bag.length) && "there is no trade-in to use");
    refuse(oneOf([true, false])(applied));
    now.trade.applied = applied;
  },

  "order.place"(now, { way, ...typed }, world) {
    refuse(!now.bag.length && "the bag is empty");
    refuse(oneOf(WAYS)(way));
    now.orders.push({
      number: orderNumber(world, now.orders.length),
      lines: now.bag,
      total: bagTotal(world, now),
      ...checked(typed, contactRules),
      way,
      ...checked(typed, way === WAYS[0] ? addressRules : { store: oneOf(world.stores.map(({ id }) => id)) }),
      card: keptCard(checked(typed, cardRules(world))),
    });
    now.bag = [];
  },

  "repair.ask"(now, { serial, fault, back, ...told }, world) {
    refuse(typeof serial === "string" ? serialProblem(world, serial) : "the serial number is no text");
    refuse(oneOf(FAULTS.map((one) => one.name))(fault));
    refuse(oneOf(RETURNS)(back));
    const own = world.owned.find((one) => one.serial === serial.toUpperCase());
    const { name, email, since } = checked(told, repairRules);
    const cost = repairPrice(world.byId.get(own.product), fault, own.ends >= world.today);
    now.repairs.push({ serial: own.serial, fault, back, name, email, since, cost });
  },

  "visit.book"(now, { store: id, day, time, service, visitor }, world) {
    const store = world.stores.find((one) => one.id === id);
    refuse(!store && "there is no such shop");
    refuse(visitProblem(world, store, { day, time }));
    refuse(oneOf(store.services)(service));
    checked({ visitor }, visitRules);
    now.appointments.push({ store: id, day, time, service, name: visitor });
  },

  "article.vote"(now, { id, vote }, world) {
    refuse(!world.articles.some((one) => one.id === id) && "there is no such page");
    refuse(Object.hasOwn(now.helpful, id) && "this page has been voted on");
    refuse(oneOf(["yes", "no"])(vote));
    now.helpful[id] = vote;
  },
};

function deviceOf(world, id) {
  const device = world.byId.get(id);
  refuse((!device || device.kit) && "there is no such device");
  return device;
}

function lineOf(now, at) {
  refuse((!Number.isInteger(at) || !now.bag[at]) && "there is no such line in the bag");
  return now.bag[at];
}
