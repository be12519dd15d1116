// The paper's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { until } from "/kit/tasks.js";
import { person } from "/kit/words.js";
import { LETTERS, SECTIONS, TOPICS, clock, commentsOf, search } from "/world.js";

const number = (article, draw) => draw.one(article.asks.filter(([, answer]) => typeof answer === "number"));

export const tasks = {
  "news-fact"(world, draw) {
    const article = draw.one(world.articles),
      [asked, answer] = number(article, draw);
    return {
      goal: `Find the report "${article.title}" in The Meridian Post. According to it, ${asked}? Answer with the number only.`,
      expected: answer,
    };
  },

  "news-author"(world, draw) {
    const article = draw.one(world.articles);
    return {
      goal: `Who wrote the report "${article.title}"? Answer with the full name.`,
      expected: article.author,
    };
  },

  "news-save"(world, draw) {
    const [one, two] = draw.some(world.articles, 2);
    return {
      goal: `Save the reports "${one.title}" and "${two.title}". Answer "done" at the end.`,
      touches: ["saved"],
      correct: ({ saved }) => saved.length === 2 && saved.includes(one.id) && saved.includes(two.id),
    };
  },

  "news-vote"(world, draw) {
    const option = draw.one(world.poll.options).text;
    return {
      goal: `Vote "${option}" in the poll on the front page. Answer "done" at the end.`,
      touches: ["vote"],
      correct: ({ vote }) => vote === option,
    };
  },

  "news-live"(world, draw) {
    const entry = draw.one(world.live.entries.slice(7));
    return {
      goal: `On the live page, what water level is given in the entry of ${clock(entry.minute)}, in metres? Answer with the number.`,
      expected: entry.level,
    };
  },

  "news-count"(world, draw) {
    return until(draw, (draw) => {
      const section = draw.one(SECTIONS),
        topic = draw.one(TOPICS),
        from = dates.plus(world.today, -draw.between(30, 120)),
        to = dates.plus(from, draw.between(20, 70));
      const q = topic.toLowerCase(),
        found = search(world, { q, section, from, to, sort: "read" });
      if (
        to > world.today ||
        found.length < 2 ||
        found[0].views === found[1].views ||
        found[0] === search(world, { q, section, sort: "read" })[0]
      )
        return null;
      return {
        goal: `Search for "${q}": among the reports in the section ${section} that are found from ${dates.long(from)} until ${dates.long(to)}, how many people have read the one that is read the most? Answer with the number.`,
        expected: found[0].views,
      };
    });
  },

  "news-most-read"(world, draw) {
    return until(draw, (draw) => {
      const word = draw.one([
          "council",
          "treaty",
          "marathon",
          "museum",
          "film",
          "election",
          "probe",
          "wind",
          "school",
          "profits",
        ]),
        section = draw.one(SECTIONS);
      const [first, second] = search(world, { q: word, section, sort: "read" });
      if (!second || first.views === second.views) return null;
      return {
        goal: `Search for "${word}" in the section ${section}. Which report has been read by the most people? Answer with its headline.`,
        expected: first.title,
      };
    });
  },

  "news-oldest-by"(world, draw) {
    return until(draw, (draw) => {
      const author = draw.one(world.authors),
        own = world.articles.filter((one) => one.author === author);
      if (own.length < 4 || own.at(-1).date === own.at(-2).date) return null;
      return {
        goal: `Which is the oldest report by ${author} that The Meridian Post still has? Answer with its headline.`,
        expected: own.at(-1).title,
      };
    });
  },

  "news-liked"(world, draw) {
    return until(draw, (draw) => {
      const article = draw.one(world.articles),
        [first, second] = commentsOf(article).sort((a, b) => b.likes - a.likes);
      if (first.likes === second.likes) return null;
      return {
        goal: `Who wrote the most liked comment below the report "${article.title}"? Answer with the full name.`,
        expected: first.author,
      };
    });
  },

  "news-letters"(world, draw) {
    const chosen = draw.some(LETTERS, 2).map(([name]) => name),
      email = `${draw.one(["reader", "desk", "home"])}${draw.between(10, 99)}@mailbox.example`;
    return {
      goal: `Subscribe ${email} to the newsletters "${chosen[0]}" and "${chosen[1]}", and to no others. Answer "done" at the end.`,
      touches: ["letters"],
      correct: ({ letters }) =>
        letters.length === 1 &&
        letters[0].email === email &&
        letters[0].chosen.length === 2 &&
        chosen.every((name) => letters[0].chosen.includes(name)),
    };
  },

  "news-follow"(world, draw) {
    const chosen = draw.some(TOPICS, 3),
      edition = draw.one(["National", "Weekend"]),
      begun = draw.some(
        TOPICS.filter((topic) => !chosen.includes(topic)),
        1,
      );
    return {
      goal: `In My Post, follow exactly the topics ${chosen.slice(0, 2).join(", ")} and ${chosen[2]}, and choose the ${edition} edition. Answer "done" when it is saved.`,
      state: { follows: begun },
      touches: ["follows", "edition"],
      correct: ({ follows, edition: now }) =>
        now === edition && follows.length === 3 && chosen.every((topic) => follows.includes(topic)),
    };
  },

  "news-comment"(world, draw) {
    const article = draw.one(world.articles),
      name = person(draw),
      text = draw.one([
        "I would like to know who counted.",
        "This is the best news of the week.",
        "Please ask the mayor about it again.",
        "My street has waited for this for years.",
      ]);
    return {
      goal: `Post a comment below the report "${article.title}" under the name ${name}: "${text}" If the page reports a problem, try again. Answer "done" when the comment is shown.`,
      conditions: { comment: { millis: 600, failures: 1 } },
      touches: ["comments"],
      correct: ({ comments }) =>
        comments.length === 1 &&
        comments[0].id === article.id &&
        comments[0].name === name &&
        comments[0].text === text,
    };
  },

  "news-difference"(world, draw) {
    return until(draw, (draw) => {
      const [one, two] = draw.some(world.articles, 2);
      if (one.views === two.views) return null;
      return {
        goal: `How many more people have read the more popular of these two reports than the other: "${one.title}" and "${two.title}"? Answer with the number.`,
        expected: Math.abs(one.views - two.views),
      };
    });
  },

  "news-tidy"(world, draw) {
    const [first, second] = draw.some(SECTIONS, 2),
      of = (section, count) =>
        draw.some(
          world.articles.filter((one) => one.section === section),
          count,
        );
    const [kept, gone] = [of(first, 2), of(second, 3)],
      fresh = draw.one(world.articles.filter((one) => one.section === first && !kept.includes(one)));
    return {
      goal: `Among the saved reports, remove those of the section ${second}. Then also save the report "${fresh.title}". Answer "done" at the end.`,
      state: { saved: draw.shuffled([...kept, ...gone]).map(({ id }) => id) },
      touches: ["saved"],
      correct: ({ saved }) => saved.length === 3 && [...kept, fresh].every(({ id }) => saved.includes(id)),
    };
  },
};
