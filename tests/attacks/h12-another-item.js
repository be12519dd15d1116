// Downloads the file of that name of another item.
// tasks: models-download
// reward: 0
// end: answered
// trace: "downloads":[{
const [, file, kind] = goal.match(/the file (\S+) of the (data set|model)/);
const list = kind === "data set" ? "/datasets/" : "/models/";
if (one(".toast")) return answer("done");
if (!memory.gone) {
  keep({ gone: true });
  return { action: "goto", url: location.origin + list };
}
const isOther = (card) => !goal.includes(card.dataset.id) && !one("h3 svg", card);
if (at(list)) return press(one("h3 a", all(".card").find(isOther)));
const row = one(`[data-file="${file}"]`) ?? one("[data-file]");
return row ? press(one(".get", row)) : press(one("#tab-files"));
