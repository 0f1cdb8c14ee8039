"""The zstd codec against plain zstd at level 1 and a copy, on the state of a really trained small model, on one core.

    python benchmarks/codec.py [--rounds 9] [--steps 150] [--json FILE]

Each round codes and decodes every frame with every contestant, one after the other; figures are processor time of the
one thread that works, checksums and allocations included. A rate is the median over rounds, a ratio to another
contestant the median over rounds of the ratio within a round. A copy goes into touched memory.
"""

import argparse
import json
import os
import statistics
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import zstandard
from torch import nn

from asyncckpt.encode.codec import Zstd
from asyncckpt.encode.frame import decode_frame, encode_frame

FRAME = 4 << 20
CONTEXT = 64


@dataclass(frozen=True)
class Plain:
    """What a writer without float planes would do."""

    name: str = "plain"

    def encode(self, raw, _kind):
        coded = zstandard.ZstdCompressor(level=1).compress(raw)
        return [coded] if len(coded) < len(raw) else None

    def decode(self, stored, _kind, into):
        with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
            reader.readinto(into)


class Bytewise(nn.Module):
    """A small transformer over bytes."""

    def __init__(self, width=256, layers=4):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.body(self.embed(text) + self.place, mask=mask, is_causal=True))


def main():
    options = arguments()
    states = trained_states(options.steps)
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    result = {name: measure(data, kind, options.rounds) for name, (data, kind) in states.items()}
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=150, help="of training")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


# ---- states --------------------------------------------------------------------------------------------------------


def trained_states(steps):
    """Name -> (bytes, kind)."""
    model, optimizer = trained(steps)
    weights = [p.detach() for p in model.parameters()]
    moments = {key: [optimizer.state[p][key] for p in model.parameters()] for key in ("exp_avg", "exp_avg_sq")}
    joined = {"fp32 weights": weights, "Adam exp_avg": moments["exp_avg"], "Adam exp_avg_sq": moments["exp_avg_sq"]}
    states = {name: (flat(tensors), "f4") for name, tensors in joined.items()}
    states["fp32 weights + moments"] = np.concatenate([data for data, _ in states.values()]), "f4"
    states["bf16 weights"] = flat([w.bfloat16() for w in weights]), "f2"
    states["fp16 weights"] = flat([w.half() for w in weights]), "f2"
    states["fp64 weights"] = flat([w.double() * (1 + 1e-9 * torch.randn(w.shape).double()) for w in weights]), "f8"
    states["int64 tokens"] = flat([source_text()[:1_000_000]]), "b8"
    states["random bytes"] = np.random.default_rng(0).integers(0, 256, 16 << 20, np.uint8), "f4"
    states["random bytes, b1"] = states["random bytes"][0], "b1"
    states["zeros"] = np.zeros(16 << 20, np.uint8), "f4"
    return states


def trained(steps):
    torch.manual_seed(0)
    model, text = Bytewise(), source_text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (8,))
        rows = torch.stack([text[s : s + CONTEXT + 1] for s in starts])
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"trained {steps} steps, loss {loss.item():.2f}")
    return model, optimizer


def source_text():
    """Python's own library, as bytes: text that every machine has."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return torch.tensor(
        list(
            b"".join(path.read_bytes() for path in sorted(folder.glob("a*/*.py")) + sorted(folder.glob("*.py")))[
                :2_000_000
            ]
        )
    )


def flat(tensors):
    return torch.cat([t.contiguous().flatten().view(torch.uint8) for t in tensors]).numpy()


# ---- measuring -----------------------------------------------------------------------------------------------------


def measure(data, kind, rounds):
    frames = [memoryview(data[at : at + FRAME]) for at in range(0, len(data), FRAME)]
    codecs = {"ours": Zstd(), "plain": Plain()}
    target = memoryview(np.zeros(FRAME, np.uint8))
    rows = []
    for _ in range(rounds + 1):  # the first one warms up
        row = {name: once(codec, frames, kind, target) for name, codec in codecs.items()}
        row["copy"] = copied(frames, target)
        rows.append(row)
    return figures(rows[1:], len(data))


def once(codec, frames, kind, target):
    codecs, encode, decode, stored_bytes = {codec.name: codec}, 0.0, 0.0, 0
    for frame in frames:
        started = time.thread_time()
        coded = encode_frame(codec, frame, kind)
        encode += time.thread_time() - started
        stored = memoryview(b"".join(coded.parts))
        started = time.thread_time()
        decode_frame(stored, coded.encoding, kind, target[: len(frame)], codecs)
        decode += time.thread_time() - started
        assert target[: len(frame)] == frame
        stored_bytes += coded.stored_bytes
    return {"encode": encode, "decode": decode, "stored": stored_bytes}


def copied(frames, target):
    started = time.thread_time()
    for frame in frames:
        target[: len(frame)] = frame
    return time.thread_time() - started


def figures(rows, nbytes):
    def median(value):
        return statistics.median(map(value, rows))

    return {
        "megabytes": nbytes / 1e6,
        "ratio": rows[0]["ours"]["stored"] / nbytes,
        "ratio_plain": rows[0]["plain"]["stored"] / nbytes,
        "encode": nbytes / 1e9 / median(lambda row: row["ours"]["encode"]),
        "decode": nbytes / 1e9 / median(lambda row: row["ours"]["decode"]),
        "encode_to_plain": median(lambda row: row["plain"]["encode"] / row["ours"]["encode"]),
        "decode_to_plain": median(lambda row: row["plain"]["decode"] / row["ours"]["decode"]),
        "encode_to_copy": median(lambda row: row["ours"]["encode"] / row["copy"]),
    }


def show(result: dict[str, dict[str, float]]) -> None:
    print(f"{'':24}{'stored/raw':>12}{'(plain)':>9}{'encode':>12}{'decode':>12}{'x plain enc, dec':>19}{'x copy':>8}")
    for name, row in result.items():
        print(
            f"{name:24}{row['ratio']:12.4f}{row['ratio_plain']:9.4f}{row['encode']:7.2f} GB/s{row['decode']:7.2f} GB/s"
            f"{row['encode_to_plain']:11.1f}{row['decode_to_plain']:8.1f}{row['encode_to_copy']:8.1f}"
        )


if __name__ == "__main__":
    main()
