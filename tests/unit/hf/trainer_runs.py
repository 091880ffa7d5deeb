"""Runs of ``transformers.Trainer`` with small models, in this process and in two that train by DDP."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from unit.hf.model_types import MODEL_TYPES

STEPS = 5
BATCH = 4
LORA_TARGETS = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "v_proj", "down_proj"]}


def train(
    name: str, implementation: str, *, checkpointing: bool = False, lora: bool = False, batch: int = BATCH
) -> list[float]:
    """The losses of some steps, from weights and data that depend on the name alone. ``batch`` is that of a process."""
    import transformers

    import regard.hf  # noqa: F401 (registers the name)

    model = next(kind for kind in MODEL_TYPES if kind.name == name).build()
    model.set_attn_implementation(implementation)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # implementations draw other random numbers
    for field in ("attn_pdrop", "attention_dropout"):
        if hasattr(model.config, field):
            setattr(model.config, field, 0.0)
    if lora:
        model = _add_adapters(model, name)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=batch,
            gradient_checkpointing=checkpointing,
            logging_steps=1,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=11,
            ddp_find_unused_parameters=False,
        )
        trainer = transformers.Trainer(model, settings, train_dataset=_rows())
        trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def train_in_two(name: str, implementation: str) -> list[float]:
    """The losses of the same run in two processes by gloo, each with a half of the batch."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
              "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_run_rank,
                args=(name, implementation, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, folder),
            )
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(240)
            if process.exitcode is None:
                process.kill()
        assert [process.exitcode for process in processes] == [0, 0]
        first, second = (
            [float(line) for line in Path(folder, str(rank)).read_text().splitlines()] for rank in range(2)
        )
    del store  # the processes need it until they end
    assert second == first  # each process logs the mean of both
    return first


def _run_rank(name: str, implementation: str, environment: Mapping[str, str], folder: str) -> None:
    os.environ.update(environment)
    losses = train(name, implementation, batch=BATCH // 2)
    assert torch.distributed.get_world_size() == 2
    Path(folder, environment["RANK"]).write_text("\n".join(map(repr, losses)))
    torch.distributed.destroy_process_group()


def _rows() -> list[dict[str, torch.Tensor]]:
    """Texts of different lengths, padded on the right. All predict as many tokens, as a mean over processes needs."""
    generator = torch.Generator().manual_seed(41)
    rows = []
    for number in range(12):
        ids = torch.randint(3, 97, (17,), generator=generator)
        visible = torch.arange(17) < (13 if number % 2 else 17)
        labels = ids.masked_fill((torch.arange(17) >= 13), -100)
        rows.append({"input_ids": ids, "attention_mask": visible.long(), "labels": labels})
    return rows


def _add_adapters(model: Any, name: str) -> Any:
    import peft

    torch.manual_seed(5)
    options = {"r": 3, "target_modules": LORA_TARGETS[name], "init_lora_weights": False}
    return peft.get_peft_model(model, peft.LoraConfig(**options, fan_in_fan_out=name == "gpt2"))
