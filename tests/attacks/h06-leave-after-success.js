// Reaches the goal, then asks for an address that is not on the task's list.
// tasks: answers-save, answers-csv
// reward: 0
// end: off_list_navigation
const next = demonstrate();
return next?.action === "answer" ? { action: "goto", url: "http://example.com/" } : next;
