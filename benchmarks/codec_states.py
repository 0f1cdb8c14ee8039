"""What the codecs are measured on: the state of a small transformer that has really been trained, and edge cases."""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import nn

CONTEXT = 64


class Bytewise(nn.Module):
    """A small transformer over bytes."""

    def __init__(self, width=512, layers=4):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.body(self.embed(text) + self.place, mask=mask, is_causal=True))


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
    states["random bytes"] = np.random.default_rng(0).integers(0, 256, 32 << 20, np.uint8), "f4"
    states["random bytes, b1"] = states["random bytes"][0], "b1"
    states["zeros"] = np.zeros(32 << 20, np.uint8), "f4"
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
