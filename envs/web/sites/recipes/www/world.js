// The kitchen's content, drawn from the seed: 240 recipes with ingredients, steps, nutrition and reviews.

import * as dates from "/kit/dates.js";
import { slug } from "/kit/dom.js";
import { person } from "/kit/words.js";

export const KITCHEN = "Saltbox";
const RECIPES = 240;

export const COURSES = ["Breakfast", "Soups", "Salads", "Mains", "Pasta", "Baking", "Desserts"];
export const CUISINES = [
  "Italian",
  "Mexican",
  "Thai",
  "Greek",
  "Indian",
  "French",
  "Moroccan",
  "Japanese",
  "American",
];
export const DIETS = ["Vegetarian", "Vegan", "Gluten-free"];
export const MEALS = ["Breakfast", "Lunch", "Dinner"];

// Name, unit and amounts for one serving, calories a unit, and what it is: m meat or fish, d dairy or egg, g gluten; colour on the plate.
const FOOD = {
  chicken: ["chicken thighs", "g", 90, 160, 1.7, "m", "#d8a868"],
  beef: ["minced beef", "g", 80, 140, 2.5, "m", "#7b4a35"],
  salmon: ["salmon fillet", "g", 100, 160, 2.1, "m", "#ee9c7a"],
  prawns: ["prawns", "g", 80, 130, 1, "m", "#f0a48c"],
  bacon: ["smoked bacon", "g", 20, 50, 4.2, "m", "#b2584b"],
  chickpeas: ["chickpeas", "g", 70, 130, 1.6, "", "#dcb87a"],
  lentils: ["red lentils", "g", 50, 80, 3.5, "", "#d9773d"],
  tofu: ["firm tofu", "g", 90, 140, 1.4, "", "#f2e8d0"],
  beans: ["black beans", "g", 70, 120, 1.3, "", "#4a3f45"],
  rice: ["basmati rice", "g", 60, 90, 3.6, "", "#f6f1e4"],
  pasta: ["dried pasta", "g", 80, 120, 3.6, "g", "#efd28a"],
  noodles: ["rice noodles", "g", 60, 90, 3.6, "", "#f4e6c2"],
  flour: ["plain flour", "g", 40, 90, 3.6, "g", "#f3e3c4"],
  oats: ["rolled oats", "g", 40, 70, 3.8, "g", "#dcc59c"],
  bread: ["sourdough bread", "g", 50, 90, 2.5, "g", "#c99a5b"],
  potatoes: ["potatoes", "g", 120, 220, 0.8, "", "#ead08f"],
  couscous: ["couscous", "g", 50, 80, 3.7, "g", "#efdba5"],
  tomatoes: ["tomatoes", "g", 80, 180, 0.2, "", "#d6452f"],
  spinach: ["spinach", "g", 30, 80, 0.2, "", "#4c8a3b"],
  carrots: ["carrots", "g", 40, 90, 0.4, "", "#e8873a"],
  peppers: ["red peppers", "g", 50, 100, 0.3, "", "#c9352b"],
  aubergine: ["aubergine", "g", 70, 130, 0.3, "", "#5b3a5e"],
  courgette: ["courgettes", "g", 70, 130, 0.2, "", "#8bab58"],
  mushrooms: ["mushrooms", "g", 50, 100, 0.2, "", "#b39a80"],
  squash: ["butternut squash", "g", 100, 180, 0.5, "", "#e79a3c"],
  cucumber: ["cucumber", "g", 50, 100, 0.2, "", "#7fb069"],
  onion: ["onions", "g", 30, 60, 0.4, "", "#e8d8bf"],
  garlic: ["garlic cloves", "", 0.5, 1, 4, "", "#f3ead6"],
  feta: ["feta", "g", 25, 50, 2.6, "d", "#fdfaf1"],
  parmesan: ["parmesan", "g", 10, 30, 4, "d", "#f4dc98"],
  yogurt: ["Greek yogurt", "g", 40, 90, 1, "d", "#fbf7ee"],
  cream: ["double cream", "ml", 20, 60, 4.5, "d", "#fbf1dd"],
  butter: ["butter", "g", 10, 35, 7.2, "d", "#f7dd7e"],
  eggs: ["eggs", "", 0.5, 1, 75, "d", "#f6c64a"],
  milk: ["milk", "ml", 50, 120, 0.6, "d", "#fdfbf5"],
  coconut: ["coconut milk", "ml", 60, 110, 2, "", "#f8f4ea"],
  oil: ["olive oil", "tbsp", 0.5, 1, 119, "", "#b7a13a"],
  stock: ["vegetable stock", "ml", 100, 250, 0.1, "", "#c99b4a"],
  lemon: ["lemons", "", 0.25, 0.5, 17, "", "#f2d33c"],
  sugar: ["caster sugar", "g", 15, 45, 4, "", "#fffdf8"],
  honey: ["honey", "tbsp", 0.25, 0.75, 60, "d", "#e2a32e"],
  chocolate: ["dark chocolate", "g", 20, 45, 5.5, "", "#4b2d21"],
  berries: ["mixed berries", "g", 40, 90, 0.5, "", "#7b2d59"],
  apples: ["apples", "g", 80, 140, 0.5, "", "#c8d46b"],
  almonds: ["ground almonds", "g", 15, 40, 6, "", "#e3c79b"],
  vanilla: ["vanilla extract", "tsp", 0.25, 0.5, 12, "", "#5a3b22"],
};
export const food = (key) => {
  const [name, unit, , , calories, kind, colour] = FOOD[key];
  return { name, unit, calories, kind, colour };
};

const SHAPES = {
  Breakfast: {
    leads: ["oats", "eggs", "bread", "potatoes"],
    sides: [
      "berries",
      "apples",
      "yogurt",
      "spinach",
      "mushrooms",
      "honey",
      "bacon",
      "milk",
      "tomatoes",
      "butter",
    ],
    forms: ["bowl", "toast", "bake", "hash", "skillet"],
  },
  Soups: {
    leads: ["lentils", "squash", "tomatoes", "carrots", "chicken", "noodles"],
    sides: ["onion", "garlic", "stock", "coconut", "cream", "potatoes", "spinach", "beans", "lemon"],
    forms: ["soup", "broth", "chowder", "stew"],
  },
  Salads: {
    leads: ["chickpeas", "couscous", "cucumber", "tomatoes", "salmon", "potatoes"],
    sides: ["feta", "spinach", "peppers", "lemon", "oil", "onion", "yogurt", "carrots", "tofu"],
    forms: ["salad", "slaw", "bowl", "plate"],
  },
  Mains: {
    leads: ["chicken", "beef", "salmon", "prawns", "tofu", "aubergine", "chickpeas"],
    sides: [
      "rice",
      "peppers",
      "onion",
      "garlic",
      "tomatoes",
      "coconut",
      "spinach",
      "potatoes",
      "oil",
      "yogurt",
      "couscous",
      "mushrooms",
    ],
    forms: ["curry", "tray bake", "stir-fry", "casserole", "skewers"],
  },
  Pasta: {
    leads: ["pasta"],
    sides: [
      "tomatoes",
      "parmesan",
      "garlic",
      "mushrooms",
      "cream",
      "spinach",
      "courgette",
      "bacon",
      "prawns",
      "oil",
      "aubergine",
      "butter",
    ],
    forms: ["pasta", "linguine", "penne", "pasta bake"],
  },
  Baking: {
    leads: ["flour"],
    sides: [
      "butter",
      "eggs",
      "milk",
      "oats",
      "almonds",
      "sugar",
      "honey",
      "apples",
      "carrots",
      "oil",
      "yogurt",
    ],
    forms: ["loaf", "scones", "muffins", "flatbreads", "buns"],
  },
  Desserts: {
    leads: ["chocolate", "berries", "apples", "almonds"],
    sides: ["sugar", "butter", "eggs", "cream", "flour", "vanilla", "milk", "honey", "coconut", "lemon"],
    forms: ["tart", "mousse", "crumble", "cake", "pudding"],
  },
};
const SHORT = {
  chicken: "chicken",
  beef: "beef",
  salmon: "salmon",
  bacon: "bacon",
  pasta: "pasta",
  flour: "",
  rice: "rice",
  noodles: "noodle",
  oats: "oat",
  eggs: "egg",
  bread: "sourdough",
  squash: "squash",
  lentils: "red lentil",
  tofu: "tofu",
  beans: "black bean",
  chickpeas: "chickpea",
  potatoes: "potato",
  tomatoes: "tomato",
  carrots: "carrot",
  peppers: "red pepper",
  mushrooms: "mushroom",
  berries: "berry",
  apples: "apple",
  almonds: "almond",
  chocolate: "chocolate",
  lemon: "lemon",
  onion: "onion",
  courgette: "courgette",
  yogurt: "yogurt",
  coconut: "coconut",
  stock: "",
  oil: "",
  butter: "brown butter",
  milk: "",
  sugar: "",
  vanilla: "vanilla",
  cream: "creamy",
  garlic: "garlic",
};
const ADJECTIVES = [
  "Smoky",
  "Golden",
  "Weeknight",
  "Slow",
  "Crisp",
  "Warm",
  "Herby",
  "Sticky",
  "Zesty",
  "Rustic",
  "Spiced",
  "Simple",
  "Charred",
  "One-pan",
];
const HEADS = [
  "Came out perfectly",
  "A new favourite",
  "Good but needed more salt",
  "Easy and quick",
  "My family asked for seconds",
  "Took longer than it says",
  "Lovely with extra lemon",
  "Will make again",
  "Nice, if a little dry",
  "Better the next day",
];

/** The whole kitchen. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-01", draw.below(280));
  const titles = new Set();
  const recipes = Array.from({ length: RECIPES }, (_, index) =>
    makeRecipe(draw.fork(index), COURSES[index % COURSES.length], titles, today),
  );
  const order = draw.fork("order").shuffled(recipes);
  return { today, recipes: order, byId: new Map(order.map((recipe) => [recipe.id, recipe])) };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  collections: [{ name: "Favourites", recipes: [] }],
  plan: [],
  list: [],
  reviews: [],
  offer: null,
  letter: null,
});

function makeRecipe(draw, course, titles, today) {
  const shape = SHAPES[course],
    cuisine = draw.one(CUISINES);
  let lead, title, sides;
  do {
    lead = draw.one(shape.leads);
    sides = draw.some(
      shape.sides.filter((side) => side !== lead),
      draw.between(5, 7),
    );
    const star = sides.find((side) => SHORT[side] ?? food(side).name) ?? sides[0];
    const name = [SHORT[lead] ?? food(lead).name, draw.one(shape.forms)]
      .filter((word, index, list) => word && !(index === 0 && list[1].startsWith(word)))
      .join(" ");
    title =
      `${draw.one(ADJECTIVES)} ${SHORT[star] ?? food(star).name} ${draw.chance(0.4) && name.split(" ").length > 1 ? "and " : ""}${name}`.replace(
        /\s+/g,
        " ",
      );
  } while (titles.has(title));
  titles.add(title);
  const servings = draw.one([2, 4, 4, 4, 6, 8]);
  const ingredients = [lead, ...sides].map((key) => {
    const [, unit, low, high] = FOOD[key];
    return {
      key,
      each:
        unit === "g" || unit === "ml"
          ? Math.round((low + (high - low) * draw.number()) / 5) * 5
          : draw.one([low, high]),
    };
  });
  const kinds = ingredients.map(({ key }) => FOOD[key][5]).join("");
  const diets = [
    kinds.includes("m") ? null : "Vegetarian",
    /[md]/.test(kinds) ? null : "Vegan",
    kinds.includes("g") ? null : "Gluten-free",
  ].filter(Boolean);
  const [prep, cook] = [
    draw.between(2, 8) * 5,
    course === "Salads" ? draw.between(0, 3) * 5 : draw.between(2, 16) * 5,
  ];
  const oven =
    course === "Baking" || /bake|casserole|tart|crumble|cake/.test(title)
      ? draw.one([160, 170, 180, 190, 200, 220])
      : null;
  const ratings = Array.from({ length: draw.between(4, 22) }, () =>
    draw.weighted([
      [5, 5],
      [4, 4],
      [3, 2],
      [2, 1],
      [1, 0.4],
    ]),
  );
  const calories = Math.round(ingredients.reduce((sum, { key, each }) => sum + each * FOOD[key][4], 0));
  const recipe = {
    id: slug(title),
    title,
    course,
    cuisine,
    servings,
    ingredients,
    diets,
    prep,
    cook,
    total: prep + cook,
    oven,
    author: person(draw),
    published: dates.plus(today, -draw.between(3, 900)),
    level: prep + cook > 75 ? "Challenging" : prep + cook > 40 ? "Medium" : "Easy",
    ratings,
    rating: Math.round((ratings.reduce((sum, one) => sum + one, 0) / ratings.length) * 10) / 10,
    nutrition: {
      Calories: calories,
      Protein: draw.between(4, 46),
      Fat: draw.between(3, 38),
      Carbohydrates: draw.between(6, 92),
      Fibre: draw.between(1, 14),
      Salt: draw.decimal(0.1, 3.4),
    },
    draw,
  };
  recipe.steps = makeSteps(recipe, draw);
  return recipe;
}

function makeSteps({ ingredients, oven, cook, course }, draw) {
  const names = ingredients.map(({ key }) => food(key).name);
  const rest = draw.between(6, 48);
  return [
    oven
      ? `Heat the oven to ${oven} °C and line a tin or tray.`
      : `Put out everything and bring ${course === "Salads" ? "a small pan of water" : "a wide pan"} to a ${draw.one(["low", "medium", "high"])} heat.`,
    `Prepare the ${names[0]}: ${draw.one(["rinse and pat dry", "chop into bite-sized pieces", "weigh out and set aside", "season well"])}.`,
    `Mix the ${names[1]} with the ${names[2]} and ${draw.one(["stir until smooth", "toss well", "leave for a few minutes", "whisk until light"])}.`,
    `Add the ${names[3]} and the ${names[4]}${cook ? `, then cook for ${cook} minutes` : ""}, ${draw.one(["stirring now and then", "without stirring", "with the lid on", "until fragrant"])}.`,
    `Fold in the ${names.slice(5).join(" and the ")}. Taste and season.`,
    `Let it rest for ${rest} minutes before serving. It keeps for ${draw.between(1, 4)} days in the fridge.`,
  ];
}

/** Reviews of others, newest first. */
export function reviewsOf(recipe) {
  const draw = recipe.draw.fork("reviews");
  return recipe.ratings.map((rating, index) => ({
    rating,
    author: person(draw),
    headline: draw.one(HEADS),
    helpful: draw.below(60),
    age: 2 + index * 9 + draw.below(8),
  }));
}

/** An amount for so many servings as cooks write it. */
export function measure({ key, each }, servings) {
  const { unit, name } = food(key),
    total = each * servings;
  const shown =
    unit === "g" || unit === "ml"
      ? String(Math.round(total))
      : String(Math.round(total * 4) / 4)
          .replace(".25", "¼")
          .replace(".5", "½")
          .replace(".75", "¾")
          .replace(/^0(?=[¼½¾])/, "");
  return { amount: `${shown}${unit ? ` ${unit}` : ""}`, name };
}

/** Recipes that fit all filters, in order. */
export function search(
  world,
  { q = "", course = "", cuisine = "", diets = [], time = 0, without = "", sort = "popular" },
) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = world.recipes.filter((recipe) => {
    const text =
      `${recipe.title} ${recipe.course} ${recipe.cuisine} ${recipe.ingredients.map(({ key }) => food(key).name).join(" ")}`.toLowerCase();
    return (
      words.every((word) => text.includes(word)) &&
      (!course || recipe.course === course) &&
      (!cuisine || recipe.cuisine === cuisine) &&
      diets.every((diet) => recipe.diets.includes(diet)) &&
      (!time || recipe.total <= time) &&
      (!without ||
        !recipe.ingredients.some(({ key }) => food(key).name.toLowerCase().includes(without.toLowerCase())))
    );
  });
  const exact = (recipe) => (q && recipe.title.toLowerCase().includes(q.toLowerCase()) ? 0 : 1);
  const orders = {
    popular: (a, b) => exact(a) - exact(b) || b.ratings.length - a.ratings.length,
    rating: (a, b) => b.rating - a.rating || b.ratings.length - a.ratings.length,
    quick: (a, b) => a.total - b.total,
    light: (a, b) => a.nutrition.Calories - b.nutrition.Calories,
    newest: (a, b) => (a.published < b.published ? 1 : -1),
  };
  return found
    .map((recipe, at) => ({ recipe, at }))
    .sort((a, b) => (orders[sort] ?? orders.popular)(a.recipe, b.recipe) || a.at - b.at)
    .map(({ recipe }) => recipe);
}

export const hours = (minutes) =>
  minutes >= 60
    ? `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`
    : `${minutes} min`;
