// Reaches the goal and never stops.
// tasks: answers-save
// reward: 0
// end: max_steps
const next = demonstrate();
return next?.action === "answer" ? { action: "wait", seconds: 1 } : next;
