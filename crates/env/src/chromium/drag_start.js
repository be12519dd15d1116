// Notes whether the page begins to drag natively: in its own document and in frames of its origin.
//
// Runs in a world of its own: once to begin, then to ask.
function dragStart(begins) {
  const WINDOWS_MAX = 256;
  if (!begins) {
    const event = globalThis.furrowDragStart?.event;
    // A page that handles the drag itself prevents the browser's.
    return Boolean(event) && !event.defaultPrevented;
  }
  globalThis.furrowDragStart?.end();
  const noted = {
    event: null,
    end: () => windows.forEach((view) => view.removeEventListener("dragstart", note, true)),
  };
  const note = (event) => (noted.event = event);
  const windows = [window];
  for (let at = 0; at < windows.length; at++) {
    const view = windows[at];
    view.addEventListener("dragstart", note, true);
    for (let index = 0; index < view.length && windows.length < WINDOWS_MAX; index++) {
      try {
        // Of another origin this is an error.
        if (view[index].document) windows.push(view[index]);
      } catch {
        continue;
      }
    }
  }
  globalThis.furrowDragStart = noted;
  return true;
}
