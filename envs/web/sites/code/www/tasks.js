// The code host's tasks: each a function of the world and a draw that belongs to the task.

import { same, until } from "/kit/tasks.js";
import {
  LABELS,
  LANGUAGES,
  LICENSES,
  TOPICS,
  commitsOf,
  contributorsOf,
  filesOf,
  holderOf,
  issuesOf,
  releasesOf,
  search,
} from "/world.js";
import { issueKey } from "/transitions.js";

const signIn = ({ account }) => `Sign in as ${account.user} with the password ${account.password}.`;
const config = (repo) => filesOf(repo).find(({ path }) => path === "config/default.conf");
const settings = (repo) =>
  config(repo)
    .text.split("\n")
    .map((line) => line.split(" = "));
/** A repository that is not the visitor's. */
const foreign = (world, draw) => draw.one(world.repos.filter(({ owner }) => owner !== world.account.user));

/** Whether exactly the issues of these keys were closed: the others are as they were, and so are all labels. */
function onlyClosed(edits, repo, keys) {
  const stands = ({ open, labels }, key, issue) =>
    (open ?? issue.open) === (issue.open && !keys.includes(key)) &&
    same(labels ?? issue.labels, issue.labels);
  const issues = new Map(issuesOf(repo).map((issue) => [issueKey(repo, issue.number), issue]));
  return (
    keys.every((key) => edits[key]) &&
    Object.entries(edits).every(([key, edit]) => issues.has(key) && stands(edit, key, issues.get(key)))
  );
}

export const tasks = {
  "code-license"(world, draw) {
    const repo = draw.one(world.repos);
    return {
      goal: `Who holds the rights to the repository ${repo.id}, according to its licence (the file LICENSE)? Answer with the full name.`,
      expected: holderOf(repo),
    };
  },

  "code-setting"(world, draw) {
    return until(draw, (draw) => {
      const repo = draw.one(world.repos),
        [key, value] = draw.one(settings(repo));
      return {
        goal: `What is the value of ${key} in the file config/default.conf of the repository ${repo.id}? Answer with the number.`,
        expected: Number(value),
      };
    });
  },

  "code-commit"(world, draw) {
    const repo = draw.one(world.repos),
      commit = draw.one(commitsOf(repo).slice(0, 20));
    return {
      goal: `Who is the author of the commit ${commit.hash} in the repository ${repo.id}? Answer with the user name.`,
      expected: commit.author,
    };
  },

  "code-star"(world, draw) {
    const repos = draw.some(world.repos, 2);
    return {
      goal: `${signIn(world)} Star the repositories ${repos[0].id} and ${repos[1].id}. Answer "done" at the end.`,
      touches: ["stars"],
      correct: ({ stars }) =>
        same(
          stars,
          repos.map(({ id }) => id),
        ),
    };
  },

  "code-search"(world, draw) {
    return until(draw, (draw) => {
      const lang = draw.one(LANGUAGES).name,
        topic = draw.one(TOPICS),
        [first, second] = search(world, { lang, topic });
      return !second || first.stars === second.stars
        ? null
        : {
            goal: `Which repository written in ${lang} with the topic ${topic} has the most stars? Answer with its name.`,
            expected: [first.id, first.name],
          };
    });
  },

  "code-newest"(world, draw) {
    return until(draw, (draw) => {
      const license = draw.one(LICENSES),
        topic = draw.one(TOPICS),
        [first, second] = search(world, { license, topic, sort: "updated" });
      return !second || first.updated === second.updated
        ? null
        : {
            goal: `Which repository with the topic ${topic} and the licence "${license}" was updated last? Answer with its name.`,
            expected: [first.id, first.name],
          };
    });
  },

  "code-issues"(world, draw) {
    return until(draw, (draw) => {
      const repo = foreign(world, draw),
        label = draw.one(LABELS).name,
        shut = draw.chance(),
        oldest = draw.chance(),
        found = issuesOf(repo)
          .filter((issue) => issue.open !== shut && issue.labels.includes(label))
          .map(({ number }) => number);
      return found.length < 2
        ? null
        : {
            goal: `Among the ${shut ? "closed" : "open"} issues of the repository ${repo.id} that carry the label "${label}", which is the ${oldest ? "oldest" : "newest"}? Answer with its number, which stands after the sign #.`,
            expected: oldest ? Math.min(...found) : Math.max(...found),
          };
    });
  },

  "code-oldest"(world, draw) {
    return until(draw, (draw) => {
      const repo = foreign(world, draw),
        assignee = draw.one(repo.team),
        mine = issuesOf(repo)
          .filter((issue) => issue.open && issue.assignee === assignee)
          .sort((a, b) => a.number - b.number);
      return mine.length < 2
        ? null
        : {
            goal: `Which is the oldest open issue of the repository ${repo.id} that is assigned to ${assignee}? Answer with its title.`,
            expected: mine[0].title,
          };
    });
  },

  "code-contributor"(world, draw) {
    return until(draw, (draw) => {
      const repo = draw.one(world.repos),
        list = contributorsOf(repo).sort((a, b) => b.added - a.added);
      return list[0].added === list[1].added
        ? null
        : {
            goal: `Which contributor of the repository ${repo.id} has added the most lines? Answer with the user name.`,
            expected: list[0].user,
          };
    });
  },

  "code-download"(world, draw) {
    const repo = draw.one(world.repos),
      release = draw.one(releasesOf(repo)),
      platform = draw.one(["linux", "macos", "windows"]);
    return {
      goal: `Download the ${platform} build of release ${release.version} of the repository ${repo.id}. Answer "done" at the end.`,
      touches: ["downloads"],
      correct: ({ downloads }) =>
        same(
          downloads,
          release.assets.filter(({ name }) => name.includes(`-${platform}.`)).map(({ name }) => name),
        ),
    };
  },

  "code-find"(world, draw) {
    return until(draw, (draw) => {
      const repo = draw.one(world.repos),
        file = draw.one(filesOf(repo).filter(({ path }) => path.startsWith("src/"))),
        [, name] = file.text.match(/(?:fn|def|func|to|let|proc) (\w+)\(input/);
      return filesOf(repo).some((other) => other !== file && other.text.includes(name))
        ? null
        : {
            goal: `Which file of the repository ${repo.id} defines the function ${name}? Answer with its path from the root of the repository.`,
            expected: file.path,
          };
    });
  },

  "code-comment"(world, draw) {
    const repo = foreign(world, draw),
      issue = draw.one(issuesOf(repo).filter(({ open }) => open)),
      text = draw.one([
        "I can reproduce this with the latest release.",
        "Which version are you on?",
        "A patch for this is on its way.",
        "Please add the log of a failing run.",
      ]);
    return {
      goal: `${signIn(world)} Write the comment "${text}" under issue #${issue.number} of the repository ${repo.id}, which has the title "${issue.title}". Answer "done" at the end.`,
      touches: ["comments"],
      correct: ({ comments }) =>
        comments.length === 1 &&
        comments[0].id === repo.id &&
        comments[0].number === issue.number &&
        comments[0].text === text,
    };
  },

  "code-report"(world, draw) {
    const repo = foreign(world, draw),
      labels = draw.some(LABELS, 2).map(({ name }) => name),
      severity = draw.one(["Annoying", "Blocking"]),
      title = draw.one([
        "Start fails without a network",
        "Progress bar runs backwards",
        "Totals differ by one",
        "Dates before 1900 are cut off",
      ]),
      body = `Seen ${draw.between(3, 40)} times since yesterday`;
    return {
      goal: `${signIn(world)} Open a new issue in the repository ${repo.id}: title "${title}", description "${body}", severity "${severity}", labels "${labels[0]}" and "${labels[1]}". Answer "done" at the end.`,
      touches: ["issues"],
      correct: ({ issues: [issue, more] }) =>
        issue &&
        !more &&
        issue.id === repo.id &&
        issue.title === title &&
        issue.body === body &&
        issue.severity === severity &&
        same(issue.labels, labels),
    };
  },

  "code-triage"(world, draw) {
    return until(draw, (draw) => {
      const repo = draw.one(world.own),
        label = draw.one(LABELS).name,
        shut = issuesOf(repo)
          .filter((issue) => issue.open && issue.labels.includes(label))
          .map(({ number }) => issueKey(repo, number));
      return shut.length < 2 || shut.length > 4
        ? null
        : {
            goal: `${signIn(world)} In your repository ${repo.id}, close every open issue that carries the label "${label}" and no others. Answer "done" at the end.`,
            touches: ["edits"],
            correct: ({ edits }) => onlyClosed(edits, repo, shut),
          };
    });
  },

  "code-create"(world, draw) {
    const name = `${draw.one(["field", "studio", "garden", "winter", "harvest"])}-${draw.one(["notes", "tools", "scripts", "charts"])}-${draw.between(10, 99)}`,
      about = draw.one([
        "Small helpers for the team",
        "Figures for the yearly report",
        "Scripts from the workshop",
      ]),
      lang = draw.one(LANGUAGES).name,
      license = draw.one(LICENSES),
      topics = draw.some(TOPICS, 2);
    return {
      goal: `${signIn(world)} Create a private repository called "${name}" with the description "${about}", the language "${lang}", the licence "${license}", a README file and the topics "${topics[0]}" and "${topics[1]}". Answer "done" at the end.`,
      touches: ["repos"],
      correct: ({ repos: [repo, more] }) =>
        repo &&
        !more &&
        repo.name === name &&
        repo.about === about &&
        repo.visibility === "Private" &&
        repo.language === lang &&
        repo.license === license &&
        repo.readme &&
        same(repo.topics, topics),
    };
  },

  "code-edit"(world, draw) {
    const repo = draw.one(world.own),
      file = config(repo),
      [key, old] = draw.one(settings(repo)),
      value = Number(old) + draw.between(3, 60),
      message = draw.one(["Tune the defaults", "Raise the limits", "Settings for the new machine"]);
    const wanted = file.text
      .split("\n")
      .map((line) => (line.startsWith(`${key} =`) ? `${key} = ${value}` : line))
      .join("\n");
    return {
      goal: `${signIn(world)} In your repository ${repo.id}, change ${key} in the file config/default.conf to ${value}, leave the rest as it is, and commit with the message "${message}". Answer "done" at the end.`,
      touches: ["commits"],
      correct: ({ commits: [commit, more] }) =>
        commit &&
        !more &&
        commit.id === repo.id &&
        commit.path === file.path &&
        commit.message === message &&
        commit.text.trim() === wanted,
    };
  },
};
