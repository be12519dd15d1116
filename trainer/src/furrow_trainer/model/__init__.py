"""The policy in PyTorch: Nemotron-H's hybrid decoder and the RADIO encoder, under the published names of
their tensors."""

from .checkpoint import Checkpoint, load, save
from .config import ModelConfig, TextConfig, VisionConfig
from .policy import Policy

__all__ = ["Checkpoint", "ModelConfig", "Policy", "TextConfig", "VisionConfig", "load", "save"]
