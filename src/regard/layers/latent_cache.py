"""The cache of latent attention: one latent vector and one rotary key for each token, whatever the number of heads.

DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.3. An immutable value like ``KeyValueCache``, in which it is stored: a
cache never changes, ``extended`` returns a new one, and under ``torch.no_grad`` a step costs the new tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import ShapeError
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.state import State, StateBytes
from regard.validation import check_tokens


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class LatentCache(State):
    """Latents (batch, length, ``latent_dim``) and rotary keys (batch, length, rotary_dim) of ``length`` tokens."""

    latent_dim: int
    length: int = 0
    _storage: KeyValueCache = field(default_factory=KeyValueCache.empty, repr=False)

    @property
    def tokens(self) -> Float[Tensor, "batch 1 length latent_and_rotary"]:
        """The latent and the rotary key of each token: the keys of the one head of absorbed attention."""
        return self._storage.key

    @property
    def latent(self) -> Float[Tensor, "batch length latent_dim"]:
        """The latents, after their normalisation, as a view of the storage."""
        return self.tokens[:, 0, :, : self.latent_dim]

    @property
    def rotary_key(self) -> Float[Tensor, "batch length rotary_dim"]:
        """The keys with positions, after their rotation, as a view of the storage."""
        return self.tokens[:, 0, :, self.latent_dim :]

    @property
    def bytes_per_token(self) -> int:
        """Bytes for each token of a sequence: latent_dim + rotary_dim numbers. Raises ShapeError for an empty cache."""
        return self._storage.bytes_per_token

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence: the latent and the rotary key of each token."""
        return self._storage.bytes

    def extended(self, tokens: Float[Tensor, "batch 1 new latent_and_rotary"]) -> LatentCache:
        """Return a cache with more tokens at the end. Raises ShapeError if they do not fit the earlier ones."""
        check_tokens("tokens", tokens, "(batch, 1, new, latent_dim + rotary_dim)")
        if tokens.dim() != 4 or tokens.shape[1] != 1 or tokens.shape[3] < self.latent_dim:
            raise ShapeError(
                "new tokens do not fit the cache",
                expected=f"(batch, 1, new, latent_dim + rotary_dim) with latent_dim={self.latent_dim}",
                got=str(tuple(tokens.shape)),
                do="pass the latent and the rotary key of each token side by side",
            )
        storage = self._storage.extended(tokens, tokens[..., :0])
        return LatentCache(self.latent_dim, storage.length, storage)

    def reordered(self, entries: Int[Tensor, " batch"]) -> LatentCache:
        """Select batch entries by index, in that order, as beam search does. Raises OptionError for invalid indices."""
        return LatentCache(self.latent_dim, self.length, self._storage.reordered(entries))
