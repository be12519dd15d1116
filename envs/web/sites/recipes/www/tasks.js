// The kitchen's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { until } from "/kit/tasks.js";
import { COURSES, CUISINES, DIETS, MEALS, food, measure, reviewsOf, search } from "/world.js";

const weighed = (recipe) =>
  recipe.ingredients.filter(({ key }) => food(key).unit === "g" || food(key).unit === "ml");
const collection = (state, name) => state.collections.find((one) => one.name === name)?.recipes ?? [];
const only = (list, ...ids) => list.length === ids.length && ids.every((id) => list.includes(id));

/** Whether a shopping list holds the ingredients of these recipes, each once for so many servings, with none ticked off: [[recipe, servings]]. */
const shops = (list, wanted) =>
  list.length === wanted.reduce((sum, [{ ingredients }]) => sum + ingredients.length, 0) &&
  wanted.every(([recipe, servings]) =>
    recipe.ingredients.every(({ key }) =>
      list.some(
        (one) => one.recipe === recipe.id && one.key === key && one.servings === servings && !one.done,
      ),
    ),
  );

export const tasks = {
  "recipes-calories"(world, draw) {
    const recipe = draw.one(world.recipes);
    return {
      goal: `How many calories does one serving of the recipe "${recipe.title}" have? Answer with the number.`,
      expected: recipe.nutrition.Calories,
    };
  },

  "recipes-nutrition"(world, draw) {
    const recipe = draw.one(world.recipes),
      name = draw.one(["Protein", "Fat", "Carbohydrates", "Salt"]);
    return {
      goal: `How many grams of ${name.toLowerCase()} does one serving of "${recipe.title}" have? Answer with the number.`,
      expected: recipe.nutrition[name],
    };
  },

  "recipes-save"(world, draw) {
    const recipe = draw.one(world.recipes);
    return {
      goal: `Save the recipe "${recipe.title}" to the collection Favourites. Answer "done" at the end.`,
      touches: ["collections"],
      correct: (state) => state.collections.length === 1 && only(collection(state, "Favourites"), recipe.id),
    };
  },

  "recipes-shop"(world, draw) {
    const recipe = draw.one(world.recipes);
    return {
      goal: `Add the ingredients of "${recipe.title}" to the shopping list, for as many servings as the recipe gives. Answer "done" at the end.`,
      correct: ({ list }) => shops(list, [[recipe, recipe.servings]]),
    };
  },

  "recipes-scale"(world, draw) {
    return until(draw, (draw) => {
      const recipe = draw.one(world.recipes),
        [one, two] = draw.some(weighed(recipe), 2),
        servings = draw.between(2, 12);
      if (!two || servings === recipe.servings) return null;
      const [first, second] = [one, two].map((each) => measure(each, servings).amount);
      return {
        goal: `For ${servings} servings of "${recipe.title}", how much of the ingredients "${food(one.key).name}" and "${food(two.key).name}" does Saltbox give? Answer with both amounts as they are written there, in this order, with a comma between them.`,
        expected: [`${first}, ${second}`, `${parseInt(first)}, ${parseInt(second)}`],
      };
    });
  },

  "recipes-count"(world, draw) {
    return until(draw, (draw) => {
      const diet = draw.one(DIETS),
        cuisine = draw.one(CUISINES),
        time = draw.one([30, 45, 60]);
      const found = search(world, { diets: [diet], cuisine, time });
      if (found.length < 2 || found.length > 5) return null;
      if (found.length === search(world, { cuisine, time }).length) return null;
      return {
        goal: `Somebody tries one serving of every ${cuisine} recipe that is ${diet.toLowerCase()} and takes up to ${time} minutes in total. How many calories do these servings have together? Answer with the number.`,
        expected: found.reduce((sum, { nutrition }) => sum + nutrition.Calories, 0),
      };
    });
  },

  "recipes-lightest"(world, draw) {
    return until(draw, (draw) => {
      const course = draw.one(COURSES),
        diet = draw.one(DIETS),
        time = draw.one([45, 60]);
      const [first, second] = search(world, { course, diets: [diet], time, sort: "light" });
      if (!second || first.nutrition.Calories === second.nutrition.Calories) return null;
      return {
        goal: `Which ${diet.toLowerCase()} recipe among the ${course.toLowerCase()} that takes up to ${time} minutes in total has the fewest calories? Answer with its title.`,
        expected: first.title,
      };
    });
  },

  "recipes-helpful"(world, draw) {
    return until(draw, (draw) => {
      const recipe = draw.one(world.recipes),
        [first, second] = reviewsOf(recipe).sort((a, b) => b.helpful - a.helpful);
      if (first.helpful === second.helpful) return null;
      return {
        goal: `Who wrote the review of "${recipe.title}" that the most cooks found helpful? Answer with the name.`,
        expected: first.author,
      };
    });
  },

  "recipes-rest"(world, draw) {
    const recipe = draw.one(world.recipes);
    return {
      goal: `Open the recipe "${recipe.title}" in cook mode and go through its steps. For how many minutes does the dish rest before serving? Answer with the number.`,
      expected: Number(/rest for (\d+) minutes/.exec(recipe.steps.at(-1))[1]),
    };
  },

  "recipes-plan"(world, draw) {
    const recipe = draw.one(world.recipes),
      day = dates.plus(world.today, draw.between(2, 34)),
      meal = draw.one(MEALS);
    return {
      goal: `Put "${recipe.title}" on the meal plan for ${meal.toLowerCase()} on ${dates.long(day)}. Answer "done" at the end.`,
      touches: ["plan"],
      correct: ({ plan }) =>
        plan.length === 1 && plan[0].recipe === recipe.id && plan[0].day === day && plan[0].meal === meal,
    };
  },

  "recipes-review"(world, draw) {
    const recipe = draw.one(world.recipes),
      rating = draw.between(2, 5);
    const headline = draw.one([
        "Cooked it twice already",
        "Good for guests",
        "Needs a sharper dressing",
        "A keeper for winter",
      ]),
      text = draw.one([
        "I used half the salt and it was fine.",
        "The timing was exactly right for me.",
        "We ate it cold the day after.",
        "Next time I will double the garlic.",
      ]);
    return {
      goal: `Write a review of "${recipe.title}" with ${rating} stars, the headline "${headline}" and the text "${text}" Answer "done" when it is posted.`,
      touches: ["reviews"],
      correct: ({ reviews }) =>
        reviews.length === 1 &&
        reviews[0].recipe === recipe.id &&
        reviews[0].rating === rating &&
        reviews[0].headline === headline &&
        reviews[0].text === text,
    };
  },

  "recipes-total"(world, draw) {
    return until(draw, (draw) => {
      const [one, two] = draw.some(world.recipes, 2);
      const shared = weighed(one).filter(({ key }) => two.ingredients.some((other) => other.key === key));
      if (!shared.length) return null;
      const { key } = draw.one(shared),
        servings = draw.between(3, 9);
      const each = (recipe) => recipe.ingredients.find((other) => other.key === key).each;
      const wanted = [
        [one, servings],
        [two, two.servings],
      ];
      return {
        goal: `Add the ingredients of "${one.title}" for ${servings} servings and those of "${two.title}" for the servings its page gives to the shopping list. How much of "${food(key).name}" does the list then name in total? Answer with the number of ${food(key).unit === "g" ? "grams" : "millilitres"}.`,
        expected: Math.round(each(one) * servings + each(two) * two.servings),
        correct: ({ list }) => shops(list, wanted),
      };
    });
  },

  "recipes-collect"(world, draw) {
    return until(draw, (draw) => {
      const course = draw.one(COURSES),
        out = draw.one(["onion", "garlic", "butter", "tomatoes", "eggs", "cream", "potatoes", "sugar"]),
        name = draw.one(["Sunday", "Picnic", "For Mum", "Try soon"]);
      const without = food(out).name;
      const found = search(world, { course, without, sort: "quick" });
      if (
        found.length < 3 ||
        found.length === search(world, { course }).length ||
        found[0].total === found[1].total
      )
        return null;
      return {
        goal: `Find the recipe among the ${course.toLowerCase()} that is made without ${without} and takes the least time in total. Save it to a new collection called "${name}". Answer "done" at the end.`,
        touches: ["collections"],
        correct: (state) =>
          only(collection(state, name), found[0].id) &&
          state.collections.length === 2 &&
          !collection(state, "Favourites").length,
      };
    });
  },

  "recipes-replan"(world, draw) {
    const [gone, kept, fresh] = draw.some(world.recipes, 3),
      days = draw.some([1, 2, 3, 4, 5, 6], 2).map((ahead) => dates.plus(world.today, ahead));
    const meal = draw.one(MEALS),
      other = draw.one(MEALS);
    const plan = [
      { recipe: gone.id, day: days[0], meal },
      { recipe: kept.id, day: days[1], meal: other },
    ];
    return {
      goal: `Change the meal plan: take "${gone.title}" off it and put "${fresh.title}" in its place, on the same day and for the same meal. Leave everything else. Answer "done" at the end.`,
      state: { plan },
      touches: ["plan"],
      correct: ({ plan: now }) =>
        now.length === 2 &&
        now.some((one) => one.recipe === fresh.id && one.day === days[0] && one.meal === meal) &&
        now.some((one) => one.recipe === kept.id && one.day === days[1] && one.meal === other),
    };
  },
};
