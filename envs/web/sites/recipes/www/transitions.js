// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import * as dates from "/kit/dates.js";
import { checked, email as emailProblem, filled, isDay, oneOf, refuse } from "/kit/rules.js";
import { MEALS } from "/world.js";

/** How many servings the stepper of a recipe reaches. */
export const MOST_SERVINGS = 24;
/** The collection that everybody has and nobody can delete. */
export const FAVOURITES = "Favourites";

export const transitions = {
  // The offer of the letter may be open in several tabs, so it can be answered more than once.
  "offer.dismiss"(now, { how }) {
    if (!["closed", "declined"].includes(how)) throw new Error("the offer has no such answer");
    now.offer = how;
  },
  "offer.accept"(now, { email }) {
    checked({ email }, { email: emailProblem });
    now.offer = "accepted";
    now.letter = email;
  },
  "collections.save": saveRecipe,
  "collections.take out"(now, { name, id }) {
    const collection = collectionOf(now, name);
    if (!collection.recipes.includes(id)) throw new Error("the recipe is not in this collection");
    collection.recipes = collection.recipes.filter((one) => one !== id);
  },
  "collections.delete"(now, { name }) {
    const gone = collectionOf(now, name);
    if (name === FAVOURITES) throw new Error("this collection stays");
    now.collections = now.collections.filter((one) => one !== gone);
  },
  "plan.add"(now, { id, day, meal }, world) {
    const recipe = recipeOf(world, id).id;
    checked({ day, meal }, planRules(world));
    now.plan.push({ recipe, day, meal });
  },
  "plan.remove"(now, { id, day, meal }) {
    const at = now.plan.findIndex((one) => one.recipe === id && one.day === day && one.meal === meal);
    if (at < 0) throw new Error("this is not on the plan");
    now.plan.splice(at, 1);
  },
  "list.add"(now, { id, servings }, world) {
    const recipe = recipeOf(world, id);
    if (!Number.isInteger(servings) || servings < 1 || servings > MOST_SERVINGS)
      throw new Error("the recipe is not given for so many servings");
    for (const { key } of recipe.ingredients) now.list.push({ recipe: id, key, servings, done: false });
  },
  "list.mark"(now, { key, done }) {
    if (typeof done !== "boolean") throw new Error("a box is ticked or it is not");
    for (const one of linesOf(now, key)) one.done = done;
  },
  "list.remove"(now, { key }) {
    const gone = linesOf(now, key);
    now.list = now.list.filter((one) => !gone.includes(one));
  },
  "list.clear"(now) {
    if (!now.list.length) throw new Error("the list is empty");
    now.list = [];
  },
  "review.post"(now, { id, rating, headline, text }, world) {
    const recipe = recipeOf(world, id).id;
    refuse(ratingProblem(rating));
    checked({ headline, text }, reviewRules);
    now.reviews.push({ recipe, rating, headline, text });
  },
};

/** Puts a recipe into the collections that are ticked, and into a new one if a name is given; takes it out of all others. */
function saveRecipe(now, { id, ticked, fresh }, world) {
  recipeOf(world, id);
  for (const name of ticked) collectionOf(now, name);
  if (typeof fresh !== "string") throw new Error("the name of a collection is a text");
  for (const one of now.collections) {
    const others = one.recipes.filter((other) => other !== id);
    one.recipes = ticked.includes(one.name) ? [...others, id] : others;
  }
  if (!fresh) return;
  const known = now.collections.find((one) => one.name.toLowerCase() === fresh.toLowerCase());
  if (!known) now.collections.push({ name: fresh, recipes: [id] });
  else if (!known.recipes.includes(id)) known.recipes.push(id);
}

function recipeOf(world, id) {
  const recipe = world.byId.get(id);
  if (!recipe) throw new Error("there is no such recipe");
  return recipe;
}

function collectionOf(now, name) {
  const collection = now.collections.find((one) => one.name === name);
  if (!collection) throw new Error("there is no such collection");
  return collection;
}

/** What the shopping list says of an ingredient, recipe by recipe. */
function linesOf(now, key) {
  const lines = now.list.filter((one) => one.key === key);
  if (!lines.length) throw new Error("this is not on the list");
  return lines;
}

// ---- what the forms accept: the pages show these problems, the transitions throw them ----

/** Which days a meal can be planned for. */
export const planDays = ({ today }) => ({ min: today, max: dates.plus(today, 42) });

export const planRules = (world) => ({
  day: (day) => {
    const { min, max } = planDays(world);
    return isDay(day) && day >= min && day <= max ? "" : "Choose a day";
  },
  meal: oneOf(MEALS, "Choose a meal"),
});

export const ratingProblem = (rating) =>
  Number.isInteger(rating) && rating >= 1 && rating <= 5 ? "" : "Choose between one and five stars.";

export const reviewRules = {
  headline: filled("a headline"),
  text: (text) => (text.length < 10 ? "Write at least 10 letters" : ""),
};
