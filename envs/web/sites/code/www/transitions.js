// What a visitor of the code host can change, each a function of the state, plain arguments and the world. A transition throws where no page
// would do it. The rules of the forms are here, too: the pages show what a rule finds wrong, a transition throws it.

import { checked, filled, insist, refuse } from "/kit/rules.js";
import { LABELS, LANGUAGES, LICENSES, TOPICS, filesOf, issuesOf, releasesOf } from "/world.js";

export const SEVERITIES = ["Minor", "Annoying", "Blocking"];
export const BRANCHES = ["Only the main branch", "All branches"];
export const VISIBILITIES = ["Public", "Private"];
const LANGUAGE_NAMES = LANGUAGES.map(({ name }) => name);
const LABEL_NAMES = LABELS.map(({ name }) => name);

// ---- what the visitor sees of a repository ----

/** Its files with what the visitor has committed. */
export const filesNow = (now, repo) =>
  filesOf(repo).map((file) => {
    const own = now.commits.filter(({ id, path }) => id === repo.id && path === file.path).at(-1);
    return own ? { ...file, text: own.text } : file;
  });

export const issueKey = (repo, number) => `${repo.id}#${number}`;

/** Its issues with what the visitor has changed and opened. */
export const issuesNow = (now, repo) =>
  [...now.issues.filter(({ id }) => id === repo.id), ...issuesOf(repo)].map((issue) => ({
    ...issue,
    ...now.edits[issueKey(repo, issue.number)],
  }));

// ---- rules of the forms: (value) => what is wrong with it, or "" ----

const repositoryName = (value) =>
  /^[a-z0-9][a-z0-9-]{1,38}$/.test(value) ? "" : "Use small letters, digits and hyphens";

export const loginProblem = (world, { user, password }) =>
  user === world.account.user && password === world.account.password ? "" : "Wrong user name or password.";

export const forkRules = { name: repositoryName };

export const repositoryRules = (now, world) => ({
  name: (value) =>
    repositoryName(value) ||
    (world.byId.has(`${now.user}/${value}`) || now.repos.some(({ name }) => name === value)
      ? "You have a repository of that name"
      : ""),
});

export const issueRules = {
  title: (value) => (value.length >= 6 ? "" : "Enter a title of at least 6 letters"),
  body: filled("what happens"),
};

export const commentRules = { comment: filled("a comment") };

export const commitRules = { message: (value) => (value ? "" : "Say what you changed") };

// ---- what a transition insists on ----

function insistOnSome(options, chosen, what) {
  const fits = Array.isArray(chosen) && chosen.every((one) => options.includes(one));
  insist(fits && new Set(chosen).size === chosen.length, `no such ${what}`);
}

const insistOnUser = (now) => insist(now.user, "nobody is signed in");

function repository(world, id) {
  insist(world.byId.has(id), "no such repository");
  return world.byId.get(id);
}

/** A repository that belongs to the visitor. */
function ownRepository(now, world, id) {
  const repo = repository(world, id);
  insistOnUser(now);
  insist(repo.owner === now.user, "this repository belongs to somebody else");
  return repo;
}

const insistOnIssue = (now, repo, number) =>
  insist(
    issuesNow(now, repo).some((issue) => issue.number === number),
    "no such issue",
  );

/** Puts a repository on one of the visitor's lists, and takes it off again. */
const toggleOn =
  (list) =>
  (now, { id }, world) => {
    insistOnUser(now);
    const repo = repository(world, id);
    now[list] = now[list].includes(repo.id)
      ? now[list].filter((one) => one !== repo.id)
      : [...now[list], repo.id];
  };

const isFileName = (world, name) =>
  world.repos.some(
    (repo) =>
      filesOf(repo).some(({ path }) => path.split("/").at(-1) === name) ||
      releasesOf(repo).some(({ assets }) => assets.some((asset) => asset.name === name)),
  );

export const transitions = {
  "account.signIn"(now, { user, password }, world) {
    refuse(loginProblem(world, { user, password }));
    now.user = user;
  },

  "account.signOut"(now) {
    insistOnUser(now);
    now.user = null;
  },

  "stars.toggle": toggleOn("stars"),

  "watching.toggle": toggleOn("watching"),

  "forks.add"(now, { id, name, branches }, world) {
    insistOnUser(now);
    const repo = repository(world, id);
    checked({ name }, forkRules);
    insist(BRANCHES.includes(branches), "no such choice of branches");
    now.forks.push({ from: repo.id, name, branches });
  },

  "repos.create"(now, { name, about, visibility, language, license, readme, topics }, world) {
    insistOnUser(now);
    checked({ name }, repositoryRules(now, world));
    insist(typeof about === "string", "the description is no text");
    insist(VISIBILITIES.includes(visibility), "no such visibility");
    insist(LANGUAGE_NAMES.includes(language), "no such language");
    insist(["None", ...LICENSES].includes(license), "no such licence");
    insist(typeof readme === "boolean", "a README is added or not");
    insistOnSome(TOPICS, topics, "topic");
    const id = `${now.user}/${name}`;
    now.repos.push({ id, owner: now.user, name, about, visibility, language, license, readme, topics });
  },

  "commits.add"(now, { id, path, text, message }, world) {
    const repo = ownRepository(now, world, id);
    insist(
      filesOf(repo).some((file) => file.path === path),
      "no such file",
    );
    insist(typeof text === "string", "a file is a text");
    checked({ message }, commitRules);
    now.commits.push({ id: repo.id, path, text: text.replace(/\s+$/, ""), message });
  },

  "issues.open"(now, { id, title, body, labels, severity }, world) {
    insistOnUser(now);
    const repo = repository(world, id);
    checked({ title, body }, issueRules);
    insistOnSome(LABEL_NAMES, labels, "label");
    insist(SEVERITIES.includes(severity), "no such severity");
    const number = Math.max(...issuesNow(now, repo).map((issue) => issue.number)) + 1;
    now.issues.push({
      id: repo.id,
      number,
      title,
      body,
      labels,
      severity,
      author: now.user,
      day: world.today,
      open: true,
      assignee: null,
      comments: [],
    });
  },

  /** Closes an issue of the visitor's own repository, or opens it again. */
  "issues.setOpen"(now, { id, number, open }, world) {
    const repo = ownRepository(now, world, id),
      key = issueKey(repo, number);
    insistOnIssue(now, repo, number);
    insist(typeof open === "boolean", "an issue is open or closed");
    now.edits[key] = { ...now.edits[key], open };
  },

  "issues.setLabels"(now, { id, number, labels }, world) {
    const repo = ownRepository(now, world, id),
      key = issueKey(repo, number);
    insistOnIssue(now, repo, number);
    insistOnSome(LABEL_NAMES, labels, "label");
    now.edits[key] = { ...now.edits[key], labels };
  },

  "comments.add"(now, { id, number, text }, world) {
    insistOnUser(now);
    const repo = repository(world, id);
    insistOnIssue(now, repo, number);
    checked({ comment: text }, commentRules);
    now.comments.push({ id: repo.id, number, author: now.user, text });
  },

  download(now, { file }, world) {
    insist(isFileName(world, file), "no such file");
    now.downloads.push(file);
  },
};
