// The dictionary's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { until } from "/kit/tasks.js";
import { BANDS, FIELDS, QUIZZES, SETTINGS, TONGUES, browse, quizOf } from "/world.js";

const wordsOf = (state, name) => state.lists.find((list) => list.name === name)?.words ?? [];
const only = (list, words) => list.length === words.length && words.every((word) => list.includes(word));

export const tasks = {
  "dictionary-first-use"(world, draw) {
    const entry = draw.one(world.words);
    return {
      goal: `In which year was the word "${entry.word}" first used, as far as Wordhoard knows? Answer with the year.`,
      expected: entry.year,
    };
  },

  "dictionary-translation"(world, draw) {
    // The real languages are in the table, too; but who knows them would not have to look.
    const entry = draw.one(world.words),
      language = draw.one(Object.keys(TONGUES));
    return {
      goal: `What is the ${language} translation of "${entry.word}" given by Wordhoard? Answer with the word.`,
      expected: entry.translations[language],
    };
  },

  "dictionary-last-example"(world, draw) {
    const entry = draw.one(world.words.filter(({ examples }) => examples.length > 2));
    return {
      goal: `Show all examples for the word "${entry.word}". Answer with the last example sentence.`,
      expected: entry.examples.at(-1),
    };
  },

  "dictionary-save"(world, draw) {
    const entry = draw.one(world.words);
    return {
      goal: `Save the word "${entry.word}" to the list My words. Answer "done" at the end.`,
      touches: ["lists"],
      correct: (state) => state.lists.length === 1 && only(wordsOf(state, "My words"), [entry.word]),
    };
  },

  "dictionary-settings"(world, draw) {
    const names = Object.keys(SETTINGS),
      begun = Object.fromEntries(names.map((name) => [name, draw.one(SETTINGS[name].options)[0]])),
      changed = draw.some(names, 3).map((name) => {
        const { title, options } = SETTINGS[name];
        return [name, title, ...draw.one(options.filter(([value]) => value !== begun[name]))];
      });
    const wanted = { ...begun, ...Object.fromEntries(changed.map(([name, , value]) => [name, value])) },
      told = changed.map(([, title, , text]) => `${title.toLowerCase()} "${text}"`);
    return {
      goal: `Choose in the settings: ${told[0]}, ${told[1]} and ${told[2]}, and leave the rest as it is. Answer "done" at the end.`,
      state: begun,
      touches: names,
      correct: (state) => names.every((name) => state[name] === wanted[name]),
    };
  },

  "dictionary-word-of-day"(world, draw) {
    const day = dates.plus(world.today, -draw.between(12, 150));
    return {
      goal: `What was the word of the day on ${dates.long(day)}? Answer with the word.`,
      expected: world.ofDay(day).word,
    };
  },

  "dictionary-count"(world, draw) {
    return until(draw, (draw) => {
      const [told, kind] = draw.one([
          ["nouns", { part: "noun" }],
          ["adjectives", { part: "adjective" }],
          ["words in the field Science", { field: "Science" }],
        ]),
        band = draw.one(BANDS),
        found = browse(world, { ...kind, band }).length;
      if (found < 3) return null;
      return {
        goal: `How many ${told} does Wordhoard have that are met with the frequency "${band}"? Answer with the number.`,
        expected: found,
      };
    });
  },

  "dictionary-oldest"(world, draw) {
    return until(draw, (draw) => {
      const field = draw.one(FIELDS),
        part = draw.one(["noun", "adjective"]);
      const [first, second] = browse(world, { field, part, sort: "oldest" });
      if (!second || first.year === second.year) return null;
      return {
        goal: `Which ${part} in the field ${field} has the earliest first known use? Answer with the word.`,
        expected: first.word,
      };
    });
  },

  "dictionary-longest"(world, draw) {
    // In one world of 1,000 no letter has a word that is longer than all its others.
    const asked = world.words.map(({ word: [letter] }) => {
      const [first, second] = browse(world, { letter, sort: "length" });
      return { letter, first, alone: first.word.length !== second?.word.length };
    });
    const single = asked.filter(({ alone }) => alone),
      { letter, first } = draw.one(single.length ? single : asked);
    return {
      goal: `What is the longest word in the dictionary that begins with the letter ${letter.toUpperCase()}, and when was it first used? ${single.length ? "" : "Of words of the same length take the first in alphabetical order. "}Answer with the year only.`,
      expected: first.year,
    };
  },

  "dictionary-new-list"(world, draw) {
    const words = draw.some(world.words, 3).map(({ word }) => word),
      name = draw.one(["Essay", "Crossword", "Tuesday", "Hard ones"]);
    return {
      goal: `Make a new word list called "${name}" and save the words "${words[0]}", "${words[1]}" and "${words[2]}" to it, and to no other list. Answer "done" at the end.`,
      touches: ["lists"],
      correct: (state) =>
        state.lists.length === 2 && only(wordsOf(state, name), words) && !wordsOf(state, "My words").length,
    };
  },

  "dictionary-tidy"(world, draw) {
    const nouns = draw.some(
        world.words.filter(({ part }) => part === "noun"),
        4,
      ),
      others = draw.some(
        world.words.filter(({ part }) => part === "adjective"),
        3,
      );
    const words = draw.shuffled([...nouns, ...others]).map(({ word }) => word);
    const gone = draw.one(["noun", "adjective"]),
      kept = (gone === "noun" ? others : nouns).map(({ word }) => word);
    return {
      goal: `The word list My words is mixed up. Remove every ${gone} from it and keep the rest. Answer "done" at the end.`,
      state: { lists: [{ name: "My words", words }] },
      touches: ["lists"],
      correct: (state) => state.lists.length === 1 && only(wordsOf(state, "My words"), kept),
    };
  },

  "dictionary-suggest"(world, draw) {
    const word = `${draw.one(["bryo", "geno", "typo", "phyto", "glypto"])}${draw.one(["nautics", "kinesis", "plasty", "phonia"])}`,
      email = `${draw.one(["editor", "reader", "lab"])}${draw.between(10, 99)}@mailbox.example`,
      text = draw.one([
        "The art of moving slowly on purpose",
        "A craft known only to a few towns",
        "The state of being heard through walls",
      ]);
    return {
      goal: `Suggest a new word to the editors: the noun "${word}", meaning "${text}". The email is ${email}. Answer "done" when it is sent.`,
      touches: ["suggestions"],
      correct: ({ suggestions }) =>
        suggestions.length === 1 &&
        suggestions[0].word === word &&
        suggestions[0].part === "Noun" &&
        suggestions[0].definition === text &&
        suggestions[0].email === email,
    };
  },

  "dictionary-quiz"(world, draw) {
    const number = draw.between(1, QUIZZES);
    return {
      goal: `Take quiz ${number} and get all five questions right at the first try; the dictionary says what the words mean. Take no other quiz. Answer "done" when you have 5 of 5.`,
      touches: ["quizzes"],
      // The end of a try shows the right answers.
      correct: ({ quizzes }) =>
        quizzes.length === 1 &&
        quizzes[0].quiz === number &&
        quizzes[0].right === quizOf(world, number).length,
    };
  },

  "dictionary-compare"(world, draw) {
    return until(draw, (draw) => {
      const four = draw.some(world.words, 4),
        ordered = [...four].sort((a, b) => a.year - b.year);
      if (ordered.some((entry, index) => index && entry.year === ordered[index - 1].year)) return null;
      return {
        goal: `Look up when these words were first used: "${four.map(({ word }) => word).join('", "')}". How many years lie between the oldest and the youngest of them? Answer with the number.`,
        expected: ordered[3].year - ordered[0].year,
      };
    });
  },
};
