#!/usr/bin/env python3
"""Checks the guarantees of a finished run with an independent reader that shares no code with Furrow:
pyarrow, sqlite3 and the logs.

    check.py RUN_DIR [--groups N] [--group-size N]

Prints one line per breach and exits 1 if there is any. It checks that:
  * every trajectory and step that an environment worker's log acknowledges is in the committed data exactly
    once, under the same token;
  * a scored slot has one scored trajectory, a failed trajectory has no step among the scored ones;
  * steps are contiguous from 0, counted right, their digests equal where the log names them; no number is
    NaN;
  * each group has one row whose counts, mean and spread follow from its trajectories;
  * tokens grow with each attempt at a slot; the ledger holds no trajectory that is not committed;
  * no spool file, temporary file or file unknown to the manifest is left;
  * where rows have expired: what is gone is what manifest and ledger say, oldest first, and none is back.
"""

import argparse
import collections
import glob
import hashlib
import json
import math
import os
import sqlite3
import sys

import pyarrow.parquet as pq


class Checker:
    def __init__(self, run_dir):
        self.run_dir = run_dir
        self.breaches = []
        # Paths below data/ of the jobs that footers name.
        self.jobs = set()
        # Files by shard and table, what each was merged into, and those that expired.
        self.shard_files = {}
        self.merged_into = {}
        self.expired_files = {}
        # Ids of trajectories and groups whose rows expired, by the ledger's record of their shards.
        self.gone = {"trajectories": set(), "groups": set()}
        # What the ledger says of slots: the attempts of each that are still to be there.
        self.attempts_left = {}
        # Groups of which some trajectories are gone.
        self.cut_groups = set()

    def wrong(self, text):
        self.breaches.append(text)

    def equal(self, what, got, want):
        if got != want:
            self.wrong(f"{what}: {got!r}, expected {want!r}")

    # -- the manifest, read by hand --------------------------------------------------------------------------

    def read_manifest(self):
        """Files of the data set after all commits, and those that were replaced: readers may still use
        them."""
        folder = os.path.join(self.run_dir, "data", "manifest")
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
        versions = [int(name[:-5]) for name in names]
        if versions:
            self.equal("manifest versions", versions, list(range(versions[0], versions[0] + len(versions))))
        current, replaced, shards = {}, set(), collections.Counter()
        for name in names:
            with open(os.path.join(folder, name), encoding="utf8") as file:
                commit = json.load(file)
            for gone in commit.get("removed", []):
                entry = current.pop(gone, None)
                if entry is None:
                    self.wrong(f"{name} removes {gone}, which is not part of the data set")
                elif commit["op"] == "expire":
                    self.expired_files[gone] = entry
                replaced.add(gone)
            self.note_files(commit)
            for entry in commit["files"]:
                if entry["path"] in current:
                    self.wrong(f"{name} names {entry['path']} a second time")
                current[entry["path"]] = entry
            if commit["op"] == "append":
                shards[commit["txn"]["shard_id"]] += 1
            if (checkpoint := self.read_checkpoint(commit["version"])) is not None:
                listed = {path: entry["file"] for path, entry in checkpoint["files"].items()}
                self.equal(f"files of the checkpoint after {name}", listed, current)
        for shard, count in shards.items():
            self.equal(f"commits of shard {shard}", count, 1)
        return current, replaced

    def note_files(self, commit):
        for entry in commit["files"]:
            if commit["op"] == "append":
                self.shard_files[commit["txn"]["shard_id"], entry["table"]] = entry["path"]
            for part in commit.get("removed", []):
                if part.split("/")[0] == entry["table"]:
                    self.merged_into[part] = entry["path"]

    def has_expired(self, shard, table):
        """Whether the rows that a shard had in a table have expired, wherever merges had put them."""
        path = self.shard_files.get((shard, table))
        while path in self.merged_into:
            path = self.merged_into[path]
        return path in self.expired_files

    def read_expired(self):
        """What has expired by the ledger, which knows the shard of everything that was committed."""
        if not self.expired_files:
            return
        ledger = sqlite3.connect(f"file:{os.path.join(self.run_dir, 'ledger.sqlite')}?mode=ro", uri=True)
        rows = ledger.execute(
            "SELECT trajectory_id, group_id, sample_index, attempt, shard_id FROM trajectories"
        ).fetchall()
        for name, group, sample, attempt, shard in rows:
            left = self.attempts_left.setdefault((group, sample), [])
            if self.has_expired(shard, "trajectories"):
                self.gone["trajectories"].add(name)
                self.cut_groups.add(group)
            else:
                left.append(attempt)
        groups = ledger.execute("SELECT group_id, shard_id FROM groups").fetchall()
        self.gone["groups"] = {group for group, shard in groups if self.has_expired(shard, "groups")}
        for table, names in self.gone.items():
            entries = [entry for entry in self.expired_files.values() if entry["table"] == table]
            self.equal(f"expired rows of {table}", sum(entry["rows"] for entry in entries), len(names))
        self.check_oldest(ledger)

    def check_oldest(self, ledger):
        """Whatever expired is older than whatever is there: trajectories leave by whole shards."""
        order = dict(ledger.execute("SELECT shard_id, manifest_version FROM shards").fetchall())
        of_table = [shard for shard, table in self.shard_files if table == "trajectories"]
        gone = [order[shard] for shard in of_table if self.has_expired(shard, "trajectories")]
        left = [order[shard] for shard in of_table if not self.has_expired(shard, "trajectories")]
        if gone and left and max(gone) > min(left):
            self.wrong(f"trajectories of commit {max(gone)} expired before those of commit {min(left)}")

    def read_checkpoint(self, version):
        """What the checkpoint after a commit says; `None` where there is none."""
        folder = os.path.join(self.run_dir, "data")
        path = os.path.join(folder, "checkpoints", f"{version:020}.json")
        if not os.path.exists(path):
            return None
        with open(path, "rb") as file:
            body, digest = file.read().split(b"\n")[:2]
        self.equal(f"SHA-256 in {path}", digest.decode(), hashlib.sha256(body).hexdigest())
        checkpoint = json.loads(body)
        with open(os.path.join(folder, "manifest", f"{version:020}.json"), "rb") as file:
            commit = hashlib.sha256(file.read()).hexdigest()
        self.equal(
            f"commit of {path}", (checkpoint["version"], checkpoint["commit_sha256"]), (version, commit)
        )
        return checkpoint["snapshot"]

    def read_tables(self, files):
        rows = {table: [] for table in ("trajectories", "steps", "failed_steps", "groups")}
        for path, entry in sorted(files.items()):
            full = os.path.join(self.run_dir, "data", path)
            if not os.path.exists(full):
                self.wrong(f"the manifest names {path}, which is not there")
                continue
            with open(full, "rb") as file:
                data = file.read()
            want = entry["sha256"] if isinstance(entry["sha256"], str) else bytes(entry["sha256"]).hex()
            self.equal(f"sha256 of {path}", hashlib.sha256(data).hexdigest(), want)
            table = pq.read_table(full, columns=self.columns(entry["table"]))
            self.equal(f"rows of {path}", table.num_rows, entry["rows"])
            footer = pq.read_metadata(full).metadata or {}
            jobs = json.loads(footer.get(b"furrow.jobs", b"[]"))
            if jobs:
                self.equal(f"rows of the jobs of {path}", sum(job["rows"] for job in jobs), entry["rows"])
            hashes = [job["sha256"] for job in jobs]
            if (job := footer.get(b"furrow.job_sha256")) is not None:
                hashes.append(job.decode())
            self.jobs.update(os.path.join("jobs", f"{job}.toml") for job in hashes)
            if entry["table"] in rows:
                rows[entry["table"]] += table.to_pylist()
        return rows

    @staticmethod
    def columns(table):
        if table in ("steps", "failed_steps"):
            return [
                "trajectory_id",
                "group_id",
                "sample_index",
                "step",
                "is_first",
                "is_last",
                "reward",
                "observation",
            ]
        return None

    # -- what must hold --------------------------------------------------------------------------------------

    def check_trajectories(self, rows):
        by_id = collections.Counter(row["trajectory_id"] for row in rows)
        for name, count in by_id.items():
            self.equal(f"rows of trajectory {name}", count, 1)
        scored = collections.Counter()
        attempts = collections.defaultdict(list)
        for row in rows:
            slot = (row["group_id"], row["sample_index"])
            attempts[slot].append((row["attempt"], row["fencing_token"], row["trajectory_id"]))
            if row["status"] == "scored":
                scored[slot] += 1
                if row["reward"] is None or not math.isfinite(row["reward"]):
                    self.wrong(f"{row['trajectory_id']} is scored with reward {row['reward']}")
                if row["score"]["evidence_sha256"] != row["evidence"]["sha256"]:
                    self.wrong(f"{row['trajectory_id']}: the scorer saw other evidence than is recorded")
                self.equal(
                    f"evidence hash of {row['trajectory_id']}",
                    evidence_sha256(row["evidence"]),
                    row["evidence"]["sha256"],
                )
            elif row["reward"] is not None or row["score"] is not None:
                self.wrong(f"{row['trajectory_id']} failed and has a reward")
        for slot, count in scored.items():
            self.equal(f"scored trajectories of slot {slot}", count, 1)
        for slot, tries in attempts.items():
            tries.sort()
            want = sorted(self.attempts_left.get(slot, range(len(tries))))
            self.equal(f"attempts at slot {slot}", [attempt for attempt, _, _ in tries], want)
            tokens = [token for _, token, _ in tries]
            if tokens != sorted(set(tokens)):
                self.wrong(f"tokens of slot {slot} do not grow: {tokens}")
        back = self.gone["trajectories"] & set(by_id)
        self.equal("trajectories that expired and are there", sorted(back), [])
        return {row["trajectory_id"]: row for row in rows}

    def check_steps(self, trajectories, steps, failed_steps):
        step_numbers = collections.defaultdict(list)
        for rows, status in ((steps, "scored"), (failed_steps, "failed")):
            for row in rows:
                step_numbers[row["trajectory_id"]].append(row["step"])
                owner = trajectories.get(row["trajectory_id"])
                if owner is None and status == "failed" and row["trajectory_id"] in self.gone["trajectories"]:
                    # Nothing but a trajectory's row and its scored steps leave together.
                    continue
                if owner is None:
                    self.wrong(f"step {row['step']} of {row['trajectory_id']} has no trajectory")
                elif owner["status"] != status:
                    self.wrong(
                        f"{row['trajectory_id']} is {owner['status']}, but has steps among the {status}"
                    )
                if not row["observation"]["screenshot"]["bytes"]:
                    self.wrong(f"step {row['step']} of {row['trajectory_id']} has no screenshot")
                if row["reward"] is not None and not math.isfinite(row["reward"]):
                    self.wrong(f"step {row['step']} of {row['trajectory_id']} has reward {row['reward']}")
        for name, numbers in step_numbers.items():
            self.equal(f"steps of {name}", sorted(numbers), list(range(len(numbers))))
        for name, row in trajectories.items():
            self.equal(f"num_steps of {name}", row["num_steps"], len(step_numbers.get(name, [])))
        return step_numbers

    def check_groups(self, trajectories, groups, group_count, group_size):
        counts = collections.Counter(row["group_id"] for row in groups)
        for name, count in counts.items():
            self.equal(f"rows of group {name}", count, 1)
        members = collections.defaultdict(list)
        for row in trajectories.values():
            members[row["group_id"]].append(row)
        back = self.gone["groups"] & set(counts)
        self.equal("groups that expired and are there", sorted(back), [])
        # A group's row may stay longer than its trajectories.
        emptied = {name for name in counts if name not in members and name in self.cut_groups}
        self.equal("groups with trajectories and group rows", sorted(members), sorted(set(counts) - emptied))
        if group_count is not None:
            self.equal("groups", len(counts) + len(self.gone["groups"]), group_count)
        for row in groups:
            name = row["group_id"]
            if name in self.cut_groups:
                scored = sum(member["status"] == "scored" for member in members[name])
                if scored > row["valid"]:
                    self.wrong(f"group {name}: {scored} scored trajectories, its row says {row['valid']}")
                continue
            rewards = [member["reward"] for member in members[name] if member["status"] == "scored"]
            failed = collections.Counter(
                member["end"] for member in members[name] if member["status"] == "failed"
            )
            self.equal(f"valid of group {name}", row["valid"], len(rewards))
            self.equal(
                f"failed of group {name}",
                {cell["end"]: cell["count"] for cell in row["failed"]},
                dict(failed),
            )
            if group_size is not None:
                self.equal(f"planned of group {name}", row["planned"], group_size)
            if rewards:
                mean = sum(rewards) / len(rewards)
                spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
                if abs(row["mean"] - mean) > 1e-9 or abs(row["std"] - spread) > 1e-9:
                    self.wrong(
                        f"group {name}: mean {row['mean']} and std {row['std']}, expected {mean} and {spread}"
                    )

    def check_acknowledged(self, trajectories, step_numbers):
        """Compares the data with the acknowledgements in the environment workers' logs."""
        finished = {}
        steps = set()
        for event in events(self.run_dir):
            if event["event"] == "trajectory.acknowledged":
                finished[event["trajectory_id"]] = event
            elif event["event"] == "step.acknowledged":
                steps.add((event["trajectory_id"], int(event["step"])))
        for name, event in finished.items():
            row = trajectories.get(name)
            if name in self.gone["trajectories"]:
                continue
            if row is None:
                self.wrong(f"{name} was acknowledged and is not in the data")
            else:
                self.equal(f"token of {name}", row["fencing_token"], int(event["token"]))
        for name, step in sorted(steps):
            if name not in self.gone["trajectories"] and step not in step_numbers.get(name, []):
                self.wrong(f"step {step} of {name} was acknowledged and is not in the data")
        return len(finished), len(steps)

    def check_ledger(self, trajectories):
        path = os.path.join(self.run_dir, "ledger.sqlite")
        ledger = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.equal("integrity of the ledger", ledger.execute("PRAGMA integrity_check").fetchone()[0], "ok")
        open_ones = ledger.execute(
            "SELECT count(*) FROM trajectories WHERE state NOT IN ('scored', 'failed')"
        ).fetchone()[0]
        self.equal("assignments left in the ledger", open_ones, 0)
        uncommitted = ledger.execute(
            "SELECT count(*) FROM trajectories t LEFT JOIN shards s USING (shard_id) WHERE s.state IS NOT "
            "'published'"
        ).fetchone()[0]
        self.equal("uncommitted trajectories in the ledger", uncommitted, 0)
        known = {row[0] for row in ledger.execute("SELECT trajectory_id FROM trajectories")}
        known -= self.gone["trajectories"]
        self.equal("trajectories the ledger and the data do not share", sorted(known ^ set(trajectories)), [])

    def check_leftovers(self, files, replaced):
        self.equal("spool files left", sorted(os.listdir(os.path.join(self.run_dir, "spool"))), [])
        data = os.path.join(self.run_dir, "data")
        on_disk = {
            os.path.relpath(path, data)
            for path in glob.glob(os.path.join(data, "**", "*"), recursive=True)
            if os.path.isfile(path)
            and not {"manifest", "checkpoints"} & set(os.path.relpath(path, data).split(os.sep))
        }
        # A reader that globs a table's folder would read a replaced part in it a second time.
        aside = {os.path.join("replaced", path) for path in replaced}
        beside = on_disk - set(files) - aside - {"README.md"}
        if self.expired_files:
            # A job stays when the last rows that it wrote have gone.
            beside = {path for path in beside if os.path.dirname(path) != "jobs"}
        self.equal("files that neither the manifest nor a footer names", sorted(beside - self.jobs), [])
        self.equal("jobs that a footer names and that are missing", sorted(self.jobs - on_disk), [])
        for path in sorted(self.jobs & on_disk):
            with open(os.path.join(data, path), "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            self.equal(f"sha256 of {path}", f"{digest}.toml", os.path.basename(path))


def evidence_sha256(evidence):
    """SHA-256 over screenshot, url, title, answer, probe_json: each after its length as u64 little-endian;
    absent is all ones. findings_json follows where it is not null."""
    screenshot = evidence["screenshot"]
    parts = [screenshot["bytes"] if screenshot else None]
    parts += [
        evidence[name].encode() if evidence[name] is not None else None
        for name in ("url", "title", "answer", "probe_json")
    ]
    if evidence.get("findings_json") is not None:
        parts.append(evidence["findings_json"].encode())
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(b"\xff" * 8 if part is None else len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def events(run_dir):
    """Events of every log file; a line torn by a kill is skipped."""
    for path in sorted(glob.glob(os.path.join(run_dir, "logs", "*.jsonl"))):
        with open(path, encoding="utf8", errors="replace") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                entry = {**entry, **entry.get("fields", {})}
                if "event" in entry:
                    yield entry


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("run_dir")
    arguments.add_argument("--groups", type=int, help="number of groups that the job planned")
    arguments.add_argument("--group-size", type=int, help="number of slots of each group")
    arguments = arguments.parse_args()

    checker = Checker(arguments.run_dir)
    files, replaced = checker.read_manifest()
    rows = checker.read_tables(files)
    checker.read_expired()
    trajectories = checker.check_trajectories(rows["trajectories"])
    step_numbers = checker.check_steps(trajectories, rows["steps"], rows["failed_steps"])
    checker.check_groups(trajectories, rows["groups"], arguments.groups, arguments.group_size)
    finished, steps = checker.check_acknowledged(trajectories, step_numbers)
    checker.check_ledger(trajectories)
    checker.check_leftovers(files, replaced)

    for breach in checker.breaches:
        print(f"BREACH {breach}")
    scored = sum(row["status"] == "scored" for row in trajectories.values())
    print(
        f"{len(trajectories)} trajectories ({scored} scored), {sum(map(len, step_numbers.values()))} steps, "
        f"{len(rows['groups'])} groups; "
        f"acknowledged: {finished} trajectories, {steps} steps; "
        f"expired: {len(checker.gone['trajectories'])} trajectories; {len(checker.breaches)} breaches"
    )
    return 1 if checker.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
