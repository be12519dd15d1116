"""Errors of this package: each text says what was wrong, where, and what to do."""


class TrainerError(Exception):
    """The base of all errors that this package raises on purpose."""


class DataError(TrainerError):
    """A data set that is not what its manifest or its columns promise."""


class ExpiredError(DataError):
    """Rows that a reader should have got, and that the farm removed before, because they were the oldest."""


class CheckpointError(TrainerError):
    """A checkpoint that cannot be read, or does not fit the model it is read into."""


class ConfigError(TrainerError):
    """Keys of a config file that are unknown or have a value that cannot be used; the text names all of them,
    one per line."""


class PublishError(TrainerError):
    """Weights that the process that serves the policy did not take."""
