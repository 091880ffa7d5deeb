"""Sizes of new language models and training hyperparameters: see ``document_presets``.

Fine-tuning: a tenth of the rate of a new model, as Radford et al. 2018 do (section 4.1: 2.5e-4 and 6.25e-5). Low-rank
adapters: the rate of Hu et al. 2021, "LoRA", appendix D, for GPT-2.
"""

from __future__ import annotations

from regard.tasks.document_presets import DocumentPresets, Size

PRESETS = DocumentPresets(
    sizes=(
        Size("tiny", width=128, layers=4, heads=4, block=128, batch=16, dropout=0.0, peak=2e-3, warmup=100),
        Size("small", width=256, layers=6, heads=8, block=256, batch=16, dropout=0.1, peak=1e-3, warmup=200),
        Size("base", width=512, layers=8, heads=8, block=512, batch=16, dropout=0.1, peak=5e-4, warmup=500),
    ),
    vocabularies=(500, 2_000, 8_000, 16_000),
    fine_tuning_peak=6e-5,
    fine_tuning_warmup=100,
    fine_tuning_epochs=3,
    lora_peak=2e-4,
)
