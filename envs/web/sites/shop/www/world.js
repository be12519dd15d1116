// The shop's content, drawn from the seed: 336 products in twelve departments, their reviews and questions, a customer with past orders.

import * as dates from "/kit/dates.js";
import { people, address, person } from "/kit/words.js";
import { dollars, slug } from "/kit/dom.js";

export const SHOP = "Harrow & Pike";

const COLOURS = {
  Graphite: "#3d434b",
  White: "#f1efea",
  Navy: "#27406b",
  Forest: "#2f5d46",
  Rust: "#a8502f",
  Sand: "#cdb791",
  Rose: "#c98590",
  Sky: "#7fabc9",
};
export const colourOf = (name) => COLOURS[name];

const pick =
  (...values) =>
  (draw) =>
    draw.one(values);
const range = (low, high, step, unit) => (draw) =>
  `${low + step * draw.below(Math.floor((high - low) / step) + 1)} ${unit}`;
const tenths = (low, high, unit) => (draw) => `${draw.decimal(low, high).toFixed(1)} ${unit}`;

/** Name, one of them, price range in dollars, brands, series, and how each specification is drawn. The first two go into the title. */
export const DEPARTMENTS = [
  {
    id: "headphones",
    name: "Headphones",
    noun: "Headphones",
    group: "Audio",
    price: [29, 420],
    brands: ["Auralyte", "Norvik", "Senza", "Boldtone", "Kestra"],
    series: ["Calm", "Studio", "Drift", "Pulse", "Halo"],
    specs: {
      Type: pick("Over-ear", "On-ear", "Open-back"),
      "Battery life": range(18, 60, 2, "hours"),
      Weight: range(160, 380, 5, "g"),
      "Noise cancelling": pick("Active", "Passive"),
      Connection: pick("Bluetooth 5.3", "Bluetooth 5.4", "Bluetooth 5.2 and 3.5 mm cable"),
      "Driver size": range(28, 50, 2, "mm"),
    },
  },
  {
    id: "speakers",
    name: "Speakers",
    noun: "Speaker",
    group: "Audio",
    price: [35, 560],
    brands: ["Norvik", "Boldtone", "Pellworm", "Kestra", "Hallgate"],
    series: ["Room", "Porch", "Duo", "Beam", "Orbit"],
    specs: {
      Type: pick("Portable", "Bookshelf", "Smart"),
      "Output power": range(10, 160, 10, "W"),
      "Battery life": range(8, 30, 1, "hours"),
      Weight: range(400, 5200, 100, "g"),
      "Water resistance": pick("IPX4", "IPX5", "IPX7", "None"),
      Connection: pick("Bluetooth 5.3", "Wi-Fi and Bluetooth", "Bluetooth 5.2"),
    },
  },
  {
    id: "monitors",
    name: "Monitors",
    noun: "Monitor",
    group: "Computing",
    price: [129, 980],
    brands: ["Vantor", "Clearline", "Ostrum", "Pixmere", "Dellano"],
    series: ["View", "Canvas", "Arc", "Focus", "Edge"],
    specs: {
      "Screen size": pick("24-inch", "27-inch", "32-inch", "34-inch"),
      Resolution: pick("1920 x 1080", "2560 x 1440", "3840 x 2160"),
      "Refresh rate": pick("60 Hz", "75 Hz", "120 Hz", "144 Hz", "165 Hz"),
      Brightness: range(250, 600, 25, "nits"),
      "Response time": range(1, 6, 1, "ms"),
      Weight: tenths(3.4, 9.6, "kg"),
    },
  },
  {
    id: "keyboards",
    name: "Keyboards",
    noun: "Keyboard",
    group: "Computing",
    price: [24, 230],
    brands: ["Clackwell", "Ostrum", "Tessel", "Vantor", "Keyhart"],
    series: ["Type", "Slim", "Mono", "Craft", "Swift"],
    specs: {
      Layout: pick("Full-size", "Compact 75%", "Tenkeyless"),
      Switches: pick("Linear", "Tactile", "Clicky", "Scissor"),
      Connection: pick("USB-C cable", "Bluetooth", "2.4 GHz and Bluetooth"),
      "Battery life": range(40, 300, 10, "hours"),
      Weight: range(420, 1180, 10, "g"),
      Backlight: pick("White", "RGB", "None"),
    },
  },
  {
    id: "watches",
    name: "Smart Watches",
    noun: "Smart Watch",
    group: "Wearables & Photo",
    price: [59, 520],
    brands: ["Tempora", "Kestra", "Strider", "Ovalis", "Lumen & Co"],
    series: ["Move", "Trail", "Active", "Classic", "Dial"],
    specs: {
      "Case size": range(38, 47, 1, "mm"),
      "Battery life": range(2, 21, 1, "days"),
      "Water resistance": pick("3 ATM", "5 ATM", "10 ATM"),
      Display: pick("AMOLED", "LCD", "Transflective"),
      Weight: range(24, 68, 1, "g"),
      GPS: pick("Built in", "Through the phone"),
    },
  },
  {
    id: "cameras",
    name: "Cameras",
    noun: "Camera",
    group: "Wearables & Photo",
    price: [210, 1890],
    brands: ["Ovalis", "Fenwick", "Pixmere", "Luxor Optics", "Haskel"],
    series: ["Alpha", "Rover", "Frame", "Scout", "Prime"],
    specs: {
      Type: pick("Mirrorless", "Compact", "Action"),
      "Sensor resolution": range(12, 48, 2, "MP"),
      "Optical zoom": range(1, 12, 1, "x"),
      "Battery life": range(240, 720, 20, "shots"),
      Weight: range(150, 840, 10, "g"),
      Video: pick("4K at 30 fps", "4K at 60 fps", "5.3K at 60 fps"),
    },
  },
  {
    id: "backpacks",
    name: "Backpacks",
    noun: "Backpack",
    group: "Outdoor",
    price: [39, 290],
    brands: ["Strider", "Carrow", "Tarnhill", "Moss & Ridge", "Wayfell"],
    series: ["Ridge", "Commute", "Summit", "Day", "Pack"],
    specs: {
      Use: pick("Hiking", "Everyday", "Travel"),
      Capacity: range(14, 65, 1, "litres"),
      Weight: range(480, 2200, 20, "g"),
      "Laptop sleeve": pick("13-inch", "15-inch", "16-inch", "None"),
      Material: pick("Recycled nylon", "Waxed canvas", "Ripstop polyester"),
      Warranty: range(2, 10, 1, "years"),
    },
  },
  {
    id: "bottles",
    name: "Water Bottles",
    noun: "Water Bottle",
    group: "Outdoor",
    price: [12, 68],
    brands: ["Carrow", "Brookside", "Wayfell", "Sipwell", "Tarnhill"],
    series: ["Flow", "Flask", "Clear", "Ice", "Camp"],
    specs: {
      Material: pick("Stainless steel", "Tritan", "Glass"),
      Capacity: range(350, 1200, 50, "ml"),
      "Keeps cold": range(6, 36, 2, "hours"),
      Weight: range(120, 520, 10, "g"),
      Lid: pick("Screw cap", "Straw", "Flip top"),
      "Dishwasher safe": pick("Yes", "No"),
    },
  },
  {
    id: "kettles",
    name: "Kettles",
    noun: "Kettle",
    group: "Kitchen",
    price: [25, 190],
    brands: ["Brookside", "Hearthly", "Copperdale", "Mellin", "Stovewright"],
    series: ["Boil", "Pour", "Quiet", "Morning", "Glass"],
    specs: {
      Type: pick("Electric", "Gooseneck", "Stovetop"),
      Capacity: tenths(0.8, 2.0, "litres"),
      Power: range(1000, 3000, 200, "W"),
      Weight: tenths(0.7, 1.9, "kg"),
      "Keep warm": pick("30 minutes", "60 minutes", "None"),
      Warranty: range(1, 5, 1, "years"),
    },
  },
  {
    id: "coffee",
    name: "Coffee Makers",
    noun: "Coffee Maker",
    group: "Kitchen",
    price: [39, 740],
    brands: ["Mellin", "Copperdale", "Ristra", "Hearthly", "Caffora"],
    series: ["Crema", "Drip", "Brew", "Barista", "One"],
    specs: {
      Type: pick("Espresso", "Drip", "Capsule"),
      "Water tank": tenths(0.6, 2.2, "litres"),
      Pressure: range(9, 20, 1, "bar"),
      Power: range(900, 1800, 50, "W"),
      Weight: tenths(2.1, 9.8, "kg"),
      "Milk frother": pick("Automatic", "Steam wand", "None"),
    },
  },
  {
    id: "lamps",
    name: "Desk Lamps",
    noun: "Desk Lamp",
    group: "Home Office",
    price: [22, 240],
    brands: ["Lumen & Co", "Hallgate", "Brightmoor", "Tessel", "Aster"],
    series: ["Task", "Glow", "Swing", "Line", "Reader"],
    specs: {
      Mount: pick("Base", "Clamp"),
      Brightness: range(300, 1200, 50, "lumens"),
      "Colour temperature": pick("2700 K", "3000 K", "4000 K", "2700 K to 6500 K"),
      Power: range(5, 18, 1, "W"),
      "Arm length": range(32, 92, 2, "cm"),
      Dimming: pick("Stepless", "5 steps", "None"),
    },
  },
  {
    id: "chairs",
    name: "Office Chairs",
    noun: "Office Chair",
    group: "Home Office",
    price: [109, 890],
    brands: ["Sedilia", "Hallgate", "Postura", "Workform", "Aster"],
    series: ["Task", "Mesh", "Lounge", "Ergo", "Frame"],
    specs: {
      Back: pick("Mesh", "Upholstered", "Leather"),
      "Maximum load": range(100, 160, 5, "kg"),
      "Seat height": pick("40 to 50 cm", "42 to 52 cm", "44 to 54 cm", "45 to 56 cm"),
      Weight: tenths(9.5, 24.5, "kg"),
      Armrests: pick("Fixed", "2D", "3D", "4D"),
      Warranty: range(2, 12, 1, "years"),
    },
  },
];
export const department = (id) => DEPARTMENTS.find((one) => one.id === id);
export const GROUPS = [...new Set(DEPARTMENTS.map(({ group }) => group))];
const PER_DEPARTMENT = 28;

const PRAISE = {
  Audio: [
    "the sound stays clear even when it is loud",
    "voices come through without any hiss",
    "the bass is full but never muddy",
  ],
  Computing: ["it woke my old desk up", "text looks crisp at any size", "set-up took five minutes"],
  "Wearables & Photo": [
    "the battery outlasts a long weekend",
    "menus make sense without a manual",
    "it feels solid in the hand",
  ],
  Outdoor: ["it survived a week of rain", "nothing rattles or leaks", "the straps and seams still look new"],
  Kitchen: ["it is quicker than I expected", "cleaning takes a minute", "it looks good on the counter"],
  "Home Office": ["my back and eyes thank me", "assembly was easy", "it does not wobble at all"],
};
const GRIPES = [
  "the manual is thin",
  "the box was larger than it needed to be",
  "I wish there were more colours",
  "delivery took a day longer than promised",
  "the finish shows fingerprints",
  "it is heavier than it looks",
];
const HEADLINES = {
  5: [
    "Better than the one it replaced",
    "Exactly what I was after",
    "Worth every cent",
    "Could not be happier",
    "A joy to use every day",
    "Buy it before they change it",
  ],
  4: [
    "Very good, with one small flaw",
    "Nearly perfect",
    "Solid choice for the price",
    "Does what it says",
    "Good, would buy again",
  ],
  3: [
    "Fine, not more",
    "Decent but expected better",
    "Mixed feelings after a month",
    "Average for the money",
  ],
  2: ["Not what the pictures promise", "Disappointed after two weeks", "Too many compromises"],
  1: ["Sent it back", "Stopped working", "Avoid this one"],
};
const REASONS = [
  "Arrived damaged",
  "Wrong size or fit",
  "Not as described",
  "No longer needed",
  "Better price available",
];
export const RETURN_REASONS = REASONS;

/** The whole shop. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-01", draw.below(270));
  const codes = new Set();
  const products = DEPARTMENTS.flatMap((place) => makeDepartment(place, draw.fork(place.id), codes));
  markDeals(products, draw.fork("deals"));
  const world = {
    today,
    products,
    byId: new Map(products.map((product) => [product.id, product])),
    coupons: makeCoupons(draw.fork("coupons")),
    draw,
  };
  world.customer = makeCustomer(world, draw.fork("customer"));
  return world;
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  cart: [],
  saved: [],
  wishlist: [],
  orders: [],
  returns: [],
  coupon: null,
  user: null,
  recent: [],
  newsletter: null,
});

function makeDepartment(place, draw, codes) {
  const names = new Set();
  return Array.from({ length: PER_DEPARTMENT }, () => {
    let brand, model;
    do {
      brand = draw.one(place.brands);
      model = `${draw.one(place.series)} ${draw.one(["", "Pro ", "Lite ", "Max "])}${draw.between(2, 9) * draw.one([10, 50, 100])}`;
    } while (names.has(`${brand} ${model}`));
    names.add(`${brand} ${model}`);
    return makeProduct(place, brand, model, draw, codes);
  });
}

function makeProduct(place, brand, model, draw, codes) {
  const specs = Object.fromEntries(Object.entries(place.specs).map(([name, make]) => [name, make(draw)]));
  const first = Object.values(specs)[0];
  const detail = /\d|inch/.test(first) && place.id !== "monitors" ? "" : `${first} `;
  const name = `${brand} ${model}`;
  // Skewed towards the cheaper end, as shelves are, and ending in 9 as price tags do.
  const [low, high] = place.price;
  const price = Math.round(low + (high - low) * draw.number() ** 2) * 100 + draw.one([99, 95, 49, 0]);
  let code;
  do code = `HP-${draw.between(10000, 99999)}`;
  while (codes.has(code));
  codes.add(code);
  const shares = draw.one([
    [6, 2, 1, 0, 0],
    [5, 3, 1, 1, 0],
    [4, 3, 2, 1, 1],
    [3, 3, 2, 2, 1],
    [2, 2, 3, 2, 2],
  ]);
  const ratings = Array.from({ length: draw.between(6, 34) }, () =>
    draw.weighted([5, 4, 3, 2, 1].map((stars, index) => [stars, shares[index] + 0.15])),
  );
  return {
    id: slug(`${name}-${code.slice(3)}`),
    code,
    name,
    title: `${name} ${detail}${place.noun}`,
    brand,
    department: place.id,
    group: place.group,
    specs,
    price,
    was: null,
    stock: draw.weighted([
      [0, 1],
      [draw.between(1, 4), 1],
      [draw.between(5, 60), 8],
    ]),
    colours: draw.some(Object.keys(COLOURS), draw.between(2, 4)),
    ratings,
    rating: Math.round((ratings.reduce((sum, one) => sum + one, 0) / ratings.length) * 10) / 10,
    freeDelivery: draw.chance(0.45),
    added: draw.below(700),
    draw: draw.fork(code),
  };
}

function markDeals(products, draw) {
  for (const product of draw.some(products, 72)) {
    const percent = draw.one([10, 12, 15, 18, 20, 22, 25, 30, 35, 40]);
    product.was = product.price;
    product.price = Math.round((product.price * (100 - percent)) / 100);
    product.percent = percent;
  }
}

function makeCoupons(draw) {
  const codes = draw.some(["FRESH", "NEST", "SUNNY", "HELLO", "DESK", "TRAIL"], 3);
  return codes.map((code, index) => ({
    code: `${code}${[10, 15, 20][index]}`,
    percent: [10, 15, 20][index],
    minimum: [0, 5000, 12000][index],
  }));
}

/** The reviews of a product, newest first. */
export function reviewsOf(product) {
  const draw = product.draw.fork("reviews");
  const titles = new Set();
  return product.ratings
    .map((rating, index) => {
      let headline = draw.one(HEADLINES[rating]);
      while (titles.has(headline))
        headline = `${draw.one(HEADLINES[rating])} (${draw.one(["after a week", "after a month", "second purchase", "a gift", "for work", "for travel", "at home", "honestly"])}${titles.size > 12 ? `, ${titles.size}` : ""})`;
      titles.add(headline);
      const good = draw.one(PRAISE[product.group]),
        bad = draw.one(GRIPES);
      const text =
        rating >= 4
          ? `I have used it for ${draw.between(2, 11)} weeks and ${good}. My only remark: ${bad}.`
          : rating === 3
            ? `Some things are right: ${good}. But ${bad}, and for this price I had hoped for more.`
            : `I wanted to like it. Sadly ${bad}, and it ${draw.one(["stopped working after a few days", "is not as described", "felt cheap from the start"])}.`;
      return {
        id: index,
        rating,
        headline,
        text,
        author: person(draw),
        helpful: draw.below(90),
        age: draw.between(2, 500),
        verified: draw.chance(0.8),
      };
    })
    .sort((a, b) => a.age - b.age);
}

/** Questions and the shop's answers. */
export function questionsOf(product) {
  const draw = product.draw.fork("questions");
  const specs = Object.entries(product.specs);
  return draw.some(specs, 3).map(([name, value]) => ({
    question: `What is the ${name.toLowerCase()} of this model?`,
    answer: `It is ${value}.`,
    author: person(draw),
  }));
}

/** Days until a product arrives by each way of delivery; costs in cents. */
export const DELIVERY = [
  { id: "standard", name: "Standard delivery", detail: "4 to 6 working days", cost: 499 },
  { id: "express", name: "Express delivery", detail: "next working day", cost: 1495 },
  {
    id: "scheduled",
    name: "Choose a delivery day",
    detail: "any weekday from 3 days ahead, between 8 am and 6 pm",
    cost: 799,
  },
];

function makeCustomer(world, draw) {
  const [name, other] = people(draw, 2);
  const [first, last] = name.split(" ");
  const home = address(draw);
  const numbers = new Set();
  const orders = Array.from({ length: 7 }, (_, index) => {
    let number;
    do number = `HP${draw.between(1000000, 9999999)}`;
    while (numbers.has(number));
    numbers.add(number);
    const lines = draw.some(world.products, draw.between(1, 3)).map((product) => ({
      id: product.id,
      colour: draw.one(product.colours),
      quantity: draw.between(1, 2),
    }));
    const age = 3 + index * 17 + draw.below(12);
    const status =
      index === 0
        ? draw.one(["Processing", "Shipped"])
        : index === 1
          ? draw.one(["Shipped", "Out for delivery"])
          : draw.weighted([
              ["Delivered", 5],
              ["Cancelled", 1],
            ]);
    return {
      number,
      date: dates.plus(world.today, -age),
      status,
      lines,
      delivery: draw.one(DELIVERY).id,
      tracking: `TRK${draw.between(100000000, 999999999)}`,
    };
  });
  // One delivered order is recent enough to be returned.
  orders[2].status = "Delivered";
  return {
    name,
    email: `${first}.${last}@mailbox.example`.toLowerCase(),
    password: `${draw.one(["maple", "river", "copper", "violet", "harbor"])}-${draw.between(1000, 9999)}`,
    home,
    orders,
    other,
  };
}

// ---- what follows from the state ----

/** Sums of a cart in cents. */
export function totals(world, { cart, coupon }, delivery = "standard") {
  const subtotal = cart.reduce((sum, line) => sum + world.byId.get(line.id).price * line.quantity, 0);
  const found = world.coupons.find(({ code }) => code === coupon);
  const discount = found && subtotal >= found.minimum ? Math.round((subtotal * found.percent) / 100) : 0;
  const free =
    delivery === "standard" &&
    (subtotal - discount >= 7500 || cart.every((line) => world.byId.get(line.id).freeDelivery));
  const shipping = !cart.length || free ? 0 : DELIVERY.find(({ id }) => id === delivery).cost;
  return { subtotal, discount, shipping, total: subtotal - discount + shipping };
}

/** Why a coupon cannot be used now; empty if it can. */
export function couponProblem(world, now, code) {
  const found = world.coupons.find((one) => one.code === code);
  if (!found) return code ? `${code} is not a valid coupon.` : "Enter a coupon code.";
  return totals(world, now).subtotal < found.minimum
    ? `${code} needs a subtotal of at least ${dollars(found.minimum)}.`
    : "";
}

/** The number of the next order, after so many in this visit. */
export const orderNumber = (world, placed = 0) =>
  `HP${7000000 + world.draw.fork("order").below(900000) + placed * 37}`;

/** Sums of a past order. */
export function orderTotal(world, order) {
  const subtotal = order.lines.reduce(
    (sum, line) => sum + (line.price ?? world.byId.get(line.id).price) * line.quantity,
    0,
  );
  return order.total ?? subtotal + DELIVERY.find(({ id }) => id === order.delivery).cost;
}

/** Products that fit a search: every word of the query in title, department, brand or colour; then the filters; then the order. */
export function search(
  world,
  { q = "", department: place = "", brand = [], min, max, rating, stock, free, deals, sort = "relevance" },
) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const score = (product) => {
    const title = product.title.toLowerCase(),
      other =
        `${department(product.department).name} ${product.group} ${product.code} ${Object.values(product.specs).join(" ")}`.toLowerCase();
    let sum = 0;
    for (const word of words) {
      if (title.split(" ").includes(word)) sum += 3;
      else if (title.includes(word)) sum += 2;
      else if (other.includes(word)) sum += 1;
      else return -1;
    }
    return sum;
  };
  const found = world.products
    .map((product, at) => ({ product, at, score: score(product) }))
    .filter(
      ({ product, score }) =>
        score >= 0 &&
        (!place || product.department === place) &&
        (!brand.length || brand.includes(product.brand)) &&
        (!min || product.price >= min * 100) &&
        (!max || product.price <= max * 100) &&
        (!rating || product.rating >= rating) &&
        (!stock || product.stock > 0) &&
        (!free || product.freeDelivery) &&
        (!deals || product.was),
    );
  const orders = {
    relevance: (a, b) =>
      b.score - a.score || b.product.ratings.length - a.product.ratings.length || a.at - b.at,
    "price-up": (a, b) => a.product.price - b.product.price || a.at - b.at,
    "price-down": (a, b) => b.product.price - a.product.price || a.at - b.at,
    rating: (a, b) =>
      b.product.rating - a.product.rating ||
      b.product.ratings.length - a.product.ratings.length ||
      a.at - b.at,
    reviews: (a, b) => b.product.ratings.length - a.product.ratings.length || a.at - b.at,
    newest: (a, b) => a.product.added - b.product.added || a.at - b.at,
  };
  return found.sort(orders[sort] ?? orders.relevance).map(({ product }) => product);
}

/** The first weekday at least so many days ahead. */
export const weekdayFrom = (day, ahead) => {
  let next = dates.plus(day, ahead);
  while ([0, 6].includes(dates.weekdayIndex(next))) next = dates.plus(next, 1);
  return next;
};
