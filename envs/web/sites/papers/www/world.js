// The archive's content, drawn from the seed: 420 papers in eight subjects by 150 authors, over two years up to today.

import * as dates from "/kit/dates.js";
import { capital } from "/kit/dom.js";
import { people } from "/kit/words.js";

export const ARCHIVE = "Quarto";
const PAPERS = 420;
const DAYS = 730;

/** Subject, its code, and the words its titles and abstracts are made of. */
export const SUBJECTS = [
  {
    code: "lea.ML",
    name: "Machine Learning",
    things: [
      "sparse transformers",
      "graph networks",
      "diffusion models",
      "contrastive encoders",
      "mixture-of-experts layers",
      "state space models",
    ],
    aims: [
      "long-context retrieval",
      "few-shot classification",
      "tabular prediction",
      "offline control",
      "continual learning",
    ],
    measures: ["Accuracy", "F1", "Latency"],
    data: ["Larkset", "OmniTab", "Rill-10k", "Northwind"],
  },
  {
    code: "lea.CL",
    name: "Computation and Language",
    things: [
      "multilingual tokenizers",
      "dialogue agents",
      "retrieval-augmented readers",
      "speech translators",
      "summarisation systems",
    ],
    aims: [
      "low-resource languages",
      "legal documents",
      "clinical notes",
      "code-switched speech",
      "news timelines",
    ],
    measures: ["BLEU", "ROUGE", "Accuracy"],
    data: ["PolyNews", "CourtNotes", "Tally", "Murmur"],
  },
  {
    code: "lea.CV",
    name: "Computer Vision",
    things: [
      "monocular depth estimators",
      "video segmenters",
      "neural radiance fields",
      "vision-language models",
      "pose trackers",
    ],
    aims: ["underwater scenes", "surgical video", "satellite imagery", "night driving", "crowded streets"],
    measures: ["mIoU", "PSNR", "Accuracy"],
    data: ["ReefView", "Skyline-5", "NightLane", "Atlas"],
  },
  {
    code: "sys.DC",
    name: "Distributed Systems",
    things: [
      "consensus protocols",
      "serverless schedulers",
      "erasure-coded stores",
      "stream processors",
      "vector databases",
    ],
    aims: [
      "geo-replicated clusters",
      "spot instances",
      "tail latency",
      "heterogeneous accelerators",
      "edge sites",
    ],
    measures: ["Throughput", "Latency", "Availability"],
    data: ["Trace-A", "Trace-B", "WebMix", "Burst"],
  },
  {
    code: "ast.GA",
    name: "Astrophysics of Galaxies",
    things: [
      "dwarf satellites",
      "ionised outflows",
      "stellar streams",
      "dust-obscured quasars",
      "globular clusters",
    ],
    aims: ["the Local Volume", "redshift two", "low-density voids", "compact groups", "the galactic halo"],
    measures: ["Mass", "Redshift", "Velocity"],
    data: ["Field 12", "Field 37", "Survey N", "Survey S"],
  },
  {
    code: "qua.PH",
    name: "Quantum Physics",
    things: [
      "surface codes",
      "trapped-ion gates",
      "photonic cluster states",
      "variational circuits",
      "bosonic qubits",
    ],
    aims: ["fault tolerance", "noisy hardware", "quantum chemistry", "network repeaters", "metrology"],
    measures: ["Fidelity", "Error rate", "Depth"],
    data: ["Chip A", "Chip B", "Simulator", "Testbed"],
  },
  {
    code: "bio.NC",
    name: "Neurons and Cognition",
    things: [
      "hippocampal replay",
      "cortical travelling waves",
      "dopamine signals",
      "place cells",
      "spiking attractors",
    ],
    aims: ["spatial memory", "sleep", "decision making", "motor learning", "working memory"],
    measures: ["Accuracy", "Spike rate", "Correlation"],
    data: ["Session 1", "Session 2", "Mouse set", "Human set"],
  },
  {
    code: "mat.OC",
    name: "Optimization and Control",
    things: [
      "proximal methods",
      "model predictive controllers",
      "bilevel programs",
      "stochastic gradient schemes",
      "mean-field games",
    ],
    aims: [
      "power grids",
      "non-smooth objectives",
      "multi-robot fleets",
      "inventory planning",
      "sparse recovery",
    ],
    measures: ["Gap", "Iterations", "Time"],
    data: ["Grid-30", "Grid-118", "Fleet", "Basis"],
  },
];
export const subject = (code) => SUBJECTS.find((one) => one.code === code);

const FORMS = [
  (thing, aim, draw) =>
    `${capital(draw.one(["rethinking", "scaling", "understanding", "revisiting", "accelerating", "calibrating"]))} ${thing} for ${aim}`,
  (thing, aim, draw) =>
    `${capital(thing)} for ${aim}: ${draw.one(["a unified view", "a comparative study", "limits and opportunities", "theory and practice", "an empirical account", "lessons from the field"])}`,
  (thing, aim, draw) =>
    `On the ${draw.one(["stability", "robustness", "efficiency", "sensitivity", "geometry", "cost"])} of ${thing} in ${aim}`,
  (thing, aim, draw) =>
    `${draw.one(["Tern", "Osprey", "Kelp", "Basalt", "Cinder", "Marrow", "Sable", "Thicket", "Vesper", "Wicket"])}${draw.one(["", "-2", "Net", "Bench", "X"])}: ${thing} for ${aim}`,
  (thing, aim, draw) =>
    `${capital(draw.one(["towards", "beyond"]))} ${draw.one(["reliable", "interpretable", "provable", "scalable", "adaptive"])} ${thing} in ${aim}`,
];

/** The whole archive. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-01", draw.below(300));
  const authors = people(draw.fork("authors"), 150);
  const home = new Map(authors.map((author, index) => [author, SUBJECTS[index % SUBJECTS.length].code]));
  const titles = new Set();
  const papers = Array.from({ length: PAPERS }, (_, index) =>
    makePaper(draw.fork(index), { today, authors, home, titles }),
  );
  papers.sort((a, b) => (a.date < b.date ? 1 : a.date > b.date ? -1 : 0));
  number(papers);
  cite(papers, draw.fork("references"));
  return { today, papers, authors, byId: new Map(papers.map((paper) => [paper.id, paper])) };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({ list: [], alerts: [], reports: [] });

function makePaper(draw, { today, authors, home, titles }) {
  const field = draw.one(SUBJECTS);
  const insiders = authors.filter((author) => home.get(author) === field.code);
  const thing = draw.one(field.things),
    aim = draw.one(field.aims);
  let title;
  do title = draw.one(FORMS)(thing, aim, draw);
  while (titles.has(title));
  titles.add(title);
  const team = [
    ...draw.some(insiders, draw.between(1, 4)),
    ...(draw.chance(0.3)
      ? draw.some(
          authors.filter((author) => !insiders.includes(author)),
          1,
        )
      : []),
  ];
  const age = Math.floor(DAYS * draw.number());
  const date = dates.plus(today, -age);
  const versions = [{ date, size: draw.between(180, 4200) }];
  while (versions.length < 4 && draw.chance(0.35)) {
    const later = dates.plus(versions.at(-1).date, draw.between(6, 90));
    if (later > today) break;
    versions.push({ date: later, size: versions.at(-1).size + draw.between(-30, 160) });
  }
  const [pages, figures, tables] = [draw.between(6, 48), draw.between(2, 14), draw.between(1, 5)];
  const others = draw.chance(0.35) ? [draw.one(SUBJECTS.filter((one) => one !== field)).code] : [];
  const methods = draw
    .shuffled(["Baseline", "Ours (small)", "Ours (large)", "Prior work", "No pre-training", "Oracle"])
    .slice(0, 5);
  const results = methods.map((method) => ({ method, values: field.data.map(() => draw.decimal(11, 96)) }));
  return {
    title,
    authors: team,
    subject: field.code,
    others,
    date,
    versions,
    pages,
    figures,
    tables,
    thing,
    aim,
    results,
    measure: draw.one(field.measures),
    cited: 0,
    references: [],
    journal: draw.chance(0.3)
      ? `${draw.one(["Annals of", "Journal of", "Letters in", "Transactions on"])} ${field.name} ${draw.between(3, 60)} (${dates.year(date)}) ${draw.between(1, 900)}`
      : null,
    license: draw.one(["CC BY 4.0", "CC BY-NC 4.0", "CC0 1.0"]),
    abstract: makeAbstract(draw, field, thing, aim),
  };
}

function makeAbstract(draw, field, thing, aim) {
  const gain = draw.between(3, 41);
  return [
    `${capital(thing)} are met again and again in work on ${aim}, yet their ${draw.one(["failure modes", "costs", "assumptions", "limits"])} remain poorly understood.`,
    draw.one([
      `We study this question on ${field.data[0]} and ${field.data[1]}.`,
      `Here we give a systematic account over ${draw.between(4, 30)} settings.`,
      `In this paper we present a method that needs ${draw.one(["no extra supervision", "half the compute", "a single pass over the data"])}.`,
    ]),
    draw.one([
      `Our analysis shows that ${draw.one(["the choice of regularisation", "the order of the data", "early stopping", "the noise level"])} matters more than the size of the model.`,
      "A simple change in the objective explains most of the difference.",
      "We prove a matching lower bound under mild conditions.",
    ]),
    `Compared with prior work we improve ${draw.one(field.measures)} by ${gain}% while using ${draw.between(2, 9)} times less memory.`,
    draw.one([
      "Code and data are released.",
      "We discuss what this means for practice.",
      "Open problems are listed at the end.",
    ]),
  ].join(" ");
}

// Identifiers count through each month, as archives do: 2703.00014.
function number(papers) {
  const counts = {};
  for (const paper of [...papers].reverse()) {
    const key = paper.date.slice(2, 4) + paper.date.slice(5, 7);
    counts[key] = (counts[key] ?? 0) + 1;
    paper.id = `${key}.${String(counts[key] * 7 + 3).padStart(5, "0")}`;
  }
}

function cite(papers, draw) {
  papers.forEach((paper, index) => {
    const older = papers
      .slice(index + 1)
      .filter((one) => one.date < paper.date && (one.subject === paper.subject || draw.chance(0.04)));
    paper.references = draw.some(older, draw.between(2, 7));
    for (const one of paper.references) one.cited += 1;
  });
}

export const papersBy = (world, author) => world.papers.filter((paper) => paper.authors.includes(author));
export const bibtexKey = (paper) =>
  `${paper.authors[0].split(" ").at(-1).toLowerCase()}${dates.year(paper.date)}${paper.title
    .toLowerCase()
    .split(/[^a-z]+/)
    .find((word) => word.length > 3 && word !== "towards" && word !== "beyond")}`;
export const comments = (paper) =>
  `${paper.pages} pages, ${paper.figures} figures, ${paper.tables} table${paper.tables > 1 ? "s" : ""}`;

/** Papers that fit: every word in the field asked for; then subjects, days, order. */
export function search(
  world,
  { q = "", field = "all", subjects = [], from = "", to = "", order = "newest" },
) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = {
    title: (paper) => paper.title,
    author: (paper) => paper.authors.join(" "),
    abstract: (paper) => paper.abstract,
    id: (paper) => paper.id,
    all: (paper) => `${paper.title} ${paper.authors.join(" ")} ${paper.abstract} ${paper.id}`,
  };
  const text = texts[field] ?? texts.all;
  const fits = (paper) => {
    const lower = text(paper).toLowerCase();
    return words.every((word) => lower.includes(word));
  };
  const found = world.papers.filter(
    (paper) =>
      fits(paper) &&
      (!subjects.length || subjects.includes(paper.subject)) &&
      (!from || paper.date >= from) &&
      (!to || paper.date <= to),
  );
  if (order === "oldest") found.reverse();
  if (order === "cited") found.sort((a, b) => b.cited - a.cited);
  return found;
}
