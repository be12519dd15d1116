// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import { email, oneOf, refuse } from "/kit/rules.js";
import { QUIZZES, SETTINGS, quizOf } from "/world.js";

export const PARTS = ["Noun", "Adjective", "Verb", "Adverb"];

const listOf = (now, name) => now.lists.find((list) => list.name === name);
const isTaken = (now, name) => now.lists.some((list) => list.name.toLowerCase() === name.toLowerCase());

/** What is wrong with the name of a new list; empty if nothing is. */
export const listProblem = (now, name) =>
  !name ? "Enter a name" : isTaken(now, name) ? "There is a list of this name" : "";

/** What the form for a missing word asks for: a field's problem, or "". */
export const suggestionRules = (world) => ({
  word: (value) =>
    !/^[a-z-]{3,}$/i.test(value)
      ? "Enter one word of at least three letters"
      : world.byWord.has(value.toLowerCase())
        ? "This word is in the dictionary already"
        : "",
  part: oneOf(PARTS, "Choose a part of speech"),
  definition: (value) => (value.length < 15 ? "Write at least 15 letters" : ""),
  email,
});

export const transitions = {
  "list.create"(now, { name }) {
    refuse(listProblem(now, name));
    now.lists.push({ name, words: [] });
  },

  /** The first list stays. */
  "list.delete"(now, { name }) {
    const at = now.lists.findIndex((list) => list.name === name);
    if (at < 1) throw new Error("there is no such list to delete");
    now.lists.splice(at, 1);
  },

  /** Afterwards the word is in these of the lists alone, and in the one named `fresh`, which is made if there is none; "" names none. */
  "word.save"(now, { word, lists, fresh }, world) {
    if (!world.byWord.has(word)) throw new Error("no such word");
    if (!lists.every((name) => listOf(now, name))) throw new Error("no such list");
    for (const list of now.lists)
      list.words = [
        ...list.words.filter((one) => one !== word),
        ...(lists.includes(list.name) ? [word] : []),
      ];
    const known = now.lists.find(({ name }) => name.toLowerCase() === fresh.toLowerCase());
    if (fresh && !known) now.lists.push({ name: fresh, words: [word] });
    else if (known && !known.words.includes(word)) known.words.push(word);
  },

  "word.remove"(now, { word, list: name }) {
    const list = listOf(now, name);
    if (!list?.words.includes(word)) throw new Error("the word is not in this list");
    list.words = list.words.filter((one) => one !== word);
  },

  /** A quiz is finished; `given` are the meanings that were chosen, in the order of the questions. */
  "quiz.finish"(now, { quiz, given }, world) {
    if (!Number.isInteger(quiz) || quiz < 1 || quiz > QUIZZES) throw new Error("no such quiz");
    const questions = quizOf(world, quiz);
    if (
      given.length !== questions.length ||
      !questions.every(({ choices }, at) => choices.includes(given[at]))
    )
      throw new Error("every question takes one of its four meanings");
    now.quizzes.push({
      quiz,
      right: questions.filter(({ right }, at) => right === given[at]).length,
      words: questions.map(({ word }) => word),
    });
  },

  "suggestion.send"(now, { word, part, definition, email }, world) {
    const values = { word, part, definition, email };
    for (const [name, rule] of Object.entries(suggestionRules(world))) refuse(rule(values[name]));
    now.suggestions.push(values);
  },

  "settings.choose"(now, { name, value }) {
    const isOffered = Object.hasOwn(SETTINGS, name) && SETTINGS[name].options.some(([one]) => one === value);
    if (!isOffered) throw new Error("no such setting");
    now[name] = value;
  },
};
