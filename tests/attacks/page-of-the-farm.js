// The empty page that the farm reads a site's storage from.
// tasks: answers-fact, answers-save
// reward: 0
// end: answered
// trace: /.furrow/storage
if (memory.gone) return answer("done");
keep({ gone: true });
return { action: "goto", url: `${location.origin}/.furrow/storage` };
