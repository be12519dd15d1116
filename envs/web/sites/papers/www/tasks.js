// The archive's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { until } from "/kit/tasks.js";
import { SUBJECTS, bibtexKey, papersBy, search, subject } from "/world.js";

const entry = (paper, more = {}) => ({ id: paper.id, folder: "Unsorted", note: "", read: false, ...more });
const same = (list, wanted) =>
  list.length === wanted.length &&
  wanted.every((one) => list.some((kept) => Object.keys(one).every((key) => kept[key] === one[key])));
const words = (paper) =>
  paper.title
    .toLowerCase()
    .split(/[^a-z-]+/)
    .filter((word) => word.length > 5);

export const tasks = {
  "papers-pages"(world, draw) {
    const paper = draw.one(world.papers);
    return {
      goal: `According to its comments, how many pages does the paper "${paper.title}" have? Answer with the number.`,
      expected: paper.pages,
    };
  },

  "papers-last-author"(world, draw) {
    const paper = draw.one(world.papers.filter(({ authors }) => authors.length > 2));
    return {
      goal: `Who is named as the last author of the paper "${paper.title}"? Answer with the full name.`,
      expected: paper.authors.at(-1),
    };
  },

  "papers-first-version"(world, draw) {
    const paper = draw.one(world.papers.filter(({ versions }) => versions.length > 1));
    const { size } = paper.versions[0];
    return {
      goal: `Look at the submission history of the paper "${paper.title}". How large is its first version, in KB? Answer with the number.`,
      expected: size,
    };
  },

  "papers-bookmark"(world, draw) {
    const [one, two] = draw.some(world.papers, 2);
    return {
      goal: `Add the papers "${one.title}" and "${two.title}" to the reading list. Answer "done" when both are on it.`,
      touches: ["list"],
      correct: ({ list }) => same(list, [entry(one), entry(two)]),
    };
  },

  "papers-by-author"(world, draw) {
    return until(draw, (draw) => {
      const author = draw.one(world.authors),
        papers = papersBy(world, author),
        field = draw.one(SUBJECTS);
      const found = papers.filter((paper) => paper.subject === field.code);
      if (found.length < 2 || found.length > 5 || found.length === papers.length) return null;
      return {
        goal: `How many pages do the papers of ${author} in the subject ${field.name} on Quarto have together? Answer with the number.`,
        expected: found.reduce((sum, { pages }) => sum + pages, 0),
      };
    });
  },

  "papers-newest"(world, draw) {
    return until(draw, (draw) => {
      const paper = draw.one(world.papers),
        word = draw.one(words(paper) ?? []);
      if (!word) return null;
      const found = search(world, { q: word, field: "title" });
      if (found.length < 4 || found[0].date === found[1].date) return null;
      return {
        goal: `Which paper with the word "${word}" in its title was submitted most recently? Answer with its full title.`,
        expected: found[0].title,
      };
    });
  },

  "papers-between"(world, draw) {
    return until(draw, (draw) => {
      const field = draw.one(SUBJECTS),
        from = dates.plus(world.today, -draw.between(60, 220)),
        to = dates.plus(from, draw.between(30, 150));
      if (to > world.today) return null;
      const [first, second] = search(world, { subjects: [field.code], from, to, order: "cited" });
      if (!second || first.cited === second.cited) return null;
      return {
        goal: `Which of the papers in ${field.name} that were submitted from ${dates.long(from)} to ${dates.long(to)}, both days included, is cited most? Answer with its full title.`,
        expected: first.title,
      };
    });
  },

  "papers-most-cited"(world, draw) {
    return until(draw, (draw) => {
      const paper = draw.one(world.papers),
        word = draw.one(words(paper));
      if (!word) return null;
      const found = search(world, { q: word, field: "title", order: "cited" });
      if (found.length < 4 || found[0].cited === found[1].cited) return null;
      return {
        goal: `Among the papers with the word "${word}" in the title, find the one that is cited most. How many pages does it have? Answer with the number.`,
        expected: found[0].pages,
      };
    });
  },

  "papers-bibtex"(world, draw) {
    const paper = draw.one(world.papers);
    return {
      goal: `Export the BibTeX entry of the paper "${paper.title}". What is its citation key (the word after the opening brace)? Answer with the key.`,
      expected: bibtexKey(paper),
    };
  },

  "papers-alert"(world, draw) {
    const chosen = draw.some(SUBJECTS, 2),
      often = draw.one(["Daily", "Weekly", "Monthly"]),
      email = `${draw.one(["reader", "lab", "desk", "office"])}${draw.between(10, 99)}@mailbox.example`;
    return {
      goal: `Set up an email alert: ${often.toLowerCase()}, to ${email}, for the subjects ${chosen[0].name} and ${chosen[1].name}, without a word to filter by. Answer "done" when it is set up.`,
      touches: ["alerts"],
      correct: ({ alerts }) =>
        alerts.length === 1 &&
        alerts[0].email === email &&
        alerts[0].often === often &&
        !alerts[0].word &&
        alerts[0].subjects.length === 2 &&
        chosen.every(({ code }) => alerts[0].subjects.includes(code)),
    };
  },

  "papers-table"(world, draw) {
    const paper = draw.one(world.papers),
      row = draw.one(paper.results),
      column = draw.below(row.values.length);
    return {
      goal: `Open the PDF of the paper "${paper.title}". In Table 1, what is the value for "${row.method}" on ${subject(paper.subject).data[column]}? Answer with the number.`,
      expected: row.values[column],
    };
  },

  "papers-tidy"(world, draw) {
    const papers = draw.some(world.papers, 5).sort((a, b) => (a.date < b.date ? -1 : 1));
    const cut = draw.between(1, 3);
    const day = papers.find(({ date }) => date > papers[cut - 1].date)?.date ?? papers.at(-1).date;
    const list = draw.shuffled(papers).map((paper) => entry(paper));
    const kept = papers.filter(({ date }) => date >= day);
    return {
      goal: `Tidy up the reading list: remove every paper that was submitted before ${dates.british(day)}, and mark all others as read. Answer "done" at the end.`,
      state: { list },
      touches: ["list"],
      correct: ({ list }) =>
        same(
          list,
          kept.map((paper) => entry(paper, { read: true })),
        ) && kept.length < papers.length,
    };
  },

  "papers-note"(world, draw) {
    return until(draw, (draw) => {
      const author = draw.one(world.authors);
      const papers = papersBy(world, author).sort((a, b) => b.cited - a.cited);
      if (papers.length < 4 || papers[0].cited === papers[1].cited) return null;
      const folder = draw.one(["Thesis", "Reading group", "To review", "Teaching"]),
        note = draw.one([
          "Read before Monday",
          "Compare with our results",
          "Ask about the data",
          "Useful for chapter two",
        ]);
      return {
        goal: `Put the most cited paper by ${author} on the reading list, then edit the entry: move it to the folder "${folder}" and give it the note "${note}". Answer "done" at the end.`,
        touches: ["list"],
        correct: ({ list }) => same(list, [entry(papers[0], { folder, note })]),
      };
    });
  },

  "papers-report"(world, draw) {
    const paper = draw.one(world.papers),
      kind = draw.one(["Author's name", "Wrong subject", "Broken file", "Duplicate paper"]),
      email = `${draw.one(["reader", "lab", "desk", "office"])}${draw.between(10, 99)}@mailbox.example`;
    const text = {
      "Author's name": "The second name is spelled wrong",
      "Wrong subject": "This belongs to another subject",
      "Broken file": "The file does not open on my machine",
      "Duplicate paper": "The same text was submitted before",
    }[kind];
    return {
      goal: `Report an error in the paper with the identifier ${paper.id}. Kind of error: "${kind}". What is wrong: "${text}". Email: ${email}. Answer "done" when the report is sent.`,
      touches: ["reports"],
      correct: ({ reports }) =>
        reports.length === 1 &&
        reports[0].id === paper.id &&
        reports[0].kind === kind &&
        reports[0].text === text &&
        reports[0].email === email,
    };
  },

  "papers-best-reference"(world, draw) {
    return until(draw, (draw) => {
      const paper = draw.one(world.papers.filter((one) => one.references.length > 2));
      const [first, second] = [...paper.references].sort((a, b) => b.cited - a.cited);
      if (first.cited === second.cited) return null;
      return {
        goal: `Look at the references of the paper "${paper.title}". Which of the referenced papers is itself cited most often on Quarto? Answer with its full title.`,
        expected: first.title,
      };
    });
  },
};
