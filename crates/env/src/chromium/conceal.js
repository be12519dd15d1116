// Gathers what a page may show as text, and covers parts of it: [text, values, covered, is whole] and later [covered, bare].
//
// Runs in a world of its own. The worker looks for secrets in what is gathered, so that no page gets to know what is looked for. What is
// covered is drawn as dots, as in a password field. Open shadow roots and frames of the page's own origin are looked into.
function conceal(found) {
  // Elements may bear the names of the properties that are needed here, so each is taken from its prototype.
  const taken = (prototype, name) => {
    const property = Object.getOwnPropertyDescriptor(prototype, name);
    const call = property.get ?? property.value;
    return (node, ...given) => Reflect.apply(call, node, given);
  };
  const kind = taken(Node.prototype, "nodeType");
  const parent = taken(Node.prototype, "parentNode");
  const isConnected = taken(Node.prototype, "isConnected");
  const data = taken(CharacterData.prototype, "data");
  const tag = taken(Element.prototype, "localName");
  const attribute = taken(Element.prototype, "getAttribute");
  const shadow = taken(Element.prototype, "shadowRoot");
  const checkVisibility = taken(Element.prototype, "checkVisibility");
  const host = taken(ShadowRoot.prototype, "host");
  const walker = taken(Document.prototype, "createTreeWalker");
  const inside = taken(HTMLIFrameElement.prototype, "contentDocument");
  const insideFrame = taken(HTMLFrameElement.prototype, "contentDocument");
  const styles = [HTMLElement, SVGElement, MathMLElement].map((type) => [
    type,
    taken(type.prototype, "style"),
  ]);
  const inputType = taken(HTMLInputElement.prototype, "type");
  const inputValue = taken(HTMLInputElement.prototype, "value");
  const areaValue = taken(HTMLTextAreaElement.prototype, "value");

  const PROPERTY = "-webkit-text-security";
  const FILL = "-webkit-text-fill-color";
  const UNSEEN = new Set(["script", "style", "noscript", "template", "textarea", "title", "head"]);
  // Attributes that are drawn: of an empty field, of a broken picture, of an option.
  const DRAWN = ["alt", "label"];
  const ROOTS_MAX = 256;
  const TEXT_MAX = 1_000_000;

  const drawnAs = (element) => getComputedStyle(element).getPropertyValue(PROPERTY);
  // A list draws its options: as wide as the text of the longest, and by the browser itself while it is open.
  const listOf = (element) => {
    let list = ["option", "optgroup"].includes(tag(element)) ? element : null;
    while (list && tag(list) !== "select") {
      const above = parent(list);
      list = above && kind(above) === 1 ? above : null;
    }
    return list;
  };
  // What a field shows while it is empty is never drawn as dots, so it is not drawn at all.
  const coverHint = (element) => {
    const isCovered = () => getComputedStyle(element).getPropertyValue(FILL) === "rgba(0, 0, 0, 0)";
    if (isCovered()) return 0;
    const [, style] = styles.find(([type]) => isOf(element, type)) ?? [];
    style?.(element)?.setProperty(FILL, "transparent", "important");
    style?.(element)?.setProperty("text-shadow", "none", "important");
    return isCovered() || !isConnected(element) ? 1 : checkVisibility(element) ? 2 : 0;
  };
  // 0: it was covered already, 1: it is now, 2: it is not.
  const cover = (element) => {
    const list = listOf(element);
    if (list) return checkVisibility(list) ? 2 : 0;
    if (drawnAs(element) === "disc") return 0;
    const [, style] = styles.find(([type]) => isOf(element, type)) ?? [];
    style?.(element)?.setProperty(PROPERTY, "disc", "important");
    // What has left the page since it was gathered was drawn until then.
    if (!checkVisibility(element)) return isConnected(element) ? 0 : 1;
    return drawnAs(element) === "disc" ? 1 : 2;
  };
  const isOf = (element, type) => {
    try {
      taken(type.prototype, "style")(element);
      return true;
    } catch {
      return false;
    }
  };
  const isPassword = (node) => tag(node) === "input" && inputType(node) === "password";

  if (found !== null) {
    const { starts, nodes, owners } = globalThis.furrowGathered;
    const [elements, hints] = [new Set(), new Set()];
    for (const index of found.values) (owners[index].isHint ? hints : elements).add(owners[index].element);
    for (const [begin, end] of found.ranges) {
      let index = starts.findLastIndex((start) => start <= begin);
      for (; index < starts.length && starts[index] < end; index++) elements.add(nodes[index]);
    }
    const results = [...[...elements].map(cover), ...[...hints].map(coverHint)];
    return [results.filter((result) => result === 1).length, results.filter((result) => result === 2).length];
  }

  const gathered = { starts: [], nodes: [], owners: [] };
  const texts = [];
  const values = [];
  let [length, valuesLength, isWhole, covered] = [0, 0, true, 0];
  const add = (text, element) => {
    if (!text) return;
    gathered.starts.push(length);
    gathered.nodes.push(element);
    texts.push(text);
    length += text.length;
    isWhole &&= length <= TEXT_MAX;
  };
  const addValue = (text, element, isHint = false) => {
    if (!text) return;
    gathered.owners.push({ element, isHint });
    values.push(text);
    valuesLength += text.length;
    isWhole &&= valuesLength <= TEXT_MAX;
  };
  const roots = [document];
  const addRoot = (root) => (roots.length < ROOTS_MAX ? roots.push(root) : (isWhole = false));
  const lookAt = (element) => {
    const name = tag(element);
    if (shadow(element)) addRoot(shadow(element));
    if (name === "iframe" || name === "frame") {
      const within = name === "iframe" ? inside(element) : insideFrame(element);
      if (within) addRoot(within);
    }
    const value = name === "input" && !isPassword(element) ? inputValue(element) : "";
    const text = name === "textarea" ? areaValue(element) : value;
    addValue(text, element);
    addValue(attribute(element, "placeholder"), element, true);
    for (const drawn of DRAWN) addValue(attribute(element, drawn), element);
    if (globalThis.furrowFilled?.has(element) && !isPassword(element)) covered += cover(element) === 1;
  };
  for (let at = 0; at < roots.length; at++) {
    const walk = walker(document, roots[at], NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node && isWhole; node = walk.nextNode()) {
      if (kind(node) === 1) {
        lookAt(node);
        continue;
      }
      const above = parent(node);
      const owner = kind(above) === 11 ? host(above) : above;
      if (kind(owner) === 1 && !UNSEEN.has(tag(owner))) add(data(node), owner);
    }
    // No value reaches from one document into another.
    length += 1;
    texts.push("\n");
  }
  globalThis.furrowGathered = gathered;
  return [texts.join(""), values, covered, isWhole];
}
