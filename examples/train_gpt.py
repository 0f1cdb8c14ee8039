"""A small GPT learns Python from the standard library's own source, one character at a time.

    python examples/train_gpt.py --root runs/gpt

Kill it at any moment and run the same command again: it goes on from the newest good checkpoint and ends with the very
same bits as a run that was left alone. For that, everything that decides the next step is part of the state: weights,
optimizer, schedule, gradient scale, the position in the shuffled data and the loss history. The random states of
python, numpy and torch (this model draws from all three) are saved without asking.
"""

import argparse
import json
import math
import os
import random
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncckpt import AsyncCheckpointer, KeepBest, KeepLast

VOCABULARY = 128  # ASCII


def main() -> None:
    args = parse_args()
    device = prepare_torch(args)
    text = read_text(args.corpus_bytes)
    train_text, val_text = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :].to(device)

    model = GPT(args.layers, args.width, args.heads, args.block, args.dropout, args.layer_drop).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_and_cosine(step, args))
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    batches = Batches(train_text, args.batch, args.block, args.seed)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    state |= {"batches": batches, "losses": [], "val_losses": []}

    with AsyncCheckpointer(args.root, keep=KeepLast(2) | KeepBest("val_loss", mode="min")) as checkpoints:
        restored = checkpoints.restore(state)  # in place; None if there is nothing yet
        if restored:
            state["losses"], state["val_losses"] = restored["losses"], restored["val_losses"]
        start = restored.step if restored else 0
        announce(args, device, model, start)
        for step in range(start + 1, args.steps + 1):
            state["losses"].append(train_step(model, optimizer, scheduler, scaler, next(batches)))
            if step % args.eval_every == 0 or step == args.steps:
                state["val_losses"].append(validate(model, val_text, args))
            report(args, step, state)
            if args.save_every and (step % args.save_every == 0 or step == args.steps):
                began = time.perf_counter()
                checkpoints.save(step, state, metrics=newest("val_loss", state["val_losses"]))  # returns at once
                log(args, event="save", step=step, stall=time.perf_counter() - began)
    finish(args, state)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small GPT on the standard library's source, with background checkpoints.",
        epilog="Kill it and run the same command again: it goes on where it was, bit for bit.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_run_options(parser)
    add_model_options(parser)
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--width {args.width} must be a multiple of --heads {args.heads}")
    return args


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=Path("runs/gpt"), help="folder for the checkpoints")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps, over all resumes together")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints; 0 saves none")
    parser.add_argument("--eval-every", type=int, default=20, help="steps between validations")
    parser.add_argument("--print-every", type=int, default=20, help="steps between printed lines")
    parser.add_argument("--device", default="auto", help='"auto", "cpu", "cuda", "cuda:1"')
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; the bits depend on their number")
    parser.add_argument("--seed", type=int, default=0, help="decides everything that is random")
    parser.add_argument("--log", type=Path, help="append what happens to this file, one JSON object per line")
    parser.add_argument("--final", type=Path, help="torch.save the final state and the next random draws here")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks")
    parser.add_argument("--width", type=int, default=192, help="channels")
    parser.add_argument("--heads", type=int, default=6, help="attention heads")
    parser.add_argument("--block", type=int, default=64, help="characters of context")
    parser.add_argument("--batch", type=int, default=6, help="sequences per step")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps of rising learning rate")
    parser.add_argument("--dropout", type=float, default=0.1, help="share of activations dropped")
    parser.add_argument("--layer-drop", type=float, default=0.05, help="share of blocks skipped in training")
    parser.add_argument("--corpus-bytes", type=int, default=2_000_000, help="how much text to read")


def prepare_torch(args: argparse.Namespace) -> torch.device:
    """Choose the device, and ask for the same bits from the same numbers every time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its results only with this
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(args.threads)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if args.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(args.device)


def read_text(limit: int) -> Tensor:
    """The first ``limit`` characters of the standard library's modules, by name, as uint8 ASCII codes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text("utf-8", "ignore").encode("ascii", "ignore")
        if len(text) >= limit:
            break
    return torch.frombuffer(text, dtype=torch.uint8)[:limit]


class Batches:
    """Endless batches of windows of the text, shuffled anew every epoch; ``state_dict`` is the place in them."""

    def __init__(self, text: Tensor, batch: int, block: int, seed: int) -> None:
        self.windows = text.unfold(0, block + 1, block)
        self.batch = batch
        self.generator = torch.Generator().manual_seed(seed)
        self.shuffle()

    def shuffle(self) -> None:
        """Begin an epoch."""
        self.before_shuffle = self.generator.get_state()
        self.order = torch.randperm(len(self.windows), generator=self.generator)
        self.position = 0

    def __next__(self) -> Tensor:
        if self.position + self.batch > len(self.order):
            self.shuffle()
        chosen = self.order[self.position : self.position + self.batch]
        self.position += self.batch
        return self.windows[chosen].long()

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch's order came from, and how much of it is used up."""
        return {"before_shuffle": self.before_shuffle, "position": self.position}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go to a place that ``state_dict`` gave."""
        self.generator.set_state(saved["before_shuffle"])
        self.shuffle()
        self.position = saved["position"]


class Attention(nn.Module):
    """Causal self-attention, written out: every operation has a deterministic kernel on every device."""

    def __init__(self, width: int, heads: int, block: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.mix_in, self.mix_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("future", torch.ones(block, block, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        query, key, value = self.mix_in(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        weights = scores.masked_fill(self.future[:length, :length], -math.inf).softmax(-1)
        return self.mix_out((self.dropout(weights) @ value).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention, then two linear layers, each added to what came in."""

    def __init__(self, width: int, heads: int, block: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, block, dropout))
        wide = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        self.think = nn.Sequential(nn.LayerNorm(width), *wide, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        x = x + self.attention(x)
        return x + self.think(x)


class GPT(nn.Module):
    """Blocks between an embedding and its transpose (tied weights); in training some blocks are skipped."""

    def __init__(self, layers: int, width: int, heads: int, block: int, dropout: float, layer_drop: float) -> None:
        super().__init__()
        self.layer_drop = layer_drop
        self.characters = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(block, width))
        self.blocks = nn.ModuleList(Block(width, heads, block, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.characters.weight
        nn.init.normal_(self.characters.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, length) codes to (batch, length, vocabulary) logits of the characters after them."""
        x = self.characters(characters) + self.places[: characters.shape[1]]
        for block in self.blocks:
            if not (self.training and random.random() < self.layer_drop):
                x = block(x)
        return self.head(self.norm(x))

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross-entropy (nats per character) of each window's characters given those before."""
        windows = windows.to(self.places.device)
        with torch.autocast(windows.device.type, torch.float16, enabled=windows.is_cuda):
            logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def warmup_and_cosine(step: int, args: argparse.Namespace) -> float:
    """The learning rate's factor: rises to 1 in a straight line, falls to 0.1 along a cosine."""
    if step < args.warmup:
        return (step + 1) / args.warmup
    done = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def train_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    scaler: torch.amp.GradScaler,
    windows: Tensor,
) -> float:
    """One optimizer step; gives the loss before it."""
    model.train()
    optimizer.zero_grad()
    loss = model.loss(windows)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return loss.item()


@torch.no_grad()
def validate(model: GPT, text: Tensor, args: argparse.Namespace) -> float:
    """The loss on windows of unseen text, drawn at random."""
    model.eval()
    starts = torch.from_numpy(np.random.randint(0, len(text) - args.block, size=4 * args.batch)).to(text.device)
    places = starts[:, None] + torch.arange(args.block + 1, device=text.device)
    return model.loss(text[places].long()).item()


def newest(name: str, values: list[float]) -> dict[str, float] | None:
    return {name: values[-1]} if values else None


def announce(args: argparse.Namespace, device: torch.device, model: GPT, start: int) -> None:
    """Say what is about to happen, and from where."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters on {device}, {args.steps} steps, checkpoints in {args.root}")
    if start >= args.steps:
        print(f"step {start} of {args.steps} is done already: nothing left to train (--steps asks for more)")
    elif start:
        print(f"resumed from step {start}")
    else:
        print("started at step 0: no checkpoint yet")
    log(args, event="start", step=start)


def report(args: argparse.Namespace, step: int, state: dict[str, Any]) -> None:
    """Log every step, print some."""
    log(args, event="step", step=step, loss=state["losses"][-1])
    if step % args.print_every == 0 or step == args.steps:
        recent = state["losses"][-args.print_every :]
        val = f", validation {state['val_losses'][-1]:.4f}" if state["val_losses"] else ""
        print(f"step {step:>6}: loss {sum(recent) / len(recent):.4f}{val}", flush=True)


def finish(args: argparse.Namespace, state: dict[str, Any]) -> None:
    """What the run ended with; for comparing two runs bit by bit."""
    if args.final:
        plain = {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in state.items()}
        torch.save(plain | {"next_draws": next_draws()}, args.final)
    if state["val_losses"]:
        print(f"finished: validation loss {state['val_losses'][-1]:.6f}")
    log(args, event="finish", step=args.steps)


def next_draws() -> dict[str, Any]:
    """What the three random generators would give next."""
    numpy_draws = np.random.random(4).tolist()
    return {"python": [random.random() for _ in range(4)], "numpy": numpy_draws, "torch": torch.rand(4)}


def log(args: argparse.Namespace, **event: Any) -> None:
    if args.log:
        with args.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event | {"time": time.time()}) + "\n")


if __name__ == "__main__":
    main()
