"""From rows to steps of an optimiser: sequences, batches, advantages, losses, the trainer."""
