(() => {
  /* What the page says of the attempt that the start script began; `changed` when the page no longer holds that attempt. */
  const attempt = window.furrowMiniwob;
  if (!attempt) return { done: false, away: location.protocol };
  if (attempt.end) {
    return { done: true, changed: false, begun_anew: !WOB_DONE_GLOBAL, ...attempt.end };
  }
  return {
    done: WOB_DONE_GLOBAL,
    changed: WOB_EPISODE_ID !== attempt.episode,
    raw_reward: WOB_RAW_REWARD_GLOBAL,
    reward: WOB_REWARD_GLOBAL,
    reason: WOB_REWARD_REASON,
    episode_id: WOB_EPISODE_ID,
  };
})()
