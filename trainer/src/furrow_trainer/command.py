"""The command line: `furrow-trainer sft|rl|learn|bench|bench-loop|recompute|inspect|export`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from . import __version__
from .errors import ConfigError, TrainerError

# Modules of the packages in the extra `torch` of pyproject.toml, which the reader does without.
EXTRA = frozenset({"torch", "safetensors", "PIL", "tokenizers"})


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns 0 when it succeeded and 1 when it failed with a TrainerError or needs a package
    that is not installed. A wrong command line exits with 2."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        return int(args.run(args) or 0)
    except TrainerError as error:
        print(f"furrow-trainer: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA:
            raise
        print(
            f"furrow-trainer: {args.command} needs the package {missing}, which is not installed here; "
            "install the extra: pip install 'furrow-trainer[torch]', or in the repository './trainer[torch]'",
            file=sys.stderr,
        )
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="furrow-trainer", description="Trains on the data sets of a Furrow run."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, run, text in (
        ("sft", _sft, "train on demonstrations"),
        ("rl", _rl, "train on a policy's own attempts, while a run collects them"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument("config", type=Path, help="TOML file; paths in it are relative to its folder")
        one.add_argument(
            "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a key"
        )
        one.add_argument(
            "--resume", action="store_true", help="continue from the newest checkpoint in run.output_dir"
        )
        one.add_argument("--check", action="store_true", help="print the resolved file and exit")
        one.set_defaults(run=run)
    one = commands.add_parser(
        "learn",
        help="run the learning experiment: demonstrations, a warm start, online learning with a control",
    )
    one.add_argument(
        "folder",
        type=Path,
        help="folder with demonstrate.toml, attempt.toml, examine.toml, sft.toml and rl.toml",
    )
    one.add_argument(
        "output_dir", type=Path, help="folder of all results; stages that are done there are not repeated"
    )
    one.add_argument("--furrow", default="furrow", help="path of the furrow program (default: %(default)s)")
    one.add_argument(
        "--size",
        default="mini",
        help="size of the random checkpoint that the experiment begins with (default: %(default)s)",
    )
    one.add_argument("--seed", type=int, default=7, help="seed of that checkpoint (default: %(default)s)")
    one.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of all jobs, such as env.browser",
    )
    one.add_argument(
        "--report", type=Path, help="folder that the report is written to (default: OUTPUT_DIR/report)"
    )
    one.set_defaults(run=_learn)
    one = commands.add_parser(
        "bench", help="measure how fast a run is read, beside plain pyarrow, and a model trained"
    )
    one.add_argument(
        "run_dir", type=Path, help="directory of a run; with --furrow, a run is first collected in it"
    )
    one.add_argument(
        "--furrow",
        help="path of the furrow program: collect 300 trajectories, simulated, with screenshots of 200 kB",
    )
    one.add_argument(
        "--checkpoint",
        type=Path,
        help="also measure training steps of this checkpoint on the run's model trajectories",
    )
    one.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="seconds that each part is repeated for in a round (default: %(default)s)",
    )
    one.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    _measuring(one)
    one.set_defaults(run=_bench)
    one = commands.add_parser(
        "bench-loop",
        help="measure a farm that collects while a trainer works, beside one that collects, then waits",
    )
    one.add_argument("--furrow", default="furrow", help="path of the furrow program (default: %(default)s)")
    one.add_argument(
        "--sessions", type=int, default=16, help="trajectories collected at once (default: %(default)s)"
    )
    one.add_argument(
        "--trajectories", type=int, default=32, help="trajectories per version (default: %(default)s)"
    )
    one.add_argument("--steps", type=int, default=6, help="most steps of a trajectory (default: %(default)s)")
    one.add_argument(
        "--settle-seconds",
        type=float,
        default=2.0,
        help="seconds that each action of the environment takes to settle (default: %(default)s)",
    )
    one.add_argument(
        "--train-seconds",
        type=float,
        default=20.0,
        help="seconds that the stub of a trainer sleeps per version (default: %(default)s)",
    )
    one.add_argument(
        "--versions",
        type=int,
        default=6,
        help="versions to measure, an even number; one more comes before them (default: %(default)s)",
    )
    _measuring(one)
    one.set_defaults(run=_bench_loop)
    one = commands.add_parser("recompute", help="compare recorded log-probabilities with a checkpoint's")
    one.add_argument("run_dir", type=Path, help="directory of the run")
    one.add_argument("checkpoint", type=Path, help="checkpoint directory")
    one.add_argument(
        "--steps",
        type=int,
        default=1000,
        help="most steps to compare, chosen at random (default: %(default)s)",
    )
    one.add_argument("--seed", type=int, default=0, help="seed of that choice (default: %(default)s)")
    one.add_argument(
        "--version", type=int, default=0, help="policy version of the checkpoint (default: %(default)s)"
    )
    one.add_argument(
        "--published",
        action="append",
        default=[],
        metavar="VERSION=DIR",
        help="checkpoint of another version of the run; may be repeated",
    )
    one.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        help="largest gap in nats: float32, PNG screenshots, one version (default: %(default)s)",
    )
    one.add_argument("--json", action="store_true", help="print the result as JSON")
    one.set_defaults(run=_recompute)
    one = commands.add_parser("inspect", help="print what a reader of a run gets")
    one.add_argument("run_dir", type=Path, help="directory of the run")
    one.add_argument("--verify", action="store_true", help="compare each file with the manifest's SHA-256")
    one.set_defaults(run=_inspect)
    one = commands.add_parser("export", help="write a run's rows in another trainer's format")
    one.add_argument("format", help="verl, skyrl, trl, slime, areal, prime-rl or lerobot")
    one.add_argument("run_dir", type=Path, help="directory of the run")
    one.add_argument("output", type=Path, help="file or directory to write; it must not exist")
    one.add_argument(
        "--checkpoint",
        type=Path,
        help="checkpoint directory, for formats that hold text or tensors of a model",
    )
    one.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="choose trajectories: splits, suites, tasks (comma-separated), reward_min (a number)",
    )
    one.set_defaults(run=_export)
    return parser


def _sft(args: argparse.Namespace) -> int:
    from . import config

    read = config.read(args.config, args.set)
    if args.check:
        print(config.to_toml(read))
        return 0
    from .learn import supervised

    supervised.train(read, args.resume)
    return 0


def _rl(args: argparse.Namespace) -> int:
    from . import config

    read = config.read(args.config, args.set)
    if args.check:
        print(config.to_toml(read))
        return 0
    from .learn import reinforcement

    reinforcement.train(read, args.resume)
    return 0


def _learn(args: argparse.Namespace) -> int:
    import signal

    from .experiment import Course, report

    # As on Ctrl-C: the running stage stops cleanly, and the next call continues it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    furrow = shutil.which(args.furrow)
    if furrow is None:
        raise ConfigError(f"--furrow: no program {args.furrow!r} was found; give its path")
    course = Course(
        args.folder.resolve(),
        args.output_dir.resolve(),
        str(Path(furrow).resolve()),
        args.size,
        args.seed,
        tuple(args.set),
    )
    course.run()
    folder = args.report or course.out / "report"
    written = report.write(course, folder)
    for name, found in written["exams"].items():
        one = found["all"]
        print(
            f"{name}: {one['solved']} of {one['tried']} solved, {one['success']:.3f} ({one['low']:.3f} to "
            f"{one['high']:.3f})"
        )
    print(f"report: {folder}")
    return 0


def _measuring(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--anyway", action="store_true", help="measure even while other processes load the machine"
    )
    one.add_argument("--json", action="store_true", help="print the report as JSON")


def _bench(args: argparse.Namespace) -> int:
    from .bench import reading
    from .bench.report import Report

    report = Report(args.anyway)
    run_dir = reading.collect(args.run_dir, args.furrow) if args.furrow else args.run_dir
    reading.bench(run_dir, args.checkpoint, args.seconds, args.rounds, report)
    print(json.dumps(report.value(), indent=1) if args.json else report.text())
    return 0


def _bench_loop(args: argparse.Namespace) -> int:
    from .bench import loop
    from .bench.report import Report

    report = Report(args.anyway)
    plan = loop.Plan(
        args.furrow,
        args.sessions,
        args.trajectories,
        args.steps,
        args.settle_seconds,
        args.train_seconds,
        args.versions,
    )
    loop.bench(plan, report)
    print(json.dumps(report.value(), indent=1) if args.json else report.text())
    return 0


def _recompute(args: argparse.Namespace) -> int:
    from .data import Choice, Reader
    from .model import load
    from .recompute import recompute

    folders = {args.version: args.checkpoint}
    for pair in args.published:
        version, equals, folder = pair.partition("=")
        if not (version.isdecimal() and equals):
            raise ConfigError(f"--published: {pair!r}; use VERSION=DIR")
        if int(version) in folders:
            raise ConfigError(f"--published: {pair!r}; version {int(version)} is named twice")
        folders[int(version)] = Path(folder)
    checkpoints = {version: load(folder) for version, folder in folders.items()}
    gaps = recompute(checkpoints, Reader(args.run_dir, Choice(trainable="rl")), args.steps, seed=args.seed)
    table = gaps.table()
    if args.json:
        print(json.dumps({"counts": gaps.counts, "gaps": table}, indent=1))
    else:
        for name, count in sorted(gaps.counts.items()):
            print(f"{name}: {count}")
        for name, gap in table.items():
            print(
                f"{name}: {gap['compared']} compared, gap p50 {gap['p50']:.1e}, p99 {gap['p99']:.1e}, max "
                f"{gap['max']:.1e}"
            )
    worst = gaps.largest("float32")
    if not any(kind == "float32" for kind, _ in gaps.values):
        print(
            "furrow-trainer: no compared token was sampled in float32, from PNG screenshots, under one of "
            "these versions",
            file=sys.stderr,
        )
        return 1
    if worst > args.tolerance:
        print(
            f"furrow-trainer: the largest float32 gap is {worst:.2e}, more than {args.tolerance:g}",
            file=sys.stderr,
        )
        return 1
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from .data import Reader

    reader = Reader(args.run_dir, verify=args.verify)
    rewards = []
    for group in reader.groups():
        rewards += [trajectory.reward for trajectory in group.trajectories if trajectory.reward is not None]
        reader.done(group)
    for name, count in sorted(reader.counts.items()):
        print(f"{name}: {count}")
    print(f"scored in closed groups: {len(rewards)}, mean reward {sum(rewards) / max(len(rewards), 1):.3f}")
    print(f"commits: {reader.manifest.version}, cursor behind commit {reader.cursor().version}")
    return 0


def _export(args: argparse.Namespace) -> int:
    from . import export

    written = export.export(args.format, args.run_dir, args.output, args.checkpoint, args.set)
    print(f"{written} rows in {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
