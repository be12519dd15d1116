// The booking site's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { same, until } from "/kit/tasks.js";
import { cardNumber, person } from "/kit/words.js";
import {
  AMENITIES,
  CITIES,
  REASONS,
  SCORES,
  TRAVELLERS,
  confirmation,
  reviewsOf,
  search,
  stay,
} from "/world.js";

/** A trip: where, which days, who. */
function trip(world, draw) {
  const from = dates.plus(world.today, draw.between(2, 70)),
    guests = draw.between(1, 3);
  return { where: draw.one(CITIES).name, from, to: dates.plus(from, draw.between(2, 6)), guests, rooms: 1 };
}
const told = ({ from, to, guests }) =>
  `from ${dates.long(from)} to ${dates.long(to)} for ${guests} ${guests === 1 ? "guest" : "guests"} in one room`;

function payer(draw) {
  const name = person(draw),
    number = cardNumber(draw),
    email = `${name.split(" ")[0].toLowerCase()}${draw.between(10, 99)}@mailbox.example`,
    phone = String(draw.between(2000000000, 2147483000));
  const expiry = `${String(draw.between(1, 12)).padStart(2, "0")}/${draw.between(29, 34)}`,
    code = String(draw.between(100, 999));
  return {
    text: `The guest is ${name}, email ${email}, phone ${phone}. Pay with the card ${number} in the same name, expiry ${expiry}, security code ${code}.`,
    matches: ({ guest, card }) =>
      guest.name === name &&
      guest.email === email &&
      guest.phone === phone &&
      card.number === number.replaceAll(" ", "") &&
      card.holder.toLowerCase() === name.toLowerCase() &&
      card.expiry === expiry &&
      card.code === code,
  };
}
/** Whether there is one booking, as it is wanted: still standing, and with no wishes beyond that. */
const isBooked = (bookings, wanted, guest) =>
  bookings.length === 1 &&
  Object.keys(wanted).every((key) => key === "where" || bookings[0][key] === wanted[key]) &&
  bookings[0].status === "Confirmed" &&
  !bookings[0].wishes &&
  guest.matches(bookings[0]);
/** Whether the booking made before was changed so, and nothing else. */
const isChanged = (changes, { number }, wanted) =>
  same(Object.keys(changes), [number]) &&
  same(Object.keys(changes[number]), Object.keys(wanted)) &&
  Object.keys(wanted).every((key) => changes[number][key] === wanted[key]);
const place = (hotel) => `"${hotel.name}" in ${hotel.city}`;

export const tasks = {
  "hotels-rules"(world, draw) {
    const hotel = draw.one(world.hotels.filter(({ deposit }) => deposit));
    return {
      goal: `According to its house rules, how high is the deposit at ${place(hotel)}, in dollars? (Any days will do for finding it.) Answer with the number.`,
      expected: hotel.deposit,
    };
  },

  "hotels-score"(world, draw) {
    const hotel = draw.one(world.hotels),
      score = draw.one(SCORES);
    return {
      goal: `How do guests rate ${place(hotel)} for "${score}"? (Any days will do for finding it.) Answer with the number.`,
      expected: hotel.scores[score],
    };
  },

  "hotels-save"(world, draw) {
    const hotel = draw.one(world.hotels);
    return {
      goal: `Save ${place(hotel)} to the saved places. (Any days will do for finding it.) Answer "done" at the end.`,
      correct: ({ saved }) => saved.length === 1 && saved[0] === hotel.id,
    };
  },

  "hotels-booking-total"(world) {
    const { booked } = world;
    return {
      goal: `Find the booking with the confirmation number ${booked.number} and the PIN ${booked.pin}. What does the stay cost in total, in dollars? Answer with the number.`,
      expected: booked.total,
    };
  },

  "hotels-cheapest"(world, draw) {
    return until(draw, (draw) => {
      const asked = trip(world, draw),
        amenity = draw.one(AMENITIES),
        score = draw.one([7, 8]);
      const [first, second] = search(world, { ...asked, amenities: [amenity], score, sort: "price" });
      if (!second || first.total === second.total) return null;
      return {
        goal: `Which place in ${asked.where} is the cheapest ${told(asked)}, if it must have "${amenity}" and a guest score of at least ${score}? Answer with its name.`,
        expected: first.hotel.name,
      };
    });
  },

  "hotels-count"(world, draw) {
    return until(draw, (draw) => {
      const asked = trip(world, draw),
        amenities = draw.some(AMENITIES, 2),
        score = draw.one([7, 8]);
      const found = search(world, { ...asked, score, amenities });
      if (found.length < 2 || found.length > 5) return null;
      return {
        goal: `How many reviews do the places with a guest score of ${score} or more, "${amenities[0]}" and "${amenities[1]}" that are offered in ${asked.where} ${told(asked)} have together? Answer with the number.`,
        expected: found.reduce((sum, { hotel }) => sum + hotel.reviews, 0),
      };
    });
  },

  "hotels-nearest"(world, draw) {
    return until(draw, (draw) => {
      const asked = trip(world, draw);
      const [first, second] = search(world, { ...asked, refundable: true, sort: "distance" });
      if (!second || first.hotel.distance === second.hotel.distance) return null;
      return {
        goal: `In ${asked.where}, ${told(asked)}: which place with free cancellation is nearest to the centre? Answer with its name.`,
        expected: first.hotel.name,
      };
    });
  },

  "hotels-total"(world, draw) {
    return until(draw, (draw) => {
      const hotel = draw.one(world.hotels),
        asked = { ...trip(world, draw), where: hotel.city, guests: 1 },
        room = draw.one(hotel.rooms);
      if (!search(world, asked).some((one) => one.hotel === hotel)) return null;
      return {
        goal: `What does the "${room.type}" at "${hotel.name}" in ${hotel.city} cost ${told(asked)}? Answer with the price of the whole stay in dollars.`,
        expected: stay(hotel, room, asked.from, asked.to),
      };
    });
  },

  "hotels-review"(world, draw) {
    return until(draw, (draw) => {
      const hotel = draw.one(world.hotels),
        traveller = draw.one(TRAVELLERS);
      const [first, second] = reviewsOf(hotel)
        .filter((one) => one.traveller === traveller)
        .sort((a, b) => a.score - b.score);
      if (!second || first.score === second.score) return null;
      return {
        goal: `Among the latest reviews of ${place(hotel)} by travellers of the kind "${traveller}", who gave the lowest score? (Any days will do for finding it.) Answer with the name.`,
        expected: first.author,
      };
    });
  },

  "hotels-cancel"(world, draw) {
    const { booked } = world,
      reason = draw.one(REASONS);
    return {
      goal: `Cancel the booking with the confirmation number ${booked.number} and the PIN ${booked.pin}. Give the reason "${reason}". Answer "done" when it is cancelled.`,
      touches: ["changes"],
      correct: ({ changes }) => isChanged(changes, booked, { status: "Cancelled", reason }),
    };
  },

  "hotels-saved-tidy"(world, draw) {
    const cities = draw.some(CITIES, 3).map(({ name }) => name);
    const from = (name, count) =>
      draw
        .some(
          world.hotels.filter((hotel) => hotel.city === name),
          count,
        )
        .map(({ id }) => id);
    const kept = from(cities[0], 3),
      gone = [...from(cities[1], 2), ...from(cities[2], 1)];
    return {
      goal: `Remove all places in ${cities[1]} and in ${cities[2]} from the saved places and keep the others. Answer "done" at the end.`,
      state: { saved: draw.shuffled([...kept, ...gone]) },
      correct: ({ saved }) => saved.length === 3 && kept.every((id) => saved.includes(id)),
    };
  },

  "hotels-book"(world, draw) {
    return until(draw, (draw) => {
      const hotel = draw.one(world.hotels),
        asked = { ...trip(world, draw), where: hotel.city },
        room = draw.one(hotel.rooms);
      if (room.guests < asked.guests || !search(world, asked).some((one) => one.hotel === hotel)) return null;
      const guest = payer(draw),
        arrival = draw.one(["Before 16:00", "16:00 to 19:00", "19:00 to 22:00"]);
      return {
        goal: `Book the "${room.type}" at "${hotel.name}" in ${hotel.city} ${told(asked)}. ${guest.text} The time of arrival is "${arrival}". Answer "done" when the stay is booked.`,
        touches: ["bookings"],
        correct: ({ bookings }) =>
          isBooked(bookings, { ...asked, hotel: hotel.id, room: room.type, arrival }, guest),
      };
    });
  },

  "hotels-best"(world, draw) {
    return until(draw, (draw) => {
      const asked = trip(world, draw),
        amenity = draw.one(AMENITIES),
        max = draw.between(4, 14) * 100;
      const [first, second] = search(world, { ...asked, amenities: [amenity], max, sort: "score" });
      if (!second || first.hotel.score === second.hotel.score) return null;
      const guest = payer(draw);
      return {
        goal: `Find the place with the best guest score in ${asked.where} that has "${amenity}" and costs at most $${max} ${told(asked)}, and book its cheapest room that fits. ${guest.text} Answer with the confirmation number.`,
        expected: confirmation(world, 0).number,
        touches: ["bookings"],
        correct: ({ bookings }) =>
          isBooked(bookings, { ...asked, hotel: first.hotel.id, room: first.room.type }, guest),
      };
    });
  },

  "hotels-change"(world, draw) {
    const { booked } = world,
      from = dates.plus(booked.from, draw.between(3, 25)),
      to = dates.plus(from, draw.between(2, 6));
    const hotel = world.byId.get(booked.hotel),
      total = stay(
        hotel,
        hotel.rooms.find(({ type }) => type === booked.room),
        from,
        to,
      );
    return {
      goal: `Move the booking with the confirmation number ${booked.number} and the PIN ${booked.pin}: check-in on ${dates.long(from)}, check-out on ${dates.long(to)}. What does the stay cost then? Answer with the new total in dollars.`,
      expected: total,
      touches: ["changes"],
      correct: ({ changes }) => isChanged(changes, booked, { from, to, total }),
    };
  },
};
