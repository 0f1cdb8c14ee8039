"""Starts each turn in a fresh process, and turns whatever goes wrong in it into words."""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from typing import Any

from benchmarks.turn import TurnOrder, run_turn

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.checkpoint", "benchmarks.turn"])


def launch(order: TurnOrder, limit: float) -> dict[str, Any]:
    """The figures of one turn, or ``{"error": ...}``.

    A turn of more than ``limit`` seconds is ended, children too; what it had measured by then stands, as "unfinished".
    """
    receiving, sending = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_child, args=(order, sending))
    process.start()
    sending.close()
    try:
        return _collect(receiving, limit)
    except EOFError:
        process.join()
        return {"error": f"the process ended with exit code {process.exitcode}"}
    finally:
        _end(process)


def _collect(receiving: Any, limit: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    deadline = time.monotonic() + limit
    while receiving.poll(max(0.0, deadline - time.monotonic())):
        stage = receiving.recv()
        if stage is None:
            return figures
        figures |= stage
        if "error" in figures:
            return figures
    late = f"not done after {limit:.0f} s"
    return figures | {"unfinished": late} if "delay" in figures else {"error": late}


def _child(order: TurnOrder, sending: Any) -> None:
    os.setsid()  # so that a turn and its children can be ended together
    warnings.simplefilter("ignore")
    try:
        for stage in run_turn(order):
            sending.send(stage)
        result = None
    except NotImplementedError as error:
        result = {"error": f"not available: {error}"}
    except ImportError as error:
        result = {"error": f"not installed: {error}"}
    except BaseException as error:  # whatever a peer throws, SystemExit too, is a result
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    sending.send(result)


def _end(process: Any) -> None:
    process.join(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session: only what this turn started
    process.join()
