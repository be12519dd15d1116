// A table of any length: only the rows in sight exist, and only what was scrolled to is asked for.
//
// A browser draws nothing beyond some 30 million pixels. Beyond 8 million the scroll position is a share of the whole: a million rows
// are 8 pixels apart, and the arrow keys still go one by one.

import { el, put, released, setAddress } from "./dom.js";
import { count } from "./format.js";

const ROW = 40;
const TALLEST = 8e6;
const CHUNK = 100;
const CHUNKS_KEPT = 40;
/** Rows that stay in sight for so long get their pictures. */
const PICTURES_REST_MILLIS = 250;
const PICTURES_KEPT = 200;

/**
 * `columns`: `{ name, of(row), numeric, width, sort }`; `fetch(offset, limit)` gives `{ matched, rows }`; `id(row)` names a
 * row; `open(row, index)` is called for the row that was chosen; `sorted(column)` when a heading was; `at` is the row that is
 * chosen at first; `pictureOf(row)` is the address of a row's picture. A column is left out of a window narrower than its `wide`.
 */
export class Grid {
  constructor({ columns, fetch, id, open, sorted, pictureOf, label, at = 0 }) {
    Object.assign(this, { all: columns, fetch, id, open, sorted, pictureOf, label, at });
    /** Made once and moved from drawing to drawing: a picture is asked for once. */
    this.pictures = new Map();
    this.chunks = new Map();
    /** Rows as they were before the last refresh, shown until the new ones are there. */
    this.before = new Map();
    this.requested = new Set();
    this.matched = 0;
    this.turn = 0;
    this.head = el("div", { class: "grid-row grid-head", role: "row", "aria-rowindex": "1" });
    this.rows = el("div", { class: "grid-rows", role: "rowgroup" });
    this.spacer = el("div", { class: "grid-spacer" }, this.rows);
    this.scroller = el(
      "div",
      { class: "grid-scroll", role: "presentation", tabindex: "-1", on: { scroll: () => this.draw() } },
      this.spacer,
    );
    this.node = el(
      "div",
      {
        class: "grid",
        role: "grid",
        tabindex: "0",
        "aria-label": label,
        "aria-readonly": "true",
        on: { keydown: (event) => this.key(event) },
      },
      el("div", { role: "rowgroup" }, this.head),
      this.scroller,
    );
    this.fit();
    this.watch = new ResizeObserver(() => {
      this.fit();
      this.draw();
    });
    this.watch.observe(this.scroller);
  }

  /** Columns that a narrow page can do without are left out of it. */
  fit() {
    const columns = this.all.filter(({ wide = 0 }) => window.innerWidth >= wide);
    if (columns.length === this.columns?.length) return;
    this.columns = columns;
    this.layout = columns.map((column) => column.width).join(" ");
    this.head.style.setProperty("grid-template-columns", this.layout);
    this.drawHead();
  }

  close() {
    clearTimeout(this.pictureTimer);
    this.watch.disconnect();
    this.turn += 1;
  }

  /** Asks anew for what is in sight; `sort` is shown in the headings. */
  async refresh(sort, fromTop) {
    this.sort = sort;
    this.turn += 1;
    const turn = this.turn;
    const anchorRow = fromTop ? undefined : this.row(this.at);
    this.before = fromTop ? new Map() : new Map([...this.before, ...this.chunks].slice(-CHUNKS_KEPT));
    this.chunks.clear();
    this.requested.clear();
    if (fromTop) {
      this.at = 0;
      this.scroller.scrollTop = 0;
    }
    this.drawHead();
    const chunks = new Set([Math.floor(this.first() / CHUNK), Math.floor(this.at / CHUNK)]);
    await Promise.all([...chunks].map((chunk) => this.ask(chunk)));
    await released();
    if (turn !== this.turn) return;
    if (anchorRow) this.select(this.id(anchorRow));
    this.draw();
  }

  /** The row that was chosen stays so, wherever new rows have moved it to. */
  select(id) {
    for (const [chunk, rows] of this.chunks) {
      const index = rows.findIndex((row) => this.id(row) === id);
      if (index >= 0) this.at = chunk * CHUNK + index;
    }
  }

  /** For a reader who comes back: selects the row that was left, and scrolls it into sight. */
  comeBack(id) {
    this.select(id);
    this.reveal(this.at);
    this.draw();
  }

  get height() {
    return Math.min(this.matched * ROW, TALLEST);
  }

  get fits() {
    return Math.max(1, Math.floor(this.scroller.clientHeight / ROW));
  }

  /** The row at the top. */
  first() {
    if (this.matched * ROW <= TALLEST) return Math.floor(this.scroller.scrollTop / ROW);
    const share = this.scroller.scrollTop / Math.max(1, this.height - this.scroller.clientHeight);
    return Math.round(Math.min(1, share) * Math.max(0, this.matched - this.fits));
  }

  /** Scrolls so that a row is in sight. */
  reveal(row) {
    const [first, fits] = [this.first(), this.fits];
    if (row >= first && row < first + fits) return;
    const top = row < first ? row : row - fits + 1;
    if (this.matched * ROW <= TALLEST) this.scroller.scrollTop = top * ROW;
    else
      this.scroller.scrollTop =
        (top / Math.max(1, this.matched - fits)) * (this.height - this.scroller.clientHeight);
  }

  async ask(chunk) {
    if (this.chunks.has(chunk) || this.requested.has(chunk)) return;
    const turn = this.turn;
    this.requested.add(chunk);
    try {
      const answer = await this.fetch(chunk * CHUNK, CHUNK);
      if (turn !== this.turn) return;
      this.matched = answer.matched;
      this.at = Math.min(this.at, Math.max(0, this.matched - 1));
      this.chunks.set(chunk, answer.rows);
      this.before.delete(chunk);
      if (this.chunks.size > CHUNKS_KEPT) this.chunks.delete(this.chunks.keys().next().value);
    } finally {
      if (turn === this.turn) this.requested.delete(chunk);
    }
  }

  row(index) {
    const chunk = Math.floor(index / CHUNK);
    return (this.chunks.get(chunk) ?? this.before.get(chunk))?.[index % CHUNK];
  }

  draw() {
    this.node.setAttribute("aria-rowcount", String(this.matched + 1));
    this.spacer.style.setProperty("height", `${Math.max(this.height, 1)}px`);
    const first = this.first();
    const last = Math.min(this.matched, first + this.fits + 2);
    const isScaled = this.matched * ROW > TALLEST;
    const top = isScaled
      ? Math.min(this.scroller.scrollTop, this.height - (last - first) * ROW)
      : first * ROW;
    this.rows.style.setProperty("transform", `translateY(${Math.max(0, top)}px)`);
    const lines = [];
    for (let index = first; index < last; index += 1) lines.push(this.line(index));
    put(this.rows, lines);
    this.loadPictures();
    this.node.setAttribute("aria-activedescendant", this.matched > 0 ? `row-${this.at}` : "");
    for (const chunk of new Set([Math.floor(first / CHUNK), Math.floor(Math.max(first, last - 1) / CHUNK)])) {
      if (this.matched > 0 && !this.chunks.has(chunk) && !this.requested.has(chunk)) {
        // A drag of the scroll bar passes thousands of rows: those out of sight a moment later are not requested.
        const turn = this.turn;
        setTimeout(() => {
          const here = this.first();
          const near =
            chunk >= Math.floor(here / CHUNK) && chunk <= Math.floor((here + this.fits + 2) / CHUNK);
          if (turn === this.turn && near)
            this.ask(chunk).then(
              () => this.draw(),
              () => {},
            );
        }, 60);
      }
    }
  }

  /** The element for a row's picture; what it shows is asked for when the rows have come to rest. */
  picture(row) {
    const address = this.pictureOf(row);
    if (address === null) return el("span", { class: "row-picture" });
    const picture = this.pictures.get(address) ?? this.newPicture(address);
    // The newest come last, so that the first is the longest out of sight.
    this.pictures.delete(address);
    this.pictures.set(address, picture);
    return picture;
  }

  newPicture(address) {
    // One that is not stored is not asked for again.
    const missing = () => {
      const none = el("span", { class: "row-picture no-picture", title: "No picture of it is stored." });
      if (this.pictures.has(address)) this.pictures.set(address, none);
      picture.replaceWith(none);
    };
    const picture = el("img", {
      class: "row-picture",
      alt: "",
      decoding: "async",
      on: { error: missing },
    });
    return picture;
  }

  /** Asks for the pictures in sight, once they have been so for a moment. */
  loadPictures() {
    clearTimeout(this.pictureTimer);
    this.pictureTimer = setTimeout(() => {
      for (const [address, picture] of this.pictures)
        if (picture.isConnected && picture.matches("img:not([src])")) setAddress(picture, address);
      for (const address of [...this.pictures.keys()].slice(0, -PICTURES_KEPT)) this.pictures.delete(address);
    }, PICTURES_REST_MILLIS);
  }

  line(index) {
    const row = this.row(index);
    const cells = this.columns.map((column) =>
      el(
        "span",
        { role: "gridcell", class: column.numeric ? "number" : null },
        row ? column.of(row, this) : "…",
      ),
    );
    const choose = () => {
      this.at = index;
      this.draw();
      if (row) this.open(row, index);
    };
    return el(
      "div",
      {
        id: `row-${index}`,
        role: "row",
        "aria-rowindex": index + 2,
        "aria-selected": index === this.at ? "true" : "false",
        class: `grid-row ${index === this.at ? "at" : ""}`,
        style: { "grid-template-columns": this.layout },
        on: { click: choose },
      },
      cells,
    );
  }

  drawHead() {
    // After sorting by the keyboard the focus is on a heading, which is made anew.
    const at = this.head.contains(document.activeElement) ? document.activeElement.id : "";
    put(
      this.head,
      this.columns.map((column) => {
        const isSorted = column.sort !== undefined && this.sort?.column === column.sort;
        const arrow = isSorted ? (this.sort.descending ? " ↓" : " ↑") : "";
        const order = isSorted ? (this.sort.descending ? "descending" : "ascending") : null;
        const name = column.sort
          ? el(
              "button",
              {
                type: "button",
                class: "quiet",
                id: `sort-${column.sort}`,
                on: { click: () => this.sorted(column.sort) },
              },
              column.name,
              arrow,
            )
          : column.name;
        return el(
          "span",
          {
            role: "columnheader",
            "aria-sort": order,
            title: column.title,
            class: column.numeric ? "number" : null,
          },
          name,
        );
      }),
    );
    if (at) document.getElementById(at)?.focus({ preventScroll: true });
  }

  key(event) {
    // A click leaves the focus at the scroller; a heading's button has keys of its own.
    if (event.target !== this.node && event.target !== this.scroller) return;
    const moves = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: this.fits,
      PageUp: -this.fits,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key in moves && this.matched > 0) {
      event.preventDefault();
      this.at = Math.max(0, Math.min(this.matched - 1, this.at + moves[event.key]));
      this.reveal(this.at);
      this.draw();
    } else if (event.key === "Enter" && this.row(this.at)) {
      event.preventDefault();
      this.open(this.row(this.at), this.at);
    }
  }

  summary(total) {
    return this.matched === total
      ? `${count(total)} trajectories`
      : `${count(this.matched)} of ${count(total)} trajectories`;
  }
}
