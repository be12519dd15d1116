// Draws tasks under many seeds in one page: each in a frame of its own, which is a fresh document of the start page with empty storage.
//
// Called again, it goes on with the seeds that are left. Returns the draws that are ready after `budget` ms or `lettersMax` letters, at
// least one. `start` is the suite's start script.
async function drawTasks(seeds, startUrl, budget, lettersMax, start) {
  const cursor = (window.furrowDraws ??= { next: 0 });
  const later = (millis) => new Promise((resume) => setTimeout(resume, millis));

  const opened = async () => {
    const frame = document.createElement("iframe");
    frame.style.cssText = "position: fixed; left: 0; top: 0; width: 100%; height: 100%; visibility: hidden";
    const loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
    frame.src = startUrl;
    document.documentElement.append(frame);
    await loaded;
    for (let wait = 0; wait < 80 && !frame.contentWindow.furrow; wait++) await later(25);
    return frame;
  };

  const draw = async (seed) => {
    localStorage.clear();
    sessionStorage.clear();
    const frame = await opened();
    try {
      const { furrow, localStorage: storage } = frame.contentWindow;
      const goal = await start(seed, frame.contentWindow, furrow);
      const stored = { ...storage };
      const report = furrow.grade ? await furrow.grade(stored, stored, []) : await furrow.probe();
      return { goal, report };
    } catch (error) {
      return { error: String(error).slice(0, 200) };
    } finally {
      frame.remove();
    }
  };

  const draws = [];
  const until = performance.now() + budget;
  let letters = 0;
  const isFull = () => draws.length > 0 && (performance.now() > until || letters > lettersMax);
  while (cursor.next < seeds.length && !isFull()) {
    const made = await draw(seeds[cursor.next++]);
    letters += JSON.stringify(made).length;
    draws.push(made);
  }
  return { draws };
}
