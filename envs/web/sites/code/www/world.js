// The code host's content, drawn from the seed: 160 repositories of 44 owners, each with files, commits, issues, releases and contributors.

import * as dates from "/kit/dates.js";
import { FIRST, LAST, person } from "/kit/words.js";

export const NAME = "Stackyard";
const REPOSITORIES = 160;

export const LANGUAGES = [
  { name: "Ember", hue: 14, ext: "emb", fn: "fn", note: "//", end: "}" },
  { name: "Quill", hue: 204, ext: "ql", fn: "def", note: "#", end: "end" },
  { name: "Brisk", hue: 168, ext: "bk", fn: "func", note: "//", end: "}" },
  { name: "Loam", hue: 34, ext: "lm", fn: "to", note: ";", end: "done" },
  { name: "Vane", hue: 280, ext: "vn", fn: "let", note: "--", end: "in" },
  { name: "Tarn", hue: 96, ext: "trn", fn: "proc", note: "#", end: "end" },
];
export const language = (name) => LANGUAGES.find((one) => one.name === name);
export const TOPICS = [
  "parser",
  "scheduler",
  "database",
  "terminal",
  "graphics",
  "networking",
  "testing",
  "compression",
  "audio",
  "mapping",
  "search",
  "crypto",
];
export const LICENSES = [
  "Permissive 1.0",
  "Share-alike 2.0",
  "Attribution 3.0",
  "Public domain",
  "Workshop licence",
];
export const LABELS = [
  { name: "bug", hue: 4 },
  { name: "feature", hue: 190 },
  { name: "documentation", hue: 220 },
  { name: "performance", hue: 36 },
  { name: "security", hue: 340 },
  { name: "question", hue: 280 },
  { name: "duplicate", hue: 210 },
  { name: "good first issue", hue: 150 },
];
const ADJECTIVES = [
  "tiny",
  "swift",
  "quiet",
  "bold",
  "paper",
  "copper",
  "night",
  "north",
  "iron",
  "clear",
  "open",
  "lazy",
  "velvet",
  "hollow",
  "plain",
  "double",
];
const NOUNS = [
  "otter",
  "ledger",
  "lantern",
  "gear",
  "kettle",
  "anchor",
  "beacon",
  "spindle",
  "harbor",
  "sparrow",
  "quarry",
  "thistle",
  "pulley",
  "raven",
  "meadow",
  "compass",
  "hinge",
  "loom",
];
const ORGS = [
  "granite-labs",
  "tidewater",
  "openfoundry",
  "blue-barn",
  "lowland-systems",
  "sixth-floor",
  "papermill",
  "wayfinders",
  "nightowl-tools",
  "cedarworks",
  "mirrorlake",
  "plainsong",
];
const PURPOSE = {
  parser: "A parser that tells where it stumbled",
  scheduler: "Runs jobs when their time has come",
  database: "A small store that survives power cuts",
  terminal: "Tables and menus for the terminal",
  graphics: "Draws shapes without a window system",
  networking: "Connections that come back by themselves",
  testing: "Tests that name what broke",
  compression: "Packs logs tighter than the usual tools",
  audio: "Mixes and trims sound files",
  mapping: "Maps from plain survey data",
  search: "Full text search in one file",
  crypto: "Signing and sealing with few choices",
};
const VERBS = [
  "read",
  "write",
  "merge",
  "split",
  "open",
  "close",
  "check",
  "pack",
  "walk",
  "trim",
  "align",
  "fetch",
  "flush",
  "watch",
];
const THINGS = [
  "header",
  "block",
  "frame",
  "queue",
  "index",
  "token",
  "buffer",
  "record",
  "page",
  "cache",
  "signal",
  "table",
];
const SETTINGS = [
  ["port", 1024, 9900],
  ["timeout", 5, 90],
  ["max_retries", 2, 12],
  ["workers", 2, 64],
  ["cache_size", 64, 4096],
  ["batch", 8, 512],
  ["log_days", 3, 60],
  ["queue_limit", 100, 5000],
];
const FAULTS = [
  "crashes when the",
  "loses the last",
  "leaks memory in the",
  "is slow with a large",
  "ignores an empty",
  "prints a wrong",
  "hangs on a broken",
  "rejects a valid",
];
const WISHES = [
  "Add an option for the",
  "Document the",
  "Support a second",
  "Show progress for the",
  "Make it possible to skip the",
  "Allow a custom",
];
const REMARKS = [
  "I see the same on two machines.",
  "Could you attach a small example?",
  "This is fixed on the main branch.",
  "Bisected it to last month's change.",
  "Happy to write a patch for this.",
  "I think the guide is wrong here, not the code.",
  "Works for me with a fresh checkout.",
  "Raising the timeout helps a little.",
];
const PLATFORMS = ["linux", "macos", "windows", "source"];

/** The whole site. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-15", draw.below(270));
  const names = new Set();
  const people = [...Array(32)].map(() => {
    let user;
    do user = handle(draw);
    while (names.has(user));
    names.add(user);
    return user;
  });
  const owners = [...draw.shuffled(ORGS).slice(0, 12), ...people];
  const taken = new Set();
  const repos = Array.from({ length: REPOSITORIES }, (_, index) =>
    makeRepo(draw.fork(`repo/${index}`), { owners, people, taken, today }),
  );
  const account = {
    user: draw.one(people),
    password: `${draw.one(ADJECTIVES)}-${draw.one(NOUNS)}-${draw.between(10, 99)}`,
  };
  const own = [0, 1].map((at) =>
    makeRepo(draw.fork(`own/${at}`), { owners: [account.user], people, taken, today }),
  );
  repos.push(...own);
  return { today, repos, people, owners, account, own, byId: new Map(repos.map((repo) => [repo.id, repo])) };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  user: null,
  stars: [],
  watching: [],
  forks: [],
  issues: [],
  comments: [],
  edits: {},
  repos: [],
  commits: [],
  downloads: [],
});

function handle(draw) {
  const first = draw.one(FIRST).toLowerCase(),
    last = draw.one(LAST).toLowerCase();
  return draw.one([
    `${first}${last[0]}`,
    `${first}-${last}`,
    `${last}${draw.between(2, 99)}`,
    `${first}${draw.between(2, 99)}`,
  ]);
}

function makeRepo(draw, { owners, people, taken, today }) {
  let id, name, owner;
  do {
    name = `${draw.one(ADJECTIVES)}-${draw.one(NOUNS)}`;
    owner = draw.one(owners);
    id = `${owner}/${name}`;
  } while (taken.has(name));
  taken.add(name);
  const topic = draw.one(TOPICS),
    stars = Math.round(10 ** draw.decimal(1, 4.6, 4));
  return {
    id,
    owner,
    name,
    topic,
    topics: [
      topic,
      ...draw.some(
        TOPICS.filter((one) => one !== topic),
        draw.between(0, 2),
      ),
    ],
    about: `${PURPOSE[topic]}.`,
    language: draw.one(LANGUAGES).name,
    license: draw.one(LICENSES),
    stars,
    forks: Math.round(stars * draw.decimal(0.03, 0.3, 2)) + 1,
    updated: dates.plus(today, -draw.between(0, 320)),
    created: dates.plus(today, -draw.between(400, 3000)),
    team: draw.some(people, draw.between(4, 9)),
    draw,
  };
}

// ---- what is drawn only when it is looked at ----

const memo = new Map();
const once = (repo, what, make) => {
  const key = `${repo.id}/${what}`;
  if (!memo.has(key)) memo.set(key, make(repo.draw.fork(what)));
  return memo.get(key);
};

/** Who holds the rights to a repository, as its licence says. */
export const holderOf = (repo) => person(repo.draw.fork("holder"));

/** Files by path: { path, text }. */
export const filesOf = (repo) =>
  once(repo, "files", (draw) => {
    const lang = language(repo.language);
    const settings = SETTINGS.map(([key, low, high]) => `${key} = ${draw.between(low, high)}`);
    const modules = draw.some(THINGS, draw.between(5, 8)),
      taken = new Set();
    const functions = (count) =>
      Array.from({ length: count }, () => {
        let name;
        do name = `${draw.one(VERBS)}_${draw.one(THINGS)}`;
        while (taken.has(name));
        taken.add(name);
        return name;
      });
    const source = (about) => {
      const body = functions(draw.between(2, 4))
        .map(
          (name) =>
            `${lang.fn} ${name}(input, limit)\n    size = measure(input)\n    if size > ${draw.between(4, 900)}\n        return error("too large")\n    return ${draw.one(VERBS)}(input, limit)\n${lang.end}`,
        )
        .join("\n\n");
      return `${lang.note} ${about}\n\nconst LIMIT_${about.split(" ")[0].toUpperCase()} = ${draw.between(16, 4096)}\n\n${body}\n`;
    };
    const list = [
      [
        "README.md",
        `# ${repo.name}\n\n${repo.about}\n\n## Getting started\n\nInstall it, set the port in config/default.conf, and start it with "${repo.name} run".\n\n## Licence\n\n${repo.license}`,
      ],
      [
        "LICENSE",
        `${repo.license}\n\nAll rights are held by ${holderOf(repo)}.\n\nYou may use, change and pass on this work on the terms of the licence named above.`,
      ],
      ["config/default.conf", settings.join("\n")],
      [
        "config/limits.conf",
        draw
          .shuffled(SETTINGS)
          .slice(0, 4)
          .map(([key, low, high]) => `hard_${key} = ${draw.between(low, high) * 2}`)
          .join("\n"),
      ],
      ...modules.map((name) => [`src/${name}.${lang.ext}`, source(`${name} of ${repo.name}`)]),
      ...modules.slice(0, 2).map((name) => [`src/io/${name}_file.${lang.ext}`, source(`${name} on disk`)]),
      ...modules
        .slice(0, 3)
        .map((name) => [
          `tests/${name}_test.${lang.ext}`,
          `${lang.note} tests of ${name}\n\n${lang.fn} test_${name}()\n    expect(${draw.one(VERBS)}("${name}"), ${draw.between(1, 99)})\n${lang.end}\n`,
        ]),
      ["docs/guide.md", `# Guide\n\nThe usual order is ${draw.some(VERBS, 4).join(", ")}.`],
      ["docs/install.md", `# Installing\n\nNeeds ${draw.between(20, 900)} MB of disk space.`],
    ];
    return list.map(([path, text]) => ({ path, text }));
  });

/** Commits, newest first: { hash, message, author, day, added, removed, path }. */
export const commitsOf = (repo) =>
  once(repo, "commits", (draw) => {
    const paths = filesOf(repo).map(({ path }) => path),
      hashes = new Set();
    let day = repo.updated;
    return Array.from({ length: draw.between(34, 70) }, () => {
      let hash;
      do hash = Array.from({ length: 7 }, () => "0123456789abcdef"[draw.below(16)]).join("");
      while (hashes.has(hash));
      hashes.add(hash);
      const commit = {
        hash,
        message: `${draw.one(["Fix", "Speed up", "Rename", "Test", "Simplify", "Document", "Guard"])} the ${draw.one(THINGS)} ${draw.one(["reader", "writer", "check", "loop", "limits", "path"])}`,
        author: draw.weighted(repo.team.map((user, at) => [user, repo.team.length * 2 - at])),
        day,
        added: draw.between(1, 320),
        removed: draw.between(0, 180),
        path: draw.one(paths),
      };
      day = dates.plus(day, -draw.between(0, 6));
      return commit;
    });
  });

/** Issues, newest first: { number, title, author, day, labels, open, assignee, body, comments }. */
export const issuesOf = (repo) =>
  once(repo, "issues", (draw) => {
    const titles = new Set(),
      size = draw.between(18, 44);
    let day = repo.updated,
      number = draw.between(60, 900);
    return Array.from({ length: size }, () => {
      const labels = draw
        .some(
          LABELS,
          draw.weighted([
            [1, 5],
            [2, 3],
            [0, 1],
          ]),
        )
        .map(({ name }) => name);
      let title;
      do
        title = draw.chance(0.6)
          ? `It ${draw.one(FAULTS)} ${draw.one(THINGS)}`
          : `${draw.one(WISHES)} ${draw.one(THINGS)}`;
      while (titles.has(title));
      titles.add(title);
      const comments = Array.from(
        {
          length: draw.weighted([
            [0, 2],
            [1, 3],
            [3, 3],
            [5, 2],
          ]),
        },
        (_, at) => ({ author: draw.one(repo.team), text: draw.one(REMARKS), day: dates.plus(day, at) }),
      );
      const issue = {
        number,
        title,
        author: draw.one(repo.team),
        day,
        labels,
        open: draw.chance(0.62),
        assignee: draw.chance(0.5) ? draw.one(repo.team) : null,
        body: `${title}. Seen with version ${draw.between(0, 3)}.${draw.between(0, 12)}.${draw.between(0, 9)}, each time.`,
        comments,
      };
      number -= draw.between(1, 2);
      day = dates.plus(day, -draw.between(0, 7));
      return issue;
    });
  });

/** Releases, newest first: { version, day, notes, assets: [{ name, size, downloads }] }. */
export const releasesOf = (repo) =>
  once(repo, "releases", (draw) => {
    let [major, minor, patch] = [draw.between(1, 4), draw.between(1, 9), draw.between(0, 4)],
      day = dates.plus(repo.updated, -draw.between(1, 20));
    return Array.from({ length: draw.between(4, 7) }, () => {
      const version = `v${major}.${minor}.${patch}`;
      const release = {
        version,
        day,
        notes: draw
          .some(THINGS, 3)
          .map((thing) => `${draw.one(["Faster", "Safer", "Simpler", "New"])} ${thing}`),
        assets: PLATFORMS.map((platform) => ({
          name: `${repo.name}-${version.slice(1)}-${platform}.${platform === "windows" ? "zip" : "tar"}`,
          size: draw.decimal(0.4, 48),
          downloads: draw.between(12, 9800),
        })),
      };
      if (patch > 0) patch -= 1;
      else if (minor > 0) {
        minor -= 1;
        patch = draw.between(0, 3);
      } else {
        major = Math.max(0, major - 1);
        minor = 9;
        patch = draw.between(0, 3);
      }
      day = dates.plus(day, -draw.between(12, 90));
      return release;
    });
  });

/** Who wrote how many of the commits, most first. */
export function contributorsOf(repo) {
  const counts = new Map();
  for (const { author, added } of commitsOf(repo)) {
    const now = counts.get(author) ?? { user: author, commits: 0, added: 0 };
    counts.set(author, { ...now, commits: now.commits + 1, added: now.added + added });
  }
  return [...counts.values()].sort((a, b) => b.commits - a.commits || (a.user < b.user ? -1 : 1));
}

/** Repositories that fit, in order. */
export function search(world, { q = "", lang = "", topic = "", license = "", sort = "stars" }) {
  const words = q
    .toLowerCase()
    .split(/[\s/]+/)
    .filter(Boolean);
  const found = world.repos.filter(
    (repo) =>
      words.every((word) =>
        `${repo.id} ${repo.about} ${repo.topics.join(" ")}`.toLowerCase().includes(word),
      ) &&
      (!lang || repo.language === lang) &&
      (!topic || repo.topics.includes(topic)) &&
      (!license || repo.license === license),
  );
  const orders = {
    stars: (a, b) => b.stars - a.stars,
    forks: (a, b) => b.forks - a.forks,
    updated: (a, b) => (a.updated < b.updated ? 1 : -1),
    name: (a, b) => (a.name < b.name ? -1 : 1),
  };
  return found.sort((a, b) => (orders[sort] ?? orders.stars)(a, b) || (a.id < b.id ? -1 : 1));
}
