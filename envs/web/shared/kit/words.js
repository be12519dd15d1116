// Names, places and small texts that several sites draw from. None is a real firm's.

export const FIRST = [
  "Ada",
  "Bastian",
  "Carmen",
  "Dmitri",
  "Elena",
  "Farid",
  "Greta",
  "Hugo",
  "Ines",
  "Jonas",
  "Keiko",
  "Liam",
  "Mona",
  "Nikhil",
  "Olive",
  "Pavel",
  "Quinn",
  "Rosa",
  "Samir",
  "Tessa",
  "Umar",
  "Vera",
  "Wendell",
  "Ximena",
  "Yara",
  "Zoltan",
  "Amara",
  "Bruno",
  "Celia",
  "Dario",
  "Esther",
  "Felix",
  "Gwen",
  "Hana",
  "Isaac",
  "Jolene",
  "Kofi",
  "Lucia",
  "Marcus",
  "Noor",
  "Owen",
  "Priya",
  "Rafael",
  "Sofia",
  "Theo",
  "Una",
  "Victor",
  "Willa",
  "Yusuf",
  "Zoe",
];
export const LAST = [
  "Abbott",
  "Bergstrom",
  "Castellan",
  "Dvorak",
  "Ellery",
  "Fontaine",
  "Grady",
  "Halloran",
  "Ibarra",
  "Jansen",
  "Kowalski",
  "Lindqvist",
  "Marchetti",
  "Nakagawa",
  "Okafor",
  "Petrov",
  "Quimby",
  "Rosenthal",
  "Santoro",
  "Thackeray",
  "Ueda",
  "Vasquez",
  "Whitlock",
  "Yilmaz",
  "Zeller",
  "Ashworth",
  "Banerjee",
  "Coleman",
  "Delacroix",
  "Engstrom",
  "Farrow",
  "Gallego",
  "Hensley",
  "Ivanova",
  "Joshi",
  "Kerr",
  "Lombardi",
  "Moreau",
  "Novak",
  "Oduya",
  "Pereira",
  "Radley",
  "Stroud",
  "Tanaka",
  "Underhill",
  "Vogel",
  "Winslow",
  "Yeoh",
];
export const STREETS = [
  "Alder Street",
  "Birchwood Avenue",
  "Canal Road",
  "Dovecote Lane",
  "Elm Court",
  "Fairview Drive",
  "Granary Row",
  "Hawthorn Way",
  "Juniper Street",
  "Kingfisher Close",
  "Larch Avenue",
  "Mill Lane",
  "Orchard Road",
  "Poplar Street",
  "Quarry Hill",
  "Rosewood Drive",
  "Station Road",
  "Thistle Way",
  "Vine Street",
  "Willow Bank",
];
export const TOWNS = [
  ["Ashford Falls", "OR"],
  ["Bellmere", "WA"],
  ["Cedar Point", "CA"],
  ["Dunmore", "PA"],
  ["Eastlake", "OH"],
  ["Fernley", "NV"],
  ["Glenwood", "CO"],
  ["Harborview", "ME"],
  ["Ironbridge", "MI"],
  ["Juniper Flats", "AZ"],
  ["Kingsport", "TN"],
  ["Lakemont", "GA"],
  ["Maple Grove", "MN"],
  ["Northfield", "VT"],
  ["Oakhurst", "TX"],
  ["Pinecrest", "FL"],
];

/** "Ada Abbott" */
export const person = (draw) => `${draw.one(FIRST)} ${draw.one(LAST)}`;

/** So many people, no name twice. */
export function people(draw, count) {
  const names = new Set();
  while (names.size < count) names.add(person(draw));
  return [...names];
}

/** A postal address. */
export function address(draw) {
  const [city, region] = draw.one(TOWNS);
  return {
    street: `${draw.between(2, 398)} ${draw.one(STREETS)}`,
    city,
    region,
    zip: String(draw.between(10001, 98999)),
  };
}

/** Sixteen digits that pass the check of card numbers (ISO/IEC 7812-1, Luhn). */
export function cardNumber(draw) {
  const digits = Array.from({ length: 15 }, (_, index) => (index ? draw.below(10) : 4));
  const sum = digits.reduce(
    (sum, digit, index) => sum + (index % 2 ? digit : digit * 2 > 9 ? digit * 2 - 9 : digit * 2),
    0,
  );
  return [...digits, (10 - (sum % 10)) % 10].join("").replace(/(.{4})(?=.)/g, "$1 ");
}

/** Whether digits pass that check. */
export function isCardNumber(text) {
  const digits = [...text.replace(/[ -]/g, "")].map(Number);
  const sum = digits.reduceRight(
    (sum, digit, index) =>
      sum + ((digits.length - index) % 2 ? digit : digit * 2 > 9 ? digit * 2 - 9 : digit * 2),
    0,
  );
  return digits.length === 16 && digits.every(Number.isInteger) && sum % 10 === 0;
}
