"""The command lines of scripts about a shape: a model of random weights, named as on a command line of kvbench."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter

import torch

from kvbench.run.plan import PrefillGroup
from kvbench.work.planned import plan_sweep


def options_of(doc: str | None, **others: type) -> Namespace:
    """Return the options of a script: its shape, `others` by place, and whether it runs on a CPU."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    for name, kind in others.items():
        parser.add_argument(name, type=kind)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


def group_of(shape: str, *settings: str) -> PrefillGroup:
    """Return what a run of this shape would read first."""
    (group,) = plan_sweep([f"model={shape}", *settings, "policy=full", "task=efficiency"], tell=print).plan.groups
    return group


def place_of(cpu: bool) -> tuple[str, torch.dtype]:
    """Return the device of a script, and the type of its numbers."""
    return ("cpu", torch.float32) if cpu else ("cuda", torch.bfloat16)
