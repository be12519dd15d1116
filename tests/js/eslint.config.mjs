// What `tests/js.sh` asks of the JavaScript and CSS of this repository. Which kind of script a file is, its folder says.
import { readFileSync } from "node:fs";
import css from "@eslint/css";
import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import html from "eslint-plugin-html";
import globals from "globals";

const readonly = (...names) => Object.fromEntries(names.map((name) => [name, "readonly"]));

// Every site's demonstrations begin with this file, so they use what it declares.
const PRELUDE = "envs/web/solve.js";
const declared = [...readFileSync(PRELUDE, "utf8").matchAll(/^(?:const|function) (\w+)/gm)].map(
  ([, name]) => name,
);

const DEMONSTRATIONS = [
  "envs/starter/*.solve.js",
  "envs/miniwob/solve/*.js",
  PRELUDE,
  "envs/web/sites/*/solve.js",
  "tests/attacks/*.js",
];
// What a MiniWoB++ page declares.
const MINIWOB = [
  "core",
  "WOB_DONE_GLOBAL",
  "WOB_EPISODE_ID",
  "WOB_RAW_REWARD_GLOBAL",
  "WOB_REWARD_GLOBAL",
  "WOB_REWARD_REASON",
  "WOB_TASK_READY",
];
const HOOKS = "crates/tasks/src/hooks/*.js";

export default defineConfig([
  {
    // Pages that do harm on purpose, and the tasks of a released version as they were.
    ignores: ["crates/env/tests/browser/attacks/", "tests/fixtures/"],
  },
  { linterOptions: { reportUnusedDisableDirectives: "error", reportUnusedInlineConfigs: "error" } },

  {
    files: ["**/*.js", "**/*.mjs", "**/*.html"],
    extends: [js.configs.recommended],
    languageOptions: { globals: globals.browser },
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      // The formatter breaks lines at 110 columns, but not comments; texts and patterns stay whole.
      "max-len": [
        "error",
        { code: 160, ignoreStrings: true, ignoreTemplateLiterals: true, ignoreRegExpLiterals: true },
      ],
    },
  },

  { files: ["crates/dashboard/pages/*.js", "envs/web/**/*.js"], languageOptions: { sourceType: "module" } },
  { files: ["**/*.mjs"], languageOptions: { sourceType: "module", globals: globals.node } },
  // Functions that the worker calls in a page.
  {
    files: ["crates/env/src/chromium/*.js", "crates/furrow/blind/*.js"],
    languageOptions: { sourceType: "script" },
    rules: { "no-unused-vars": ["error", { vars: "local" }] },
  },

  // Pages of the starter suite and of the benchmarks: classic scripts, files or inside HTML, that share what they declare.
  {
    files: ["envs/starter/*.js", "**/*.html"],
    plugins: { html },
    languageOptions: { sourceType: "script", globals: readonly("furrow") },
    rules: { "no-unused-vars": ["error", { vars: "local" }] },
  },
  {
    files: ["envs/starter/{colour,place,tone}.html"],
    languageOptions: { globals: readonly("PLACES", "showTiles") },
  },

  // Expressions that the worker evaluates in a page of a suite; `{limit_millis}` is filled in before that.
  {
    files: [HOOKS],
    languageOptions: { sourceType: "script", globals: readonly("limit_millis", ...MINIWOB) },
  },

  // Bodies of a function `(goal, seed, step) => hint`.
  {
    files: DEMONSTRATIONS,
    languageOptions: {
      sourceType: "script",
      parserOptions: { ecmaFeatures: { globalReturn: true } },
      globals: readonly("goal", "seed", "step"),
    },
  },
  {
    files: [PRELUDE],
    rules: { "no-unused-vars": ["error", { varsIgnorePattern: `^(${declared.join("|")})$` }] },
  },
  {
    files: ["envs/web/sites/*/solve.js"],
    languageOptions: { globals: readonly("template", ...declared) },
  },
  // What an attack begins with: the same, and the site's demonstration as a function.
  {
    files: ["tests/attacks/*.js"],
    languageOptions: { globals: readonly("demonstrate", ...declared) },
  },

  {
    files: ["**/*.css"],
    plugins: { css },
    language: "css/css",
    extends: [css.configs.recommended],
    rules: {
      // A page's colours are declared in a file of their own.
      "css/no-invalid-properties": ["error", { allowUnknownVariables: true }],
      // The pages of tasks are shown by one browser, which the project pins; the dashboard's lose a nicety in an old one.
      "css/use-baseline": "off",
    },
  },
  // The kit's `[hidden]` has to win over any `display`, and a block of a site over the site's more specific `main > section`.
  { files: ["envs/web/**/*.css"], rules: { "css/no-important": "off" } },
  // The rule takes the number in `hsl(var(--hue) 52% 36%)` for the whole colour.
  { files: ["envs/starter/furrow.css"], rules: { "css/no-invalid-properties": "off" } },
]);
