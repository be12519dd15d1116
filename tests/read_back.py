#!/usr/bin/env python3
"""Reads finished runs with pyarrow, pandas, datasets and DuckDB, and compares their results.

read_back.py SCRIPTED_RUN RANDOM_RUN MODEL_RUN
read_back.py --opens RUN: only opens every table of a run, which an earlier release may have begun
"""

import glob
import os
import sys
import tempfile

import datasets
import duckdb
import pandas
import PIL.Image
import pyarrow.dataset
import pyarrow.parquet

STARTER = {
    "check", "choose", "click", "drag", "form", "navigate", "read-and-answer", "scroll", "select", "tabs",
    "two-page", "type",
}  # fmt: skip


# One for all runs, as a user has one: `datasets` must not take one run's rows for another's.
CACHE = tempfile.TemporaryDirectory()


def load(run, *name):
    return datasets.load_dataset(os.path.join(run, "data"), *name, split="train", cache_dir=CACHE.name)


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


def check_opens(run):
    """The card opens every table that has files: all rows, with pictures decoded, and nulls for columns that
    older files lack. DuckDB and pyarrow read the same files side by side."""
    opened = {}
    has_success = False
    for name in ("trajectories", "steps", "failed_steps", "groups", "scores"):
        files = glob.glob(table(run, name))
        if not files:
            check_not_named(run, name)
            continue
        counted = duckdb.sql(
            f"SELECT count(*) FROM read_parquet('{table(run, name)}', union_by_name = true)"
        ).fetchall()[0][0]
        schemas = [pyarrow.parquet.read_schema(file) for file in files]
        newest = max(schemas, key=len)
        with_arrow = pyarrow.dataset.dataset(files, schema=newest).to_table()
        rows = load(run, name)
        assert len(rows) == counted == len(with_arrow), f"{name}: the readers disagree about the rows"
        lacking = [column for column in rows.column_names if column not in newest.names]
        assert rows.column_names == newest.names or set(newest.names) < set(rows.column_names), name
        assert all(set(rows[column]) == {None} for column in lacking), f"{name}: {lacking} are not null"
        wanted = datasets.Features.from_arrow_schema(newest)
        check_features(name, rows.features, wanted)
        first = rows[0]
        if name in ("steps", "failed_steps"):
            picture, observation = first["observation"]["screenshot"], first["observation"]
            assert isinstance(picture, PIL.Image.Image), f"{name}: a screenshot is {type(picture)}"
            assert picture.size == (observation["width"], observation["height"])
        opened[name] = counted
        # A run of the first release that nothing was added to has no file with the column.
        has_success = has_success or "success" in newest.names
    assert len(load(run)) == opened["steps"], "without a name, the steps are opened"
    if not has_success:
        return opened
    success = duckdb.sql(
        "SELECT count(success), count(score.success), count(*) FILTER (success <> score.success) "
        f"FROM read_parquet('{table(run, 'trajectories')}', union_by_name = true)"
    ).fetchall()[0]
    assert success[0] <= success[1] and success[2] == 0, f"success and score.success differ: {success}"
    return opened


def check_not_named(run, name):
    """A table without files is not among those of the card, which `datasets` lists instead."""
    try:
        load(run, name)
    except ValueError as refusal:
        assert f"'{name}' not found" in str(refusal) and "'trajectories'" in str(refusal), refusal
    else:
        raise AssertionError(f"{name} has no file and was opened")


def check_features(name, card, files):
    """The types in the card are those of the files, but for pictures and what older files lack in a
    struct."""
    image = datasets.Image()
    plain = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    for column, feature in files.items():
        has_picture = isinstance(feature, dict) and feature.get("screenshot") == plain
        wanted = feature | {"screenshot": image} if has_picture else feature
        is_struct = isinstance(wanted, dict) and isinstance(card[column], dict)
        named = (
            {key: card[column][key] for key in card[column] if key in wanted} if is_struct else card[column]
        )
        assert named == wanted, f"{name}.{column}: {card[column]} in the card, {wanted} in the files"


def check_steps(run, rows):
    steps = load(run, "steps")
    scored = rows[rows["status"] == "scored"]
    assert len(steps) == scored["num_steps"].sum(), "steps and trajectories disagree"
    for row in steps.select(range(0, len(steps), max(1, len(steps) // 40))):
        observation = row["observation"]
        image = observation["screenshot"]
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
    if sys.argv[1] == "--opens":
        print(f"opened {check_opens(sys.argv[2])}")
        return
    scripted, baseline, model = sys.argv[1:4]
    rows = {run: trajectories(run) for run in (scripted, baseline, model)}
    for run, found in rows.items():
        opened = check_opens(run)
        assert opened["trajectories"] == len(found) and opened["groups"] > 0, opened
        assert found["success"].notna().sum() > 0, "no trajectory says whether it succeeded"
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
