"""llama.cpp on the weights of a GPT-2 of ours: written to a GGUF file, and called through llama-cpp-python.

Matrices are float16, Q8_0 or Q4_0; the embedding, which is the output layer too, is Q8_0 in a file of Q4_0: llama.cpp's
own tool keeps more bits for it, too. Biases and norms are float32 in the file, as its converter writes them.
The packages gguf and llama-cpp-python are optional; the latter is built from its sources, which takes some minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.optional_imports import missing_package_error
from regard.models.gpt2 import Gpt2

_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
"""Names of tensors in GGUF files of GPT-2, by those in Hugging Face files, whose matrices are (in, out)."""
_FILE_TYPES = {"F16": 1, "Q8_0": 7, "Q4_0": 2}
"""GGUF's numbers of files, by the format of most weights."""


@final
class LlamaCpp:
    """A GPT-2 in llama.cpp that continues prompts (batch, length) by ``new`` tokens each, greedily.

    ``weights`` is a key of ``_FILE_TYPES``; it has torch's number of threads, or with ``own_threads`` its default.
    """

    def __init__(
        self, model: Gpt2, prompt: Tensor, new: int, *, weights: str = "F16", own_threads: bool = False
    ) -> None:
        try:
            import llama_cpp
        except ImportError:
            raise missing_package_error("llama-cpp-python", "llama-cpp-python gguf") from None
        self._llama: Any = llama_cpp
        self._prompt, self._new, self._vocabulary = prompt, new, model.config.vocabulary
        batch, length = prompt.shape
        self._log = llama_cpp.llama_log_callback(lambda *_: None)  # hundreds of lines otherwise; C keeps no reference
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            _write_gguf(model, path, weights)
            options = llama_cpp.llama_model_default_params()
            options.use_mmap = False  # the file is removed once it is read
            self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        sizes = llama_cpp.llama_context_default_params()
        sizes.n_ctx, sizes.n_seq_max = batch * (length + new), batch
        sizes.n_batch = sizes.n_ubatch = max(512, batch)
        if not own_threads:
            sizes.n_threads = sizes.n_threads_batch = torch.get_num_threads()
        self._context = llama_cpp.llama_init_from_model(self._model, sizes)
        if not self._context:
            raise RuntimeError("llama.cpp could not make a context for the model")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(sizes.n_batch, 0, 1)
        self._read_prompt()

    def run_steps(self) -> Tensor:
        """Write the new tokens after the prompt, which has been read but for its last token."""
        length = self._prompt.shape[1]
        tokens, written = self._prompt[:, -1], []
        for place in range(length - 1, length - 1 + self._new):
            tokens = self._step(tokens, place).argmax(-1)
            written.append(tokens)
        self._llama.llama_memory_seq_rm(self._memory, -1, length - 1, -1)
        return torch.stack(written, dim=1)

    def run_whole(self) -> Tensor:
        """Read the prompt and write the new tokens."""
        self._llama.llama_memory_clear(self._memory, True)
        self._read_prompt()
        return self.run_steps()

    def logits_after_prompt(self) -> Tensor:
        """The logits of the token after the first prompt."""
        length = self._prompt.shape[1]
        logits = self._step(self._prompt[:, -1], length - 1)[0]
        self._llama.llama_memory_seq_rm(self._memory, -1, length - 1, -1)
        return logits

    def _read_prompt(self) -> None:
        """Read the prompts but for their last tokens, some hundred tokens in each call."""
        length = self._prompt.shape[1] - 1
        texts = self._prompt.tolist()
        tokens = [(texts[text][place], place, text) for text in range(len(texts)) for place in range(length)]
        for start in range(0, len(tokens), 512):
            self._decode([(*token, False) for token in tokens[start : start + 512]])

    def _step(self, tokens: Tensor, place: int) -> Tensor:
        """Read one token of each text; return the logits (batch, vocabulary)."""
        self._decode([(token, place, text, True) for text, token in enumerate(tokens.tolist())])
        rows = [self._llama.llama_get_logits_ith(self._context, text) for text in range(len(tokens))]
        return torch.from_numpy(np.stack([np.ctypeslib.as_array(row, (self._vocabulary,)) for row in rows]))

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """Read tokens, each with its place, its text, and whether its logits are needed."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for at, (token, place, text, needed) in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.logits[at] = token, place, needed
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, text
        failed = self._llama.llama_decode(self._context, batch)
        if failed:
            raise RuntimeError(f"llama.cpp could not read the tokens: {failed}")


def _write_gguf(model: Gpt2, path: Path, weights: str) -> None:
    """Write the weights, and no vocabulary: tokens are numbers here."""
    try:
        import gguf
    except ImportError:
        raise missing_package_error("gguf") from None
    config, writer = model.config, gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.inner_width)
    writer.add_head_count(config.heads)
    writer.add_layer_norm_eps(config.epsilon)
    writer.add_file_type(_FILE_TYPES[weights])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocabulary)
    for name, tensor in model.weight_names.to_file(model.state_dict()).items():
        module, _, kind = name.removeprefix("transformer.").rpartition(".")
        layer, within = "", module
        if module.startswith("h."):
            _, number, within = module.split(".", 2)
            layer = f"blk.{number}."
        if within not in _NAMES:
            continue  # the output layer, which is the embedding
        matrix = tensor.dim() == 2
        values = tensor.t() if matrix and layer else tensor
        array, stored = values.contiguous().numpy(), f"{layer}{_NAMES[within]}.{kind}"
        if not matrix or within == "wpe":
            writer.add_tensor(stored, array.astype(np.float32))
        elif weights == "F16":
            writer.add_tensor(stored, array.astype(np.float16))
        else:
            kind_of_values = gguf.GGMLQuantizationType[weights if layer else "Q8_0"]
            writer.add_tensor(stored, gguf.quants.quantize(array, kind_of_values), raw_dtype=kind_of_values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
