"""A Perceiver that reads texts byte by byte, with the interface of text encoders: for tasks that take any of them.

    ids -> hidden      (batch, length, width), the answer of the latents to the query of each position
           padding     is hidden from the latents, so no answer depends on it

The query of the first position, which stands for the text in a BERT, is the one query of a classifier (Jaegle et al.
2021, "Perceiver IO", section 4.1): ``pooling="cls"`` of a ``TextClassifier``. Its folder is the Perceiver's folder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, check_flag, check_kind
from regard.masks import Mask
from regard.models.base import Encoder, HiddenStates
from regard.models.config_file import ConfigFile
from regard.models.model_folder import ModelFolder
from regard.models.perceiver import Perceiver
from regard.models.perceiver_config import OWN_MODEL_TYPE, PerceiverConfig
from regard.models.perceiver_inputs import TextInput
from regard.models.perceiver_outputs import PositionOutput, TextOutput
from regard.models.perceiver_weights import weight_names_inside
from regard.models.weight_names import WeightNames


@final
@explain_arguments
class PerceiverTextEncoder(Encoder):
    """A text encoder with random initial weights; ``around`` makes one of a trained Perceiver.

    ``config`` has a ``TextInput`` and a ``PositionOutput``. Raises OptionError for another input or output.
    """

    config: PerceiverConfig
    config_class = PerceiverConfig
    model_types = (OWN_MODEL_TYPE,)
    attends_through_latents = True
    layer_stack = ""

    def __init__(self, config: PerceiverConfig) -> None:
        super().__init__(config)
        if not isinstance(config.input, TextInput) or not isinstance(config.output, PositionOutput):
            raise OptionError(
                "this Perceiver is no text encoder",
                expected="a TextInput and a PositionOutput",
                got=f"{type(config.input).__name__} and {type(config.output).__name__}",
                do="for a masked language model PerceiverTextEncoder.around(perceiver), or call the Perceiver itself",
            )
        self.perceiver = Perceiver(config)
        self.tokenizer = self.perceiver.tokenizer

    @classmethod
    def around(cls, perceiver: Perceiver) -> PerceiverTextEncoder:
        """Make an encoder of the weights of a Perceiver of texts; of a masked language model without its last layer.

        Raises OptionError for a Perceiver that reads or returns something else.
        """
        check_kind("perceiver", perceiver, Perceiver, do='for example regard.load("perceiver-language/")')
        output = perceiver.config.output
        if isinstance(output, TextOutput):
            output = PositionOutput(output.heads, output.query_key_width)
        encoder = cls(replace(perceiver.config, output=output)).to(perceiver.latents.latents)
        own = encoder.perceiver.state_dict()
        encoder.perceiver.load_state_dict({name: perceiver.state_dict()[name] for name in own})
        encoder.tokenizer = perceiver.tokenizer
        return encoder.train(perceiver.training)

    def forward(self, ids: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> HiddenStates:
        """Compute the hidden states of token ids (batch, length); for padded ids ``masks.padding(lengths)``.

        Raises as ``Perceiver.forward``, and RefusedError for ``keep_layers``: the layers have latents and no tokens.
        """
        check_flag("keep_layers", keep_layers)
        if keep_layers:
            raise RefusedError(
                "the layers of a Perceiver have no hidden state for each token",
                expected="keep_layers=False",
                got="keep_layers=True",
                do="record the latents in Python: with regard.record(model) as seen: model(ids, mask=mask)",
            )
        hidden = self.perceiver(ids, mask=mask).logits
        assert isinstance(hidden, Tensor), "a PositionOutput has one tensor"
        return HiddenStates(hidden)

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""
        return self._input.pad_id

    @property
    def max_tokens(self) -> int:
        """The number of positions: the maximum length of a text, in tokens."""
        return self._input.max_length

    @property
    def width(self) -> int:
        """The number of components of a hidden state."""
        return self._input.width

    @classmethod
    def make_weight_names(cls, config: PerceiverConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        return weight_names_inside(config)

    @classmethod
    def read_config(cls, config: ConfigFile) -> PerceiverConfig:
        """Read the hyperparameters of the Perceiver from config.json."""
        return PerceiverConfig.from_fields(config)

    def read_files(self, folder: ModelFolder) -> None:
        """Read nothing: the tokenizer comes with the Perceiver."""
        del folder

    def config_fields(self) -> dict[str, Any]:
        """The fields of config.json."""
        return self.config.to_fields()

    def save(self, folder: str | Path, **options: Any) -> None:
        """Write the folder of the Perceiver, with the metadata: see ``Model.save``."""
        self.perceiver.metadata = self.metadata
        self.perceiver.save(folder, **options)

    @property
    def _input(self) -> TextInput:
        assert isinstance(self.config.input, TextInput), "__init__ checks it"
        return self.config.input
