// The search engine's tasks: each a function of the world and a draw that belongs to the task.

import { same, until } from "/kit/tasks.js";
import { COLOURS, KEEPS, SAFETY, SIZES, TABS, VOTES, pictures, questionsOf, search } from "/world.js";

/** A page that a search for its title finds first. */
const found = (world, draw) =>
  draw.shuffled(world.pages).find((page) => search(world, { q: page.title })[0] === page);

/** The settings: what each may be, and how a goal tells it. */
const SETTINGS = {
  size: { options: SIZES, told: (size) => `${size} results a page` },
  safe: { options: SAFETY, told: (safe) => `safe search "${safe}"` },
  tab: { options: [false, true], told: (tab) => `opening results "${TABS[Number(tab)]}"` },
  keep: { options: [false, true], told: (keep) => `searches "${KEEPS[Number(keep)]}"` },
};

export const tasks = {
  "search-panel"(world, draw) {
    const subject = draw.one(world.subjects),
      [term, value] = draw.one(subject.facts);
    return {
      goal: `Search for ${subject.name}. What does the panel of facts beside the results say under "${term}"? Answer with the number.`,
      expected: value,
    };
  },

  "search-count"(world, draw) {
    return until(draw, (draw) => {
      const { kind } = draw.one(world.subjects),
        mood = draw.one(["quiet", "crowded", "historic", "remote", "budget"]),
        q = `${kind.toLowerCase()} ${mood}`,
        results = search(world, { q }).length;
      return results < 3
        ? null
        : {
            goal: `How many results does the search for "${q}" have? (Without the quotes.) Answer with the number.`,
            expected: results,
          };
    });
  },

  "search-settings"(world, draw) {
    const begun = Object.fromEntries(
        Object.entries(SETTINGS).map(([name, { options }]) => [name, draw.one(options)]),
      ),
      changed = draw.some(Object.keys(SETTINGS), 3);
    const wanted = { ...begun };
    for (const name of changed)
      wanted[name] = draw.one(SETTINGS[name].options.filter((one) => one !== begun[name]));
    const told = changed.map((name) => SETTINGS[name].told(wanted[name]));
    return {
      goal: `In the settings, choose ${told[0]}, ${told[1]} and ${told[2]}, and leave the rest as it is. Answer "done" when they are saved.`,
      state: { settings: begun },
      touches: ["settings"],
      correct: ({ settings }) => Object.keys(SETTINGS).every((name) => settings[name] === wanted[name]),
    };
  },

  "search-vote"(world, draw) {
    const subject = draw.one(world.subjects),
      word = draw.one(VOTES);
    return {
      goal: `Search for ${subject.name} and say below the panel of facts that it is ${word}. Answer "done" at the end.`,
      touches: ["votes"],
      correct: ({ votes }) => same(Object.keys(votes), [subject.name]) && votes[subject.name] === word,
    };
  },

  "search-figure"(world, draw) {
    return until(draw, (draw) => {
      const page = found(world, draw),
        figure = draw.one(page.figures);
      return {
        goal: `What does the page "${page.title}" give as the number of "${figure.term}"? Answer with the number.`,
        expected: figure.value,
      };
    });
  },

  "search-author"(world, draw) {
    const page = found(world, draw);
    return {
      goal: `Who wrote the page "${page.title}" on ${page.host}? Answer with the full name.`,
      expected: page.author,
    };
  },

  "search-newest"(world, draw) {
    return until(draw, (draw) => {
      const subject = draw.one(world.subjects),
        [first, second] = search(world, { q: subject.name, sort: "date" });
      return !second || first.day === second.day
        ? null
        : {
            goal: `Which is the newest page that the search for ${subject.name} finds? Answer with its title.`,
            expected: first.title,
          };
    });
  },

  "search-recent"(world, draw) {
    return until(draw, (draw) => {
      const q = draw.one(world.subjects).kind.toLowerCase(),
        [days, told] = draw.one([
          [90, "past 3 months"],
          [365, "past year"],
        ]),
        results = search(world, { q, days }).length;
      return results < 3 || results === search(world, { q }).length
        ? null
        : {
            goal: `How many pages of the ${told} does a search for "${q}" find? (Without the quotes.) Answer with the number.`,
            expected: results,
          };
    });
  },

  "search-ask"(world, draw) {
    return until(draw, (draw) => {
      const subject = draw.one(world.subjects),
        one = draw.one(questionsOf(world, subject));
      return {
        goal: `A search for ${subject.name} shows what people also ask. What is the answer there to "${one.question}" Answer with the number.`,
        expected: one.value,
      };
    });
  },

  "search-save"(world, draw) {
    return until(draw, (draw) => {
      const pages = [found(world, draw), found(world, draw)];
      return pages[0] === pages[1]
        ? null
        : {
            goal: `Save the results "${pages[0].title}" and "${pages[1].title}". Answer "done" at the end.`,
            touches: ["saved"],
            correct: ({ saved }) =>
              same(
                saved,
                pages.map(({ id }) => id),
              ),
          };
    });
  },

  "search-image"(world, draw) {
    return until(draw, (draw) => {
      const { place } = draw.one(world.subjects),
        [colour] = draw.one(COLOURS),
        [first, second] = pictures(world, { q: place, colour, sort: "size" });
      return !second || first.width * first.height === second.width * second.height
        ? null
        : {
            goal: `Among the pictures that a search for ${place} finds, which is the largest of the colour ${colour}? Answer with its width in pixels.`,
            expected: first.width,
          };
    });
  },

  "search-operators"(world, draw) {
    return until(draw, (draw) => {
      const { kind } = draw.one(world.subjects),
        [mood, other] = draw.some(["quiet", "crowded", "family", "budget", "historic", "remote"], 2),
        forum = draw.one(["", "news", "forum"]),
        [first, second] = search(world, { q: `"${kind}" ${mood} -${other}`, kind: forum, sort: "date" });
      return !second || first.day === second.day
        ? null
        : {
            goal: `Which is the newest of the results ${forum === "news" ? "under News" : forum ? "under Forums" : "of all kinds"} that hold the exact words "${kind}" and the word "${mood}", but not the word "${other}"? Answer with its title.`,
            expected: first.title,
          };
    });
  },

  "search-compare"(world, draw) {
    return until(draw, (draw) => {
      const [a, b] = [found(world, draw), found(world, draw)],
        term = a.figures.map((one) => one.term).find((one) => b.figures.some((other) => other.term === one)),
        value = (page) => page.figures.find((one) => one.term === term)?.value;
      return a === b || !term || value(a) - value(b) < 3
        ? null
        : {
            goal: `By how much is the number of "${term}" on the page "${a.title}" larger than on the page "${b.title}"? Answer with the number.`,
            expected: value(a) - value(b),
          };
    });
  },

  "search-founder"(world, draw) {
    return until(draw, (draw) => {
      const subject = draw.one(world.subjects),
        own = world.pages.filter(({ author }) => author === subject.founder),
        [first, second] = search(world, { q: `"${subject.founder}"`, sort: "date" }).filter(
          ({ author }) => author === subject.founder,
        );
      return own.length < 2 ||
        !second ||
        first.day === second.day ||
        search(world, { q: `"${subject.founder}"`, sort: "date" })[0] !== first
        ? null
        : {
            goal: `Somebody began the ${subject.name}; the panel of facts beside its results says who. Which page is the newest that the search for the exact name of that person finds? Answer with its title.`,
            expected: first.title,
          };
    });
  },
};
