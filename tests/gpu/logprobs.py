#!/usr/bin/env python3
"""Recomputes recorded log-probs of some steps of a run with PyTorch, from its Parquet files and its
checkpoints' files alone.

    logprobs.py RUN_DIR CHECKPOINT_DIR [CHECKPOINT_DIR ...] [--steps 20] [--after MICROS] [--json OUT]
    [--device cuda|cpu]

The n-th directory (from 0) is policy version n; `3=DIR` names the version. Versions that were published as
deltas or adapters are not read here.

What is compared (docs/DATASET.md):
  logprobs            log-softmax(logits / T) over the whole vocabulary, T = 1 for a greedy policy: no
                      grammar, no top-k, top-p or min-p in it
  sampled_logprobs    the same over `kept_token_ids`, where these are listed (at most 512), or over all where
                      nothing was cut
Tokens that the grammar forced have no log-prob and are left out. Steps drawn by several versions, or from
states that several wrote, cannot be recomputed from one checkpoint and are not chosen. JPEG pictures are
decoded by Pillow here and by Furrow there: that alone is 1.4e-4 nats at p99 (docs/benchmarks/README.md), and
counts.

Passes (exit status 0) when all of this holds:
  * the 99th percentile of |recorded - recomputed| is at most the bound, for both columns:
      computed in float32   1e-3 nats (that of tests/recompute.py)
      in bfloat16           twice the gap of PyTorch's own bfloat16 on these very tokens, but at most 0.2784
                            nats: what transformers has between its decode and its prefill in bfloat16, to
                            which tests/gpu.sh parity holds the kernels (TRANSFORMERS in
                            crates/cuda/tests/backend/truth.rs); or 1.25 times PyTorch's own gap, where that
                            is more still
  * so it is for the steps of each version alone, and for those behind --after, and no step's mean is above
    the bound: one bad step of twenty shows
  * a step of each version, and one behind --after, is among the steps
  * it would have failed: log-probs of the same tokens taken one row too early, and those of a step under
    another version's weights, are beyond the bound
Else 1, with what was wrong; 2 for arguments and files that cannot be used.

Sums for the 12B on an H200, 20 steps in 300,000 tokens (--budget): products 2 x 12e9 x 3e5 x 2 parts = 14
PFLOP, 40 s at 360 TFLOP/s in TF32; in bfloat16 beside it 7 PFLOP, 12 s; attention of the longest contexts 15
s; 1,000 tiles 1.4 TFLOP each twice, 8 s; 26 GB a version from the page cache at 5 GB/s, 5 s, behind the
products; decoding and cutting of 150 pictures on 16 cores 5 s; Parquet 10 s. Some 90 s; 12 GB of rows, 6 GB
of logits and 40 GB of one layer's work on the device, where no engine may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "trainer" / "src"))

# One layer's buffers differ from sequence to sequence: without this the allocator's blocks fit none of them.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch

import recorded
import reference
from furrow_trainer.errors import TrainerError

FLOAT32_BOUND = 1e-3
BFLOAT16_BOUND = 0.2784


@dataclass(slots=True)
class Gaps:
    """Signed differences recorded - recomputed of a step's tokens, in nats."""

    whole: np.ndarray
    sampled: np.ndarray
    bfloat16: np.ndarray
    """PyTorch's bfloat16 against the reference, of the tokens of `whole`."""
    early: np.ndarray
    """Recorded minus what the row before gives the same token."""
    compared: int
    unlisted: int


@dataclass(slots=True)
class Report:
    """What `main` prints and writes."""

    problems: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    controls: list[dict[str, Any]] = field(default_factory=list)


class Usage(Exception):
    """Arguments or files that cannot be used."""


def versions(arguments: list[str]) -> dict[int, Path]:
    """Version to directory, from the command line's arguments."""
    found: dict[int, Path] = {}
    for position, argument in enumerate(arguments):
        number, equals, folder = argument.partition("=")
        version, path = (
            (int(number), Path(folder)) if equals and number.isdigit() else (position, Path(argument))
        )
        if version in found:
            raise Usage(f"two directories for version {version}: {found[version]} and {path}")
        if (path / "delta.json").exists() or (path / "adapter_config.json").exists():
            raise Usage(
                f"{path} is a delta or an adapter: name a directory with the whole weights of version "
                f"{version}"
            )
        if not (path / "config.json").is_file():
            raise Usage(f"{path} holds no config.json, so it is not a checkpoint")
        found[version] = path
    return dict(sorted(found.items()))


def computed_in_bfloat16(run: Path, first: reference.Weights) -> bool:
    """What the run's engine computed in: on a GPU what most matrices are stored in, on the CPU what the job
    says.

    Raises:
        Usage: when the job is not one whose log-probs can be recomputed.
    """
    try:
        with open(run / "job.toml", "rb") as file:
            policy = tomllib.load(file)["policy"]
        engine, kind = policy["engine"], policy["kind"]
        if kind != "model":
            raise Usage(
                f"{run / 'job.toml'}: policy.kind is {kind!r}; only a model's log-probs can be recomputed"
            )
        if engine.get("resample", "u8") != "u8":
            raise Usage(
                f"{run / 'job.toml'}: policy.engine.resample is {engine['resample']!r}; tiles are cut "
                'here as "u8" does'
            )
        return first.is_bfloat16 if engine["backend"] == "cuda" else engine["compute"] == "bfloat16"
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise Usage(f"{run / 'job.toml'} cannot be read as a resolved job: {error!r}") from error


def bfloat16_bound(pytorch: float) -> float:
    """Nats at the 99th percentile, from those of PyTorch's bfloat16 on the same tokens.

    Twice of it, since the engine rounds in other places than PyTorch does (0.35 times its gap on a CPU, tiny
    checkpoint), up to the bound of the parity tests. The published model is 62 layers deep where the
    checkpoint of those tests is small: should depth alone bring PyTorch near that bound or beyond, the engine
    may be as far away, and a quarter more, for the percentile of some 3,000 tokens that depend on each other
    moves by a tenth.
    """
    return min(2 * pytorch, max(BFLOAT16_BOUND, 1.25 * pytorch))


def positions(target: recorded.Target) -> list[int]:
    """Rows whose logits a step needs: the one before each response token, and one more in front."""
    assert target.step.response_token_ids is not None
    return list(range(target.begin - 2, target.begin + len(target.step.response_token_ids) - 1))


def compare(target: recorded.Target, logits: torch.Tensor, bfloat16: torch.Tensor | None) -> Gaps:
    """`logits` are those of `positions(target)`."""
    step = target.step
    assert step.response_token_ids is not None and step.logprobs is not None
    scale = step.temperature
    ids = torch.from_numpy(step.response_token_ids.astype(np.int64)).to(logits.device).unsqueeze(-1)

    def whole(rows: torch.Tensor) -> np.ndarray:
        return (rows / scale).log_softmax(-1).gather(-1, ids).squeeze(-1).double().cpu().numpy()

    own, early = whole(logits[1:]), whole(logits[:-1])
    logprobs = step.logprobs.astype(np.float64)
    there = ~np.isnan(logprobs)
    # One that is not in the data set is NaN there; one that is not a number here must not pass for it.
    theirs = whole(bfloat16[1:]) if bfloat16 is not None else np.full(len(logprobs), np.nan)
    recorded_sampled = (
        step.sampled_logprobs if step.sampled_logprobs is not None else np.full(len(logprobs), np.nan)
    )
    sampled, unlisted = [], 0
    mask = step.response_mask if step.response_mask is not None else np.ones(len(logprobs), bool)
    for index in np.flatnonzero(there & mask & ~np.isnan(recorded_sampled)):
        token, kept = int(step.response_token_ids[index]), step.kept_ids(int(index))
        if kept is None and step.kept_count is not None and not np.isnan(step.kept_count[index]):
            unlisted += 1
            continue
        row = logits[1 + index] / scale
        among = row if kept is None else row[torch.from_numpy(kept.astype(np.int64)).to(row.device)]
        sampled.append(float(recorded_sampled[index]) - float(row[token] - among.logsumexp(-1)))
    return Gaps(
        logprobs[there] - own[there],
        np.array(sampled),
        theirs[there] - own[there],
        logprobs[there] - early[there],
        int(there.sum()),
        unlisted,
    )


def summary(gaps: np.ndarray) -> dict[str, float]:
    """Sizes in nats; a value that is not a number counts as infinite."""
    sizes = np.nan_to_num(np.abs(gaps), nan=np.inf, posinf=np.inf)
    if not len(sizes):
        return {"compared": 0}
    return {
        "compared": len(sizes),
        "mean": float(sizes.mean()),
        "p50": float(np.quantile(sizes, 0.5, method="higher")),
        "p99": float(np.quantile(sizes, 0.99, method="higher")),
        "max": float(sizes.max()),
        "bias": float(np.mean(gaps)),
    }


class Check:
    """One call of the program."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.begun = time.monotonic()
        self.report = Report()
        self.device = torch.device(arguments.device)
        self.weights = {
            version: reference.Weights(folder) for version, folder in versions(arguments.checkpoint).items()
        }
        self.first = next(iter(self.weights.values()))
        self.is_bfloat16 = computed_in_bfloat16(arguments.run_dir, self.first)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:6.1f} s  {text}", flush=True)

    def run(self) -> Report:
        a = self.arguments
        found = recorded.look(a.run_dir)
        choice = recorded.choose(found, a.steps, self.weights, a.after, a.budget, a.seed)
        self.report.problems += choice.problems
        if not choice.steps:
            return self.report
        sequences, blobs = recorded.rebuild(choice.steps, found)
        tokens = sum(len(one.ids) for one in sequences)
        self.say(
            f"{len(found)} steps in the data set, {len(choice.steps)} chosen: {tokens:,} tokens in "
            f"{len(sequences)} sequences, {len(blobs)} pictures"
        )
        vision = self.first.vision
        tiles = recorded.cut(blobs, vision.tiling, vision.rows_per_tile, sequences, os.cpu_count() or 1)
        self.say("pictures decoded and cut")
        gaps: list[tuple[recorded.Target, Gaps]] = []
        control = min(
            (target for one in sequences for target in one.targets),
            key=lambda target: (target.candidate.context_tokens, target.step.step),
        )
        for version in self.weights:
            mine = [one for one in sequences if one.version == version]
            others = [
                self.alone(one, control)
                for one in sequences
                if one.version != version and control in one.targets
            ]
            gaps += self.recompute(version, mine, others, tiles)
        self.judge(gaps, tokens)
        return self.report

    def alone(self, sequence: recorded.Rebuilt, target: recorded.Target) -> recorded.Rebuilt:
        """The part of a sequence that a step of it needs."""
        assert target.step.response_token_ids is not None
        end = target.begin + len(target.step.response_token_ids)
        shown = tuple(one for one in sequence.pictures if one.start + one.length <= end)
        return recorded.Rebuilt(sequence.version, sequence.ids[:end], shown, [target])

    def recompute(
        self,
        version: int,
        mine: list[recorded.Rebuilt],
        others: list[recorded.Rebuilt],
        tiles: dict[bytes, Any],
    ) -> list[tuple[recorded.Target, Gaps]]:
        """Gaps of this version's steps; those of another's, computed with the wrong weights, become a
        control.
        """
        sequences = [*mine, *others]
        if not sequences:
            return []
        self.say(f"version {version}: {self.weights[version].folder}")
        work = [
            reference.Tokens(
                one.ids.tolist(),
                tuple(reference.Picture(picture.start, picture.key) for picture in one.pictures),
                [position for target in one.targets for position in positions(target)],
            )
            for one in sequences
        ]
        shown = {picture.key for one in sequences for picture in one.pictures}
        got = reference.logits(
            self.weights[version],
            work,
            {key: tiles[key] for key in tiles if key in shown},
            self.device,
            with_bfloat16=self.is_bfloat16,
            say=self.say,
        )
        found = []
        for one, computed in zip(sequences, got, strict=True):
            at = 0
            for target in one.targets:
                part = slice(at, at + len(positions(target)))
                at = part.stop
                gaps = compare(
                    target,
                    computed.reference[part],
                    None if computed.bfloat16 is None else computed.bfloat16[part],
                )
                if one.version == version:
                    found.append((target, gaps))
                else:
                    what = f"step {target.step.step} of {target.step.trajectory_id}, "
                    what += f"of version {one.version}, under version {version}"
                    self.report.controls.append({"what": what, **summary(gaps.whole)})
        return found

    def judge(self, gaps: list[tuple[recorded.Target, Gaps]], tokens: int) -> None:
        report = self.report
        for target, one in sorted(gaps, key=lambda pair: (pair[0].step.step, pair[0].step.trajectory_id)):
            candidate = target.candidate
            report.rows.append(
                {
                    "trajectory_id": candidate.trajectory_id,
                    "step": candidate.step,
                    "version": candidate.version,
                    "origin": candidate.origin,
                    "is_after": self.arguments.after is not None
                    and candidate.replied_micros > self.arguments.after,
                    "context_tokens": candidate.context_tokens,
                    "logprobs": summary(one.whole),
                    "sampled_logprobs": summary(one.sampled),
                }
            )
        whole = np.concatenate([one.whole for _, one in gaps])
        sampled = np.concatenate([one.sampled for _, one in gaps])
        figures = report.figures
        figures |= {
            "logprobs": summary(whole),
            "sampled_logprobs": summary(sampled),
            "unlisted": sum(one.unlisted for _, one in gaps),
        }
        bound = FLOAT32_BOUND
        if self.is_bfloat16:
            figures["pytorch_bfloat16"] = summary(np.concatenate([one.bfloat16 for _, one in gaps]))
            bound = bfloat16_bound(figures["pytorch_bfloat16"]["p99"])
        bound = self.arguments.bound or bound
        report.controls.append(
            {
                "what": "the same tokens one row too early",
                **summary(np.concatenate([one.early for _, one in gaps])),
            }
        )
        after = [
            one.whole
            for target, one in gaps
            if self.arguments.after is not None and target.candidate.replied_micros > self.arguments.after
        ]
        parts = {"logprobs": whole, "sampled_logprobs": sampled}
        parts |= {
            f"logprobs of version {version}": np.concatenate(
                [one.whole for target, one in gaps if target.candidate.version == version] or [whole[:0]]
            )
            for version in self.weights
        }
        parts |= {"logprobs behind --after": np.concatenate([*after, whole[:0]])}
        for name, part in parts.items():
            if len(part) and not summary(part)["p99"] <= bound:
                report.problems.append(
                    f"{name}: 99 of 100 gaps are within {summary(part)['p99']:.4g} nats, {bound:.4g} "
                    "are allowed"
                )
        for row in report.rows:
            if not row["logprobs"]["mean"] <= bound:
                report.problems.append(
                    f"step {row['step']} of {row['trajectory_id']}: the mean gap is "
                    f"{row['logprobs']['mean']:.4g} nats, {bound:.4g} are allowed"
                )
        for control in report.controls:
            if not control["p99"] > bound:
                report.problems.append(
                    f"this check proves nothing: {control['what']}, the gap is {control['p99']:.4g} "
                    f"nats at p99, within the bound of {bound:.4g}"
                )
        figures |= {
            "bound": bound,
            "arithmetic": "bfloat16" if self.is_bfloat16 else "float32",
            "tokens_read": tokens,
            "seconds": round(time.monotonic() - self.begun, 1),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
        }


def table(report: Report) -> str:
    """A line a step, then the figures."""
    lines = [
        (
            f"{'age':>4} {'version':>7} {'origin':>9} {'after':>5} {'context':>8} {'tokens':>6} "
            f"{'max |gap|':>10} {'mean |gap|':>10}  trajectory"
        )
    ]
    for row in report.rows:
        part = row["logprobs"]
        numbers = f"{part['compared']:>6} {part['max']:>10.2e} {part['mean']:>10.2e}"
        lines.append(
            f"{row['step']:>4} {row['version']:>7} {row['origin']:>9} "
            f"{'yes' if row['is_after'] else '':>5} {row['context_tokens']:>8} {numbers}  "
            f"{row['trajectory_id']}"
        )
    named = [
        (name, report.figures.get(name)) for name in ("logprobs", "sampled_logprobs", "pytorch_bfloat16")
    ]
    named += [(f"control: {control['what']}", control) for control in report.controls]
    for name, part in named:
        if part and part["compared"]:
            lines.append(
                f"{name}: {part['compared']} tokens, p50 {part['p50']:.2e}, p99 {part['p99']:.2e}, max "
                f"{part['max']:.2e}, mean {part['mean']:.2e}, bias {part['bias']:+.2e}"
            )
    if report.figures:
        figures = report.figures
        lines.append(
            f"computed in {figures['arithmetic']}, bound {figures['bound']:.4g} nats at p99; "
            f"{figures['unlisted']} draws among more than 512 ids, which are not listed; "
            f"{figures['tokens_read']:,} tokens in {figures['seconds']} s on {figures['device']}"
        )
    lines += [f"FAILED: {problem}" for problem in report.problems]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "checkpoint", nargs="+", help="directory of each policy version, from 0; or VERSION=DIR"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps to recompute (default 20)")
    parser.add_argument(
        "--after",
        type=int,
        metavar="MICROS",
        help="microseconds since 1970: one step at least must have been sampled later (a kill)",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the report there")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda or cpu (default: cuda where there is one)",
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=300_000,
        help="tokens that the model reads in all, at most, as far as steps can be chosen so (default 300000)",
    )
    parser.add_argument("--bound", type=float, help="nats at the 99th percentile, instead of those above")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choice among steps of the same age (default 0)"
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.steps < 1 or arguments.budget < 1:
            raise Usage("--steps and --budget are at least 1")
        if arguments.device.startswith("cuda") and not torch.cuda.is_available():
            raise Usage("--device cuda: PyTorch finds no GPU here; use --device cpu")
        report = Check(arguments).run()
    except (Usage, TrainerError) as error:
        print(f"logprobs.py: {error}", file=sys.stderr)
        return 2
    print(table(report))
    print("PASSED" if not report.problems else f"{len(report.problems)} problems")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "passed": not report.problems,
            "problems": report.problems,
            **report.figures,
            "controls": report.controls,
            "steps": report.rows,
        }
        # A reader of JSON need not know Infinity: a gap that is not a number is null.
        arguments.json.write_text(json.dumps(_finite(content), indent=1) + "\n", "utf8")
    return 1 if report.problems else 0


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if not isinstance(value, float) or np.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
