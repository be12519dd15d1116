// The academy's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { same, until } from "/kit/tasks.js";
import { person } from "/kit/words.js";
import { LANGUAGES, LEVELS, SUBJECTS, reviewsOf, search } from "/world.js";

const enrolled = (course, more = {}) => ({
  id: course.id,
  kind: "Audit",
  start: course.starts[0],
  name: "A learner",
  done: [],
  quizzes: {},
  ...more,
});
/** Whether there is one enrolment, exactly this one; the order of its completed lessons does not matter. */
const isOnly = (list, wanted) =>
  list.length === 1 &&
  same(list[0].done, wanted.done) &&
  JSON.stringify({ ...list[0], done: [] }) === JSON.stringify({ ...wanted, done: [] });

export const tasks = {
  "courses-learners"(world, draw) {
    const course = draw.one(world.courses);
    return {
      goal: `How many learners does the course "${course.title}" have? Answer with the number.`,
      expected: course.enrolled,
    };
  },

  "courses-teacher"(world, draw) {
    const course = draw.one(world.courses);
    return {
      goal: `Who teaches the course "${course.title}"? Answer with the full name.`,
      expected: course.teacher,
    };
  },

  "courses-wish"(world, draw) {
    const [one, two] = draw.some(world.courses, 2);
    return {
      goal: `Put the courses "${one.title}" and "${two.title}" on the wish list. Answer "done" at the end.`,
      correct: ({ wishes }) => same(wishes, [one.id, two.id]),
    };
  },

  "courses-lesson"(world, draw) {
    return until(draw, (draw) => {
      const course = draw.one(world.courses),
        module = draw.one(course.modules),
        lesson = draw.one(module.lessons);
      return {
        goal: `In the syllabus of "${course.title}", how many minutes long is the lesson "${lesson.title}" of week ${module.week}? Answer with the number.`,
        expected: lesson.minutes,
      };
    });
  },

  "courses-count"(world, draw) {
    return until(draw, (draw) => {
      const subject = draw.one(SUBJECTS).name,
        level = draw.one(LEVELS),
        hours = draw.one([10, 20, 40]);
      const found = search(world, { subject, levels: [level], hours });
      if (found.length < 3 || found.length > 6) return null;
      if (found.length === search(world, { subject, levels: [level] }).length) return null;
      return {
        goal: `What do the prices of all courses of the level ${level} in ${subject} that take up to ${hours} hours add up to? Answer with the number of dollars.`,
        expected: found.reduce((sum, { price }) => sum + price, 0),
      };
    });
  },

  "courses-best"(world, draw) {
    return until(draw, (draw) => {
      const subject = draw.one(SUBJECTS).name,
        language = draw.one(LANGUAGES);
      const [first, second] = search(world, { subject, languages: [language], sort: "rating" });
      if (!second || first.rating === second.rating) return null;
      return {
        goal: `Which course in ${subject} held in ${language} is rated highest? Answer with its title.`,
        expected: first.title,
      };
    });
  },

  "courses-shortest"(world, draw) {
    return until(draw, (draw) => {
      const subject = draw.one(SUBJECTS).name,
        language = draw.one(LANGUAGES);
      const [first, second] = search(world, {
        subject,
        languages: [language],
        certificate: true,
        sort: "short",
      });
      if (!second || first.hours === second.hours) return null;
      return {
        goal: `Which course in ${subject} held in ${language} and with a certificate takes the fewest hours in total? Answer with its title.`,
        expected: first.title,
      };
    });
  },

  "courses-review"(world, draw) {
    return until(draw, (draw) => {
      const course = draw.one(world.courses),
        [first, second] = reviewsOf(course).sort((a, b) => b.helpful - a.helpful);
      if (first.helpful === second.helpful) return null;
      return {
        goal: `Who wrote the review of "${course.title}" that the most learners found helpful? Answer with the full name.`,
        expected: first.author,
      };
    });
  },

  "courses-enrol"(world, draw) {
    const course = draw.one(world.courses.filter(({ certificate }) => certificate)),
      kind = draw.one(["Audit", "Certificate"]),
      start = draw.one(course.starts),
      name = person(draw);
    return {
      goal: `Enrol ${name} in "${course.title}": kind of study "${kind}", beginning on ${dates.long(start)}. Answer "done" at the end.`,
      touches: ["enrolled"],
      correct: ({ enrolled: now }) => isOnly(now, enrolled(course, { kind, start, name })),
    };
  },

  "courses-leave"(world, draw) {
    const [one, two, three] = draw.some(world.courses, 3),
      begun = draw.shuffled([one, two, three]).map((course) => enrolled(course));
    return {
      goal: `Leave the course "${two.title}" and stay in the others. Answer "done" at the end.`,
      state: { enrolled: begun },
      touches: ["enrolled"],
      correct: ({ enrolled: now }) =>
        JSON.stringify(now) === JSON.stringify(begun.filter(({ id }) => id !== two.id)),
    };
  },

  "courses-complete"(world, draw) {
    const course = draw.one(world.courses),
      week = draw.between(1, course.weeks);
    return {
      goal: `In your course "${course.title}", mark the first two lessons of week ${week} as completed, and no others. Answer "done" at the end.`,
      state: { enrolled: [enrolled(course)] },
      touches: ["enrolled"],
      correct: ({ enrolled: now }) => isOnly(now, enrolled(course, { done: [`${week}.0`, `${week}.1`] })),
    };
  },

  "courses-note"(world, draw) {
    const course = draw.one(world.courses),
      module = draw.one(course.modules),
      at = draw.below(module.lessons.length - 1),
      text = draw.one([
        "Ask about this in the forum",
        "Repeat before the exam",
        "Show this to the team",
        "Good example for my project",
      ]);
    return {
      goal: `In your course "${course.title}", add the note "${text}" to the lesson "${module.lessons[at].title}" of week ${module.week}. Answer "done" at the end.`,
      state: { enrolled: [enrolled(course)] },
      touches: ["notes"],
      correct: ({ notes }) =>
        notes.length === 1 &&
        notes[0].id === course.id &&
        notes[0].key === `${module.week}.${at}` &&
        notes[0].text === text,
    };
  },

  "courses-quiz"(world, draw) {
    const course = draw.one(world.courses),
      module = draw.one(course.modules);
    return {
      goal: `In your course "${course.title}", pass the quiz of week ${module.week} with all answers right at the first try; the reading of that week has the figures it asks for. Answer "done" at the end.`,
      state: { enrolled: [enrolled(course)] },
      touches: ["enrolled"],
      correct: ({ enrolled: now }) =>
        isOnly(now, enrolled(course, { quizzes: { [module.week]: module.figures.length }, tries: 1 })),
    };
  },

  "courses-sum"(world, draw) {
    return until(draw, (draw) => {
      const three = draw.some(world.courses, 3);
      return {
        goal: `Someone wants to take these three courses: "${three.map(({ title }) => title).join('", "')}". How many hours do they take together? (Weeks times hours a week.) Answer with the number.`,
        expected: three.reduce((sum, { hours }) => sum + hours, 0),
      };
    });
  },
};
