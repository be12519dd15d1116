// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import { checked, email, filled, refuse } from "/kit/rules.js";
import { LETTERS, TOPICS } from "/world.js";

export const EDITIONS = ["International", "National", "Weekend"];

export const transitions = {
  // The wall may stand in several tabs, so it can be answered more than once.
  "consent.choose"(now, { choice }) {
    if (!["all", "none", "custom"].includes(choice)) throw new Error("the wall has no such button");
    now.consent = choice;
  },
  "poll.vote"(now, { option }, world) {
    if (now.vote) throw new Error("everybody has one vote");
    if (!world.poll.options.some(({ text }) => text === option))
      throw new Error("the poll has no such answer");
    now.vote = option;
  },
  "saved.add"(now, { id }, world) {
    if (now.saved.includes(articleOf(world, id).id)) throw new Error("the report is saved already");
    now.saved.push(id);
  },
  "saved.remove"(now, { id }) {
    if (!now.saved.includes(id)) throw new Error("the report is not saved");
    now.saved = now.saved.filter((one) => one !== id);
  },
  "comment.post"(now, { id, name, text }, world) {
    const article = articleOf(world, id).id;
    checked({ name, text }, commentRules);
    now.comments.push({ id: article, name, text });
  },
  "letters.subscribe"(now, { email, chosen }) {
    refuse(lettersProblem(chosen));
    checked({ email }, letterRules);
    now.letters.push({ email, chosen });
  },
  "account.save"(now, { follows, edition }) {
    if (!isChoice(follows, TOPICS)) throw new Error("there are no such topics to follow");
    if (!EDITIONS.includes(edition)) throw new Error("there is no such edition");
    now.follows = follows;
    now.edition = edition;
  },
};

function articleOf(world, id) {
  const article = world.byId.get(id);
  if (!article) throw new Error("there is no such report");
  return article;
}

/** Whether a list holds some of the options, each at most once. */
const isChoice = (list, options) =>
  Array.isArray(list) && new Set(list).size === list.length && list.every((one) => options.includes(one));

// ---- what the forms accept: the pages show these problems, the transitions throw them ----

export const commentRules = {
  name: filled("your name"),
  text: (text) =>
    text.length < 10 ? "Write at least 10 letters" : text.length > 400 ? "Keep it below 400 letters" : "",
};

export const letterRules = { email };

export const lettersProblem = (chosen) =>
  isChoice(
    chosen,
    LETTERS.map(([name]) => name),
  ) && chosen.length
    ? ""
    : "Choose at least one newsletter.";
