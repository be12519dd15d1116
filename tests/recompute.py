#!/usr/bin/env python3
"""Recomputes recorded log-probabilities from a data set and a checkpoint alone: numpy in float64, no code of
Furrow.

    recompute.py RUN_DIR CHECKPOINT_DIR [--rows N] [--limit N] [--origins resident,forked,...] [--tolerance
    1e-3] [--json]

For every trajectory with tokens it decodes the recorded screenshots, cuts them into tiles, runs the vision
encoder and the language model over the tokens of the rows (one walk per trajectory: the kept state continues,
a copy of it reads each prompt), and compares

  * `logprobs`          with log-softmax(logits / T) over the whole vocabulary, T = 1 for a greedy policy;
  * `sampled_logprobs`  with the same over the ids in `kept_token_ids`, where they are listed, or over all
                        where nothing was cut;
  * `entropy`           with that of the distribution sampled from, where it is known.

Steps whose state was written by more than one version of the weights cannot be recomputed from one checkpoint
and are counted apart. So are the gaps of JPEG pictures, whose pixels differ a little from decoder to decoder,
and of bfloat16 checkpoints: they are reported, and have no limit. Exits 1 when a float32 gap is above the
tolerance, when fewer rows were compared than --rows asks for, or an origin of --origins never occurs. The
formulas are those of the published architecture (Nemotron-H, RADIO); each function names its own.
"""

import argparse
import collections
import glob
import hashlib
import io
import json
import math
import os
import re
import sys

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

# -- the checkpoint ------------------------------------------------------------------------------------------


def read_config(folder):
    """config.json; Python's reader also takes a bare Infinity, which older files hold."""
    with open(os.path.join(folder, "config.json"), encoding="utf8") as file:
        config = json.load(file)
    text = config.get("llm_config") or config.get("text_config") or config
    return config, text


def read_tensors(folder):
    """All tensors as float64 under their names without the `language_model.` prefix, and whether any was
    bfloat16."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf8") as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    tensors, rounded = {}, False
    for name in files:
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            if entry["dtype"] == "F32":
                values = np.frombuffer(data[begin:end], np.float32)
            elif entry["dtype"] == "BF16":
                values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
                rounded = True
            else:
                continue
            tensors[key.removeprefix("language_model.")] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors, rounded


def layer_kinds(text):
    if "hybrid_override_pattern" in text:
        return list(text["hybrid_override_pattern"])
    letters = {
        "mamba": "M",
        "linear_attention": "M",
        "attention": "*",
        "full_attention": "*",
        "mlp": "-",
        "moe": "E",
    }
    return [letters[name] for name in text["layers_block_type"]]


# -- arithmetic ----------------------------------------------------------------------------------------------


def sigmoid(v):
    e = np.exp(-np.abs(v))
    return np.where(v >= 0, 1 / (1 + e), e / (1 + e))


def silu(v):
    return v * sigmoid(v)


def rms(v, weight, epsilon):
    return weight * v / np.sqrt(np.mean(v * v, axis=-1, keepdims=True) + epsilon)


def layer_norm(v, weight, bias, epsilon=1e-6):
    v = v - v.mean(axis=-1, keepdims=True)
    return weight * v / np.sqrt(np.mean(v * v, axis=-1, keepdims=True) + epsilon) + bias


def softmax(v):
    e = np.exp(v - v.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(v):
    v = v - v.max(axis=-1, keepdims=True)
    return v - np.log(np.exp(v).sum(axis=-1, keepdims=True))


erf = np.vectorize(math.erf, otypes=[np.float64])


# -- the language model --------------------------------------------------------------------------------------


class State:
    """State of a sequence: convolution inputs, SSM state, keys and values, by layer."""

    def __init__(self):
        self.conv, self.ssm, self.keys, self.values = {}, {}, {}, {}

    def copy(self):
        other = State()
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            theirs.update(mine)  # every update makes new arrays, so the old ones can be shared
        return other


class Language:
    def __init__(self, text, weights):
        self.c, self.w, self.kinds = text, weights, layer_kinds(text)
        self.epsilon = (
            text.get("layer_norm_epsilon") or text.get("rms_norm_eps") or text.get("norm_eps") or 1e-5
        )
        self.body = "backbone." if "backbone.norm_f.weight" in weights else "model."

    def embed(self, ids, placeholder):
        table = self.w[self.body + "embeddings.weight"]
        rows = np.array([0 if i == placeholder or i >= len(table) else i for i in ids], dtype=np.int64)
        return table[rows]

    def run(self, state, h):
        """Logits [T, V] of rows h [T, H] that follow the state, which goes on."""
        for i, kind in enumerate(self.kinds):
            layer = f"{self.body}layers.{i}."
            u = rms(h, self.w[layer + "norm.weight"], self.epsilon)
            mixer = {"M": self.mamba, "*": self.attention, "-": self.mlp, "E": self.experts}[kind]
            h = h + mixer(state, i, layer + "mixer.", u)
        return rms(h, self.w[self.body + "norm_f.weight"], self.epsilon) @ self.w["lm_head.weight"].T

    def mamba(self, state, i, p, u):
        """Mamba-2: S <- exp(dt A) S + dt x B^T, y = S C + D x, then the gated group norm: gate first, norm
        after."""
        c, w = self.c, self.w
        heads, size, groups, n = c["mamba_num_heads"], c["mamba_head_dim"], c["n_groups"], c["ssm_state_size"]
        taps, inner, count = c["conv_kernel"], heads * size, len(u)
        proj = u @ w[p + "in_proj.weight"].T
        gate, wide, dt = proj[:, :inner], proj[:, inner:-heads], proj[:, -heads:]
        before = state.conv.get(i, np.zeros((taps - 1, wide.shape[1])))
        window = np.concatenate([before, wide])
        state.conv[i] = window[len(window) - (taps - 1) :]
        kernel = w[p + "conv1d.weight"][:, 0, :]
        mixed = sum(window[k : k + count] * kernel[:, k] for k in range(taps)) + w[p + "conv1d.bias"]
        mixed = silu(mixed)
        x = mixed[:, :inner].reshape(count, heads, size)
        b = np.repeat(mixed[:, inner : inner + groups * n].reshape(count, groups, n), heads // groups, axis=1)
        cc = np.repeat(mixed[:, inner + groups * n :].reshape(count, groups, n), heads // groups, axis=1)
        dt = np.logaddexp(0.0, dt + w[p + "dt_bias"])
        decay = np.exp(dt * -np.exp(w[p + "A_log"]))
        s = state.ssm.get(i, np.zeros((heads, size, n)))
        y = np.empty((count, heads, size))
        for t in range(count):
            s = decay[t][:, None, None] * s + (dt[t][:, None] * x[t])[:, :, None] * b[t][:, None, :]
            y[t] = (s * cc[t][:, None, :]).sum(axis=2)
        state.ssm[i] = s
        y = (y + w[p + "D"][:, None] * x).reshape(count, inner) * silu(gate)
        y = y.reshape(count, groups, inner // groups)
        y = y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + self.epsilon)
        return (w[p + "norm.weight"] * y.reshape(count, inner)) @ w[p + "out_proj.weight"].T

    def attention(self, state, i, p, u):
        """Grouped-query attention without positions."""
        c, w, count = self.c, self.w, len(u)
        queries, shared = c["num_attention_heads"], c["num_key_value_heads"]
        size = c.get("head_dim") or c["attention_head_dim"]
        q = (u @ w[p + "q_proj.weight"].T).reshape(count, queries, size)
        k = (u @ w[p + "k_proj.weight"].T).reshape(count, shared, size)
        v = (u @ w[p + "v_proj.weight"].T).reshape(count, shared, size)
        if i in state.keys:
            k, v = np.concatenate([state.keys[i], k]), np.concatenate([state.values[i], v])
        state.keys[i], state.values[i] = k, v
        past = len(k) - count
        later = np.arange(len(k))[None, :] > past + np.arange(count)[:, None]
        out = np.empty((count, queries, size))
        for head in range(queries):
            group = head // (queries // shared)
            scores = q[:, head] @ k[:, group].T / math.sqrt(size)
            out[:, head] = softmax(np.where(later, -np.inf, scores)) @ v[:, group]
        return out.reshape(count, -1) @ w[p + "o_proj.weight"].T

    def mlp(self, _state, _i, p, u):
        return np.maximum(u @ self.w[p + "up_proj.weight"].T, 0) ** 2 @ self.w[p + "down_proj.weight"].T

    def experts(self, state, i, p, u):
        """Sigmoid router: chosen by the corrected score, weighted by the uncorrected one."""
        c, w = self.c, self.w
        total, top = c["n_routed_experts"], c["num_experts_per_tok"]
        groups, kept = c.get("n_group") or 1, c.get("topk_group") or 1
        low = u @ w[p + "fc1_latent_proj.weight"].T if c.get("moe_latent_size") else u
        out = np.zeros_like(low)
        for t, scores in enumerate(sigmoid(u @ w[p + "gate.weight"].T)):
            choice = scores + w[p + "gate.e_score_correction_bias"]
            if groups > 1:
                by_group = choice.reshape(groups, total // groups)
                rating = np.sort(by_group, axis=1)[:, -2:].sum(axis=1)
                mask = np.full(groups, -np.inf)
                mask[np.argsort(-rating, kind="stable")[:kept]] = 0
                choice = (by_group + mask[:, None]).reshape(-1)
            chosen = np.argsort(-choice, kind="stable")[:top]
            share = scores[chosen]
            if c.get("norm_topk_prob", True):
                share = share / (share.sum() + 1e-20)
            for expert, weight in zip(chosen, share * c.get("routed_scaling_factor", 1.0), strict=True):
                out[t] += weight * self.mlp(state, i, f"{p}experts.{expert}.", low[t : t + 1])[0]
        if c.get("moe_latent_size"):
            out = out @ w[p + "fc2_latent_proj.weight"].T
        return out + self.mlp(state, i, p + "shared_experts.", u)


# -- the vision encoder --------------------------------------------------------------------------------------


def choose_grid(width, height, tile, tiles_max):
    """The grid whose shape is nearest to the image's; on a tie the later one if the image is large enough for
    it."""
    best, grid = math.inf, (1, 1)
    for count in range(1, tiles_max + 1):
        for cols in range(1, count + 1):
            if count % cols:
                continue
            rows = count // cols
            off = abs(width / height - cols / rows)
            if off < best or (off == best and width * height > 0.5 * tile * tile * count):
                best, grid = off, (cols, rows)
    return grid


def bicubic_axis(pixels, size):
    """8-bit bicubic resampling with antialiasing of the second axis, in fixed point of 22 bits."""
    before = pixels.shape[1]
    if before == size:
        return pixels
    scale = before / size
    filter_scale = max(scale, 1.0)
    support = 2 * filter_scale
    out = np.empty((pixels.shape[0], size, 3), np.uint8)
    for o in range(size):
        centre = (o + 0.5) * scale
        low = max(int(centre - support + 0.5), 0)
        high = min(int(centre + support + 0.5), before)
        weights = []
        for k in range(high - low):
            t = abs((k + low - centre + 0.5) * (1 / filter_scale))
            a = -0.5
            if t < 1:
                weights.append(((a + 2) * t - (a + 3)) * t * t + 1)
            elif t < 2:
                weights.append((((t - 5) * t + 8) * t - 4) * a)
            else:
                weights.append(0.0)
        total = sum(weights)
        fixed = [v / total * (1 << 22) for v in weights]
        fixed = np.array([math.trunc(v + (0.5 if v >= 0 else -0.5)) for v in fixed], np.int64)
        part = pixels[:, low:high].astype(np.int64)
        value = ((part * fixed[None, :, None]).sum(axis=1) + (1 << 21)) >> 22
        out[:, o] = np.clip(value, 0, 255)
    return out


def resize(pixels, width, height):
    """Horizontal first, rounded to 8 bit, then vertical."""
    wide = bicubic_axis(pixels, width)
    return bicubic_axis(wide.transpose(1, 0, 2), height).transpose(1, 0, 2)


class Vision:
    def __init__(self, config, weights):
        self.w, self.v = weights, config["vision_config"]
        self.tile = config["force_image_size"]
        self.tiles_max = config.get("max_num_tiles", 12)
        self.thumbnail = config.get("use_thumbnail", True)
        self.patch = config["patch_size"]
        self.swapped = config.get("ps_version", "v2") == "v1"
        self.align = config.get("cpe_align_corners", False)
        self.mean = np.array(config.get("norm_mean", [0.48145466, 0.4578275, 0.40821073]), np.float32)
        self.std = np.array(config.get("norm_std", [0.26862954, 0.26130258, 0.27577711]), np.float32)
        self.heads = self.v.get("num_attention_heads", 16)

    def rows(self, pixels):
        """[rows, H] of an image of 8-bit pixels [h, w, 3], tiles in reading order, thumbnail last; and the
        grid."""
        height, width = pixels.shape[:2]
        cols, lines = choose_grid(width, height, self.tile, self.tiles_max)
        canvas = resize(pixels, cols * self.tile, lines * self.tile)
        tiles = [
            canvas[r * self.tile : (r + 1) * self.tile, c * self.tile : (c + 1) * self.tile]
            for r in range(lines)
            for c in range(cols)
        ]
        if cols * lines > 1 and self.thumbnail:
            tiles.append(resize(pixels, self.tile, self.tile))
        return np.concatenate([self.encode(tile) for tile in tiles]), (cols, lines)

    def encode(self, tile):
        values = (tile.astype(np.float32) / np.float32(255) - self.mean) / self.std
        side, patch = self.tile // self.patch, self.patch
        patches = (
            values.reshape(side, patch, side, patch, 3).transpose(0, 2, 4, 1, 3).reshape(side * side, -1)
        )
        tower = "vision_model.radio_model.model."
        w = self.w
        h = patches.astype(np.float64) @ w[tower + "patch_generator.embedder.weight"].T + self.positions(side)
        prefix = w[tower + "patch_generator.cls_token.token"]
        h = np.concatenate([prefix, h])
        blocks = 1 + max(
            int(m[1]) for m in (re.match(re.escape(tower) + r"blocks\.(\d+)\.", k) for k in w) if m
        )
        for i in range(blocks):
            b = f"{tower}blocks.{i}."
            h = h + self.attend(b, layer_norm(h, w[b + "norm1.weight"], w[b + "norm1.bias"]))
            z = (
                layer_norm(h, w[b + "norm2.weight"], w[b + "norm2.bias"]) @ w[b + "mlp.fc1.weight"].T
                + w[b + "mlp.fc1.bias"]
            )
            z = 0.5 * z * (1 + erf(z / math.sqrt(2)))
            h = h + z @ w[b + "mlp.fc2.weight"].T + w[b + "mlp.fc2.bias"]
        return self.project(h[len(prefix) :].reshape(side, side, -1))

    def attend(self, b, u):
        w, count, width = self.w, len(u), u.shape[1]
        qkv = (u @ w[b + "attn.qkv.weight"].T + w[b + "attn.qkv.bias"]).reshape(count, 3, self.heads, -1)
        q, k, v = (qkv[:, part].transpose(1, 0, 2) for part in range(3))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(width // self.heads)
        out = (softmax(scores) @ v).transpose(1, 0, 2).reshape(count, width)
        return out @ w[b + "attn.proj.weight"].T + w[b + "attn.proj.bias"]

    def positions(self, m):
        """The position table, resized bilinearly without antialiasing."""
        table = self.w["vision_model.radio_model.model.patch_generator.pos_embed"][0]
        side = math.isqrt(len(table))
        table = table.reshape(side, side, -1)
        if m == side:
            return table.reshape(m * m, -1)
        if self.align:
            at = np.arange(m) * (side - 1) / max(m - 1, 1)
        else:
            at = np.maximum((np.arange(m) + 0.5) * side / m - 0.5, 0)
        low = np.minimum(at.astype(int), side - 1)
        high, share = np.minimum(low + 1, side - 1), at - low
        lines = table[low] * (1 - share)[:, None, None] + table[high] * share[:, None, None]
        return (lines[:, low] * (1 - share)[None, :, None] + lines[:, high] * share[None, :, None]).reshape(
            m * m, -1
        )

    def project(self, grid):
        """Pixel shuffle by two, RMSNorm, squared ReLU."""
        side, width = grid.shape[0] // 2, grid.shape[2]
        order = (2, 0, 1, 3, 4) if self.swapped else (0, 2, 1, 3, 4)  # "v1" leaves the rows' i and j swapped
        rows = grid.reshape(side, 2, side, 2, width).transpose(order).reshape(side * side, 4 * width)
        n = rms(rows, self.w["mlp1.0.weight"], 1e-5)
        return np.maximum(n @ self.w["mlp1.1.weight"].T, 0) ** 2 @ self.w["mlp1.3.weight"].T


# -- the data set --------------------------------------------------------------------------------------------


def rows_by_trajectory(run_dir):
    wanted = [
        "trajectory_id", "step", "observation", "prompt_token_ids", "image_spans", "response_token_ids",
        "response_mask", "forced", "commit_token_ids", "prefix_len", "prompt_hash", "logprobs",
        "sampled_logprobs", "kept_count", "kept_token_ids", "kept_offsets", "entropy", "policy_versions",
        "state_version_min", "sampling", "engine",
    ]  # fmt: skip
    found = collections.defaultdict(list)
    for path in sorted(glob.glob(os.path.join(run_dir, "data", "steps", "*.parquet"))):
        for row in pq.read_table(path, columns=wanted).to_pylist():
            if row["prompt_token_ids"] is not None:
                found[row["trajectory_id"]].append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["step"])
    return found


def token_hash(ids, spans):
    ends = {span["token_start"] + span["token_len"]: span["rgb_sha256"] for span in spans}
    digest = hashlib.sha256()
    for index, token in enumerate(ids):
        digest.update(int(token).to_bytes(4, "little"))
        if index + 1 in ends:
            digest.update(ends[index + 1])
    return digest.digest()[:16]


class Recomputation:
    def __init__(self, checkpoint):
        config, text = read_config(checkpoint)
        weights, self.is_rounded = read_tensors(checkpoint)
        self.language = Language(text, weights)
        self.vision = Vision(config, weights) if "vision_config" in config else None
        self.placeholder = config.get("img_context_token_id", config.get("image_context_token_id"))
        self.features = {}
        self.gaps = collections.defaultdict(list)
        self.counts = collections.Counter()
        self.problems = []

    def wrong(self, row, text):
        self.problems.append(f"{row['trajectory_id']} step {row['step']}: {text}")

    def trajectory(self, rows):
        """One walk: `kept` reads what is committed, a copy of it reads each prompt and response."""
        kept, kept_ids, shots = State(), [], {}
        for row in rows:
            shots[row["step"]] = row["observation"]["screenshot"]["bytes"]
            spans, prompt = row["image_spans"] or [], row["prompt_token_ids"]
            if row["prefix_len"] != len(kept_ids):
                return self.wrong(
                    row, f"prefix_len is {row['prefix_len']}, the commits make it {len(kept_ids)}"
                )
            if token_hash(kept_ids + prompt, spans) != row["prompt_hash"]:
                return self.wrong(row, "the rebuilt prompt has another hash")
            state = kept.copy()
            logits = self.language.run(
                state, self.rows(row, prompt + row["response_token_ids"], len(kept_ids), spans, shots)
            )
            self.compare(row, logits[len(prompt) - 1 : -1])
            if row["commit_token_ids"] is None:
                kept, kept_ids = state, kept_ids + prompt + row["response_token_ids"]
            elif row["commit_token_ids"]:
                commit = row["commit_token_ids"]
                kept = kept.copy()
                self.language.run(kept, self.language.embed(commit, self.placeholder))
                kept_ids = kept_ids + commit
        return None

    def rows(self, row, ids, offset, spans, shots):
        """Embeddings of the ids, with image rows instead of placeholders."""
        h = self.language.embed(ids, self.placeholder)
        for span in spans:
            start = span["token_start"] - offset
            if start < 0:
                continue
            features, grid = self.picture(row, span, shots[span["step"]])
            if len(features) != span["token_len"]:
                self.wrong(
                    row, f"a picture of grid {grid} has {len(features)} rows, the span {span['token_len']}"
                )
                continue
            h[start : start + len(features)] = features
        return h

    def picture(self, row, span, blob):
        if hashlib.sha256(blob).digest() != span["blob_sha256"]:
            self.wrong(row, "blob_sha256 is not that of the screenshot")
        key = hashlib.sha256(blob).digest()
        if key not in self.features:
            image = Image.open(io.BytesIO(blob))
            if image.mode in ("RGBA", "LA", "PA"):
                white = Image.new("RGBA", image.size, (255, 255, 255, 255))
                image = Image.alpha_composite(white, image.convert("RGBA"))
            self.features[key] = self.vision.rows(np.asarray(image.convert("RGB")))
        return self.features[key]

    def compare(self, row, logits):
        """Compares a row; row t of the logits is the distribution that response token t was sampled from."""
        versions = set(row["policy_versions"]) | {row["state_version_min"]}
        self.counts["steps"] += 1
        self.counts[f"origin {row['engine']['state_origin']}"] += 1
        if len(versions) > 1:
            self.counts["steps of more than one version, not compared"] += 1
            return
        picture = row["observation"]["format"]
        kind = "bfloat16" if self.is_rounded else "float32"
        kind = f"{kind}, JPEG" if picture == "jpeg" else kind
        temperature = row["sampling"]["temperature"]
        offsets = row["kept_offsets"] or []
        for t, token in enumerate(row["response_token_ids"]):
            scale = temperature if temperature > 0 else 1.0
            whole = log_softmax(logits[t] / scale)
            if row["logprobs"] and row["logprobs"][t] is not None:
                self.gaps[kind, "logprobs"].append(abs(whole[token] - row["logprobs"][t]))
            if not row["response_mask"][t]:
                continue
            distribution = self.sampling_distribution(row, t, whole, offsets)
            if distribution is None:
                self.counts["draws whose ids are not listed"] += 1
                continue
            ids, share = distribution
            at = token if ids is None else ids.index(token)
            self.gaps[kind, "sampled_logprobs"].append(abs(share[at] - row["sampled_logprobs"][t]))
            if row["entropy"] and row["entropy"][t] is not None:
                entropy = -(np.exp(share) * share).sum()
                self.gaps[kind, "entropy"].append(abs(entropy - row["entropy"][t]))
        self.counts["rows compared"] += 1

    def sampling_distribution(self, row, t, whole, offsets):
        """Ids and log-probabilities of the distribution sampled from; None where the ids are not listed."""
        count = row["kept_count"][t] if row["kept_count"] else None
        if count is None:
            return None, whole
        if count > 512 or not offsets:
            return None
        ids = row["kept_token_ids"][offsets[t] : offsets[t + 1]]
        if len(ids) != count:
            self.wrong(row, f"token {t}: {len(ids)} ids are listed, kept_count is {count}")
            return None
        return ids, log_softmax(whole[ids])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run_dir")
    parser.add_argument("checkpoint")
    parser.add_argument(
        "--rows", type=int, default=1, help="fail when fewer rows are compared (default: %(default)s)"
    )
    parser.add_argument("--limit", type=int, help="stop after this many rows")
    parser.add_argument(
        "--origins", default="", help="state origins that must occur, separated by commas (default: none)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, help="largest float32 gap, in nats (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    args = parser.parse_args()

    work = Recomputation(args.checkpoint)
    for rows in rows_by_trajectory(args.run_dir).values():
        if args.limit and work.counts["rows compared"] >= args.limit:
            break
        work.trajectory(rows)

    gaps = {
        f"{kind}: {what}": {
            "compared": len(v),
            "p50": float(np.median(v)),
            "p99": float(np.quantile(v, 0.99)),
            "max": float(max(v)),
        }
        for (kind, what), v in sorted(work.gaps.items())
    }
    for name, gap in gaps.items():
        if name.startswith("float32:") and not gap["max"] <= args.tolerance:
            work.problems.append(f"{name}: the largest gap is {gap['max']:.2e}, more than {args.tolerance:g}")
    if work.counts["rows compared"] < args.rows:
        work.problems.append(
            f"{work.counts['rows compared']} rows were compared, --rows wants at least {args.rows}"
        )
    for origin in filter(None, args.origins.split(",")):
        if not work.counts[f"origin {origin}"]:
            work.problems.append(f"no step of origin {origin}")

    if args.json:
        print(json.dumps({"counts": work.counts, "gaps": gaps, "problems": work.problems}, indent=1))
    else:
        for name, count in sorted(work.counts.items()):
            print(f"{name}: {count}")
        for name, gap in gaps.items():
            print(
                f"{name}: {gap['compared']} compared, gap p50 {gap['p50']:.1e}, p99 {gap['p99']:.1e}, max "
                f"{gap['max']:.1e}"
            )
        for problem in work.problems[:50]:
            print(problem)
    sys.exit(1 if work.problems else 0)


if __name__ == "__main__":
    main()
