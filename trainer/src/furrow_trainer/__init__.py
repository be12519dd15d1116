"""Furrow's trainer: reads the shards of a run as they appear, learns from them, publishes weights.

`data` follows a run (numpy and pyarrow are enough), `model` is the policy in PyTorch, `learn` trains it,
`export` writes the rows of other trainers. The words are those of Furrow's data set: a trajectory is a list
of steps, a group is the attempts at one task.
"""

__version__ = "0.1.0"
