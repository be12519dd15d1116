// The booking site's content, drawn from the seed: 288 places to stay in eight cities, rooms with a price for every night, reviews, a booking made before.

import * as dates from "/kit/dates.js";
import { slug } from "/kit/dom.js";
import { LAST, person } from "/kit/words.js";

export const NAME = "Restwell";
const PER_CITY = 36;

export const CITIES = [
  {
    name: "Portavale",
    country: "Portugal",
    districts: ["Old Harbour", "Cathedral Hill", "Riverside", "Market Quarter", "Lighthouse Point"],
  },
  {
    name: "Lindenmark",
    country: "Germany",
    districts: ["Museum Island", "Linden Park", "Station Quarter", "Brewery Yard", "Old Town"],
  },
  {
    name: "Cielo Alto",
    country: "Spain",
    districts: ["Plaza Mayor", "Beachfront", "University", "Garden District", "Old Walls"],
  },
  {
    name: "Fjordhavn",
    country: "Norway",
    districts: ["Wharf", "Opera", "Hillside", "Fish Market", "Northern Gate"],
  },
  {
    name: "Saint-Aubry",
    country: "France",
    districts: ["Left Bank", "Basilica", "Vineyard Row", "Canal", "Central Station"],
  },
  {
    name: "Torrebella",
    country: "Italy",
    districts: ["Duomo", "Lungomare", "Artisan Quarter", "Roman Gate", "Citadel"],
  },
  {
    name: "Kestrel Bay",
    country: "Ireland",
    districts: ["Quays", "Castle", "Southside", "Theatre Row", "Bay View"],
  },
  {
    name: "Aurelia",
    country: "Greece",
    districts: ["Acropolis", "Marina", "Bazaar", "Pine Hill", "New Port"],
  },
];
export const city = (name) => CITIES.find((one) => one.name === name);
export const KINDS = ["Hotel", "Guest house", "Apartment", "Hostel"];
export const AMENITIES = [
  "Free Wi-Fi",
  "Pool",
  "Parking",
  "Breakfast included",
  "Pet friendly",
  "Gym",
  "Spa",
  "Airport shuttle",
  "Air conditioning",
  "Restaurant",
];
export const SCORES = ["Cleanliness", "Comfort", "Location", "Staff", "Value for money"];
export const REASONS = ["Plans changed", "Found another place", "Travel restrictions", "Booked by mistake"];
const ROOMS = [
  ["Single room", 1, "1 single bed", 0.72],
  ["Double room", 2, "1 double bed", 1],
  ["Twin room", 2, "2 single beds", 1.02],
  ["Deluxe double room", 2, "1 king bed", 1.4],
  ["Family room", 4, "1 double and 2 single beds", 1.65],
  ["Junior suite", 3, "1 king bed and 1 sofa bed", 1.9],
];
const FORMS = [
  (a, b) => `The ${a} ${b}`,
  (a, b) => `${a} ${b}`,
  (a, b) => `${b} ${a}`,
  (a) => `Casa ${a}`,
  (a) => `${a} House`,
  (a) => `Villa ${a}`,
];
const GOOD = [
  "The bed was the best of our whole trip",
  "Staff went out of their way to help",
  "Five minutes from everything",
  "Breakfast was fresh and plentiful",
  "Very quiet at night",
  "Lovely view from the window",
];
const POOR = [
  "The lift was out of order",
  "Walls are thin",
  "Check-in took a while",
  "The shower had little pressure",
  "Parking is tight",
  "Wi-Fi dropped now and then",
];
export const TRAVELLERS = ["Couple", "Family", "Solo traveller", "Business"];

/** The whole site. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-10", draw.below(260));
  const names = new Set();
  const hotels = CITIES.flatMap((place) =>
    Array.from({ length: PER_CITY }, (_, index) =>
      makeHotel(place, draw.fork(`${place.name}/${index}`), names),
    ),
  );
  const world = { today, hotels, byId: new Map(hotels.map((hotel) => [hotel.id, hotel])), draw };
  world.booked = makeBooking(world, draw.fork("booked"));
  return world;
}

/** What a fresh visitor begins with. */
export const freshState = (world) => ({
  saved: [],
  bookings: [],
  unlocked: [],
  changes: {},
  recent: world.today,
});

function makeHotel(place, draw, names) {
  let name;
  do
    name = draw.one(FORMS)(
      draw.one([
        ...LAST.slice(0, 30),
        "Amber",
        "Juniper",
        "Marble",
        "Swallow",
        "Magnolia",
        "Compass",
        "Lantern",
        "Heron",
      ]),
      draw.one(["Palace", "Inn", "Lodge", "Residence", "Grand", "Garden", "Rooms", "Court"]),
    );
  while (names.has(name));
  names.add(name);
  const kind = draw.weighted([
    ["Hotel", 6],
    ["Guest house", 3],
    ["Apartment", 2],
    ["Hostel", 1],
  ]);
  const stars = kind === "Hotel" ? draw.between(2, 5) : 0;
  const base = Math.round((kind === "Hostel" ? 32 : 48 + stars * 24) * draw.decimal(0.8, 1.9));
  const scores = Object.fromEntries(SCORES.map((score) => [score, draw.decimal(6, 9.8)]));
  const rooms = draw
    .some(ROOMS.slice(1), draw.between(2, 4))
    .concat(draw.chance(0.4) ? [ROOMS[0]] : [])
    .map(([type, guests, beds, factor]) => ({
      type,
      guests,
      beds,
      base: Math.round(base * factor),
      breakfast: draw.chance(0.4),
      refundable: draw.chance(0.6),
      left: draw.between(1, 6),
    }))
    .sort((a, b) => a.base - b.base);
  return {
    id: slug(`${name}-${place.name}`),
    name,
    city: place.name,
    country: place.country,
    district: draw.one(place.districts),
    kind,
    stars,
    rooms,
    scores,
    score: Math.round((Object.values(scores).reduce((sum, one) => sum + one, 0) / SCORES.length) * 10) / 10,
    reviews: draw.between(14, 960),
    distance: draw.decimal(0.1, 5.8),
    amenities: draw.some(AMENITIES, draw.between(3, 8)),
    x: draw.between(6, 94),
    y: draw.between(8, 90),
    checkIn: draw.one(["14:00", "15:00", "16:00"]),
    checkOut: draw.one(["10:00", "11:00", "12:00"]),
    deposit: draw.chance(0.2) ? 0 : draw.between(6, 60) * 5,
    petFee: draw.between(1, 6) * 5,
    age: draw.one([18, 18, 21]),
    hue: draw.below(360),
    draw,
  };
}

/** The price of a room for one night, whole dollars: dearer on Friday and Saturday nights, and a little different every day. */
export function nightly(hotel, room, day) {
  const weekend = [5, 6].includes(dates.weekdayIndex(day)) ? 1.22 : 1;
  const sway = 0.92 + ((dates.between("2026-01-01", day) * 7 + hotel.name.length * 13) % 17) / 100;
  return Math.round(room.base * weekend * sway);
}

/** The price of a stay. */
export function stay(hotel, room, from, to, rooms = 1) {
  let sum = 0;
  for (let day = from; day < to; day = dates.plus(day, 1)) sum += nightly(hotel, room, day);
  return sum * rooms;
}

/** The cheapest room of a place that holds so many guests in so many rooms; null if there is none. */
export const roomFor = (hotel, guests, rooms) =>
  hotel.rooms.find((room) => fits(room, guests, rooms)) ?? null;

/** Whether so many guests have room in so many of a kind, and as many are left. */
export const fits = (room, guests, rooms) => room.guests * rooms >= guests && room.left >= rooms;

/** Confirmation number and PIN of a booking, by how many were made before it. */
export function confirmation(world, before) {
  const draw = world.draw.fork("number");
  return {
    number: `RW-${100000 + ((draw.below(800000) + before * 731) % 900000)}`,
    pin: String(1000 + draw.below(9000)),
  };
}

/** Places that fit a search, each with its room and price; filters as on the page. */
export function search(
  world,
  {
    where = "",
    from,
    to,
    guests = 2,
    rooms = 1,
    kinds = [],
    stars = [],
    amenities = [],
    score = 0,
    max = 0,
    refundable = false,
    sort = "recommended",
  },
) {
  const found = world.hotels
    .filter((hotel) => hotel.city === where)
    .map((hotel) => ({ hotel, room: roomFor(hotel, guests, rooms) }))
    .filter(({ room }) => room)
    .map(({ hotel, room }) => ({ hotel, room, total: stay(hotel, room, from, to, rooms) }))
    .filter(
      ({ hotel, room, total }) =>
        (!kinds.length || kinds.includes(hotel.kind)) &&
        (!stars.length || stars.includes(hotel.stars)) &&
        amenities.every((one) => hotel.amenities.includes(one)) &&
        hotel.score >= score &&
        (!max || total <= max) &&
        (!refundable || room.refundable),
    );
  const orders = {
    recommended: (a, b) => b.hotel.reviews - a.hotel.reviews,
    price: (a, b) => a.total - b.total,
    score: (a, b) => b.hotel.score - a.hotel.score,
    distance: (a, b) => a.hotel.distance - b.hotel.distance,
  };
  return found.sort(
    (a, b) => (orders[sort] ?? orders.recommended)(a, b) || (a.hotel.id < b.hotel.id ? -1 : 1),
  );
}

/** Reviews of a place, newest first. */
export function reviewsOf(hotel) {
  const draw = hotel.draw.fork("reviews");
  return Array.from({ length: 14 }, (_, index) => {
    const score = draw.between(4, 10);
    return {
      score,
      author: person(draw),
      traveller: draw.one(TRAVELLERS),
      good: draw.one(GOOD),
      poor: draw.one(POOR),
      age: 3 + index * 11 + draw.below(10),
      nights: draw.between(1, 9),
    };
  });
}

export const word = (score) =>
  score >= 9
    ? "Superb"
    : score >= 8.5
      ? "Excellent"
      : score >= 8
        ? "Very good"
        : score >= 7
          ? "Good"
          : "Pleasant";

function makeBooking(world, draw) {
  const hotel = draw.one(world.hotels),
    room = draw.one(hotel.rooms),
    from = dates.plus(world.today, draw.between(20, 60)),
    to = dates.plus(from, draw.between(2, 5));
  const name = person(draw);
  return {
    number: `RW-${draw.between(100000, 999999)}`,
    pin: String(draw.between(1000, 9999)),
    hotel: hotel.id,
    room: room.type,
    rooms: 1,
    guests: 2,
    from,
    to,
    total: stay(hotel, room, from, to),
    guest: { name, email: `${name.split(" ")[0].toLowerCase()}@mailbox.example` },
    status: "Confirmed",
  };
}
