// The paper's content, drawn from the seed: 264 reports on invented events, each with the facts its text tells, comments, a live page, a poll.

import * as dates from "/kit/dates.js";
import { grouped, slug } from "/kit/dom.js";
import { TOWNS, people, person } from "/kit/words.js";

export const PAPER = "The Meridian Post";
const ARTICLES = 264;

export const SECTIONS = ["World", "Business", "Science", "Sport", "Culture", "Local"];
export const LETTERS = [
  ["Morning Briefing", "The day's main stories, every weekday at 6 am"],
  ["Market Close", "What moved prices, every trading day"],
  ["The Lab", "New findings, every Wednesday"],
  ["Final Whistle", "Results and stories, every Sunday"],
  ["Long Reads", "One story worth an hour, every Saturday"],
];
const COUNTRIES = ["Velmora", "Ostrania", "Karsund", "Belloria", "Tamaris", "Norhavn", "Pellina", "Zentara"];
const FIRMS = [
  "Corvane",
  "Altamere",
  "Brightwell Foods",
  "Duskin Motors",
  "Helix Rail",
  "Novaterra Energy",
  "Palisade Bank",
  "Quillon Software",
  "Tessaro Air",
  "Wexford Steel",
];
const PLACES = TOWNS.map(([town]) => town);
const million = (draw, low, high) => draw.decimal(low, high);
const money = (value) => `$${value.toFixed(1)} million`;

// Each kind: section, topic, facts drawn, then title, lead and sentences told from them. A fact is [what is asked, answer].
const KINDS = [
  {
    section: "Local",
    topic: "Transport",
    make: (draw) => {
      const f = {
        town: draw.one(PLACES),
        cost: million(draw, 2, 48),
        yes: draw.between(6, 13),
        no: draw.between(1, 5),
        months: draw.between(5, 26),
        what: draw.one(["bridge repair", "tram line", "station roof", "cycle network", "bus depot"]),
      };
      return {
        title: `${f.town} council approves ${f.what}`,
        lead: `The council of ${f.town} voted on Tuesday to pay for a ${f.what} that residents have asked for since spring.`,
        body: [
          `The vote was ${f.yes} to ${f.no} after a debate of almost four hours.`,
          `The work will cost ${money(f.cost)} and take about ${f.months} months.`,
        ],
        asks: [
          ["how many months will the work take", f.months],
          ["how many million dollars will the work cost", f.cost],
          ["how many members of the council voted in favour", f.yes],
        ],
      };
    },
  },
  {
    section: "Local",
    topic: "Schools",
    make: (draw) => {
      const f = {
        town: draw.one(PLACES),
        pupils: draw.between(120, 980),
        teachers: draw.between(9, 64),
        what: draw.one(["music school", "language college", "technical school", "forest school"]),
      };
      return {
        title: `New ${f.what} opens its doors in ${f.town}`,
        lead: `The first pupils of ${f.town}'s new ${f.what} found their desks on Monday morning.`,
        body: [
          `The school has room for ${f.pupils} pupils, who are taught by ${f.teachers} teachers.`,
          `Parents had waited two years for the building to be finished.`,
        ],
        asks: [
          ["for how many pupils does the school have room", f.pupils],
          ["how many teachers work there", f.teachers],
        ],
      };
    },
  },
  {
    section: "Business",
    topic: "Companies",
    make: (draw) => {
      const f = {
        firm: draw.one(FIRMS),
        percent: draw.between(3, 38),
        revenue: million(draw, 120, 980),
        jobs: draw.between(2, 48) * 25,
        quarter: draw.one(["first", "second", "third", "fourth"]),
      };
      return {
        title: `${f.firm} profits climb in the ${f.quarter} quarter`,
        lead: `${f.firm} surprised analysts with a strong ${f.quarter} quarter and will hire again.`,
        body: [
          `Profits rose by ${f.percent} percent on revenue of ${money(f.revenue)}.`,
          `The firm plans to create ${grouped(f.jobs)} jobs, most of them outside the capital.`,
        ],
        asks: [
          ["by how many percent did profits rise", f.percent],
          ["how many jobs does the firm plan to create", f.jobs],
        ],
      };
    },
  },
  {
    section: "Business",
    topic: "Energy",
    make: (draw) => {
      const f = {
        firm: draw.one(FIRMS),
        turbines: draw.between(14, 96),
        homes: draw.between(20, 210) * 1000,
        country: draw.one(COUNTRIES),
      };
      return {
        title: `${f.firm} to build wind park off ${f.country}`,
        lead: `The government of ${f.country} has given ${f.firm} leave to build one of the region's largest wind parks.`,
        body: [
          `It will have ${f.turbines} turbines and supply ${grouped(f.homes)} homes.`,
          `Fishing boats will be allowed to pass between the turbines.`,
        ],
        asks: [
          ["how many turbines will the park have", f.turbines],
          ["how many homes will it supply", f.homes],
        ],
      };
    },
  },
  {
    section: "Science",
    topic: "Space",
    make: (draw) => {
      const f = {
        name: draw.one(["Heron", "Lantern", "Calypso", "Argent", "Pilgrim", "Sextant"]),
        days: draw.between(90, 980),
        kilos: draw.between(140, 2400),
        target: draw.one([
          "a near-Earth asteroid",
          "the far side of the Moon",
          "a comet",
          "the clouds of Venus",
        ]),
      };
      return {
        title: `Probe ${f.name}-${draw.between(2, 9)} sets off for ${f.target}`,
        lead: `A rocket carried the probe ${f.name} into the night sky, bound for ${f.target}.`,
        body: [
          `The craft weighs ${grouped(f.kilos)} kilograms and will travel for ${f.days} days.`,
          `First pictures are expected a week after arrival.`,
        ],
        asks: [
          ["for how many days will the probe travel", f.days],
          ["how many kilograms does the craft weigh", f.kilos],
        ],
      };
    },
  },
  {
    section: "Science",
    topic: "Nature",
    make: (draw) => {
      const f = {
        animal: draw.one(["otters", "storks", "sturgeon", "lynxes", "beavers", "bats", "seals"]),
        count: draw.between(24, 640),
        before: draw.between(2, 20),
        country: draw.one(COUNTRIES),
      };
      return {
        title: `${f.animal[0].toUpperCase()}${f.animal.slice(1)} return to the rivers and forests of ${f.country}`,
        lead: `Biologists in ${f.country} counted more ${f.animal} this year than at any time since records began.`,
        body: [
          `They found ${f.count} animals, against ${f.before} ten years ago.`,
          `Cleaner water and a ban on traps are given as the reasons.`,
        ],
        asks: [
          ["how many animals were counted this year", f.count],
          ["how many animals were there ten years ago", f.before],
        ],
      };
    },
  },
  {
    section: "Sport",
    topic: "Football",
    make: (draw) => {
      const [home, away] = draw.some(PLACES, 2),
        f = {
          a: draw.between(2, 5),
          b: draw.between(0, 1),
          minute: draw.between(3, 88),
          crowd: draw.between(41, 620) * 100,
          scorer: person(draw),
        };
      return {
        title: `${home} beat ${away} in front of a full house`,
        lead: `${home} made hard work look easy and won at home against ${away}.`,
        body: [
          `The final score was ${f.a} to ${f.b}; ${f.scorer} opened it in minute ${f.minute}.`,
          `The crowd of ${grouped(f.crowd)} was the largest of the season.`,
        ],
        asks: [
          ["how large was the crowd", f.crowd],
          ["in which minute was the first goal scored", f.minute],
          ["who scored the first goal", f.scorer],
        ],
      };
    },
  },
  {
    section: "Sport",
    topic: "Running",
    make: (draw) => {
      const f = {
        town: draw.one(PLACES),
        winner: person(draw),
        minutes: draw.between(125, 149),
        seconds: draw.between(10, 59),
        runners: draw.between(18, 320) * 50,
      };
      return {
        title: `${f.winner} wins the ${f.town} marathon`,
        lead: `Nobody could follow ${f.winner} over the last hills of the ${f.town} marathon.`,
        body: [
          `The winning time was ${Math.floor(f.minutes / 60)} hours, ${f.minutes % 60} minutes and ${f.seconds} seconds.`,
          `${grouped(f.runners)} runners from all over the country took part.`,
        ],
        asks: [["how many runners took part", f.runners]],
      };
    },
  },
  {
    section: "Culture",
    topic: "Museums",
    make: (draw) => {
      const f = {
        town: draw.one(PLACES),
        works: draw.between(40, 410),
        painter: person(draw),
        price: draw.between(6, 28),
      };
      return {
        title: `${f.town} museum shows ${f.painter} as never before`,
        lead: `A large exhibition in ${f.town} brings together paintings by ${f.painter} that were never shown in one place.`,
        body: [
          `It has ${f.works} works, a third of them from private owners.`,
          `Tickets cost $${f.price}; children enter free.`,
        ],
        asks: [
          ["how many works does the exhibition have", f.works],
          ["how many dollars does a ticket cost", f.price],
        ],
      };
    },
  },
  {
    section: "Culture",
    topic: "Film",
    make: (draw) => {
      const f = {
        film: draw.one([
          "The Salt Road",
          "Winter Orchard",
          "A Quiet Harbour",
          "Nine Lanterns",
          "The Glass Mile",
          "Paper Kites",
        ]),
        director: person(draw),
        prizes: draw.between(2, 9),
        minutes: draw.between(84, 196),
      };
      return {
        title: `“${f.film}” is the film of the year`,
        lead: `The critics' circle named “${f.film}” by ${f.director} the best film of the year.`,
        body: [
          `It took ${f.prizes} prizes in one evening.`,
          `The film runs for ${f.minutes} minutes and opens in theatres next week.`,
        ],
        asks: [
          ["how many prizes did the film take", f.prizes],
          ["how many minutes does the film run", f.minutes],
        ],
      };
    },
  },
  {
    section: "World",
    topic: "Elections",
    make: (draw) => {
      const f = {
        country: draw.one(COUNTRIES),
        winner: person(draw),
        share: draw.decimal(41, 58),
        turnout: draw.decimal(52, 88),
      };
      return {
        title: `${f.winner} wins election in ${f.country}`,
        lead: `Voters in ${f.country} have chosen ${f.winner} as their next president.`,
        body: [
          `With all votes counted, ${f.winner.split(" ")[1]} had ${f.share.toFixed(1)} percent.`,
          `Turnout was ${f.turnout.toFixed(1)} percent, the highest in twenty years.`,
        ],
        asks: [
          ["how high was the turnout, in percent", f.turnout],
          ["what share of the votes did the winner have, in percent", f.share],
        ],
      };
    },
  },
  {
    section: "World",
    topic: "Trade",
    make: (draw) => {
      const [a, b] = draw.some(COUNTRIES, 2),
        f = { goods: draw.between(110, 890), years: draw.between(2, 14), percent: draw.between(4, 28) };
      return {
        title: `${a} and ${b} sign trade treaty`,
        lead: `After ${f.years} years of talks ${a} and ${b} have signed a treaty that ends most tariffs between them.`,
        body: [
          `Tariffs fall away for ${f.goods} goods from next year.`,
          `Economists expect trade to grow by ${f.percent} percent.`,
        ],
        asks: [
          ["for how many goods do tariffs fall away", f.goods],
          ["by how many percent is trade expected to grow", f.percent],
        ],
      };
    },
  },
];
export const TOPICS = [...new Set(KINDS.map(({ topic }) => topic))];
const FILL = [
  "“We have worked towards this day for a long time,” said a person close to the matter.",
  "Not everybody is content: a group of neighbours has announced that it will keep asking questions.",
  "More details are expected at a press conference later this week.",
  "It is the third piece of news of this kind within a year.",
  "Observers had thought it unlikely only a few months ago.",
  "The response in the street was calm, and in places even cheerful.",
];
const SAYINGS = [
  "Good to read something hopeful for once.",
  "I was there. It was exactly like this.",
  "And who is going to pay for it?",
  "Thank you for the clear figures.",
  "This should have been on the front page.",
  "My grandmother said the same forty years ago.",
  "Please follow up on this story.",
  "I doubt the numbers, to be honest.",
];

/** The whole paper. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-15", draw.below(280));
  const authors = people(draw.fork("authors"), 18);
  const desk = (section) =>
    authors.filter((_, index) => index % SECTIONS.length === SECTIONS.indexOf(section));
  const titles = new Set();
  const articles = [];
  for (let index = 0; articles.length < ARTICLES; index++) {
    const own = draw.fork(index),
      kind = KINDS[index % KINDS.length],
      made = kind.make(own);
    if (titles.has(made.title)) continue;
    titles.add(made.title);
    const date = dates.plus(today, -Math.floor(own.number() ** 1.4 * 150));
    const body = [made.body[0], own.one(FILL.slice(0, 3)), made.body[1], own.one(FILL.slice(3))];
    articles.push({
      id: slug(made.title),
      section: kind.section,
      topic: kind.topic,
      title: made.title,
      lead: made.lead,
      body,
      asks: made.asks,
      date,
      minute: own.between(300, 1380),
      author: own.one(desk(kind.section)),
      views: own.between(400, 96000),
      minutes: own.between(2, 9),
      draw: own,
      hue: own.below(360),
    });
  }
  articles.sort((a, b) => (a.date === b.date ? b.minute - a.minute : a.date < b.date ? 1 : -1));
  return {
    today,
    articles,
    authors,
    byId: new Map(articles.map((article) => [article.id, article])),
    live: makeLive(draw.fork("live")),
    poll: makePoll(draw.fork("poll")),
    side: draw.fork("side").shuffled(["live", "read", "poll"]),
  };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  saved: [],
  comments: [],
  letters: [],
  vote: null,
  consent: null,
  follows: [],
  edition: "International",
});

function makeLive(draw) {
  const town = draw.one(PLACES),
    rise = draw.decimal(1.1, 1.6);
  let minute = 6 * 60 + draw.below(40),
    level = 4 + draw.number();
  const entries = Array.from({ length: 22 }, () => {
    minute += draw.between(9, 31);
    level += draw.number() * rise * 0.4;
    return {
      minute,
      level: Math.round(level * 100) / 100,
      text: draw.one([
        "Sandbags are handed out at the market hall.",
        "The bridge is closed to cars; people may still walk.",
        "Two schools end lessons early.",
        "Helpers from the next town have arrived.",
        "Ferries stay in port until the evening.",
        "The water works report no damage.",
        "Shops in the lower streets close their doors.",
      ]),
    };
  });
  return { town, title: `Live: high water in ${town}`, entries: entries.reverse() };
}

// What a poll asks, and what it may offer as answers.
const POLLS = [
  [
    "Should the city centre be free of cars on Sundays?",
    ["Every Sunday", "Only in summer", "Only as a trial", "Once a month", "Never", "Not in my street"],
  ],
  [
    "Should shops open on public holidays?",
    ["All of them", "Bakeries only", "Until noon", "Small ones only", "None at all", "Let each town decide"],
  ],
  [
    "When should schools begin?",
    [
      "At half past seven",
      "At eight",
      "At half past eight",
      "At nine",
      "Later in winter",
      "As each school likes",
    ],
  ],
  [
    "What should the old harbour become?",
    ["A park", "Flats", "A concert hall", "A market", "A swimming bath", "What it was"],
  ],
  ["How do you come to work?", ["On foot", "By bicycle", "By bus", "By tram", "By car", "I work at home"]],
  [
    "What do you read first?",
    ["The front page", "World news", "Business", "The match reports", "The comments", "The crossword"],
  ],
];

const makePoll = (draw) => {
  const [question, answers] = draw.one(POLLS);
  return {
    question,
    options: draw.some(answers, draw.between(4, 6)).map((text) => ({ text, votes: draw.between(120, 4200) })),
  };
};

/** Comments of others, oldest first. */
export function commentsOf(article) {
  const draw = article.draw.fork("comments");
  return Array.from({ length: draw.between(3, 9) }, (_, index) => ({
    author: person(draw),
    text: draw.one(SAYINGS),
    likes: draw.below(120) + index,
    minutes: 4 + index * 17 + draw.below(15),
  }));
}

export const clock = (minute) =>
  `${String(Math.floor(minute / 60)).padStart(2, "0")}:${String(minute % 60).padStart(2, "0")}`;

/** Reports that fit a search: every word in title, lead or author; then section, days, order. */
export function search(world, { q = "", section = "", from = "", to = "", sort = "newest" }) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = world.articles.filter((one) => {
    const text = `${one.title} ${one.lead} ${one.author} ${one.topic}`.toLowerCase();
    return (
      words.every((word) => text.includes(word)) &&
      (!section || one.section === section) &&
      (!from || one.date >= from) &&
      (!to || one.date <= to)
    );
  });
  if (sort === "oldest") found.reverse();
  if (sort === "read") found.sort((a, b) => b.views - a.views);
  return found;
}
