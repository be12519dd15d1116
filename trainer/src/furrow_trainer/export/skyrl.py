"""SkyRL: one JSON object with the lists of a step-wise generator output.

Source: NovaSky-AI/SkyRL 12f1ad3, skyrl/train/generators/base.py, `GeneratorOutput` (a TypedDict):
prompt_token_ids, response_ids, rewards, loss_masks, stop_reasons, rollout_metrics, rollout_logprobs,
trajectory_ids, rollout_expert_indices, process_rewards, is_last_step. Entries of one trajectory are
contiguous and in order, as step-wise training wants them; `rewards` are per token, the trajectory's on the
last token of its last entry. `trajectory_ids` are `{instance_id, repetition_id}`: make them
`TrajectoryID(**entry)`.

Lost: screenshots (this version's generator output has no field for pixels), versions, kept ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .common import Exporter, Row, Taken, tokens

FIELDS = (
    "prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_metrics",
    "rollout_logprobs", "trajectory_ids", "rollout_expert_indices", "process_rewards", "is_last_step",
)  # fmt: skip


def output(found: Iterator[Taken]) -> Row:
    """The whole output."""
    lists: dict[str, list[object]] = {name: [] for name in FIELDS}
    for one in found:
        for sequence in tokens(one):
            rewards = [0.0] * len(sequence.response)
            if sequence.is_last:
                rewards[-1] = float(one.trajectory.reward or 0.0)
            lists["prompt_token_ids"].append(sequence.prompt)
            lists["response_ids"].append(sequence.response)
            lists["rewards"].append(rewards)
            lists["loss_masks"].append(sequence.mask)
            # SkyRL has only these two reasons.
            lists["stop_reasons"].append("stop" if sequence.finish in ("stop", "grammar_cap") else "length")
            lists["rollout_logprobs"].append(sequence.logprobs)
            lists["trajectory_ids"].append(
                {"instance_id": one.group.group_id, "repetition_id": one.trajectory.sample_index}
            )
            lists["is_last_step"].append(sequence.is_last)
    absent = ("rollout_metrics", "rollout_expert_indices", "process_rewards")
    return {name: None if name in absent else values for name, values in lists.items()}


def write(found: Iterator[Taken], path: Path, _: Path | None) -> int:
    """Writes the JSON file."""
    whole = output(found)
    path.write_text(json.dumps(whole), "utf8")
    return len(whole["response_ids"])


EXPORTER = Exporter("rl", write)
