// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import { PURPOSES, discussionsOf, filesOf } from "/world.js";

export const KINDS = ["Question", "Report", "Idea"];

const filled = (what) => (value) => (value ? "" : `Enter ${what}`);
const oneOf = (options) => (value) => (options.includes(value) ? "" : "Choose one of the list");

/** What the forms ask for: a field's problem, or "". The pages show it, the transitions refuse by it. */
export const accessRules = {
  name: filled("your name"),
  affiliation: filled("where you work or study"),
  purpose: oneOf(PURPOSES),
  agreed: (value) => (value ? "" : "Please accept the licence"),
};
export const discussionRules = {
  title: (value) => (value.length >= 6 ? "" : "Enter at least six letters"),
  text: filled("a text"),
  kind: oneOf(KINDS),
};
export const replyRules = { reply: filled("a reply") };

/** Discussions of a model, the visitor's own first. */
export const discussions = (now, model) => [
  ...now.discussions.filter(({ id }) => id === model.id),
  ...discussionsOf(model),
];

/** Whether the visitor gets the files of a model or a data set. */
export const isOpen = (now, item) => !item.gated || Object.hasOwn(now.access, item.id);

export const transitions = {
  "like.toggle"(now, { id }, world) {
    itemOf(world, id);
    now.likes = toggled(now.likes, id);
  },

  download(now, { id, file }, world) {
    const item = itemOf(world, id);
    refuse(!isOpen(now, item), "no access to these files");
    refuse(!filesOf(item).some(({ name }) => name === file), "no such file");
    now.downloads.push({ id, file });
  },

  "access.ask"(now, { id, name, affiliation, purpose, agreed }, world) {
    refuse(isOpen(now, itemOf(world, id)), "these files need no asking");
    check(accessRules, { name, affiliation, purpose, agreed });
    now.access[id] = { name, affiliation, purpose };
  },

  "collection.create"(now, { name, id }, world) {
    itemOf(world, id);
    check({ name: filled("a name") }, { name });
    refuse(
      now.collections.some((one) => one.name === name),
      "there is a collection of this name",
    );
    now.collections.push({ name, items: [id] });
  },

  "collection.toggle"(now, { name, id }, world) {
    itemOf(world, id);
    const own = collectionOf(now, name);
    own.items = toggled(own.items, id);
  },

  "collection.take"(now, { name, id }) {
    const own = collectionOf(now, name);
    refuse(!own.items.includes(id), "the collection does not hold it");
    own.items = own.items.filter((one) => one !== id);
  },

  "discussion.begin"(now, { id, title, text, kind }, world) {
    const model = modelOf(world, id);
    check(discussionRules, { title, text, kind });
    now.discussions.unshift({
      id,
      number: Math.max(...discussions(now, model).map((one) => one.number)) + 1,
      title,
      text,
      kind,
      author: "you",
      day: model.updated,
      open: true,
      replies: [],
    });
  },

  "reply.send"(now, { id, number, reply }, world) {
    refuse(
      !discussions(now, modelOf(world, id)).some((one) => one.number === number),
      "there is no such discussion",
    );
    check(replyRules, { reply });
    now.replies.push({ id, number, author: "you", text: reply });
  },
};

function refuse(reason, why) {
  if (reason) throw new Error(why);
}

/** Refuses values of a form that its page would not send. */
function check(rules, values) {
  for (const [name, rule] of Object.entries(rules)) {
    refuse(typeof values[name] !== "string", `${name} is no text`);
    refuse(rule(values[name]), `${name}: ${rule(values[name])}`);
  }
}

function itemOf(world, id) {
  const item = world.byId.get(id);
  refuse(!item, "there is no such model or data set");
  return item;
}

function modelOf(world, id) {
  const item = itemOf(world, id);
  refuse(item.kind !== "model", "data sets have no discussions");
  return item;
}

function collectionOf(now, name) {
  const own = now.collections.find((one) => one.name === name);
  refuse(!own, "there is no such collection");
  return own;
}

const toggled = (list, id) => (list.includes(id) ? list.filter((one) => one !== id) : [...list, id]);
