// The map service's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { same, until } from "/kit/tasks.js";
import { CATEGORIES, FEATURES, LISTS, MODES, clock, distance, reviewsOf, search, way } from "/world.js";

const kinds = CATEGORIES.map(({ name }) => name);
const plural = {
  Café: "cafés",
  Library: "libraries",
  Pharmacy: "pharmacies",
  "Petrol station": "petrol stations",
};
const many = (kind) => plural[kind] ?? `${kind.toLowerCase()}s`;
/** Whether all lists are as they began, except for these: { name: { places, note } }. */
const listsAre = (lists, wanted) =>
  same(
    lists.map(({ name }) => name),
    [...new Set([...LISTS, ...Object.keys(wanted)])],
  ) &&
  lists.every(({ name, note, places }) => {
    const own = wanted[name] ?? {};
    return note === (own.note ?? "") && same(places, own.places?.map(({ id }) => id) ?? []);
  });

export const tasks = {
  "maps-phone"(world, draw) {
    const place = draw.one(world.places);
    return {
      goal: `What is the phone number of "${place.name}"? Answer with the number as it is written.`,
      expected: [place.phone, place.phone.replaceAll(" ", "")],
    };
  },

  "maps-closing"(world, draw) {
    return until(draw, (draw) => {
      const place = draw.one(world.places),
        day = draw.below(7),
        hours = place.hours[day];
      return !hours || hours.closes === 1440
        ? null
        : {
            goal: `From when to when is "${place.name}" open on a ${dates.WEEKDAYS[day]}? Answer with both times, such as 10:15 to 18:45.`,
            expected: [" to ", " - ", "-", " – ", "–"].map(
              (word) => `${clock(hours.opens)}${word}${clock(hours.closes)}`,
            ),
          };
    });
  },

  "maps-save"(world, draw) {
    const places = draw.some(world.places, 2),
      list = draw.one(LISTS);
    return {
      goal: `Save "${places[0].name}" and "${places[1].name}" to the list "${list}". Answer "done" at the end.`,
      correct: ({ lists }) => listsAre(lists, { [list]: { places } }),
    };
  },

  "maps-layer"(world, draw) {
    const place = draw.one(world.places.filter(({ x, y }) => x > 500 && x < 1900 && y > 400 && y < 1400)),
      layer = draw.one(["Relief", "Night"]),
      zoom = draw.between(5, 6);
    return {
      goal: `Show "${place.name}" in the layer "${layer}" at zoom ${zoom} of the map, with the place near the middle. Answer "done" at the end.`,
      correct: ({ view, layer: now }) =>
        now === layer.toLowerCase() && view.zoom === zoom && distance(view, place) < 120,
    };
  },

  "maps-best"(world, draw) {
    return until(draw, (draw) => {
      const kind = draw.one(kinds.slice(0, 6)),
        feature = draw.one(FEATURES),
        [first, second] = search(world, { kind, features: [feature], sort: "rating" });
      return !second || first.rating === second.rating
        ? null
        : {
            goal: `Which of the ${many(kind)} with "${feature}" is rated highest? Answer with its name.`,
            expected: first.name,
          };
    });
  },

  "maps-open"(world, draw) {
    return until(draw, (draw) => {
      const kind = draw.one(kinds),
        day = draw.below(7),
        hour = draw.one([8, 9, 18, 19, 20, 21]),
        [first, second] = search(world, { kind, day, hour });
      return !second || first.count === second.count || first === search(world, { kind })[0]
        ? null
        : {
            goal: `Which of the ${many(kind)} that are open on a ${dates.WEEKDAYS[day]} at ${String(hour).padStart(2, "0")}:00 has the most ratings? Answer with its name.`,
            expected: first.name,
          };
    });
  },

  "maps-nearest"(world, draw) {
    return until(draw, (draw) => {
      const near = draw.one(world.places),
        kind = draw.one(kinds.slice(3)),
        [first, second] = search(world, { near, kind });
      return distance(near, second) - distance(near, first) < 12
        ? null
        : {
            goal: `Which of the ${many(kind)} is nearest to "${near.name}" as the crow flies? Answer with its name.`,
            expected: first.name,
          };
    });
  },

  "maps-walk"(world, draw) {
    return until(draw, (draw) => {
      const [from, to] = draw.some(world.places, 2),
        { metres } = way(world, from, to),
        chosen = draw.one(MODES);
      return metres < 500
        ? null
        : {
            goal: `How long is the way from "${from.name}" to "${to.name}" by the means listed as "${chosen.name}"? Answer with the number of metres.`,
            expected: metres,
          };
    });
  },

  "maps-turn"(world, draw) {
    return until(draw, (draw) => {
      const [from, to] = draw.some(world.places, 2),
        { legs } = way(world, from, to);
      return legs.length < 3 || legs.some(({ street }, at) => at !== 1 && street === legs[1].street)
        ? null
        : {
            goal: `On the way from "${from.name}" to "${to.name}" on foot, onto which street does one turn first, and onto which next? Answer with both names in this order, with a comma between them.`,
            expected: `${legs[1].street}, ${legs[2].street}`,
          };
    });
  },

  "maps-review-read"(world, draw) {
    return until(draw, (draw) => {
      const place = draw.one(world.places),
        [first, second] = reviewsOf(place).sort((a, b) => a.rating - b.rating);
      return first.rating === second.rating
        ? null
        : {
            goal: `Who gave the lowest rating in a review of "${place.name}"? Answer with the name.`,
            expected: first.author,
          };
    });
  },

  "maps-edit"(world, draw) {
    const place = draw.one(world.places),
      right = `0${draw.between(20, 98)} 555 ${draw.between(1000, 9999)}`;
    return {
      goal: `Suggest an edit for "${place.name}": its phone number is wrong, ${right} is right. Answer "done" when it is sent.`,
      touches: ["edits"],
      correct: ({ edits }) =>
        edits.length === 1 &&
        edits[0].id === place.id &&
        edits[0].what === "Phone number" &&
        edits[0].right.replaceAll(" ", "") === right.replaceAll(" ", ""),
    };
  },

  "maps-review"(world, draw) {
    const place = draw.one(world.places),
      rating = draw.between(1, 5),
      text = draw.one([
        "Good value, quick service and kind people.",
        "We waited half an hour for nothing.",
        "Quiet corner with a view of the river.",
        "Better than the year before.",
      ]),
      when = draw.one(["In the morning", "At noon", "In the evening", "At the weekend"]);
    return {
      goal: `Review "${place.name}" with ${rating} ${rating === 1 ? "star" : "stars"} and the text "${text}"; you were there "${when}". Answer "done" when it is posted.`,
      touches: ["reviews"],
      correct: ({ reviews }) =>
        reviews.length === 1 &&
        reviews[0].id === place.id &&
        reviews[0].rating === rating &&
        reviews[0].text === text &&
        reviews[0].when === when,
    };
  },

  "maps-route"(world, draw) {
    return until(draw, (draw) => {
      const [a, b, c] = draw.some(world.places, 3),
        metres = way(world, a, b).metres + way(world, b, c).metres;
      return metres < 900
        ? null
        : {
            goal: `How long is the way by bicycle from "${a.name}" by way of "${b.name}" to "${c.name}"? Answer with the number of metres.`,
            expected: metres,
          };
    });
  },

  "maps-list"(world, draw) {
    return until(draw, (draw) => {
      const kind = draw.one(kinds.slice(0, 7)),
        feature = draw.one(FEATURES),
        found = search(world, { kind, features: [feature], sort: "rating" });
      if (found.length < 4 || found[1].rating === found[2].rating) return null;
      const name = draw.one(["Visit of my sister", "Rainy days", "After work", "Long weekend"]),
        note = draw.one(["Ask for a table by the window", "Only if the weather holds", "Call before going"]);
      return {
        goal: `Create the list "${name}" and save to it the two ${many(kind)} with "${feature}" that are rated highest. Then write the note "${note}" to that list. Answer "done" at the end.`,
        correct: ({ lists }) => listsAre(lists, { [name]: { places: found.slice(0, 2), note } }),
      };
    });
  },

  "maps-errand"(world, draw) {
    return until(draw, (draw) => {
      const hotel = draw.one(world.places.filter(({ kind }) => kind === "Hotel")),
        kind = draw.one(["Pharmacy", "Supermarket", "Café", "Restaurant"]),
        day = draw.below(7),
        hour = draw.one([8, 18, 19]),
        [first, second] = search(world, { near: hotel, kind, day, hour });
      if (!second || distance(hotel, second) - distance(hotel, first) < 12) return null;
      const { metres } = way(world, hotel, first);
      return metres < 160
        ? null
        : {
            goal: `Somebody stays at "${hotel.name}" and looks for the nearest of the ${many(kind)} (as the crow flies) that is open on a ${dates.WEEKDAYS[day]} at ${String(hour).padStart(2, "0")}:00. How many metres do they walk there from the hotel? Answer with the number.`,
            expected: metres,
          };
    });
  },
};
