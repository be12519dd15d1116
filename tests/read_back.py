#!/usr/bin/env python3
"""Reads finished runs with pyarrow, pandas, datasets and DuckDB, and compares their results.

read_back.py SCRIPTED_RUN RANDOM_RUN MODEL_RUN
"""

import glob
import io
import os
import sys
import tempfile

import datasets
import duckdb
import pandas
import PIL.Image
import pyarrow.dataset

STARTER = {
    "check", "choose", "click", "drag", "form", "navigate", "read-and-answer", "scroll", "select", "tabs",
    "two-page", "type",
}  # fmt: skip


def table(run, name):
    return os.path.join(run, "data", name, "*.parquet")


def trajectories(run):
    with_arrow = pyarrow.dataset.dataset(os.path.join(run, "data", "trajectories")).to_table().to_pandas()
    with_pandas = pandas.read_parquet(os.path.join(run, "data", "trajectories"))
    with_duckdb = duckdb.sql(f"SELECT trajectory_id, reward FROM '{table(run, 'trajectories')}'").df()
    assert len(with_arrow) == len(with_pandas) == len(with_duckdb), "the readers disagree about the rows"
    assert abs(with_arrow["reward"].sum() - with_duckdb["reward"].sum()) < 1e-6, (
        "the readers disagree about the rewards"
    )
    return with_arrow


def check_steps(run, rows):
    files = glob.glob(table(run, "steps"))
    with tempfile.TemporaryDirectory() as cache:
        steps = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        scored = rows[rows["status"] == "scored"]
        assert len(steps) == scored["num_steps"].sum(), "steps and trajectories disagree"
        for row in steps.select(range(0, len(steps), max(1, len(steps) // 40))):
            observation = row["observation"]
            image = observation["screenshot"]
            if isinstance(image, dict):
                image = PIL.Image.open(io.BytesIO(image["bytes"]))
            assert image.size == (observation["width"], observation["height"]), (
                "a screenshot is not as large as its columns say"
            )
    joined = duckdb.sql(
        f"SELECT count(*) FROM '{table(run, 'steps')}' s JOIN '{table(run, 'trajectories')}' t USING "
        "(trajectory_id) "
        "WHERE s.is_last AND s.reward IS DISTINCT FROM t.reward"
    ).fetchall()[0][0]
    assert joined == 0, "the last step's reward is not the trajectory's"


def check_model(run, rows):
    """Every reply of a constrained model parses, and every step has its tokens."""
    assert len(rows) >= 40, f"{run}: {len(rows)} trajectories, at least 40 are expected"
    steps = duckdb.sql(
        f"SELECT count(*), count(*) FILTER (action.valid), count(response_token_ids), count(logprobs), "
        f"count(*) FILTER (len(response_token_ids) = len(logprobs)) FROM '{table(run, 'steps')}'"
    ).fetchall()[0]
    assert len(set(steps)) == 1, (
        f"{run}: steps, parsed, with tokens, with log-probs, of equal length: {steps}"
    )


def main():
    scripted, baseline, model = sys.argv[1:4]
    rows = {run: trajectories(run) for run in (scripted, baseline, model)}
    for run, found in rows.items():
        check_steps(run, found)
        sizes = found[found["status"] == "scored"].groupby("group_id").size()
        assert (sizes == 4).all(), (
            f"{run}: groups without four scored trajectories: {sizes[sizes != 4].to_dict()}"
        )
    total = sum(len(found) for found in rows.values())
    assert total >= 60, f"{total} trajectories, at least 60 are expected"

    best = rows[scripted].groupby(["suite", "task_id"])["reward"].min()
    solved = {
        suite: set(found.droplevel(0)[lambda rewards: rewards == 1.0].index)
        for suite, found in best.groupby("suite")
    }
    assert solved["starter"] == STARTER, f"scripted did not solve {sorted(STARTER - solved['starter'])}"
    assert len(solved.get("miniwob", ())) >= 10, (
        f"scripted solved only {len(solved.get('miniwob', ()))} MiniWoB++ pages"
    )
    # Its options are chosen by clicks on a native list whose open state is only in the screenshot.
    assert "choose-list" in solved.get("miniwob", ()), "scripted did not solve choose-list"
    random_rate = (rows[baseline]["reward"] >= 1.0).mean()
    assert random_rate < 0.5, (
        f"the random baseline solves {random_rate:.0%}: the tasks are too easy to test a policy"
    )
    check_model(model, rows[model])
    model_rate = (rows[model]["reward"] >= 1.0).mean()
    print(
        f"read back {total} trajectories with pyarrow, pandas, datasets and DuckDB: scripted solves "
        f"{len(solved['starter'])} starter tasks "
        f"and {len(solved['miniwob'])} MiniWoB++ pages every time, random {random_rate:.0%} of its "
        f"trajectories, a tiny random model {model_rate:.0%}"
    )


if __name__ == "__main__":
    main()
