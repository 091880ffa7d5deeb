"""Speech models of ``transformers`` with cross-attention, such as Whisper, and what they write for a sound.

The model writes greedily. Then its decoder reads what was written once more, in one call whose cross-attention is
recorded: row t has the weights of the step that wrote token t.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import tokenizers
import torch
import transformers
from jaxtyping import Float32
from torch import Tensor

from regard.errors import CheckpointError, RefusedError, RegardError, class_and_line, short_repr
from regard.hf.check import check
from regard.hf.checkpoint import quiet_transformers
from regard.hf.load_checkpoint import explain_folder_errors, load_model_and_tokenizer, reads_speech
from regard.hf.read_source_and_target import MAX_NEW_TOKENS, end_ids, ids_to_tokens, split_decoder
from regard.hf.recorded_layers import number_calls
from regard.models.model_folder import ModelFolder
from regard.recording import record
from regard.text.path_arguments import PathLike, to_path
from regard.view.from_recording import to_float32
from regard.view.read_speech import MAX_SPEECH_SECONDS, SpeechModel, WrittenSpeech

_PROMPT = 8
"""The most tokens before the text: the start, language, task and time stamps of a Whisper are four."""


def load_speech_checkpoint(folder: PathLike | ModelFolder) -> SpeechCheckpoint:
    """Load a speech model with cross-attention, of any type that ``transformers`` has.

    Raises CheckpointError for a folder that cannot be used, RefusedError for a model that does not read sounds.
    """
    opened = folder if isinstance(folder, ModelFolder) else ModelFolder(to_path(folder))
    model, tokenizer_file = load_model_and_tokenizer(opened, _find_speech_class)
    if not check(model).uses_regard:
        raise RefusedError(
            f"{opened.path} has attention layers that cannot be shown",
            expected="a speech model that uses the attention interface of transformers",
            got=f"a {type(model).__name__}, whose layers run code of their own",
            do="regard.hf.check(model) tells which",
        )
    with explain_folder_errors(opened.path), quiet_transformers():
        extractor = transformers.AutoFeatureExtractor.from_pretrained(
            opened.path, local_files_only=True, trust_remote_code=False
        )
    return SpeechCheckpoint(
        opened.path, model, extractor, tokenizers.Tokenizer.from_str(tokenizer_file.read_text(encoding="utf-8"))
    )


def _find_speech_class(folder: Path, config: Any) -> Any:
    """The class that loads a speech model. Raises RefusedError for another model."""
    if not reads_speech(config):
        raise RefusedError(
            f"{folder} reads no sounds",
            expected="a Conformer of regard, or a speech model of transformers with cross-attention, such as a Whisper",
            got=f"model_type {config.model_type!r}",
            do="pass another model with the sound, or a text to this one",
        )
    return transformers.AutoModelForSpeechSeq2Seq


@final
@dataclass(frozen=True, eq=False)
class SpeechCheckpoint(SpeechModel):
    """A loaded folder: the model, in eval mode and float32, its features of sounds, and its tokens."""

    folder: Path
    model: Any
    extractor: Any
    decoder: tokenizers.Tokenizer

    @property
    def rate(self) -> int:
        """Samples per second."""
        return int(self.extractor.sampling_rate)

    @property
    def max_seconds(self) -> float:
        """The longest sound: that of a model which makes all sounds equally long, 30 seconds of a Whisper."""
        return self._padded_samples / self.rate or MAX_SPEECH_SECONDS

    @property
    def _padded_samples(self) -> int:
        """The length of all sounds in samples; 0 if they keep their own."""
        return int(getattr(self.extractor, "n_samples", 0))

    def write(self, samples: Float32[np.ndarray, " samples"], *, name: str) -> WrittenSpeech:
        """Write the text of a sound, and record the cross-attention. See ``SpeechModel.write``.

        Raises RefusedError for a sound with which the model fails, CheckpointError for tokens that do not fit.
        """
        try:
            with torch.no_grad(), quiet_transformers():
                features = self.extractor(samples, sampling_rate=self.rate, return_tensors="pt")
                inputs = features[self.model.main_input_name]
                ids = self._write_ids(inputs)
                encoded = self.model.get_encoder()(inputs, return_dict=True)
                with record(self.model) as calls:
                    self.model(encoder_outputs=encoded, decoder_input_ids=ids[:, :-1], use_cache=False)
        except (RegardError, MemoryError):
            raise
        # Models raise errors of many kinds for sounds that they do not support.
        except Exception as error:
            raise RefusedError(
                f"the model of {self.folder} cannot read {name}",
                expected="a sound that the model supports",
                got=f"{type(self.model).__name__} of transformers raised {class_and_line(error, 300)}",
                do="try a sound of another length, or another model",
            ) from error
        written = ids[0].tolist()
        self._check_ids(written)
        frames = encoded.last_hidden_state.shape[1]
        _, crossed = split_decoder(number_calls(calls), frames, len(written) - 1, self.folder)
        special_ids = frozenset({written[0], *end_ids(self.model)})
        special = ids_to_tokens(self.decoder, written[:-1], special_ids).special
        prompt = max(1, next((at for at, is_special in enumerate(special) if not is_special), len(special)))
        return WrittenSpeech(
            ids_to_tokens(self.decoder, written[prompt:], special_ids),
            {call.name: to_float32(call.weights()[0, :, prompt - 1 :]) for call in crossed},
            max(self._padded_samples, len(samples)) / self.rate / frames,
            self._read_heads(),
            is_complete=written[-1] in end_ids(self.model),
        )

    def _write_ids(self, inputs: Tensor) -> Tensor:
        """The ids of the prompt, the text and its end, (1, tokens), written greedily."""
        parameters = inspect.signature(self.model.generate).parameters
        # Whisper's own generate leaves out the prompt and the end unless it is asked for a single call.
        options: dict[str, Any] = (
            {"force_unique_generate_call": True} if "force_unique_generate_call" in parameters else {}
        )
        generation = self.model.generation_config
        if getattr(generation, "is_multilingual", False) and getattr(generation, "task_to_id", None):
            options["task"] = "transcribe"  # in the language of the sound, which the model finds
        ids: Tensor = self.model.generate(
            inputs,
            do_sample=False,
            num_beams=1,
            max_new_tokens=self._max_tokens,
            use_cache=True,
            return_dict_in_generate=False,
            **options,
        )
        return ids

    @property
    def _max_tokens(self) -> int:
        """The longest text that the decoder has positions for."""
        config = self.model.config
        limit = getattr(config, "max_target_positions", None) or getattr(config, "max_position_embeddings", None)
        return min(MAX_NEW_TOKENS, limit - _PROMPT) if isinstance(limit, int) and limit > _PROMPT else MAX_NEW_TOKENS

    def _read_heads(self) -> list[tuple[int, int]] | None:
        """The heads that generation_config.json names for times; None if it names none."""
        heads = getattr(self.model.generation_config, "alignment_heads", None)
        try:
            return None if heads is None else [(int(layer), int(head)) for layer, head in heads]
        except (TypeError, ValueError):
            raise CheckpointError(
                f"{self.folder} names heads of alignment that cannot be read",
                expected="alignment_heads in generation_config.json: pairs of a layer and a head",
                got=short_repr(heads),
                do="correct it, or leave it out",
            ) from None

    def _check_ids(self, ids: list[int]) -> None:
        unknown = [token_id for token_id in ids if self.decoder.id_to_token(token_id) is None]
        if unknown:
            raise CheckpointError(
                f"tokenizer and model of {self.folder} do not belong together",
                expected="a tokenizer.json with all tokens that the model writes",
                got=f"id {unknown[0]}, which it lacks",
                do="use tokenizer.json and weights from the same source",
            )
