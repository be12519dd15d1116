// One issue with its discussion, and the form for a new one.

import { visit } from "/kit/address.js";
import { add, fill, h } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, query, state } from "/kit/site.js";
import { field, ticks, validate } from "/kit/ui.js";
import { SEVERITIES, commentRules, issueRules, issuesNow } from "/transitions.js";
import { LABELS } from "/world.js";
import { avatar, label, signedIn } from "/parts.js";
import { repoHead } from "/repo.js";

export function issuePage(world, main) {
  const { id, n } = query(),
    repo = world.byId.get(id),
    find = () => repo && issuesNow(state(), repo).find(({ number }) => number === Number(n));
  if (!find()) {
    add(main, h("h1", {}, "There is no such issue"));
    return "Not found";
  }
  const frame = h("div", { class: "issue" });
  const draw = () => fill(frame, issueBody(world, repo, find(), draw));
  add(main, repoHead(repo, "issues"), frame);
  draw();
  return find().title;
}

function issueBody(world, repo, issue, draw) {
  const mine = state().user === repo.owner;
  const edit = (transition, choice) => {
    apply(transition, { id: repo.id, number: issue.number, ...choice });
    draw();
  };
  const said = [
    ...issue.comments,
    ...state()
      .comments.filter((comment) => comment.id === repo.id && comment.number === issue.number)
      .map((comment) => ({ ...comment, day: world.today })),
  ];
  const remark = ({ author, text, day }) =>
    h(
      "article",
      { class: "remark" },
      avatar(author, 36),
      h(
        "div",
        {},
        h("header", {}, h("b", {}, author), h("span", { class: "soft" }, ` on ${dates.long(day)}`)),
        h("p", {}, text),
      ),
    );
  const form = h(
    "form",
    {
      class: "reply",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        if (!signedIn()) return;
        const values = validate(form, commentRules);
        if (!values) return;
        apply("comments.add", { id: repo.id, number: issue.number, text: values.comment });
        draw();
      },
    },
    field({ label: "Add a comment", name: "comment", type: "textarea" }),
    h(
      "div",
      { class: "row" },
      mine
        ? h(
            "button",
            {
              type: "button",
              id: "toggle-issue",
              class: "end",
              onclick: () => edit("issues.setOpen", { open: !issue.open }),
            },
            issue.open ? "Close issue" : "Reopen issue",
          )
        : null,
      h("button", { class: `primary${mine ? "" : " end"}`, id: "comment" }, "Comment"),
    ),
  );
  return [
    h(
      "div",
      {},
      h("h1", {}, issue.title, h("span", { class: "soft" }, ` #${issue.number}`)),
      h(
        "p",
        { class: "row" },
        h("span", { class: `state ${issue.open ? "open" : "closed"}` }, issue.open ? "Open" : "Closed"),
        h("span", { class: "soft" }, `${issue.author} opened this on ${dates.long(issue.day)}`),
      ),
      remark({ author: issue.author, text: issue.body, day: issue.day }),
      said.map(remark),
      form,
    ),
    h(
      "aside",
      {},
      h("h2", {}, "Labels"),
      mine
        ? ticks({
            title: "",
            name: "labels",
            chosen: issue.labels,
            options: LABELS.map(({ name }) => name),
            onchange: (labels) => edit("issues.setLabels", { labels }),
          })
        : h("p", { class: "topics" }, issue.labels.length ? issue.labels.map(label) : "None"),
      h("h2", {}, "Assignee"),
      h("p", { id: "assignee" }, issue.assignee ?? "Nobody"),
    ),
  ];
}

export function newIssuePage(world, main) {
  const repo = world.byId.get(query().id);
  if (!repo) {
    add(main, h("h1", {}, "There is no such repository"));
    return "Not found";
  }
  if (!signedIn()) return "New issue";
  let labels = [];
  const chosen = h("div", {});
  const draw = () =>
    fill(
      chosen,
      ticks({
        title: "Labels",
        name: "labels",
        chosen: labels,
        options: LABELS.map(({ name }) => name),
        onchange: (values) => {
          labels = values;
          draw();
        },
      }),
    );
  draw();
  const form = h(
    "form",
    {
      class: "box new-issue",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, issueRules);
        if (!values) return;
        const { title, body, severity } = values;
        apply("issues.open", { id: repo.id, title, body, labels, severity });
        visit(href("/issue/", { id: repo.id, n: state().issues.at(-1).number }));
      },
    },
    h("h1", {}, "New issue"),
    field({ label: "Title", name: "title" }),
    field({ label: "What happens?", name: "body", type: "textarea" }),
    h("div", { class: "form" }, field({ label: "How bad is it?", name: "severity", options: SEVERITIES })),
    chosen,
    h("button", { class: "primary", id: "submit" }, "Submit issue"),
  );
  add(main, repoHead(repo, "issues"), form);
  return "New issue";
}
