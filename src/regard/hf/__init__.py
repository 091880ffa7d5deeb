"""``regard.hf``: models of ``transformers`` that compute, train and generate with regard's attention kernels.

    import regard.hf
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="regard")

Importing this package registers the name "regard" in both interfaces of ``transformers``: ``AttentionInterface``, which
holds attention functions, and ``AttentionMaskInterface``. A name that only the first one knows gets no masks, so that
padding would be ignored in silence (transformers issue 46132). The call of a model and a function that prepares masks
are wrapped, so that masks for regard separate the texts of a row. Nothing else changes: a model computes with regard if
it is loaded with that name, or after ``model.set_attn_implementation("regard")``.

``use_scans(model)`` does the same for linear mixers (gated delta nets, Kimi delta attention, Mamba-2).

``regard.record(model)`` records every attention layer, while the fast kernels compute.

Some models do not use the interface: they accept the name, and run code of their own. ``check(model)`` reports them.
"""

from regard.errors import MissingPackageError

try:
    import transformers as _transformers
    from transformers import masking_utils as _masking_utils
except ImportError:
    raise MissingPackageError(
        "regard.hf needs a package",
        expected="transformers",
        got="it is not installed",
        do="pip install 'regard[hf]'",
    ) from None

from regard.hf.attention_function import attention_function
from regard.hf.attention_mask import attention_mask
from regard.hf.check import AttentionReport, check
from regard.hf.packed_calls import separate_texts_in_calls
from regard.hf.packed_positions import label_packed_texts
from regard.hf.recorded_layers import InterfaceLayers
from regard.hf.scan_replacement import ScanReplacement, use_scans
from regard.hf.sdpa_replacement import replace_sdpa
from regard.hf.sparse_layers import SparseLayers
from regard.recording import add_call_source

NAME = "regard"
"""The name to pass as ``attn_implementation``."""

_transformers.AttentionInterface.register(NAME, attention_function)
_transformers.AttentionMaskInterface.register(NAME, attention_mask)
_masking_utils._preprocess_mask_arguments = label_packed_texts(_masking_utils._preprocess_mask_arguments)
_transformers.PreTrainedModel.__call__ = separate_texts_in_calls(  # type: ignore[method-assign]
    _transformers.PreTrainedModel.__call__
)
add_call_source(InterfaceLayers(attention_function))
add_call_source(SparseLayers())

__all__ = ["NAME", "AttentionReport", "ScanReplacement", "check", "replace_sdpa", "use_scans"]
