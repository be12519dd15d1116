// The flight search's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { payer, same, until } from "/kit/tasks.js";
import { people } from "/kit/words.js";
import {
  AIRLINES,
  BAG_PRICE,
  CITIES,
  FARES,
  LETTERS,
  REASONS,
  WINDOWS,
  board,
  city,
  clock,
  lowest,
  reference,
  search,
  takenSeats,
  totalOf,
} from "/world.js";

/** A route and a day. */
function route(world, draw) {
  const [from, to] = draw.some(CITIES, 2).map(({ code }) => code);
  return { from, to, day: dates.plus(world.today, draw.between(4, 80)) };
}
const told = ({ from, to, day }) => `from ${city(from).name} to ${city(to).name} on ${dates.long(day)}`;
const own = ({ reference, surname }) =>
  `the trip with the booking reference ${reference}, last name ${surname}`;
/** The first of a sorted list if nothing shares its value, else null. */
function first(list, value) {
  return list.length > 1 && value(list[0]) !== value(list[1]) ? list[0] : null;
}
const born = (draw, low, high) =>
  dates.day(draw.between(low, high), draw.between(1, 12), draw.between(1, 28));
const code = (world) => reference(world.draw.fork("reference/0"));
const freeSeat = (draw, world, flight, but = "") =>
  draw.one(
    LETTERS.flatMap((letter) => [5, 6, 7, 8, 9, 10, 13, 14, 15, 16].map((row) => `${row}${letter}`)).filter(
      (seat) => seat !== but && !takenSeats(world, flight).has(seat),
    ),
  );

/** Whether two pieces of plain data are the same; the order of an object's keys does not matter. */
function equal(a, b) {
  if (Object(a) !== a || Object(b) !== b) return a === b;
  const keys = Object.keys(a);
  return same(keys, Object.keys(b)) && keys.every((key) => equal(a[key], b[key]));
}

/** Whether the trip that was booked before differs from what it was in `wanted` alone, and the other one in nothing. */
const isOnlyChange = (world, changes, { reference }, wanted) =>
  [world.booked, world.soon].every((trip) =>
    equal(
      { ...trip, ...changes[trip.reference] },
      { ...trip, ...(trip.reference === reference ? wanted : {}) },
    ),
  );

/** Whether one trip is booked and stands as it was asked for, paid by the buyer. */
function isOnlyBooking(world, [booking, more], buyer, { flight, fareId, passengers, born, seats, bags }) {
  if (!booking || more) return false;
  const { card, ...rest } = booking,
    people = passengers.length,
    bySeat = { [flight.id]: seats };
  const wanted = {
    reference: code(world),
    surname: passengers[0].split(" ").at(-1),
    flights: [flight.id],
    cabin: "economy",
    fare: fareId,
    passengers,
    born,
    seats: bySeat,
    bags,
    email: buyer.email,
    phone: buyer.phone,
    total: totalOf({ flights: [flight], cabin: "economy", fareId, people, seats: bySeat, bags }),
    status: "Confirmed",
  };
  return equal(rest, wanted) && buyer.paid(card);
}

export const tasks = {
  "flights-gate"(world, draw) {
    const place = draw.one(CITIES),
      row = draw.one(board(world, place.code));
    return {
      goal: `From which gate does flight ${row.number} leave ${place.name} today? Answer with the gate.`,
      expected: row.gate,
    };
  },

  "flights-seat-of"(world) {
    const { soon, booked } = world,
      [seat] = booked.seats[booked.flights[0]];
    return {
      goal: `Find ${own(booked)}. Which seat is reserved? Answer with the seat.`,
      expected: seat,
      state: { unlocked: [soon.reference] },
    };
  },

  "flights-alert"(world, draw) {
    const asked = route(world, draw);
    return {
      goal: `Search one-way flights ${told(asked)} and switch on tracking of their prices. Answer "done" at the end.`,
      touches: ["alerts"],
      correct: ({ alerts }) =>
        alerts.length === 1 &&
        alerts[0].from === asked.from &&
        alerts[0].to === asked.to &&
        alerts[0].depart === asked.day &&
        !alerts[0].back,
    };
  },

  "flights-cheapest"(world, draw) {
    return until(draw, (draw) => {
      const asked = route(world, draw),
        flight = first(search(world, { ...asked, stops: "0" }), ({ price }) => price);
      return (
        flight && {
          goal: `What does the cheapest nonstop one-way flight ${told(asked)} cost for one adult in Economy? Answer with the price in dollars.`,
          expected: flight.price,
        }
      );
    });
  },

  "flights-fastest"(world, draw) {
    return until(draw, (draw) => {
      const asked = route(world, draw),
        carriers = draw.some(AIRLINES, 2).map(({ name }) => name);
      const flight = first(
        search(world, { ...asked, airlines: carriers, sort: "duration" }),
        ({ minutes }) => minutes,
      );
      return (
        flight && {
          goal: `Among the one-way flights ${told(asked)} with "${carriers[0]}" or "${carriers[1]}", when does the one that takes the shortest time leave? Answer with the time, such as 09:45.`,
          expected: clock(flight.depart),
        }
      );
    });
  },

  "flights-count"(world, draw) {
    return until(draw, (draw) => {
      const asked = route(world, draw),
        window = draw.one(WINDOWS),
        found = search(world, { ...asked, stops: "1", windows: [window[0]] });
      return found.length < 3
        ? null
        : {
            goal: `Look at the one-way flights ${told(asked)} with at most one stop that leave in the part of the day that is listed as "${window[1]}". How many dollars more than the cheapest does the dearest of them cost for one adult in Economy? Answer with the number.`,
            expected: found.at(-1).price - found[0].price,
          };
    });
  },

  "flights-week"(world, draw) {
    return until(draw, (draw) => {
      const asked = route(world, draw),
        days = [-3, -2, -1, 0, 1, 2, 3].map((by) => dates.plus(asked.day, by));
      const cheapest = first(
        days
          .map((day) => ({ day, price: lowest(world, asked.from, asked.to, day) }))
          .sort((a, b) => a.price - b.price),
        ({ price }) => price,
      );
      if (!cheapest || cheapest.day === asked.day) return null;
      const flight = first(search(world, { ...asked, day: cheapest.day }), ({ price }) => price);
      return (
        flight && {
          goal: `For one-way flights ${told(asked)} the results show prices of the days around it. On the cheapest of these seven days, when does the cheapest flight leave? Answer with the time, such as 09:45.`,
          expected: clock(flight.depart),
        }
      );
    });
  },

  "flights-bags"(world, draw) {
    const { booked } = world,
      more = draw.between(1, 3),
      wanted = { bags: booked.bags + more, total: booked.total + more * BAG_PRICE };
    return {
      goal: `Add ${more} checked ${more === 1 ? "bag" : "bags"} to ${own(booked)}. What does the trip cost in total then? Answer with the number of dollars.`,
      expected: wanted.total,
      touches: ["changes"],
      correct: ({ changes }) => isOnlyChange(world, changes, booked, wanted),
    };
  },

  "flights-seat-change"(world, draw) {
    const { booked } = world,
      [flight] = booked.flights,
      seat = freeSeat(draw, world, flight, booked.seats[flight][0]);
    return {
      goal: `Change the seat of ${own(booked)} to ${seat}. Answer "done" when it is saved.`,
      touches: ["changes"],
      correct: ({ changes }) => isOnlyChange(world, changes, booked, { seats: { [flight]: [seat] } }),
    };
  },

  "flights-check-in"(world, draw) {
    const { soon } = world,
      passport = `${draw.one([..."CDEGHK"])}${draw.between(1000000, 9999999)}`,
      meal = draw.one(["Vegetarian", "Vegan", "Gluten free"]);
    return {
      goal: `Check in for ${own(soon)}: the passport number is ${passport}, the meal "${meal}". There are no dangerous goods. Answer "done" at the end.`,
      touches: ["changes"],
      correct: ({ changes }) => isOnlyChange(world, changes, soon, { checkedIn: true, passport, meal }),
    };
  },

  "flights-cancel"(world, draw) {
    const { booked } = world,
      reason = draw.one(REASONS);
    return {
      goal: `Cancel ${own(booked)}. The reason is "${reason}". Answer "done" when it is cancelled.`,
      touches: ["changes"],
      correct: ({ changes }) => isOnlyChange(world, changes, booked, { status: "Cancelled", reason }),
    };
  },

  "flights-book"(world, draw) {
    return until(draw, (draw) => {
      const asked = route(world, draw),
        flight = first(search(world, { ...asked, stops: "0" }), ({ price }) => price);
      if (!flight) return null;
      const buyer = payer(draw),
        birth = born(draw, 1955, 2005),
        seat = freeSeat(draw, world, flight.id),
        kind = draw.one(FARES);
      return {
        goal: `Book the cheapest nonstop one-way flight ${told(asked)} in Economy for one adult, ${buyer.name}, born ${birth}, in the fare "${kind.name}" and with the seat ${seat}. The email is ${buyer.email}, the phone ${buyer.phone}. ${buyer.told} Answer "done" when the flight is booked.`,
        touches: ["bookings"],
        correct: ({ bookings }) =>
          isOnlyBooking(world, bookings, buyer, {
            flight,
            fareId: kind.id,
            passengers: [buyer.name],
            born: [birth],
            seats: [seat],
            bags: 0,
          }),
      };
    });
  },

  "flights-round"(world, draw) {
    return until(draw, (draw) => {
      const asked = route(world, draw),
        back = { from: asked.to, to: asked.from, day: dates.plus(asked.day, draw.between(3, 14)) };
      const there = first(search(world, { ...asked, stops: "0", sort: "departure" }), ({ depart }) => depart),
        home = first(search(world, back), ({ price }) => price);
      if (!there || !home) return null;
      const total = totalOf({ flights: [there, home], cabin: "economy", fareId: "classic", people: 2 });
      return {
        goal: `Two adults fly from ${city(asked.from).name} to ${city(asked.to).name} on ${dates.long(asked.day)} and back on ${dates.long(back.day)} in Economy. They take the nonstop flight that leaves first on the way out and the cheapest flight on the way back, whatever its stops. What does the fare "Classic" cost for both together? Answer with the price in dollars.`,
        expected: total,
      };
    });
  },

  "flights-family"(world, draw) {
    return until(draw, (draw) => {
      const asked = route(world, draw),
        carrier = draw.one(AIRLINES).name,
        flight = first(
          search(world, { ...asked, airlines: [carrier], sort: "arrival" }),
          ({ arrive }) => arrive,
        );
      if (!flight) return null;
      const buyer = payer(draw),
        [child] = people(draw, 1),
        births = [
          born(draw, 1970, 1998),
          dates.day(dates.year(asked.day) - draw.between(4, 10), draw.between(1, 12), 14),
        ];
      return {
        goal: `Book the one-way flight with "${carrier}" ${told(asked)} that arrives earliest, in Economy and the fare "Flex", for one adult, ${buyer.name}, born ${births[0]}, and one child, ${child}, born ${births[1]}. Leave the seats to the airline and add 2 checked bags. The email is ${buyer.email}, the phone ${buyer.phone}. ${buyer.told} Answer with the booking reference.`,
        expected: code(world),
        touches: ["bookings"],
        correct: ({ bookings }) =>
          isOnlyBooking(world, bookings, buyer, {
            flight,
            fareId: "flex",
            passengers: [buyer.name, child],
            born: births,
            seats: [null, null],
            bags: 2,
          }),
      };
    });
  },
};
