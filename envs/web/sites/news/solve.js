// Demonstrations for the paper.

// The wall that asks about privacy comes before everything.
const wall = one("#reject");
if (wall) return press(wall);

const go = (id) => (at(`/${id}/`) ? null : press(one(`.top #${id}`)));
const search = (text) =>
  at("/search/") && new URLSearchParams(location.search).get("q") === text
    ? null
    : (write(one(".find input"), text, "Search field") ?? press(one(".find button")));
const openArticle = (title) => {
  if (at("/article/") && said(one(".story h1")) === title) return null;
  const headline = all(".teaser h3 a").find((node) => said(node) === title);
  return headline ? press(headline) : (search(title.replace(/[“”]/g, "")) ?? scroll("down"));
};
const section = (name) => drop(one("#section"), name);
const save = (title) => {
  if (memory[title]) return null;
  const hint = openArticle(title);
  if (hint) return hint;
  if (said(one("#save")) !== "Saved") return press(one("#save"));
  keep({ [title]: true });
  return null;
};
const story = () => said(one(".text"));
const NUMBER = "([\\d,]+(?:\\.\\d+)?)";
// What is asked, and the sentence that tells it.
const told = [
  ["how many months", `about ${NUMBER} months`],
  ["how many million dollars", `cost \\$${NUMBER} million`],
  ["voted in favour", `vote was ${NUMBER} to`],
  ["have room", `room for ${NUMBER} pupils`],
  ["how many teachers", `taught by ${NUMBER} teachers`],
  ["did profits rise", `rose by ${NUMBER} percent`],
  ["how many jobs", `create ${NUMBER} jobs`],
  ["how many turbines", `have ${NUMBER} turbines`],
  ["how many homes", `supply ${NUMBER} homes`],
  ["how many days will", `travel for ${NUMBER} days`],
  ["how many kilograms", `weighs ${NUMBER} kilograms`],
  ["counted this year", `found ${NUMBER} animals`],
  ["ten years ago", `against ${NUMBER} ten years`],
  ["how large was the crowd", `crowd of ${NUMBER} was`],
  ["which minute", `minute ${NUMBER}\\.`],
  ["how many runners", `${NUMBER} runners`],
  ["how many works", `has ${NUMBER} works`],
  ["does a ticket cost", `cost \\$${NUMBER}`],
  ["how many prizes", `took ${NUMBER} prizes`],
  ["how many minutes does the film", `runs for ${NUMBER} minutes`],
  ["turnout", `Turnout was ${NUMBER} percent`],
  ["share of the votes", `had ${NUMBER} percent`],
  ["how many goods", `for ${NUMBER} goods`],
  ["is trade expected", `grow by ${NUMBER} percent`],
];

const solutions = {
  "news-fact": () =>
    openArticle(quoted[0]) ??
    answer(
      story()
        .match(new RegExp(told.find(([asked]) => goal.split("According to it")[1].includes(asked))[1]))[1]
        .replaceAll(",", ""),
    ),
  "news-author": () => openArticle(quoted[0]) ?? answer(said(one(".story .by a"))),
  "news-save": () => save(quoted[0]) ?? save(quoted[1]) ?? answer("done"),
  "news-vote": () =>
    one(".poll .bar") ? answer("done") : (tick(quoted[0], one(".poll")) ?? press(one("#vote"))),
  "news-live": () => {
    const [, time] = goal.match(/entry of (\d\d:\d\d)/),
      entry = () => all(".live article").find((node) => said(one("b", node)) === time);
    return (
      go("live") ?? (entry() ? answer(said(one(".soft", entry())).match(/[\d.]+/)[0]) : press(one("#older")))
    );
  },
  "news-count": () => {
    const [, name, from, to] = goal.match(
      /section (\w+) that are found from (\w+ \d+, \d+) until (\w+ \d+, \d+), how/,
    );
    if (at("/article/")) return answer(amount(story().match(/Read by ([\d,]+) people/)[1]));
    return (
      search(quoted[0]) ??
      section(name) ??
      pickDay("from", from) ??
      pickDay("to", to) ??
      drop(one("#sort"), "Most read") ??
      press(one(".teaser h3 a"))
    );
  },
  "news-most-read": () =>
    search(quoted[0]) ??
    section(goal.match(/section (\w+)\./)[1]) ??
    drop(one("#sort"), "Most read") ??
    answer(said(one(".teaser h3"))),
  "news-oldest-by": () =>
    search(goal.match(/report by (.+) that The/)[1]) ??
    drop(one("#sort"), "Oldest first") ??
    answer(said(one(".teaser h3"))),
  "news-liked": () =>
    openArticle(quoted[0]) ?? drop(one("#comment-sort"), "Most liked") ?? answer(said(one(".comment b"))),
  "news-letters": () => {
    if (one("#thanks")) return answer("done");
    return (
      go("letters") ??
      tick(quoted[0], document, false) ??
      tick(quoted[1], document, false) ??
      write(one('[name="email"]'), goal.match(/Subscribe (\S+) to/)[1]) ??
      press(named("button", "Subscribe"))
    );
  },
  "news-follow": () => {
    const wanted = goal.match(/topics (.+), and choose/)[1].split(/, | and /),
      [, edition] = goal.match(/the (\w+) edition/);
    if (one(".toast")) return answer("done");
    const hint = go("account");
    if (hint) return hint;
    const wrong = all(".ticks label").find(
      (label) => label.querySelector("input").checked !== wanted.includes(said(label)),
    );
    return press(wrong) ?? tick(edition) ?? press(one("#keep"));
  },
  "news-comment": () => {
    const [, name] = goal.match(/under the name (.+): "/),
      text = quoted[1];
    const hint = openArticle(quoted[0]);
    if (hint) return hint;
    if (one(".comment.mine")) return answer("done");
    return (
      write(one('[name="name"]'), name) ?? write(one('textarea[name="text"]'), text) ?? press(one("#post"))
    );
  },
  "news-difference": () => {
    for (const title of quoted) {
      if (memory[title]) continue;
      const hint = openArticle(title);
      if (hint) return hint;
      keep({ [title]: amount(story().match(/Read by ([\d,]+) people/)[1]) });
    }
    return answer(Math.abs(memory[quoted[0]] - memory[quoted[1]]));
  },
  "news-tidy": () => {
    const [, gone] = goal.match(/of the section (\w+)\. Then/);
    if (!memory.tidied) {
      const hint = go("saved");
      if (hint) return hint;
      const card = all(".teaser").find((node) => said(one("small", node)).startsWith(gone));
      if (card) return press(one(".remove", card));
      keep({ tidied: true });
    }
    return save(quoted[0]) ?? answer("done");
  },
};
return solutions[template]();
