#!/usr/bin/env python3
"""Writes a random checkpoint of transformers_cpu.py as the file that llama.cpp reads, by llama.cpp's own
converter.

    llama_gguf.py SOURCE CHECKPOINT f32|bf16 FILE.gguf      SOURCE is the tree that llama_cpp.sh unpacks

The converter wants three things that such a checkpoint lacks: the layers as the published string
(transformers 5 saves a list whose names the converter does not all know), no experts' keys in a model that
has none, and a tokenizer. Needs torch and transformers.
"""

import json
import logging
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

LETTERS = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-"}
EXPERTS = (
    "moe_",
    "mtp_",
    "n_routed_",
    "n_shared_",
    "norm_topk_",
    "num_experts_",
    "num_nextn_",
    "routed_",
    "topk_",
)


def hparams(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    # Of the experts too, though it looks like the number of SSM groups, `n_groups`.
    del config["n_group"]
    pattern = "".join(LETTERS[kind] for kind in config.pop("layers_block_type"))
    kept = {key: value for key, value in config.items() if not key.startswith(EXPERTS)}
    return kept | {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}


def convert(source, checkpoint, dtype, out):
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    import gguf
    from conversion.nemotron import NemotronHModel

    class Untokenized(NemotronHModel):
        """Its tokens have ids and no text."""

        model_arch = gguf.MODEL_ARCH.NEMOTRON_H

        def set_vocab(self):
            self.gguf_writer.add_tokenizer_model("no_vocab")

    types = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16}
    Untokenized(checkpoint, types[dtype], out, hparams=hparams(checkpoint)).write()


if __name__ == "__main__":
    source, checkpoint, dtype, out = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    convert(Path(source), Path(checkpoint), dtype, Path(out))
