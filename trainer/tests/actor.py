"""A policy in PyTorch that acts in a game of one choice, and writes the columns of Furrow's policy worker:
tokens, log-probs, kept ids, versions.

Each prompt names one of a few symbols beside a screenshot; the reply's first token is sampled from eight ids,
of which each symbol has its right one. The second token is sampled from the whole vocabulary, the third is
forced, the stop id is appended.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farm import Farm, png
from furrow_trainer.data import pixels
from furrow_trainer.data.rows import ImageSpan
from furrow_trainer.data.token_hash import token_hash
from furrow_trainer.model import load
from furrow_trainer.model.policy import Policy

SYMBOLS = 3
ANSWERS = list(range(40, 48))
FORCED, STOP, OPEN, CLOSE = 60, 12, 61, 62
# The oracle's random logits have an RMS of 4: at temperature 1 the policy would not explore.
TEMPERATURE = 4.0


class Actor:
    """Samples with a checkpoint's weights under a version."""

    def __init__(self, folder: Path, version: int, seed: int, context: str = "last_image") -> None:
        self.version, self.context = version, context
        self.rng = np.random.default_rng([seed, version])
        self.reload(folder, version)

    def reload(self, folder: Path, version: int) -> None:
        """Loads newer weights."""
        self.policy: Policy = load(folder).policy
        self.version = version
        assert self.policy.config.vision is not None
        self.vision = self.policy.config.vision

    def attempt(
        self, farm: Farm, group: str, sample: int, symbol: int, steps: int = 1
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """A trajectory of the farm with this actor's tokens; its reward is the share of right first
        tokens."""
        whole, rows = farm.trajectory(group, sample, 0.0, steps)
        kept: list[int] = []
        kept_spans: list[dict[str, Any]] = []
        right = 0
        for index, row in enumerate(rows):
            blob = png(100 + symbol + index, 64, 64)
            row["observation"]["screenshot"]["bytes"] = blob
            decoded = pixels.decode(blob)
            cut, grid = pixels.tiles(decoded, self.vision.tiling)
            count = len(cut) * self.vision.rows_per_tile
            before = [1, 10, *range(200, 220), 30 + symbol, OPEN] if index == 0 else [11, 30 + symbol, OPEN]
            prompt = [*before, *[self.vision.image_token] * count, CLOSE, 11]
            span = {
                "step": index,
                "token_start": len(kept) + len(before),
                "token_len": count,
                "tiles_x": grid[0],
                "tiles_y": grid[1],
                "blob_sha256": hashlib.sha256(blob).digest(),
                "rgb_sha256": pixels.rgb_sha256(decoded),
            }
            spans = [*(kept_spans if self.context == "append" else []), span]
            response, columns = self.reply(
                [*kept, *prompt], [rows[one["step"]]["observation"]["screenshot"]["bytes"] for one in spans]
            )
            right += response[0] == ANSWERS[symbol]
            of_prompt = [ImageSpan(**one) for one in spans]
            row["sampling"]["temperature"] = TEMPERATURE
            row.update(
                columns
                | {
                    "prompt_token_ids": prompt,
                    "image_spans": spans,
                    "prefix_len": len(kept),
                    "policy_version": self.version,
                    "prefix_hash": token_hash(
                        np.array(kept, np.int32), [ImageSpan(**one) for one in kept_spans]
                    ),
                    "prompt_hash": token_hash(np.array([*kept, *prompt], np.int32), of_prompt),
                    "state_version_min": self.version,
                }
            )
            if self.context == "append":
                row["commit_token_ids"] = None
                kept, kept_spans = [*kept, *prompt, *response], spans
            else:
                row["commit_token_ids"] = [*before[:-1], 11, *response]
                kept = [*kept, *row["commit_token_ids"]]
        reward = right / steps
        whole |= {
            "reward": reward,
            "policy_version_min": self.version,
            "policy_version_max": self.version,
            "task_id": f"symbol-{symbol}",
        }
        whole["num_response_tokens"] = 4 * steps
        whole["session"]["context"] = self.context
        for index, row in enumerate(rows):
            row["reward"] = reward * (index == steps - 1)
            row["task_id"] = whole["task_id"]
        return whole, rows

    @torch.no_grad()
    def reply(self, prompt: list[int], blobs: list[bytes]) -> tuple[list[int], dict[str, Any]]:
        """Four ids and their columns."""
        ids = list(prompt)
        tiles = [
            torch.from_numpy(
                pixels.normalise(pixels.tiles(pixels.decode(blob), self.vision.tiling)[0], self.vision.tiling)
            )
            for blob in blobs
        ]
        rows = torch.cat([self.policy.image_rows(one).flatten(0, 1) for one in tiles])
        logprobs: list[float | None] = []
        sampled: list[float | None] = []
        entropy: list[float | None] = []
        for allowed in (ANSWERS, None):
            positions = (torch.tensor(prompt) == self.vision.image_token).nonzero().squeeze(-1)
            whole = self.policy.logits(self.policy(torch.tensor([ids]), rows, None, positions))[0, -1]
            whole = (whole / TEMPERATURE).log_softmax(-1)
            share = whole if allowed is None else whole[allowed].log_softmax(-1)
            weights = share.double().exp().numpy()
            at = int(self.rng.choice(len(share), p=weights / weights.sum()))
            ids.append(at if allowed is None else allowed[at])
            logprobs.append(float(whole[ids[-1]]))
            sampled.append(float(share[at]))
            entropy.append(float(-(share.exp() * share).sum()))
        ids += [FORCED, STOP]
        return ids[len(prompt) :], {
            "response_token_ids": ids[len(prompt) :],
            "response_mask": [True, True, False, False],
            "forced": [False, False, True, False],
            "finish_reason": "stop",
            "logprobs": [*logprobs, None, None],
            "sampled_logprobs": [*sampled, 0.0, None],
            "kept_count": [len(ANSWERS), None, 1, None],
            "kept_token_ids": [*ANSWERS, FORCED],
            "kept_offsets": [0, 8, 8, 9, 9],
            "entropy": [*entropy, None, None],
            "policy_versions": [self.version] * 4,
        }


def play(farm: Farm, actor: Actor, first: int, groups: int, size: int, steps: int = 1) -> float:
    """Groups of attempts in one commit; their mean reward."""
    trajectories, rows, rewards = [], [], []
    for number in range(first, first + groups):
        name, symbol = f"g{number:05}", number % SYMBOLS
        attempts = [actor.attempt(farm, name, sample, symbol, steps) for sample in range(size)]
        mine = [whole["reward"] for whole, _ in attempts]
        trajectories += attempts
        rewards += mine
        rows.append(
            farm.group(
                name,
                mine,
                task_id=f"symbol-{symbol}",
                policy_version_min=actor.version,
                policy_version_max=actor.version,
            )
        )
    farm.commit(trajectories, rows)
    return float(np.mean(rewards))
