// The code host's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  chooser,
  cookieBanner,
  field,
  leaf,
  pagination,
  radios,
  rules,
  ticks,
  validate,
} from "/kit/ui.js";
import { LANGUAGES, LICENSES, NAME, TOPICS, freshState, makeWorld, search } from "/world.js";
import { VISIBILITIES, loginProblem, repositoryRules, transitions } from "/transitions.js";
import { repoPage } from "/repo.js";
import { issuePage, newIssuePage } from "/issues.js";
import { avatar, languageDot, mark, repoLink } from "/parts.js";

const PAGES = {
  "": homePage,
  search: searchPage,
  repo: repoPage,
  issue: issuePage,
  report: newIssuePage,
  user: userPage,
  login: loginPage,
  stars: starsPage,
  new: newRepoPage,
};
const PER_PAGE = 12;

site({
  name: "code",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "user"],
  show(world) {
    const main = h("main", {});
    document.body.append(
      header(world),
      main,
      h(
        "footer",
        { class: "bottom" },
        mark(22),
        `${NAME}, a yard for code · ${count(world.repos.length, "repository", "repositories")}`,
      ),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? NAME} · ${NAME}`;
    cookieBanner({
      name: NAME,
      text: "Cookies keep you signed in. We would also like to count which pages are read.",
    });
  },
});

function header(world) {
  const input = h("input", {
    type: "search",
    name: "q",
    value: location.pathname === "/search/" ? (query().q ?? "") : "",
    placeholder: "Search repositories",
    "aria-label": "Search repositories",
  });
  const form = h(
    "form",
    {
      class: "find",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        visit(href("/search/", { q: tidy(input.value) }));
      },
    },
    icon("search", 17),
    input,
  );
  autocomplete(input, (text) =>
    tidy(text).length < 2
      ? []
      : search(world, { q: tidy(text) })
          .slice(0, 6)
          .map((repo) => ({
            text: repo.id,
            detail: repo.language,
            act: () => visit(href("/repo/", { id: repo.id })),
          })),
  );
  const { user } = state();
  return h(
    "header",
    { class: "top" },
    h("a", { class: "logo", href: "/" }, mark(30), NAME),
    form,
    h(
      "nav",
      {},
      h("a", { href: "/search/", id: "explore" }, "Explore"),
      h("a", { href: "/stars/", id: "stars" }, icon("star", 17), "Stars"),
      user
        ? [
            h("a", { href: "/new/", id: "new" }, icon("plus", 17), "New"),
            h("a", { href: href("/user/", { name: user }), id: "me", class: "row" }, avatar(user, 26), user),
            h(
              "button",
              {
                class: "plain",
                id: "sign-out",
                onclick: () => {
                  apply("account.signOut");
                  visit("/");
                },
              },
              "Sign out",
            ),
          ]
        : h(
            "a",
            {
              class: "button primary",
              href: href("/login/", { next: location.pathname + location.search }),
              id: "sign-in",
            },
            "Sign in",
          ),
    ),
  );
}

const card = (repo) =>
  h(
    "article",
    { class: "repo-card", "data-id": repo.id },
    h("h3", {}, icon("book", 17), repoLink(repo)),
    h("p", {}, repo.about),
    h(
      "p",
      { class: "topics" },
      repo.topics.map((topic) => h("a", { href: href("/search/", { topic }) }, topic)),
    ),
    h(
      "p",
      { class: "figures" },
      languageDot(repo.language),
      h("span", {}, "★ ", grouped(repo.stars)),
      h("span", {}, icon("fork", 14), " ", grouped(repo.forks)),
      h("span", { class: "soft" }, repo.license),
      h("span", { class: "soft end" }, `Updated ${dates.short(repo.updated)}`),
    ),
  );

function homePage(world, main) {
  const { user } = state();
  add(
    main,
    h(
      "section",
      { class: "hero" },
      h(
        "div",
        {},
        h("h1", {}, "Where the pieces are kept in order"),
        h(
          "p",
          {},
          `${grouped(world.repos.length)} repositories, ${world.owners.length} owners, ${LANGUAGES.length} languages.`,
        ),
        h(
          "a",
          { class: "button primary", href: user ? "/new/" : "/login/" },
          user ? "Start a repository" : "Sign in to begin",
        ),
      ),
      h(
        "pre",
        { "aria-hidden": "true" },
        h("i", {}, "$ "),
        "yard clone ",
        world.repos[0].id,
        "\n",
        h("b", {}, "Receiving 1,284 pieces … done\n"),
        h("i", {}, "$ "),
        `cd ${world.repos[0].name} && yard build\n`,
        h("b", {}, "Built in 2.1 s"),
      ),
    ),
    h(
      "div",
      { class: "home" },
      h("section", {}, h("h2", {}, "Most starred"), search(world, {}).slice(0, 5).map(card)),
      h(
        "aside",
        {},
        h("h2", {}, "Topics"),
        h(
          "p",
          { class: "topics" },
          TOPICS.map((topic) => h("a", { href: href("/search/", { topic }) }, topic)),
        ),
        h("h2", {}, "Lately updated"),
        search(world, { sort: "updated" })
          .slice(0, 6)
          .map((repo) => h("p", { class: "mini" }, avatar(repo.owner, 22), repoLink(repo))),
      ),
    ),
  );
  return "Home";
}

function searchPage(world, main) {
  const asked = query(),
    found = search(world, asked),
    { shown, page, pages } = leaf(found, asked.page, PER_PAGE);
  const go = (changes) => visit(href("/search/", { ...asked, page: "", ...changes }));
  const any = (list) => [{ value: "", text: "Any" }, ...list.map((value) => ({ value, text: value }))];
  add(
    main,
    h(
      "div",
      { class: "columns" },
      h(
        "aside",
        { class: "filters" },
        radios({
          title: "Language",
          name: "lang",
          value: asked.lang ?? "",
          options: any(LANGUAGES.map(({ name }) => name)),
          onchange: (lang) => go({ lang }),
        }),
        radios({
          title: "Topic",
          name: "topic",
          value: asked.topic ?? "",
          options: any(TOPICS),
          onchange: (topic) => go({ topic }),
        }),
        radios({
          title: "Licence",
          name: "license",
          value: asked.license ?? "",
          options: any(LICENSES),
          onchange: (license) => go({ license }),
        }),
      ),
      h(
        "div",
        {},
        h(
          "div",
          { class: "row" },
          h("h1", { id: "found" }, count(found.length, "repository", "repositories")),
          h(
            "div",
            { class: "end" },
            chooser(
              "Sort",
              "sort",
              asked.sort ?? "stars",
              [
                ["stars", "Most stars"],
                ["forks", "Most forks"],
                ["updated", "Recently updated"],
                ["name", "Name"],
              ],
              (sort) => go({ sort }),
            ),
          ),
        ),
        shown.map(card),
        found.length ? null : h("p", { class: "notice" }, "Nothing fits."),
        pagination({ page, pages, address: (to) => href("/search/", { ...asked, page: to }) }),
      ),
    ),
  );
  return "Search";
}

function userPage(world, main) {
  const { name } = query(),
    made = state().repos.filter(({ owner }) => owner === name),
    forks = state().user === name ? state().forks : [];
  add(
    main,
    h(
      "div",
      { class: "columns" },
      h(
        "aside",
        { class: "who" },
        avatar(name, 180),
        h("h1", {}, name),
        h("p", { class: "soft" }, world.people.includes(name) ? "Member since a while" : "Organisation"),
      ),
      h(
        "div",
        {},
        h("h2", {}, "Repositories"),
        made.map((repo) =>
          h(
            "article",
            { class: "repo-card made" },
            h("h3", {}, icon("book", 17), repo.id, h("span", { class: "chip" }, repo.visibility)),
            h("p", {}, repo.about),
          ),
        ),
        forks.map((fork) =>
          h(
            "article",
            { class: "repo-card made" },
            h("h3", {}, icon("book", 17), `${name}/${fork.name}`, h("span", { class: "chip" }, "Fork")),
            h("p", { class: "soft" }, `Forked from ${fork.from}`),
          ),
        ),
        world.repos.filter(({ owner }) => owner === name).map(card),
      ),
    ),
  );
  return name;
}

function loginPage(world, main) {
  const note = h("div", {});
  const form = h(
    "form",
    {
      class: "box login",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, {
          user: rules.filled("your user name"),
          password: rules.filled("your password"),
        });
        if (!values) return;
        const problem = loginProblem(world, values);
        if (problem) {
          fill(note, h("p", { class: "notice error", role: "alert" }, problem));
          return;
        }
        apply("account.signIn", { user: values.user, password: values.password });
        visit(query().next);
      },
    },
    mark(44),
    h("h1", {}, `Sign in to ${NAME}`),
    note,
    field({ label: "User name", name: "user" }),
    field({ label: "Password", name: "password", type: "password" }),
    h("button", { class: "primary", id: "login" }, "Sign in"),
  );
  add(main, form);
  return "Sign in";
}

function starsPage(world, main) {
  const draw = () => {
    const { stars } = state();
    fill(
      main,
      h("h1", {}, "Stars"),
      stars.length
        ? stars.map((id) => card(world.byId.get(id)))
        : h("p", { class: "notice" }, "You have starred nothing yet."),
    );
  };
  onChange(draw);
  draw();
  return "Stars";
}

function newRepoPage(world, main) {
  const { user } = state();
  if (!user) {
    add(main, h("p", { class: "notice" }, "Sign in to create a repository."));
    return "New repository";
  }
  let [visibility] = VISIBILITIES;
  const form = h(
    "form",
    {
      class: "box",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, repositoryRules(state(), world));
        if (!values) return;
        apply("repos.create", {
          name: values.name,
          about: values.about ?? "",
          visibility,
          language: values.language,
          license: values.license,
          readme: Boolean(values.readme),
          topics: new FormData(form).getAll("topics"),
        });
        visit(href("/user/", { name: user }));
      },
    },
    h("h1", {}, "Create a repository"),
    field({ label: `Name (${user}/…)`, name: "name" }),
    field({ label: "Description", name: "about", required: false }),
    radios({
      title: "Who can see it",
      name: "visibility",
      value: visibility,
      options: VISIBILITIES,
      onchange: (value) => {
        visibility = value;
      },
    }),
    h(
      "div",
      { class: "form" },
      field({ label: "Language", name: "language", options: LANGUAGES.map(({ name }) => name) }),
      field({ label: "Licence", name: "license", options: ["None", ...LICENSES] }),
    ),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "readme" }), "Add a README file"),
    ticks({ title: "Topics", name: "topics", chosen: [], options: TOPICS, onchange() {} }),
    h("button", { class: "primary", id: "create" }, "Create repository"),
  );
  add(main, form);
  return "New repository";
}
