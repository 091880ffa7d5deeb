"""The check, before a model is saved or exported, that loading it would make the mechanisms that it computes with.

A folder holds a config and weights, and the config names the mechanism. A model whose mechanism was replaced
(``comparison.replace_mechanism``) has the config of the model before.
"""

from __future__ import annotations

import re

import torch
from torch import nn

from regard.errors import RefusedError
from regard.layers.int8_linear import Int8Linear
from regard.mechanisms import Mechanism
from regard.models import checkpoint_reader

_RUN_TIME_OPTIONS = re.compile(r"(, )?\b(impl='\w+'|dropout=[^,)]*)")
"""Options that change neither the equation nor the weights."""


def check_mechanisms(model: nn.Module, config: object) -> None:
    """Raise RefusedError unless the class of ``model``, called with ``config``, has the same mechanisms.

    And for linear layers with int8 weights, which no folder holds.
    """
    if any(isinstance(module, Int8Linear) for module in model.modules()):
        raise RefusedError(
            f"a {type(model).__name__} with int8 weights cannot be saved",
            expected="a model with the weights of its training",
            got="linear layers with rounded weights",
            do="save the model before convert_weights, and convert its weights again after loading",
        )
    with checkpoint_reader.init_on_meta(), torch.random.fork_rng(devices=[]):
        loaded = describe_mechanisms(type(model)(config))
    for name, described in describe_mechanisms(model).items():
        if loaded.get(name) != described:
            raise RefusedError(
                f"a {type(model).__name__} with a replaced mechanism cannot be saved: a folder has that of the config",
                expected=f"{loaded.get(name)} in {name}, as the model's config says",
                got=described,
                do="save the model before replace_mechanism, and replace its mechanism again after loading",
            )


def describe_mechanisms(model: nn.Module) -> dict[str, str]:
    """Return the class and the options of each mechanism in a model, by name."""
    mechanisms = {name: part for name, part in model.named_modules() if isinstance(part, Mechanism)}
    return {name: " ".join(_RUN_TIME_OPTIONS.sub("", repr(part)).split()) for name, part in mechanisms.items()}
