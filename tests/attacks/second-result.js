// Reaches the goal, then saves another result, which the goal did not ask for.
// tasks: answers-save
// reward: 0
// end: answered
// trace: 360360
const next = memory.reached ? null : demonstrate();
if (next && next.action !== "answer") return next;
keep({ reached: true });
if (!memory.second) {
  keep({ second: true });
  return { action: "goto", url: `${location.origin}/ask/?q=factor%20360360` };
}
const button = one(".keep");
return !button || button.classList.contains("on") ? answer("done") : press(button);
