"""How often to save, in theory. Seconds throughout.

Young (1974): the interval between checkpoints that costs least is sqrt(2 C M) for a cost C per checkpoint and a mean
time between failures M. Daly (2006) gives the higher-order form. A save in the background costs less than it takes:
what counts is the time the loop loses by it.
"""

import math
from typing import Final

GPU_HOURS_PER_FAILURE: Final = 50_677


def young(cost: float, mtbf: float) -> float:
    """Young's first-order optimum: ``sqrt(2 C M)``."""
    _positive(cost=cost, mtbf=mtbf)
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's higher-order optimum: ``sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C`` for C < 2M, else M.

    Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006.
    """
    _positive(cost=cost, mtbf=mtbf)
    if cost >= 2 * mtbf:
        return mtbf
    share = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - cost


def asynchronous_cost(blocking: float, slowdown: float, latency: float) -> float:
    """What one background save costs the loop: ``C_blocking + s L``.

    Args:
        blocking: seconds that ``save()`` takes in the loop.
        slowdown: fraction by which the loop is slower while the save is written (0.02 for two per cent).
        latency: seconds from ``save()`` until the checkpoint is durable.
    """
    return blocking + slowdown * latency


def asynchronous(cost: float, mtbf: float, nbytes: float, bandwidth: float) -> float:
    """The interval for saves in the background: ``max(sqrt(2 M C_eff), bytes / write bandwidth)``.

    Args:
        cost: seconds the loop loses per save, see ``asynchronous_cost``.
        mtbf: mean time between failures, seconds.
        nbytes: stored bytes of a checkpoint.
        bandwidth: what the store takes, bytes per second.
    """
    _positive(bandwidth=bandwidth)
    return max(young(cost, mtbf), nbytes / bandwidth)


def is_continuous(cost: float, mtbf: float, latency: float) -> bool:
    """Whether it is best to save as soon as the last save is durable: the optimum is shorter than ``latency``."""
    return young(cost, mtbf) < latency


def steps_between(
    interval: float, step_time: float, *, latency: float, cost: float, in_flight: int = 1, budget: float = 0.035
) -> int:
    """Steps from one save to the next: ``max(ceil(tau/T), ceil(L/(N T)), ceil(C_eff/(p T)))``.

    Source: Mohan et al., "CheckFreq", FAST 2021 (whose overhead budget is 3.5 %), and Strati et al., "PCcheck", 2025.

    Args:
        interval: the wanted seconds between saves, tau.
        step_time: seconds of one step, T.
        latency: seconds from ``save()`` until durable, L.
        cost: seconds the loop loses per save, C_eff.
        in_flight: saves that may be in flight at a time, N.
        budget: most overhead, as a fraction of the run's time, p.
    """
    _positive(interval=interval, step_time=step_time, in_flight=in_flight, budget=budget)
    return max(1, *(math.ceil(t / step_time) for t in (interval, latency / in_flight, cost / budget)))


def lost_work(interval: float, latency: float, restart: float) -> float:
    """Expected seconds of work lost per failure: half an interval, the save not yet durable, and the restart."""
    return interval / 2 + latency + restart


def mean_time_between_failures(observed: float, failures: int, prior: float) -> float:
    """An estimate of M in seconds: ``(T_observed + prior) / (failures + 1)``.

    Args:
        observed: seconds this run, or this cluster, has been watched.
        failures: how many there were.
        prior: seconds between failures to assume before anything was seen, such as ``prior_for(gpus)``.
    """
    return (observed + prior) / (failures + 1)


def prior_for(gpus: int) -> float:
    """Seconds between failures of a job on so many GPUs, before anything is known of them.

    Source: one failure in 50,677 GPU-hours, the training of Llama 3 (Grattafiori et al., 2024).
    """
    _positive(gpus=gpus)
    return GPU_HOURS_PER_FAILURE * 3600 / gpus


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}={value!r} must be positive")
