"""Rows that the farm itself wrote: prompts laid out as the policy worker did, log-probs recomputed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from furrow_trainer.data import Choice, Reader
from furrow_trainer.learn import demonstration
from furrow_trainer.learn.template import Template, outcome_text
from furrow_trainer.model import load
from furrow_trainer.recompute import recompute
from paths import REPOSITORY

RUN = Path(os.environ.get("FURROW_TRAINER_RUN", REPOSITORY / "runs" / "quickstart-model"))
CHECKPOINT = Path(os.environ.get("FURROW_TRAINER_CHECKPOINT", REPOSITORY / ".cache" / "tiny-7"))
pytestmark = pytest.mark.skipif(
    not (RUN / "data").is_dir() or not CHECKPOINT.is_dir(),
    reason=f"no run of a model at {RUN} or no checkpoint at {CHECKPOINT}",
)


def test_log_probs_of_a_thousand_steps_are_recomputed() -> None:
    gaps = recompute({0: load(CHECKPOINT)}, Reader(RUN, Choice(trainable="rl"), verify=True), 1000)
    print(dict(gaps.counts), gaps.table())
    assert gaps.counts["draws"] > 0 and gaps.largest("float32") < 1e-3


def test_prompts_and_replies_are_laid_out_as_the_policy_worker_did() -> None:
    checkpoint = load(CHECKPOINT)
    vision = checkpoint.config.vision
    assert vision is not None
    layout = Template(CHECKPOINT, vision)
    compared = 0
    reader = Reader(RUN, Choice(trainable="rl"))
    for group in reader.groups():
        for trajectory in group.trajectories:
            steps = reader.steps(trajectory)
            for step in steps:
                if step.step and trajectory.context not in ("append", "last_image"):
                    continue
                if step.step == 0:
                    before, after = layout.first_turn(
                        str(trajectory.session["instructions"]), trajectory.goal
                    )
                else:
                    before, after = layout.later_turn(outcome_text(steps[step.step - 1].outcome))
                assert (
                    step.prompt_token_ids is not None
                    and step.forced is not None
                    and step.response_token_ids is not None
                )
                assert step.prompt_token_ids.tolist() == [
                    *before,
                    *layout.image(step.image_spans[-1].token_len),
                    *after,
                ]
                # Where one id alone was legal, a demonstration of the same reply has it, in the same order.
                ids = iter(demonstration.reply(step.action["raw_text"], layout)[0])
                assert all(any(one == other for other in ids) for one in step.response_token_ids[step.forced])
                compared += 1
        reader.done(group)
    assert compared > 0
