// The model hub's tasks: each a function of the world and a draw that belongs to the task.

import { same, until } from "/kit/tasks.js";
import { person } from "/kit/words.js";
import {
  BENCHMARKS,
  LANGUAGES,
  LICENSES,
  PURPOSES,
  TASKS,
  configOf,
  discussionsOf,
  filesOf,
  rowsOf,
  search,
} from "/world.js";

const SIZES = [
  [400, "up to 400M"],
  [3000, "up to 3B"],
  [13000, "up to 13B"],
];

/** Rows on one page of the viewer. */
const VIEWER_ROWS = 15;

/** Whether one file was downloaded, of this model or data set, and nothing else. */
const isDownloaded = (downloads, item, file) =>
  downloads.length === 1 && downloads[0].id === item.id && downloads[0].file === file;

export const tasks = {
  "models-score"(world, draw) {
    const model = draw.one(world.models),
      benchmark = draw.one(BENCHMARKS);
    return {
      goal: `Which score does the card of the model ${model.id} give for the benchmark "${benchmark}"? Answer with the number.`,
      expected: model.scores[benchmark],
    };
  },

  "models-rows"(world, draw) {
    const set = draw.one(world.sets);
    return {
      goal: `How many rows does the data set ${set.id} have? Answer with the number.`,
      expected: set.rows,
    };
  },

  "models-like"(world, draw) {
    const [model, set] = [draw.one(world.models), draw.one(world.sets)];
    return {
      goal: `Like the model ${model.id} and the data set ${set.id}. Answer "done" at the end.`,
      touches: ["likes"],
      correct: ({ likes }) => same(likes, [model.id, set.id]),
    };
  },

  "models-layers"(world, draw) {
    return until(draw, (draw) => {
      const model = draw.one(world.models),
        key = draw.one(["layers", "hidden_size", "vocabulary_size"]);
      return {
        goal: `What is the value of ${key} in the file config.json of the model ${model.id}? Answer with the number.`,
        expected: configOf(model)[key],
      };
    });
  },

  "models-most"(world, draw) {
    return until(draw, (draw) => {
      const task = draw.one(TASKS).name,
        language = draw.one(LANGUAGES),
        sort = draw.one(["downloads", "likes"]),
        [first, second] = search(world, { task, language, sort });
      return !second || first[sort] === second[sort]
        ? null
        : {
            goal: `Which model for "${task}" that knows ${language} has the most ${sort}? Answer with its name.`,
            expected: [first.id, first.name],
          };
    });
  },

  "models-count"(world, draw) {
    return until(draw, (draw) => {
      const task = draw.one(TASKS).name,
        license = draw.one(LICENSES),
        [max, told] = draw.one(SIZES),
        found = search(world, { task, licenses: [license], max });
      return found.length < 2 || found.length > 5
        ? null
        : {
            goal: `How many likes do the models for "${task}" with the licence "${license}" and ${told} parameters have together? Answer with the number.`,
            expected: found.reduce((sum, { likes }) => sum + likes, 0),
          };
    });
  },

  "models-smallest"(world, draw) {
    return until(draw, (draw) => {
      const task = draw.one(TASKS).name,
        language = draw.one(LANGUAGES),
        [first, second] = search(world, { kind: "sets", task, language, sort: "small" });
      return !second || first.rows === second.rows
        ? null
        : {
            goal: `Which data set for "${task}" with the language ${language} has the fewest rows? Answer with its name.`,
            expected: [first.id, first.name],
          };
    });
  },

  "models-download"(world, draw) {
    const item = draw.one([...world.models.filter(({ gated }) => !gated), ...world.sets]),
      file = draw.one(filesOf(item));
    return {
      goal: `Download the file ${file.name} of the ${item.kind === "model" ? "model" : "data set"} ${item.id}. Answer "done" at the end.`,
      touches: ["downloads"],
      correct: ({ downloads }) => isDownloaded(downloads, item, file.name),
    };
  },

  "models-collect"(world, draw) {
    const models = draw.some(world.models, 2),
      name = draw.one(["For the seminar", "Try on the old laptop", "Candidates", "Baselines"]);
    return {
      goal: `Create a collection "${name}" with the models ${models[0].id} and ${models[1].id}. Answer "done" at the end.`,
      correct: ({ collections: [own, more] }) =>
        own &&
        !more &&
        own.name === name &&
        same(
          own.items,
          models.map(({ id }) => id),
        ),
    };
  },

  "models-reply"(world, draw) {
    const model = draw.one(world.models.filter((one) => discussionsOf(one).some(({ open }) => open))),
      one = draw.one(discussionsOf(model).filter(({ open }) => open)),
      text = draw.one([
        "Same here with the newest version.",
        "Halving the batch helped me.",
        "The card says so under limits.",
      ]);
    return {
      goal: `Reply "${text}" in the open discussion #${one.number}, "${one.title}", of the model ${model.id}. Answer "done" at the end.`,
      touches: ["replies"],
      correct: ({ replies }) =>
        replies.length === 1 &&
        replies[0].id === model.id &&
        replies[0].number === one.number &&
        replies[0].text === text,
    };
  },

  "models-viewer"(world, draw) {
    return until(draw, (draw) => {
      const set = draw.one(world.sets),
        { label } = draw.one(rowsOf(set)),
        least = draw.between(20, 70),
        found = rowsOf(set)
          .filter((row) => row.label === label && row.split === "train" && row.score >= least)
          .sort((a, b) => a.score - b.score);
      return found.length < 3 || found.length > VIEWER_ROWS || found[0].score === found[1].score
        ? null
        : {
            goal: `In the viewer of the data set ${set.id}, look at the rows with the label "${label}" that belong to the split "train" and have a score of at least ${least}. Which of them has the lowest score? Answer with the number that the viewer gives to this row.`,
            expected: found[0].row,
          };
    });
  },

  "models-board"(world, draw) {
    return until(draw, (draw) => {
      const task = draw.one(TASKS).name,
        [max, told] = draw.one(SIZES.slice(1)),
        benchmark = draw.one(BENCHMARKS),
        [first, second] = world.models
          .filter((model) => model.task === task && model.millions <= max)
          .sort((a, b) => b.scores[benchmark] - a.scores[benchmark]);
      return !second || first.scores[benchmark] === second.scores[benchmark]
        ? null
        : {
            goal: `On the leaderboard, which of the models for "${task}" with ${told} parameters has the highest score in "${benchmark}"? Answer with its name.`,
            expected: [first.name, first.id],
          };
    });
  },

  "models-access"(world, draw) {
    const model = draw.one(world.models.filter(({ gated }) => gated)),
      name = person(draw),
      affiliation = draw.one(["University of Kells", "Harbor Institute", "Tarnfield Polytechnic"]),
      purpose = draw.one(PURPOSES);
    return {
      goal: `Ask for access to the model ${model.id} as ${name} of the "${affiliation}", for the purpose "${purpose}", accept its licence, and then download its config.json. Answer "done" at the end.`,
      touches: ["access", "downloads"],
      correct: ({ access, downloads }) => {
        const own = access[model.id];
        return (
          own &&
          own.name === name &&
          own.affiliation === affiliation &&
          own.purpose === purpose &&
          Object.keys(access).length === 1 &&
          isDownloaded(downloads, model, "config.json")
        );
      },
    };
  },

  "models-discuss"(world, draw) {
    const model = draw.one(world.models),
      title = draw.one([
        "Scores differ on my machine",
        "Is a smaller version planned",
        "The example in the card fails",
      ]),
      text = `Tried it ${draw.between(3, 40)} times with the newest library`,
      kind = draw.one(["Report", "Idea"]);
    return {
      goal: `Begin a new discussion about the model ${model.id}: title "${title}", text "${text}", kind "${kind}". Answer "done" when it is posted.`,
      touches: ["discussions"],
      correct: ({ discussions: [one, more] }) =>
        one && !more && one.id === model.id && one.title === title && one.text === text && one.kind === kind,
    };
  },

  "models-origin"(world, draw) {
    return until(draw, (draw) => {
      const model = draw.one(world.models.filter(({ trained }) => trained)),
        set = world.byId.get(model.trained),
        { label } = draw.one(rowsOf(set)),
        found = rowsOf(set)
          .filter((row) => row.label === label && row.split === "test")
          .sort((a, b) => b.score - a.score);
      return found.length < 3 || found.length > VIEWER_ROWS || found[0].score === found[1].score
        ? null
        : {
            goal: `The card of the model ${model.id} names the data set it was trained on. In the viewer of that data set, which row of the split "test" with the label "${label}" has the highest score? Answer with the number that the viewer gives to this row.`,
            expected: found[0].row,
          };
    });
  },
};
