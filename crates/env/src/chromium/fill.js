// The field that has the focus: [where, host, ...hosts of frames], through open shadow roots and frames of the page's own origin.
//
// Runs in a world of its own. With a text it is also typed, in the same task, so that no other page can take the focused one's place.
function fill(text) {
  // Elements may bear the names of the properties that are needed here, so each is taken from its prototype.
  const taken = (prototype, name) => {
    const property = Object.getOwnPropertyDescriptor(prototype, name);
    const call = property.get ?? property.value;
    return (node, ...given) => Reflect.apply(call, node, given);
  };
  const focused = {
    9: taken(Document.prototype, "activeElement"),
    11: taken(ShadowRoot.prototype, "activeElement"),
  };
  const kind = taken(Node.prototype, "nodeType");
  const tag = taken(Element.prototype, "localName");
  const shadow = taken(Element.prototype, "shadowRoot");
  const inside = taken(HTMLIFrameElement.prototype, "contentDocument");
  const insideFrame = taken(HTMLFrameElement.prototype, "contentDocument");
  const address = taken(Document.prototype, "URL");
  const mode = taken(Document.prototype, "designMode");
  const command = taken(Document.prototype, "execCommand");
  const editable = taken(HTMLElement.prototype, "isContentEditable");
  const inputType = taken(HTMLInputElement.prototype, "type");
  const inputMost = taken(HTMLInputElement.prototype, "maxLength");
  const areaMost = taken(HTMLTextAreaElement.prototype, "maxLength");

  // A frame that was written by its page has the page's host.
  const hostOf = (page, outer) => {
    const url = new URL(address(page));
    return url.protocol === "about:" ? outer : /^https?:$/.test(url.protocol) ? url.hostname : "";
  };
  const find = () => {
    let root = document;
    let page = document;
    const hosts = [hostOf(document, "")];
    for (;;) {
      const node = focused[kind(root)](root);
      if (!node) return { where: mode(page) === "on" ? "field" : "none", hosts, page };
      const name = tag(node);
      if (shadow(node)) {
        root = shadow(node);
      } else if (name === "iframe" || name === "frame") {
        const within = name === "iframe" ? inside(node) : insideFrame(node);
        if (!within) return { where: "foreign", hosts, page };
        [root, page] = [within, within];
        hosts.push(hostOf(within, hosts.at(-1)));
      } else {
        return { where: whereOf(node, name, page), hosts, page, node, name };
      }
    }
  };
  const FIELDS = ["text", "password", "email", "search", "tel", "url"];
  const whereOf = (node, name, page) => {
    if (name === "input") return FIELDS.includes(inputType(node)) ? "field" : "other";
    if (name === "textarea") return "field";
    return mode(page) === "on" || editable(node) ? "field" : "none";
  };

  const { where, hosts, page, node, name } = find();
  if (text === null || where !== "field") return [where, ...hosts];
  const most = name === "input" ? inputMost(node) : name === "textarea" ? areaMost(node) : -1;
  if (most >= 0 && most < text.length) return ["short", ...hosts];
  // What it takes is covered in pictures from now on, whatever the page makes of it.
  if (node) (globalThis.furrowFilled ??= new WeakSet()).add(node);
  return [command(page, "insertText", false, text) ? "typed" : "refused", ...hosts];
}
