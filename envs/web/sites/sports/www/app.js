// The results service's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { email } from "/kit/rules.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  cookieBanner,
  datePicker,
  dropdown,
  field,
  sortable,
  tabs,
  toast,
  validate,
} from "/kit/ui.js";
import {
  ALERTS,
  LEAGUES,
  NAME,
  freshState,
  makeWorld,
  matchesOf,
  nextRound,
  scorersOf,
  tableOf,
} from "/world.js";
import { alertsProblem, transitions } from "/transitions.js";

const PAGES = {
  "": dayPage,
  league: leaguePage,
  match: matchPage,
  team: teamPage,
  picks: picksPage,
  mine: minePage,
};

site({
  name: "sports",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies"],
  show(world) {
    const main = h("main", {}),
      body = h("div", { class: "page" }, sidebar(), main, aside(world));
    document.body.append(
      header(world),
      body,
      h("footer", { class: "bottom" }, `${NAME} · results, tables and fixtures of five leagues`),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? dayPage;
    document.title = `${page(world, main) ?? NAME} | ${NAME}`;
    cookieBanner({
      name: NAME,
      text: "Cookies keep the teams you follow. We also measure which matches are read.",
    });
  },
});

const league = (id) => LEAGUES.find((one) => one.id === id);
const teamLink = (team) => href("/team/", { id: team.id });
const crest = (team, size = 22) => {
  const node = h("span", { class: "crest", "aria-hidden": "true" });
  node.innerHTML = `<svg width="${size}" height="${size}" viewBox="0 0 24 24"><path d="M3 3h18v10c0 5-4 7.5-9 9.5C7 20.500 3 18 3 13z" fill="hsl(${team.hue} 60% 42%)"/><path d="M12 3v19.5C7 20.500 3 18 3 13V3z" fill="hsl(${(team.hue + 40) % 360} 70% 62%)"/></svg>`;
  return node;
};

function header(world) {
  const input = h("input", {
    type: "search",
    name: "q",
    placeholder: "Find a team or a player",
    "aria-label": "Find a team or a player",
  });
  const find = (text) => {
    const wanted = tidy(text).toLowerCase();
    return wanted.length < 2
      ? []
      : [
          ...world.teams
            .filter(({ name }) => name.toLowerCase().includes(wanted))
            .map((team) => ({
              text: team.name,
              detail: league(team.league).name,
              act: () => visit(teamLink(team)),
            })),
          ...world.teams.flatMap((team) =>
            team.squad
              .filter(({ name }) => name.toLowerCase().includes(wanted))
              .map(({ name }) => ({
                text: name,
                detail: team.name,
                act: () => visit(`${teamLink(team)}#squad`),
              })),
          ),
        ].slice(0, 8);
  };
  const form = h(
    "form",
    {
      class: "find",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        const [first] = find(input.value);
        if (first) first.act();
        else toast("Nobody of that name.", "error");
      },
    },
    icon("search", 18),
    input,
  );
  autocomplete(input, find);
  return h(
    "header",
    { class: "top" },
    h("a", { class: "logo", href: "/" }, h("i", {}, "T"), "tallyboard"),
    form,
    h(
      "nav",
      {},
      h("a", { href: "/", id: "results" }, "Results"),
      h("a", { href: "/picks/", id: "picks" }, "Predictions"),
      h("a", { href: "/mine/", id: "mine" }, icon("star", 17), "My teams"),
    ),
  );
}

const sidebar = () =>
  h(
    "aside",
    { class: "left" },
    h("h2", {}, "Leagues"),
    LEAGUES.map(({ id, name, country }) =>
      h(
        "a",
        { href: href("/league/", { id }), "aria-current": query().id === id ? "page" : null },
        h("b", {}, name),
        h("small", {}, country),
      ),
    ),
  );

function aside(world) {
  const box = h("aside", { class: "right" });
  const draw = () => {
    const { follows } = state();
    fill(
      box,
      h("h2", {}, "My teams"),
      follows.length
        ? follows.map((id) => {
            const team = world.teamById.get(id),
              next = matchesOf(world, id).find(({ played }) => !played);
            return h(
              "a",
              { class: "mine", href: teamLink(team) },
              crest(team),
              h(
                "span",
                {},
                h("b", {}, team.name),
                h("small", {}, next ? `Next: ${dates.brief(next.date)}, ${next.time}` : "Season over"),
              ),
            );
          })
        : h("p", { class: "soft" }, "Follow a team on its page to see it here."),
    );
  };
  onChange(draw);
  draw();
  return box;
}

function matchRow(world, match) {
  const [home, away] = [world.teamById.get(match.home), world.teamById.get(match.away)];
  const won = match.played ? Math.sign(match.score[0] - match.score[1]) : 0;
  return h(
    "a",
    { class: "match", href: href("/match/", { id: match.id }), "data-id": match.id },
    h("span", { class: "when" }, match.played ? "Final" : match.time),
    h(
      "span",
      { class: "sides" },
      h("span", { class: won > 0 ? "won" : "" }, crest(home), home.name),
      h("span", { class: won < 0 ? "won" : "" }, crest(away), away.name),
    ),
    h(
      "span",
      { class: "score" },
      match.played ? match.score.map((one) => h("b", {}, String(one))) : h("b", {}, "–"),
    ),
  );
}

// ---- a day, a league ----

function dayPage(world, main) {
  const latest = world.matches.filter(({ played }) => played).at(-1).date,
    day = query().day ?? latest,
    shown = world.matches.filter(({ date }) => date === day);
  const strip = Array.from({ length: 7 }, (_, index) => dates.plus(day, index - 3));
  add(
    main,
    h("h1", {}, dates.weekday(day), ", ", dates.long(day)),
    h(
      "div",
      { class: "strip" },
      h(
        "a",
        { href: href("/", { day: dates.plus(day, -7) }), "aria-label": "A week earlier" },
        icon("back", 16),
      ),
      strip.map((one) =>
        h(
          "a",
          { href: href("/", { day: one }), "aria-current": one === day ? "page" : null },
          h("small", {}, dates.weekday(one).slice(0, 3)),
          h("b", {}, String(dates.dayOfMonth(one))),
          one === world.today ? h("i", {}, "today") : null,
        ),
      ),
      h(
        "a",
        { href: href("/", { day: dates.plus(day, 7) }), "aria-label": "A week later" },
        icon("next", 16),
      ),
      datePicker({
        label: "Go to day",
        name: "day",
        shown: day,
        min: dates.plus(world.today, -130),
        max: dates.plus(world.today, 80),
        onpick: (to) => visit(href("/", { day: to })),
      }),
    ),
    shown.length
      ? LEAGUES.map(({ id, name }) => {
          const own = shown.filter((match) => match.league === id);
          return own.length
            ? h(
                "section",
                { class: "card" },
                h(
                  "h2",
                  {},
                  h("a", { href: href("/league/", { id }) }, name),
                  h("small", {}, `Round ${own[0].round}`),
                ),
                own.map((match) => matchRow(world, match)),
              )
            : null;
        })
      : h("p", { class: "notice" }, "No matches on this day. Most are played on weekends."),
  );
  return dates.short(day);
}

function leaguePage(world, main) {
  const { id } = query(),
    here = league(id) ?? LEAGUES[0];
  const rounds = [
    ...new Set(world.matches.filter((match) => match.league === here.id).map(({ round }) => round)),
  ].sort((a, b) => a - b);
  const latest = Math.max(
    1,
    ...world.matches.filter((match) => match.league === here.id && match.played).map(({ round }) => round),
  );
  let where = "all",
    round = latest;
  const name = (row) => h("a", { href: teamLink(row.team), class: "row" }, crest(row.team), row.team.name);
  const standing = () => {
    const rows = tableOf(world, here.id, where).map((row, index) => ({ ...row, place: index + 1 }));
    const column = (title, value) => ({ title, value, number: true });
    return h(
      "div",
      {},
      h(
        "div",
        { class: "row" },
        dropdown({
          label: "Matches",
          id: "where",
          value: where,
          options: [
            ["all", "All"],
            ["home", "Home"],
            ["away", "Away"],
          ].map(([value, text]) => ({ value, text })),
          onchange: (value) => {
            where = value;
            fill(panel, standing());
          },
        }),
      ),
      sortable({
        rows,
        columns: [
          column("#", ({ place }) => place),
          { title: "Team", value: ({ team }) => team.name, cell: name },
          column("P", ({ played }) => played),
          column("W", ({ won }) => won),
          column("D", ({ drawn }) => drawn),
          column("L", ({ lost }) => lost),
          column("F", ({ scored }) => scored),
          column("A", ({ against }) => against),
          column("Diff", ({ scored, against }) => scored - against),
          column("Pts", ({ points }) => points),
        ],
      }),
    );
  };
  const panel = h("div", { id: "standing" });
  const fixtures = h("div", {});
  const drawRound = () =>
    fill(
      fixtures,
      h(
        "div",
        { class: "row" },
        h(
          "button",
          {
            "aria-label": "Earlier round",
            disabled: round <= 1,
            onclick: () => {
              round -= 1;
              drawRound();
            },
          },
          icon("back", 16),
        ),
        h("b", { id: "round" }, `Round ${round} of ${rounds.length}`),
        h(
          "button",
          {
            "aria-label": "Later round",
            disabled: round >= rounds.length,
            onclick: () => {
              round += 1;
              drawRound();
            },
          },
          icon("next", 16),
        ),
      ),
      world.matches
        .filter((match) => match.league === here.id && match.round === round)
        .map((match) => [
          h("p", { class: "soft day" }, `${dates.brief(match.date)}`),
          matchRow(world, match),
        ]),
    );
  add(
    main,
    h(
      "div",
      { class: "row" },
      h("h1", {}, here.name),
      h("span", { class: "soft" }, `${here.country} · after round ${latest}`),
    ),
    tabs([
      { id: "table", title: "Table", panel: () => fill(panel, standing()) },
      {
        id: "rounds",
        title: "Matches",
        panel: () => {
          drawRound();
          return fixtures;
        },
      },
      {
        id: "scorers",
        title: "Top scorers",
        panel: () =>
          h(
            "table",
            { class: "scorers" },
            h(
              "tr",
              {},
              ["#", "Player", "Team", "Goals"].map((title) => h("th", {}, title)),
            ),
            scorersOf(world, here.id)
              .slice(0, 25)
              .map(({ player, team, goals }, index) =>
                h(
                  "tr",
                  {},
                  h("td", {}, String(index + 1)),
                  h("td", {}, player),
                  h("td", {}, h("a", { href: teamLink(team), class: "row" }, crest(team), team.name)),
                  h("td", {}, String(goals)),
                ),
              ),
          ),
      },
    ]),
  );
  return here.name;
}

// ---- a match, a team ----

function matchPage(world, main) {
  const match = world.matchById.get(query().id);
  if (!match) {
    add(main, h("h1", {}, "No such match"));
    return "Not found";
  }
  const sides = [world.teamById.get(match.home), world.teamById.get(match.away)];
  const side = (team) =>
    h("a", { class: "big-side", href: teamLink(team) }, crest(team, 64), h("b", {}, team.name));
  add(
    main,
    h(
      "p",
      { class: "soft" },
      h("a", { href: href("/league/", { id: match.league }) }, league(match.league).name),
      ` · Round ${match.round} · ${dates.weekday(match.date)}, ${dates.long(match.date)}, ${match.time}`,
    ),
    h(
      "div",
      { class: "card board" },
      side(sides[0]),
      h(
        "div",
        { class: "big-score" },
        match.played ? h("b", {}, match.score.join(" : ")) : h("b", {}, match.time),
        h("small", {}, match.played ? "Final" : "Not begun"),
      ),
      side(sides[1]),
    ),
    tabs([
      {
        id: "summary",
        title: "Summary",
        panel: () =>
          h(
            "div",
            {},
            match.played
              ? match.goals.length
                ? h(
                    "ol",
                    { class: "goals" },
                    match.goals.map(({ side, minute, player }) =>
                      h(
                        "li",
                        { class: side ? "away" : "" },
                        h("b", {}, `${minute}'`),
                        h("span", {}, `⚽ ${player}`),
                      ),
                    ),
                  )
                : h("p", {}, "No goals.")
              : h("p", { class: "notice" }, "The match has not begun."),
            h(
              "dl",
              { class: "facts" },
              [
                ["Ground", `${sides[0].ground}, ${grouped(sides[0].seats)} seats`],
                ...(match.played
                  ? [
                      ["Spectators", grouped(match.crowd)],
                      ["Referee", match.referee],
                    ]
                  : []),
              ].flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]),
            ),
          ),
      },
      ...(match.played
        ? [
            {
              id: "stats",
              title: "Statistics",
              panel: () =>
                h(
                  "div",
                  { class: "stats" },
                  Object.entries(match.stats).map(([name, [a, b]]) =>
                    h(
                      "div",
                      { "data-stat": name },
                      h("b", {}, String(a)),
                      h("span", {}, name),
                      h("b", {}, String(b)),
                      h("i", {}, h("u", { style: { width: `${(a / Math.max(1, a + b)) * 100}%` } })),
                    ),
                  ),
                ),
            },
          ]
        : []),
      {
        id: "lineups",
        title: "Line-ups",
        panel: () =>
          h(
            "div",
            { class: "lineups" },
            sides.map((team) =>
              h(
                "table",
                {},
                h("tr", {}, h("th", { colspan: 2 }, team.name)),
                team.squad
                  .slice(0, 11)
                  .map(({ number, name, position }) =>
                    h(
                      "tr",
                      {},
                      h("td", {}, String(number)),
                      h("td", {}, name, h("small", { class: "soft" }, ` ${position}`)),
                    ),
                  ),
              ),
            ),
          ),
      },
      {
        id: "meetings",
        title: "Meetings",
        panel: () =>
          h(
            "div",
            {},
            world.matches
              .filter(
                (one) =>
                  one.id !== match.id &&
                  [match.home, match.away].includes(one.home) &&
                  [match.home, match.away].includes(one.away),
              )
              .map((one) => [h("p", { class: "soft day" }, dates.long(one.date)), matchRow(world, one)]),
          ),
      },
    ]),
  );
  return `${sides[0].name} – ${sides[1].name}`;
}

function teamPage(world, main) {
  const team = world.teamById.get(query().id);
  if (!team) {
    add(main, h("h1", {}, "No such team"));
    return "Not found";
  }
  const all = matchesOf(world, team.id),
    played = all.filter((match) => match.played),
    place = tableOf(world, team.league).findIndex((row) => row.team === team) + 1;
  const follow = h("button", {
    id: "follow",
    onclick: () =>
      apply(state().follows.includes(team.id) ? "team.unfollow" : "team.follow", { id: team.id }),
  });
  const mark = () => {
    const on = state().follows.includes(team.id);
    follow.className = on ? "on" : "primary";
    fill(follow, icon("star", 17), on ? "Following" : "Follow");
  };
  onChange(mark);
  mark();
  const goals = (name) =>
    played.reduce((sum, match) => sum + match.goals.filter(({ player }) => player === name).length, 0);
  const form = played.slice(-5).map((match) => {
    const at = match.home === team.id ? 0 : 1,
      won = Math.sign(match.score[at] - match.score[1 - at]);
    return h("i", { class: `form f${won + 1}` }, ["L", "D", "W"][won + 1]);
  });
  const list = (matches) =>
    matches.map((match) => [
      h("p", { class: "soft day" }, `${dates.brief(match.date)}, ${dates.year(match.date)}`),
      matchRow(world, match),
    ]);
  add(
    main,
    h(
      "div",
      { class: "card team row" },
      crest(team, 76),
      h(
        "div",
        {},
        h("h1", {}, team.name),
        h(
          "p",
          { class: "soft" },
          h("a", { href: href("/league/", { id: team.league }) }, league(team.league).name),
          ` · place ${place} · founded ${team.founded}`,
        ),
        h("p", {}, "Form: ", form),
      ),
      h("div", { class: "end" }, follow),
    ),
    tabs([
      {
        id: "matches",
        title: "Results",
        panel: () => list([...played].reverse()) && h("div", {}, list([...played].reverse())),
      },
      {
        id: "fixtures",
        title: "Fixtures",
        panel: () => h("div", {}, list(all.filter((match) => !match.played))),
      },
      {
        id: "squad",
        title: "Squad",
        panel: () =>
          sortable({
            rows: team.squad.map((player) => ({ ...player, goals: goals(player.name) })),
            columns: [
              { title: "No.", value: ({ number }) => number, number: true },
              { title: "Player", value: ({ name }) => name },
              { title: "Position", value: ({ position }) => position },
              { title: "Age", value: ({ age }) => age, number: true },
              { title: "Goals", value: ({ goals }) => goals, number: true },
            ],
          }),
      },
      {
        id: "club",
        title: "Club",
        panel: () =>
          h(
            "dl",
            { class: "facts" },
            [
              ["Coach", team.coach],
              ["Ground", team.ground],
              ["Seats", grouped(team.seats)],
              ["Founded", String(team.founded)],
            ].flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]),
          ),
      },
    ]),
  );
  return team.name;
}

// ---- predictions, my teams ----

function picksPage(world, main) {
  const { id = LEAGUES[0].id } = query(),
    next = nextRound(world, id);
  const given = {},
    saved = state().picks,
    chosen = (id) => given[id] ?? saved[id];
  add(
    main,
    h("h1", {}, "Predictions"),
    h("p", {}, "Who wins the matches of the next round? Choose, then save."),
    h(
      "div",
      { class: "row" },
      dropdown({
        label: "League",
        id: "league",
        value: id,
        options: LEAGUES.map(({ id: value, name }) => ({ value, text: name })),
        onchange: (value) => visit(href("/picks/", { id: value })),
      }),
    ),
    h(
      "section",
      { class: "card" },
      h("h2", {}, `Round ${next[0]?.round ?? "–"}`),
      next.map((match) => {
        const names = [world.teamById.get(match.home).name, "Draw", world.teamById.get(match.away).name];
        const row = h(
          "div",
          { class: "pick", "data-id": match.id },
          h("span", { class: "soft" }, `${dates.brief(match.date)}, ${match.time}`),
          names.map((text, index) =>
            h(
              "button",
              {
                class: chosen(match.id) === index ? "on" : "",
                "aria-pressed": String(chosen(match.id) === index),
                onclick: (event) => {
                  given[match.id] = index;
                  [...event.currentTarget.parentNode.querySelectorAll("button")].forEach((one, at) => {
                    one.classList.toggle("on", at === index);
                    one.setAttribute("aria-pressed", String(at === index));
                  });
                },
              },
              text,
            ),
          ),
        );
        return row;
      }),
    ),
    h(
      "button",
      {
        class: "primary",
        id: "save-picks",
        onclick: () => {
          apply("picks.save", { picks: given });
          toast(`${count(Object.keys(state().picks).length, "prediction")} saved.`);
        },
      },
      "Save predictions",
    ),
  );
  return "Predictions";
}

function minePage(world, main) {
  const frame = h("div", {});
  const draw = () =>
    fill(
      frame,
      h("h2", {}, "Teams you follow"),
      state().follows.length
        ? state().follows.map((id) => {
            const team = world.teamById.get(id);
            return h(
              "div",
              { class: "card row followed", "data-id": id },
              crest(team),
              h("a", { href: teamLink(team) }, team.name),
              h("span", { class: "soft" }, league(team.league).name),
              h(
                "button",
                {
                  class: "end",
                  onclick: () => apply("team.unfollow", { id }),
                },
                "Unfollow",
              ),
            );
          })
        : h("p", { class: "soft" }, "None yet."),
    );
  onChange(draw);
  draw();
  const form = h(
    "form",
    {
      class: "card",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const chosen = [...form.querySelectorAll("input[type=checkbox]:checked")].map(({ value }) => value),
          values = validate(form, { email }),
          problem = alertsProblem(chosen);
        if (problem) return toast(problem, "error");
        if (!values) return;
        apply("alerts.set", { email: values.email, chosen });
        toast("Your alerts are set.");
      },
    },
    h("h2", {}, "Match alerts"),
    h(
      "div",
      { class: "ticks" },
      ALERTS.map((name) =>
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", value: name, checked: state().alerts?.chosen.includes(name) }),
          name,
        ),
      ),
    ),
    field({ label: "Email", name: "email", type: "email", value: state().alerts?.email ?? "" }),
    h("button", { class: "primary", id: "set-alerts" }, "Set alerts"),
  );
  add(main, h("h1", {}, "My teams"), frame, form);
  return "My teams";
}
