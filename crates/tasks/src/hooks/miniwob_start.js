(async () => {
  /* Starts a MiniWoB++ task and returns its goal. Runs in real time: page time stands still only afterwards. */
  const until = Date.now() + 10000;
  const when = async (ready, what) => {
    while (!ready()) {
      if (Date.now() > until) throw new Error(`MiniWoB++ page: ${what} within 10 s`);
      await new Promise((resume) => setTimeout(resume, 10));
    }
  };
  await when(() => typeof core === 'object' && core.cover_div, 'no start screen');

  /* The score panel lies outside the picture; hidden, it is outside the accessibility text as well. */
  const style = document.createElement('style');
  style.textContent = '#reward-display { visibility: hidden }';
  document.head.appendChild(style);

  /* The first end is the one that counts: a second click of the same action would fall on the START cover, begin
     anew and wipe the reward, so it is kept at the moment it is given. */
  const attempt = { episode: WOB_EPISODE_ID, end: null };
  const endEpisode = core.endEpisode;
  core.endEpisode = function (...args) {
    endEpisode.apply(core, args);
    if (attempt.end === null && WOB_DONE_GLOBAL) {
      attempt.end = {
        raw_reward: WOB_RAW_REWARD_GLOBAL,
        reward: WOB_REWARD_GLOBAL,
        reason: WOB_REWARD_REASON,
        episode_id: WOB_EPISODE_ID,
      };
    }
  };
  Object.defineProperty(window, 'furrowMiniwob', { value: attempt, configurable: true });

  core.EPISODE_MAX_TIME = {limit_millis};
  Math.seedrandom('{seed}');
  if (typeof core.setDataMode === 'function') core.setDataMode('train');
  core.startEpisodeReal();
  await when(() => WOB_TASK_READY, 'the task was not ready');
  const goal = core.getUtterance();
  return typeof goal === 'string' ? goal : goal.utterance;
})()
