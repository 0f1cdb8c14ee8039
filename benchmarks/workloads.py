"""What is trained and saved: a real loop of forward, backward and AdamW in every workload.

adam    333 square layers under fp32 AdamW: 1,000 tensors and 333 step counters
tiny    33,334 parameters of 10 elements with their AdamW states: 100,000 tensors and 33,334 step counters
huge    one matrix under plain SGD: one tensor
bf16    a small transformer that was really trained, bf16 weights with fp32 moments
python  20,000 tensors beside a loop of pure Python: what a save takes away of the interpreter's lock
capped  as adam, but asyncckpt may hold a tenth of the state in host memory
"""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

CONTEXT = 64
VOCABULARY = 256


@dataclass
class Live:
    """A training run that can be driven step by step.

    Attributes:
        model, optimizer: the objects a user would have.
        loss: one forward pass.
        host_memory: what asyncckpt may hold, bytes; None: its default.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]
    host_memory: int | None = None

    def forward_backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()

    def plain(self) -> dict[str, Any]:
        """What peers are given: nested dicts of the live tensors."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def objects(self) -> dict[str, Any]:
        """What asyncckpt is given: the objects themselves."""
        return {"model": self.model, "optimizer": self.optimizer}

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the state."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [p.detach() for p in self.model.parameters()] + [m for m in moments if isinstance(m, torch.Tensor)]

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def build(workload: str, megabytes: int, folder: Path) -> Live:
    """A training run of about this size, three steps in. ``folder`` holds what ``prepare`` left."""
    torch.manual_seed(0)
    live = _BUILDERS[workload](megabytes, folder)
    for _ in range(3):
        live.forward_backward()
        live.optimizer.step()
    if workload == "capped":
        live.host_memory = live.nbytes() // 10
    return live


def prepare(workload: str, folder: Path) -> None:
    """What is made once and used by every contestant: the trained weights."""
    if workload == "bf16":
        model, optimizer = _trained(steps=80)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "trained.pt")


# ---- adam, capped --------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """A deep residual stack of square layers: many parameters of one size, cheap to run."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.05 * torch.tanh(layer(x))
        return x


def _adam(megabytes: int, _folder: Path) -> Live:
    width = int((megabytes * 1e6 / 12 / 333) ** 0.5)
    model = Layers(width, 333)
    data, target = torch.randn(32, width), torch.randn(32, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    return Live(model, optimizer, lambda: (model(data) - target).square().mean())


# ---- tiny ----------------------------------------------------------------------------------------------------------


class Many(nn.Module):
    """So many parameters of one size; only the first few are trained, the others are there to be saved."""

    def __init__(self, count: int, size: int, trained: int) -> None:
        super().__init__()
        for number, value in enumerate(torch.randn(count, size).unbind()):
            self.register_parameter(f"t{number}", nn.Parameter(value.clone(), requires_grad=number < trained))
        self.data = [value for value in self.parameters() if value.requires_grad]

    def loss(self) -> torch.Tensor:
        return torch.cat(self.data).square().mean()


def _tiny(_megabytes: int, _folder: Path) -> Live:
    model = Many(33_334, 10, trained=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    for parameter in model.parameters():
        moments = torch.randn(2, 10).square()
        steps = torch.tensor(1.0)
        optimizer.state[parameter] = {"step": steps, "exp_avg": moments[0].clone(), "exp_avg_sq": moments[1].clone()}
    ballast = torch.randn(512, 512)
    return Live(model, optimizer, lambda: model.loss() + 0 * _work(ballast))


def _work(matrix: torch.Tensor) -> torch.Tensor:
    """Some matrix products, as a larger model would need."""
    for _ in range(10):
        matrix = torch.tanh(matrix @ matrix)
    return matrix.sum()


# ---- python ---------------------------------------------------------------------------------------------------------


def _python(_megabytes: int, _folder: Path) -> Live:
    model = Many(20_000, 2500, trained=1)
    optimizer = torch.optim.SGD(model.data, lr=1e-4)
    return Live(model, optimizer, lambda: model.loss() + sum(number % 7 for number in range(500_000)) * 1e-9)


# ---- huge ----------------------------------------------------------------------------------------------------------


def _huge(megabytes: int, _folder: Path) -> Live:
    model = nn.Linear(1024, int(megabytes * 1e6 / 4 / 1024), bias=False)
    data = torch.randn(8, 1024)
    return Live(model, torch.optim.SGD(model.parameters(), lr=1e-4), lambda: model(data).square().mean())


# ---- bf16 ----------------------------------------------------------------------------------------------------------


class Bytewise(nn.Module):
    """A small transformer over bytes."""

    def __init__(self, width: int = 256, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], dtype=self.head.weight.dtype)
        return self.head(self.body(self.embed(text), mask=mask, is_causal=True))


class MixedAdam(torch.optim.Optimizer):
    """Adam on bf16 weights with fp32 moments."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, self.state[parameter], group["lr"])

    def load_moments(self, moments: dict[int, dict[str, torch.Tensor]]) -> None:
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            self.state[parameter] = {key: moments[number][key].float() for key in ("exp_avg", "exp_avg_sq")}

    @staticmethod
    def _update(parameter: torch.Tensor, state: dict[str, torch.Tensor], lr: float) -> None:
        gradient = parameter.grad.float()
        state["exp_avg"].lerp_(gradient, 0.1)
        state["exp_avg_sq"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        update = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
        parameter.add_(update.to(parameter.dtype), alpha=-lr)


def _bf16(_megabytes: int, folder: Path) -> Live:
    trained = torch.load(folder / "trained.pt")
    model = Bytewise()
    model.load_state_dict(trained["model"])
    model.to(torch.bfloat16)
    optimizer = MixedAdam(model.parameters(), lr=1e-5)
    optimizer.load_moments(trained["optimizer"]["state"])
    rows = _batch(_text(), 2)
    return Live(model, optimizer, lambda: _loss(model, rows))


def _trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model, text = Bytewise(), _text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(model, _batch(text, 8)).backward()
        optimizer.step()
    return model, optimizer


def _loss(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1).float(), rows[:, 1:].flatten())


def _batch(text: torch.Tensor, size: int) -> torch.Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (size,))
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts])


def _text() -> torch.Tensor:
    """Python's own library, as bytes: text that every machine has."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    raw = b"".join(path.read_bytes() for path in sorted(folder.glob("a*/*.py")) + sorted(folder.glob("*.py")))
    return torch.tensor(list(raw[:2_000_000]))


_BUILDERS = {"adam": _adam, "tiny": _tiny, "huge": _huge, "bf16": _bf16, "python": _python, "capped": _adam}
WORKLOADS = tuple(_BUILDERS)
