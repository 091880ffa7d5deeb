"""The optimizers: AdamW for all weights, or Muon for the matrices of blocks and AdamW for the others.

    adamw    Kingma and Ba 2015; Loshchilov and Hutter 2019; with betas of 0.9 and 0.98 and an epsilon of 1e-9, as in
             Vaswani et al. 2017, section 5.3
    muon     M = 0.95 M + 0.05 G,  O = orthogonalize(0.95 M + 0.05 G),
             W = W - rate * (decay W + 0.2 sqrt(max(rows, columns)) O)

of a weight W (rows, columns) with the gradient G. Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural
networks", with the scale of Liu et al. 2025, "Muon is scalable for LLM training", equation 4: its updates have the size
of AdamW's, so both take the same learning rate and weight decay. Embeddings, output layers, biases, norms, convolutions
and all that is not in a block are not such matrices.

    orthogonalize(X) is close to U V^T for X = U S V^T: five times  X = a X + (b A + c A A) X,  A = X X^T,  of X / |X|

torch.optim.Muon is the same, but multiplies in bfloat16 on every processor: on one with AVX2 alone, a matrix
of 2,048 x 512 takes 7 seconds a step. Here the precision is the same as in the other products of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RefusedError
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.reversible import ReversibleBlock

_SKIPPING = ("cuda", "xpu")
"""Kinds of devices on which torch's fused AdamW skips a step by a number on the device."""
_BETAS, _EPSILON = (0.9, 0.98), 1e-9
_MOMENTUM, _SCALE = 0.95, 0.2
_COEFFICIENTS, _ITERATIONS = (3.4445, -4.7750, 2.0315), 5
_LEAST_NORM = 1e-7


def make_optimizer(name: str, model: nn.Module, *, weight_decay: float, dtype: torch.dtype) -> torch.optim.Optimizer:
    """Make one of ``settings.OPTIMIZERS`` for the weights of ``model`` that are trained, with a learning rate of 0.

    ``dtype`` is the precision of the products of "muon".
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if name == "adamw":
        return torch.optim.AdamW(trained, lr=0.0, betas=_BETAS, eps=_EPSILON, weight_decay=weight_decay, fused=True)
    return Muon(find_matrices(model), trained, weight_decay=weight_decay, dtype=dtype)


def skips_without_waiting(device: torch.device) -> bool:
    """Whether ``step_if_finite`` skips a step on ``device``."""
    return device.type in _SKIPPING


def step_if_finite(optimizer: torch.optim.Optimizer, norm: Float[Tensor, ""]) -> None:
    """Update the weights if the ``norm`` of their gradient is finite, else change nothing, without waiting for either.

    ``optimizer`` is one of ``make_optimizer``. Its kernels read on the device whether to update, as they do for
    torch's GradScaler.
    """
    skipping: Any = optimizer
    skipping.found_inf = (~norm.isfinite()).float()
    optimizer.step()
    skipping.found_inf = None


def check_optimizer(name: str, model: nn.Module) -> None:
    """Raise RefusedError if the optimizer is "muon" and the model has no matrices for it."""
    if name == "muon" and not find_matrices(model):
        raise RefusedError(
            f"{type(model).__name__} has no matrices for the optimizer muon",
            expected="linear layers that are trained, in blocks such as those of a Transformer",
            got="none",
            do='use `optimizer="adamw"`',
        )


def find_matrices(model: nn.Module) -> list[Tensor]:
    """Find the weights of linear layers in blocks, of those that are trained."""
    blocks = (module for module in model.modules() if isinstance(module, CheckpointedBlock | ReversibleBlock))
    layers = (module for block in blocks for module in block.modules() if isinstance(module, nn.Linear))
    return list({layer.weight: None for layer in layers if layer.weight.requires_grad})


@final
class Muon(torch.optim.Optimizer):
    """Muon for ``matrices``, and AdamW for the others of the ``trained`` weights.

    Its state is AdamW's state for the others, and "momentum" for matrices.

    Args:
        matrices: weights (rows, columns), some of ``trained``.
        trained: all weights.
        weight_decay: weight decay of all weights.
        dtype: precision of the products that orthogonalize.
    """

    def __init__(
        self, matrices: list[Tensor], trained: list[nn.Parameter], *, weight_decay: float, dtype: torch.dtype
    ) -> None:
        chosen = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in trained if id(parameter) not in chosen]
        groups = [{"params": matrices, "muon": True}, {"params": others, "muon": False}]
        groups = [group for group in groups if group["params"]]  # all adapters of LoRA are matrices
        # In a step AdamW gets the group of the others, in which it finds all of its options.
        self._adamw = torch.optim.AdamW(trained, lr=0.0, betas=_BETAS, eps=_EPSILON, fused=True)
        super().__init__(groups, {**self._adamw.defaults, "weight_decay": weight_decay})
        self._dtype = dtype
        self.found_inf: Float[Tensor, ""] | None = None
        """If it is 1, a step changes nothing."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all weights that have a gradient; ``closure`` computes the loss and gradients before."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["muon"]:
                self._step_matrices(group)
        # A loaded checkpoint replaces groups and state, so they are passed in each step.
        self._adamw.param_groups = [group for group in self.param_groups if not group["muon"]]
        self._adamw.state = self.state
        adamw: Any = self._adamw
        adamw.found_inf = self.found_inf
        adamw.step()
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        kept: Any = 1.0 if self.found_inf is None else 1.0 - self.found_inf  # 0: weights and momentum stay
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            gradient = weight.grad if self.found_inf is None else weight.grad.nan_to_num(0.0, 0.0, 0.0)
            momentum = state["momentum"].lerp_(gradient, kept * (1 - _MOMENTUM))
            update = orthogonalize(gradient.lerp(momentum, _MOMENTUM), self._dtype)
            weight.mul_(1 - kept * (group["lr"] * group["weight_decay"]))
            scale = -group["lr"] * _SCALE * max(weight.shape) ** 0.5
            if self.found_inf is None:
                weight.add_(update.to(weight.dtype), alpha=scale)
            else:
                weight.addcmul_(update.to(weight.dtype), kept, value=scale)


def orthogonalize(matrix: Float[Tensor, "rows columns"], dtype: torch.dtype) -> Float[Tensor, "rows columns"]:
    """Return U V^T of the singular value decomposition U S V^T, with singular values of 0.7 to 1.2 in place of 1.

    Computed in ``dtype``. Singular values that are 0, or too small for ``dtype``, stay small.
    """
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    iterate = (matrix.mT if tall else matrix).to(dtype)
    iterate = iterate / iterate.norm().clamp(min=_LEAST_NORM)
    for _ in range(_ITERATIONS):
        gram = iterate @ iterate.mT
        iterate = torch.addmm(iterate, torch.addmm(gram, gram, gram, beta=b, alpha=c), iterate, beta=a)
    return iterate.mT if tall else iterate
