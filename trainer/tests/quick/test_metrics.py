"""`metrics.jsonl` over kills."""

from pathlib import Path

from furrow_trainer.learn.metrics import Metrics, read


def test_metrics_of_steps_that_were_not_kept_are_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    for step in (1, 2, 3):
        metrics.write({"step": step, "loss": float("nan")})
    metrics.close()
    with open(path, "a") as file:
        file.write('{"step": 4, "lo')
    Metrics(path, 2).close()
    assert read(path) == [{"step": 1, "loss": None}, {"step": 2, "loss": None}]
