// The flight search's content, drawn from the seed: fourteen airports and on each of their 182 routes some twenty flights a day, a seat map for
// each, today's departure boards, two bookings made before.

import * as dates from "/kit/dates.js";
import { person } from "/kit/words.js";

export const NAME = "Wingfare";
/** Days ahead that can be booked. */
export const HORIZON = 300;
/** People in one booking. */
export const MOST_TRAVELLERS = 6;

/** Airports; x and y in kilometres on a flat map. All of them keep the same time. */
export const CITIES = [
  { code: "PVL", name: "Portavale", country: "Portugal", x: 0, y: 1600 },
  { code: "CLA", name: "Cielo Alto", country: "Spain", x: 520, y: 1750 },
  { code: "KSB", name: "Kestrel Bay", country: "Ireland", x: 180, y: 380 },
  { code: "STA", name: "Saint-Aubry", country: "France", x: 960, y: 980 },
  { code: "LDM", name: "Lindenmark", country: "Germany", x: 1640, y: 620 },
  { code: "FJH", name: "Fjordhavn", country: "Norway", x: 1420, y: 0 },
  { code: "TRB", name: "Torrebella", country: "Italy", x: 1700, y: 1540 },
  { code: "AUR", name: "Aurelia", country: "Greece", x: 2500, y: 1820 },
  { code: "OSK", name: "Oskarholm", country: "Sweden", x: 1900, y: 160 },
  { code: "WLD", name: "Waldhofen", country: "Austria", x: 1820, y: 1010 },
  { code: "BRN", name: "Brannoch", country: "Scotland", x: 440, y: 180 },
  { code: "MZR", name: "Mazurka", country: "Poland", x: 2180, y: 640 },
  { code: "VDL", name: "Vandelle", country: "Belgium", x: 1080, y: 700 },
  { code: "TSK", name: "Tesskara", country: "Turkey", x: 3000, y: 1690 },
];
export const city = (code) => CITIES.find((one) => one.code === code);
/** The city a person means: a name, a code, or both. */
export const cityNamed = (text) =>
  CITIES.find(({ name, code }) =>
    [name, code, `${name} (${code})`].some((one) => one.toLowerCase() === text.toLowerCase()),
  );

export const AIRLINES = [
  { name: "Aurora Air", code: "AU", hue: 262, factor: 1.12, bag: true },
  { name: "Blue Heron", code: "BH", hue: 206, factor: 1.05, bag: true },
  { name: "Corvus Airways", code: "CV", hue: 0, factor: 0.98, bag: false },
  { name: "Northlight", code: "NL", hue: 174, factor: 1.18, bag: true },
  { name: "Pelican Jet", code: "PJ", hue: 32, factor: 0.78, bag: false },
  { name: "Terravia", code: "TV", hue: 132, factor: 0.9, bag: false },
];
export const airline = (name) => AIRLINES.find((one) => one.name === name);
export const CABINS = [
  { id: "economy", name: "Economy", factor: 1 },
  { id: "business", name: "Business", factor: 2.6 },
];
export const FARES = [
  {
    id: "basic",
    name: "Basic",
    extra: 0,
    points: ["Small bag under the seat", "Seat costs extra", "No changes, no refund"],
  },
  {
    id: "classic",
    name: "Classic",
    extra: 36,
    points: ["Cabin bag and one checked bag", "Choose a seat for free", "Changes for a fee"],
  },
  {
    id: "flex",
    name: "Flex",
    extra: 92,
    points: [
      "Cabin bag and two checked bags",
      "Choose a seat for free",
      "Full refund until the day of departure",
    ],
  },
];
export const cabinOf = (id) => CABINS.find((one) => one.id === id) ?? CABINS[0];
export const fare = (id) => FARES.find((one) => one.id === id) ?? FARES[0];
export const WINDOWS = [
  ["early", "Before 06:00", 0, 360],
  ["morning", "06:00 to 12:00", 360, 720],
  ["afternoon", "12:00 to 18:00", 720, 1080],
  ["evening", "18:00 and later", 1080, 1440],
];
export const REASONS = ["My plans changed", "Illness", "I booked the wrong day", "I found a cheaper flight"];
export const BAG_PRICE = 34;
export const SEAT_PRICE = 9;
export const LEGROOM_PRICE = 24;
export const ROWS = 22;
export const LETTERS = ["A", "B", "C", "D", "E", "F"];

/** The whole site. */
export function makeWorld(draw) {
  const world = { today: dates.plus("2027-01-20", draw.below(280)), draw };
  world.booked = makeBooking(world, draw.fork("booked"), draw.between(12, 60));
  world.soon = makeBooking(world, draw.fork("soon"), 1);
  return world;
}

/** What a fresh visitor begins with. */
export const freshState = () => ({ bookings: [], unlocked: [], changes: {}, alerts: [] });

/** "07:05" of minutes since midnight; "+1" marks the next day. */
export const clock = (minutes) =>
  `${String(Math.floor(minutes / 60) % 24).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}`;
/** "2 h 05 min" */
export const lasting = (minutes) =>
  `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
const kilometres = (a, b) => Math.hypot(a.x - b.x, a.y - b.y);
/** Half an hour for climbing and landing, the rest at 780 km/h, to five minutes. */
const inTheAir = (a, b) => Math.round((30 + kilometres(a, b) / 13) / 5) * 5;

/** All flights of a route on a day, in order of departure. */
export function flightsOn(world, from, to, day) {
  const draw = world.draw.fork(`${from}${to}/${day}`);
  return Array.from({ length: draw.between(17, 24) }, (_, index) =>
    makeFlight(world, draw.fork(index), { from, to, day, index }),
  ).sort((a, b) => a.depart - b.depart || a.index - b.index);
}

/** Whether flights of a day are sold. */
export const isBookable = (world, day) =>
  /^\d{4}-\d\d-\d\d$/.test(day ?? "") &&
  dates.day(dates.year(day), dates.month(day), dates.dayOfMonth(day)) === day &&
  day >= world.today &&
  day <= dates.plus(world.today, HORIZON);

/** How many people travel, as numbers: at least one adult, at most six together. */
export function partyOf({ adults, children }) {
  const within = (value, low, high) => {
    const number = Number(value);
    return Number.isInteger(number) && number >= low && number <= high ? number : low;
  };
  const most = within(adults, 1, MOST_TRAVELLERS);
  return { adults: most, children: within(children, 0, MOST_TRAVELLERS - most) };
}

/** The flights of a trip, there and perhaps back; none if they do not exist, are not sold, or do not belong together. */
export function tripFlights(world, { out, back }) {
  const there = flightOf(world, out),
    home = flightOf(world, back);
  if (!there || !isBookable(world, there.day) || (back && !home)) return [];
  if (!home) return [there];
  const isReturn = home.from === there.to && home.to === there.from && home.day >= there.day;
  return isReturn && isBookable(world, home.day) ? [there, home] : [];
}

/** The flight of an id such as "PVLLDM2027-03-09-4"; null if there is none. */
export function flightOf(world, id) {
  const [, from, to, day] = /^([A-Z]{3})([A-Z]{3})(\d{4}-\d\d-\d\d)-\d+$/.exec(id ?? "") ?? [];
  if (!city(from) || !city(to) || from === to) return null;
  return flightsOn(world, from, to, day).find((flight) => flight.id === id) ?? null;
}

function makeFlight(world, draw, { from, to, day, index }) {
  const carrier = draw.one(AIRLINES),
    stops = draw.weighted([
      [0, 5],
      [1, 5],
      [2, 1.4],
    ]);
  const others = draw.some(
    CITIES.filter(({ code }) => code !== from && code !== to),
    stops,
  );
  const way = [city(from), ...others, city(to)];
  let time = draw.between(60, 268) * 5;
  const depart = time;
  const legs = way.slice(1).map((next, at) => {
    const leg = {
      from: way[at].code,
      to: next.code,
      number: `${carrier.code} ${draw.between(102, 989)}`,
      depart: time,
      arrive: time + inTheAir(way[at], next),
      plane: draw.one(["Lark 200", "Lark 320", "Condor 7", "Swift R90"]),
    };
    time = leg.arrive + draw.between(9, 40) * 5;
    return leg;
  });
  const ahead = dates.between(world.today, day),
    busy = [0, 5].includes(dates.weekdayIndex(day)) ? 1.2 : 1,
    late = ahead < 4 ? 1.7 : ahead < 14 ? 1.3 : 1;
  const base = 38 + kilometres(way[0], way.at(-1)) * 0.06;
  const price = Math.round(
    base * carrier.factor * busy * late * (stops ? 0.84 : 1.1) * draw.decimal(0.8, 1.5, 2),
  );
  const arrive = legs.at(-1).arrive;
  return {
    id: `${from}${to}${day}-${index}`,
    index,
    from,
    to,
    day,
    airline: carrier.name,
    number: legs[0].number,
    legs,
    stops,
    depart,
    arrive,
    minutes: arrive - depart,
    price,
    bag: carrier.bag,
    left: draw.between(1, 30),
    carbon: Math.round(
      legs.reduce((sum, leg) => sum + kilometres(city(leg.from), city(leg.to)), 0) *
        draw.decimal(0.07, 0.1, 3),
    ),
  };
}

/** What one seat on a flight costs in a cabin. */
export const priceIn = (flight, cabin) => Math.round(flight.price * cabinOf(cabin).factor);

/** Flights that fit the filters, in order. */
export function search(
  world,
  {
    from,
    to,
    day,
    cabin = "economy",
    stops = "",
    airlines = [],
    windows = [],
    max = 0,
    bag = false,
    sort = "price",
  },
) {
  const fits = (flight) =>
    (stops === "" || flight.stops <= Number(stops)) &&
    (!airlines.length || airlines.includes(flight.airline)) &&
    (!bag || flight.bag) &&
    (!windows.length ||
      WINDOWS.some(
        ([id, , low, high]) => windows.includes(id) && flight.depart >= low && flight.depart < high,
      )) &&
    (!max || priceIn(flight, cabin) <= max);
  const orders = {
    price: (a, b) => a.price - b.price,
    duration: (a, b) => a.minutes - b.minutes,
    departure: (a, b) => a.depart - b.depart,
    arrival: (a, b) => a.arrive - b.arrive,
    carbon: (a, b) => a.carbon - b.carbon,
  };
  return flightsOn(world, from, to, day)
    .filter(fits)
    .sort((a, b) => (orders[sort] ?? orders.price)(a, b) || a.depart - b.depart || a.index - b.index);
}

/** The lowest price of a route on a day, as the strip of days shows it. */
export const lowest = (world, from, to, day, cabin = "economy") =>
  Math.min(...flightsOn(world, from, to, day).map((flight) => priceIn(flight, cabin)));

/** Seats somebody else has. */
export function takenSeats(world, flight) {
  const draw = world.draw.fork(`seats/${flight}`);
  return new Set(
    LETTERS.flatMap((letter) => Array.from({ length: ROWS }, (_, row) => `${row + 1}${letter}`)).filter(() =>
      draw.chance(0.42),
    ),
  );
}
/** Rows 1 to 4 and those at the exits have more room. */
export const hasLegroom = (seat) => [1, 2, 3, 4, 11, 12].includes(Number.parseInt(seat, 10));
export const seatPrice = (seat, fareId) =>
  !seat ? 0 : hasLegroom(seat) ? LEGROOM_PRICE : fareId === "basic" ? SEAT_PRICE : 0;

/** What a booking costs: seats in the cabin, fare, chosen seats, bags. */
export function totalOf({ flights, cabin, fareId, people, seats = {}, bags = 0 }) {
  const tickets = flights.reduce(
    (sum, flight) => sum + (priceIn(flight, cabin) + fare(fareId).extra) * people,
    0,
  );
  const chosen = Object.values(seats)
    .flat()
    .reduce((sum, seat) => sum + seatPrice(seat, fareId), 0);
  return tickets + chosen + bags * BAG_PRICE * flights.length;
}

/** A reference of six letters and digits. */
export function reference(draw) {
  return Array.from({ length: 6 }, () => draw.one([..."ABCDEFGHJKLMNPQRSTUVWXYZ23456789"])).join("");
}

/** Today's departures of an airport. */
export function board(world, code) {
  const draw = world.draw.fork(`board/${code}`),
    others = CITIES.filter((one) => one.code !== code);
  const gates = draw.shuffled(
    ["A", "B", "C"].flatMap((hall) => Array.from({ length: 18 }, (_, at) => `${hall}${at + 2}`)),
  );
  const numbers = new Set();
  return Array.from({ length: 26 }, (_, index) => {
    const carrier = draw.one(AIRLINES),
      time = 330 + index * 38 + draw.below(7) * 5;
    let number;
    do number = `${carrier.code} ${draw.between(102, 989)}`;
    while (numbers.has(number));
    numbers.add(number);
    const status = draw.weighted([
      ["On time", 6],
      ["Delayed", 3],
      ["Cancelled", 0.6],
    ]);
    return {
      number,
      airline: carrier.name,
      to: draw.one(others).name,
      time,
      gate: gates[index],
      status,
      expected: status === "Delayed" ? time + draw.between(3, 22) * 5 : time,
      belt: draw.between(1, 9),
    };
  });
}

function makeBooking(world, draw, ahead) {
  const [from, to] = draw.some(CITIES, 2).map(({ code }) => code),
    day = dates.plus(world.today, ahead),
    flight = draw.one(flightsOn(world, from, to, day));
  const passenger = person(draw),
    taken = takenSeats(world, flight.id);
  const seat = draw.one(
    LETTERS.flatMap((letter) => [14, 15, 16, 17, 18, 19].map((row) => `${row}${letter}`)).filter(
      (one) => !taken.has(one),
    ),
  );
  const bags = draw.between(0, 1);
  return {
    reference: reference(draw),
    surname: passenger.split(" ")[1],
    flights: [flight.id],
    cabin: "economy",
    fare: "classic",
    passengers: [passenger],
    seats: { [flight.id]: [seat] },
    bags,
    total: totalOf({
      flights: [flight],
      cabin: "economy",
      fareId: "classic",
      people: 1,
      seats: { [flight.id]: [seat] },
      bags,
    }),
    status: "Confirmed",
  };
}

/** Six destinations of a city with their lowest price two weeks ahead, for the first page. */
export function deals(world) {
  const draw = world.draw.fork("deals"),
    from = draw.one(CITIES);
  return draw
    .some(
      CITIES.filter((one) => one !== from),
      6,
    )
    .map((to) => {
      const day = dates.plus(world.today, draw.between(14, 40));
      return { from, to, day, price: lowest(world, from.code, to.code, day) };
    });
}
