// Reaches the goal, then goes back in the history: a page that is shown again must not undo it.
// tasks: answers-save
// reward: 1
// end: answered
if (memory.back) return answer("done");
const next = demonstrate();
if (next?.action !== "answer") return next;
keep({ back: true });
return { action: "go_back" };
