"""slime: one JSON line per sample, in the form that `Sample.from_dict` reads.

Source: THUDM/slime 0d234f3, slime/utils/types.py, `Sample`: group_index, index, prompt, tokens,
multimodal_inputs, response, response_length, label, reward, loss_mask, weight_versions, rollout_log_probs,
remove_sample, status (`completed`, `truncated`), metadata, session_id. `tokens` is prompt and response
together; `loss_mask` and `rollout_log_probs` are of the response (`response_length` tokens). Screenshots are
data URIs in `multimodal_inputs.images`.

Lost: kept ids; versions are a sample's list of texts, not per token.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

from .common import Exporter, Row, Taken, tokens, write_jsonl


def rows(found: Iterator[Taken]) -> Iterator[Row]:
    """A line per sequence."""
    groups: dict[str, int] = {}
    index = 0
    for one in found:
        group = groups.setdefault(one.group.group_id, len(groups))
        for sequence in tokens(one):
            images = [
                f"data:{_mime(blob)};base64,{base64.b64encode(blob).decode()}"
                for blob in sequence.screenshots
            ]
            yield {
                "group_index": group,
                "index": index,
                "prompt": one.trajectory.goal,
                "tokens": sequence.prompt + sequence.response,
                "multimodal_inputs": {"images": images},
                "response": one.steps[sequence.steps[1]].action["raw_text"],
                "response_length": len(sequence.response),
                "label": None,
                "reward": one.trajectory.reward,
                "loss_mask": sequence.mask,
                "weight_versions": [
                    str(version)
                    for version in sorted({version for version in sequence.versions if version >= 0})
                ],
                "rollout_log_probs": sequence.logprobs,
                "remove_sample": False,
                "status": "truncated"
                if one.steps[-1].is_truncated or sequence.finish == "length"
                else "completed",
                "metadata": {
                    "trajectory_id": one.trajectory.trajectory_id,
                    "task_id": one.trajectory.task_id,
                    "steps": list(sequence.steps),
                },
                "session_id": one.trajectory.trajectory_id,
            }
            index += 1


def _mime(blob: bytes) -> str:
    return "image/jpeg" if blob[:2] == b"\xff\xd8" else "image/png"


def write(found: Iterator[Taken], path: Path, _: Path | None) -> int:
    """Writes the JSON lines."""
    return write_jsonl(rows(found), path)


EXPORTER = Exporter("rl", write)
