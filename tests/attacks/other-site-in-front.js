// Reaches the goal, then shows a page that is not the site's: what was done stands.
// tasks: answers-save
// reward: 1
// end: answered
// trace: /nowhere/
if (memory.left) return answer("done");
const next = demonstrate();
if (next?.action !== "answer") return next;
keep({ left: true });
return { action: "goto", url: `${location.origin}/nowhere/` };
