"""Sizes of new masked language models and training hyperparameters: see ``document_presets``.

Fine-tuning: the rate of Devlin et al. 2019, "BERT", appendix A.3. Low-rank adapters: the rate of Hu et al. 2021,
"LoRA", appendix D, for RoBERTa.
"""

from __future__ import annotations

from regard.tasks.document_presets import DocumentPresets, Size

PRESETS = DocumentPresets(
    sizes=(
        Size("tiny", width=128, layers=4, heads=4, block=128, batch=32, dropout=0.1, peak=1e-3, warmup=200),
        Size("small", width=256, layers=6, heads=8, block=256, batch=16, dropout=0.1, peak=5e-4, warmup=500),
        Size("base", width=512, layers=8, heads=8, block=512, batch=16, dropout=0.1, peak=3e-4, warmup=1000),
    ),
    vocabularies=(2_000, 8_000, 16_000, 30_000),
    fine_tuning_peak=5e-5,
    fine_tuning_warmup=100,
    fine_tuning_epochs=3,
    lora_peak=4e-4,
)
