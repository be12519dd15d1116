// What a person could act on in the part of the page that is shown: [role, text, left, top, right, bottom] each, topmost first.
//
// Runs in a world of its own and changes nothing. An element counts when it is visible, inside the shown part, not disabled, and when a
// click at the middle of its box would reach it before any other element that counts. Open shadow roots and frames of the same origin
// are looked into; a frame of another origin keeps what it shows to itself.
function marks(width, height, marksMax, textMax) {
  // Elements may bear the names of the properties that are needed here (a form's field called "children"), so each is taken from its prototype.
  const taken = (prototype, name) => {
    const property = Object.getOwnPropertyDescriptor(prototype, name);
    const call = property.get ?? property.value;
    return (node, ...given) => Reflect.apply(call, node, given);
  };
  const [E, N, D, S] = [Element.prototype, Node.prototype, Document.prototype, ShadowRoot.prototype];
  const attribute = taken(E, "getAttribute");
  const has = taken(E, "hasAttribute");
  const matches = taken(E, "matches");
  const query = taken(E, "querySelector");
  const rects = taken(E, "getClientRects");
  const bounds = taken(E, "getBoundingClientRect");
  const borders = [taken(E, "clientLeft"), taken(E, "clientTop")];
  const checkVisibility = taken(E, "checkVisibility");
  const shadow = taken(E, "shadowRoot");
  const slot = taken(E, "assignedSlot");
  const children = taken(E, "childElementCount");
  const tag = taken(E, "localName");
  const parent = taken(N, "parentNode");
  const kind = taken(N, "nodeType");
  const content = taken(N, "textContent");
  const home = taken(N, "getRootNode");
  const host = taken(S, "host");
  const topIn = { 9: taken(D, "elementFromPoint"), 11: taken(S, "elementFromPoint") };
  const allIn = taken(S, "elementsFromPoint");
  const byId = { 9: taken(D, "getElementById"), 11: taken(DocumentFragment.prototype, "getElementById") };
  const walker = taken(D, "createTreeWalker");
  const inside = taken(HTMLIFrameElement.prototype, "contentDocument");
  const control = taken(HTMLLabelElement.prototype, "control");
  const innerText = taken(HTMLElement.prototype, "innerText");

  // A document of more elements than this is looked at as far as this: 50,000 take 0.1 s.
  let elementsLeft = 50_000;

  const ROLES = new Set([
    "button",
    "link",
    "checkbox",
    "radio",
    "switch",
    "tab",
    "option",
    "menuitem",
    "menuitemcheckbox",
    "menuitemradio",
    "combobox",
    "textbox",
    "searchbox",
    "slider",
    "spinbutton",
    "treeitem",
  ]);
  const INPUTS = {
    __proto__: null,
    button: "button",
    submit: "button",
    reset: "button",
    image: "button",
    checkbox: "checkbox",
    radio: "radio",
    range: "slider",
    number: "spinbutton",
    search: "searchbox",
    text: "textbox",
    email: "textbox",
    password: "textbox",
    tel: "textbox",
    url: "textbox",
  };
  const EDITABLE = '[contenteditable]:not([contenteditable="false" i])';
  const BASIC = `a[href], area[href], button, input, select, textarea, option, summary, label, audio[controls], video[controls],
    ${EDITABLE}, [role], [onclick], [tabindex]`;

  // The role of an element that counts, else null.
  const roleOf = (node, name) => {
    const role = (attribute(node, "role") ?? "").trim().split(/\s+/)[0].toLowerCase();
    if (ROLES.has(role)) return role;
    if (name === "a" && has(node, "href")) return "link";
    if (name === "input") {
      const type = (attribute(node, "type") ?? "text").toLowerCase();
      return type === "hidden"
        ? null
        : (INPUTS[type] ??
            (/^(color|date|datetime-local|file|month|time|week)$/.test(type) ? "input" : "textbox"));
    }
    if (name === "select")
      return has(node, "multiple") || Number(attribute(node, "size")) > 1 ? "listbox" : "combobox";
    if (name === "textarea" || matches(node, EDITABLE)) return "textbox";
    if (["button", "option"].includes(name)) return name;
    if (["summary", "audio", "video"].includes(name)) return name;
    if (name === "label") return labelRole(node);
    if (name === "body" || name === "html") return null;
    if (has(node, "onclick") || Number(attribute(node, "tabindex") ?? -1) >= 0) return name;
    return null;
  };
  // A label stands for the field it hides, as dressed-up check boxes do.
  const labelRole = (node) => {
    const field = control(node);
    if (!field || (isVisible(field) && boxesOf(field).length)) return null;
    return matches(field, ":disabled") ? null : roleOf(field, tag(field));
  };
  const isVisible = (node) => checkVisibility(node, { opacityProperty: true, visibilityProperty: true });
  const boxesOf = (node) => [...rects(node)].filter((rect) => rect.width >= 2 && rect.height >= 2);

  const cut = (rect, by) => {
    const box = {
      left: Math.max(rect.left, by.left),
      top: Math.max(rect.top, by.top),
      right: Math.min(rect.right, by.right),
      bottom: Math.min(rect.bottom, by.bottom),
    };
    return box.right - box.left >= 2 && box.bottom - box.top >= 2 ? box : null;
  };
  const moved = (rect, [dx, dy]) => ({
    left: rect.left + dx,
    top: rect.top + dy,
    right: rect.right + dx,
    bottom: rect.bottom + dy,
  });
  const area = (box) => (box.right - box.left) * (box.bottom - box.top);
  const largest = (node, origin, by) =>
    boxesOf(node)
      .map((rect) => cut(moved(rect, origin), by))
      .filter(Boolean)
      .sort((one, other) => area(other) - area(one))[0];
  // Outwards as it is drawn: what stands in a slot stands in its slot.
  const above = (node) =>
    kind(node) === 11 ? host(node) : kind(node) === 1 ? (slot(node) ?? parent(node)) : null;

  // What boxes with scroll bars or cut edges leave of their contents.
  const frames = new Map();
  const frameOf = (node, origin, whole) => {
    if (!node || kind(node) === 9) return whole;
    if (kind(node) === 11) return frameOf(above(node), origin, whole);
    if (!frames.has(node)) {
      const outer = frameOf(above(node), origin, whole);
      const cutsOff = getComputedStyle(node).overflow !== "visible" && !["html", "body"].includes(tag(node));
      frames.set(node, cutsOff && outer ? cut(moved(bounds(node), origin), outer) : outer);
    }
    return frames.get(node);
  };

  // Everything that counts, with the origin of its document and the part of the picture that shows that document.
  const counted = new Map();
  const lookInto = (root, origin, clip) => {
    const walk = walker(document, root, NodeFilter.SHOW_ELEMENT);
    for (let node = walk.nextNode(); node && elementsLeft > 0; node = walk.nextNode()) {
      elementsLeft -= 1;
      const name = tag(node);
      const within = name === "iframe" && inside(node);
      if (within) {
        const corner = cornerOf(node, origin);
        const rest = cut(moved(bounds(node), origin), clip);
        if (rest) lookInto(within, corner, rest);
      } else if (matches(node, BASIC)) {
        const role =
          matches(node, ':disabled, [aria-disabled="true" i]') || !isVisible(node)
            ? null
            : roleOf(node, name);
        if (role) counted.set(node, { node, role, origin, clip });
      } else if (
        !children(node) &&
        largest(node, origin, clip) &&
        getComputedStyle(node).cursor === "pointer" &&
        isVisible(node)
      ) {
        if (!owner(node)) counted.set(node, { node, role: name, origin, clip });
      }
      if (shadow(node)) lookInto(shadow(node), origin, clip);
    }
  };
  const cornerOf = (frame, origin) => {
    const [box, style] = [bounds(frame), getComputedStyle(frame)];
    return [
      origin[0] + box.left + borders[0](frame) + parseFloat(style.paddingLeft),
      origin[1] + box.top + borders[1](frame) + parseFloat(style.paddingTop),
    ];
  };
  // The element that counts nearest to a node, going outwards.
  const owner = (node) => {
    while (node && !counted.has(node)) node = above(node);
    return node;
  };
  // The innermost element at a point.
  const topAt = (x, y) => {
    let [root, origin, top] = [document, [0, 0], null];
    for (;;) {
      const at = [x - origin[0], y - origin[1]];
      let node = topIn[kind(root)](root, ...at);
      // A text in a slot counts as its host's, so what lies inside the host is looked up among all elements at the point.
      if (node === top && kind(root) === 11) node = allIn(root, ...at).find((one) => home(one) === root);
      if (!node || node === top) return top;
      top = node;
      const within = tag(node) === "iframe" && inside(node);
      if (within) [root, origin] = [within, cornerOf(node, origin)];
      else if (shadow(node)) root = shadow(node);
      else return top;
    }
  };
  const isReached = (node, box) =>
    owner(topAt((box.left + box.right) / 2, (box.top + box.bottom) / 2)) === node;
  const boxOf = ({ node, origin, clip }) => {
    const frame = frameOf(above(node), origin, clip);
    const visibleBox = frame && largest(node, origin, frame);
    if (visibleBox && isReached(node, visibleBox)) return visibleBox;
    // What is placed by itself is not cut off by what it stands in.
    const whole = largest(node, origin, clip);
    return whole && isReached(node, whole) ? whole : null;
  };

  const cleanText = (text) =>
    [
      ...(text ?? "")
        .slice(0, 5 * textMax)
        .replace(/\s+/g, " ")
        .trim(),
    ]
      .slice(0, textMax)
      .join("")
      .toWellFormed();
  const visibleText = (node) => cleanText(node instanceof HTMLElement ? innerText(node) : content(node));
  const named = (node, ids) => {
    const root = home(node);
    return cleanText(
      ids
        .split(/\s+/)
        .slice(0, 8)
        .map((id) => byId[kind(root)]?.(root, id))
        .filter(Boolean)
        .map(visibleText)
        .join(" "),
    );
  };
  const fieldText = (node, name) => {
    const type = (attribute(node, "type") ?? "").toLowerCase();
    if (name === "input" && ["button", "submit", "reset"].includes(type))
      return cleanText(node.value) || type;
    const labels = cleanText([...(node.labels ?? [])].slice(0, 4).map(visibleText).join(" "));
    const chosen = name === "select" && cleanText(node.selectedOptions[0]?.label);
    return (
      labels ||
      cleanText(attribute(node, "placeholder")) ||
      cleanText(attribute(node, "alt")) ||
      cleanText(attribute(node, "title")) ||
      chosen
    );
  };
  const textOf = (node) => {
    const name = tag(node);
    const label =
      cleanText(attribute(node, "aria-label")) || named(node, attribute(node, "aria-labelledby") ?? "");
    if (label) return label;
    const isField = ["input", "select", "textarea"].includes(name);
    const text = isField ? fieldText(node, name) : visibleText(node);
    return text || slottedText(node) || cleanText(attribute(node, "title"));
  };
  // Of what stands in it: a slot's text, a picture's name.
  const slottedText = (node) => {
    const slotElement = query(node, "slot");
    const picture = query(node, "img[alt], [aria-label]");
    return (
      cleanText(
        slotElement
          ?.assignedNodes({ flatten: true })
          .slice(0, 8)
          .map((one) => content(one))
          .join(" "),
      ) || cleanText(picture && (attribute(picture, "alt") ?? attribute(picture, "aria-label")))
    );
  };

  const clip = {
    left: 0,
    top: 0,
    right: Math.min(width, innerWidth),
    bottom: Math.min(height, innerHeight),
  };
  lookInto(document, [0, 0], clip);
  return [...counted.values()]
    .map((one) => ({ ...one, box: boxOf(one) }))
    .filter((one) => one.box)
    .sort((one, other) => one.box.top - other.box.top || one.box.left - other.box.left)
    .slice(0, marksMax)
    .map(({ node, role, box }) => [role, textOf(node), box.left, box.top, box.right, box.bottom]);
}
