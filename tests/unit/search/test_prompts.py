"""Every strategy continues prompts too: with a table, and with a language model made of decoder blocks."""

import numpy as np
import pytest
import torch
from torch import nn

from oracles import search as oracle
from regard import masks, positions
from regard.errors import RefusedError, ShapeError
from regard.layers import DecoderCache, PagedCache, PagePool, decoder_block
from regard.models import Decoder
from regard.search import Beam, Greedy, Sampling
from slow_parameters import slow_except
from table_model import log_softmax, random_table

VOCABULARY, END, WIDTH, HEADS, LONGEST = 11, 3, 12, 3, 13
PROMPTS, LENGTHS = torch.tensor([[5, 6, 4, 9], [7, 4, 0, 0], [8, 0, 0, 0]]), torch.tensor([4, 2, 1])
STRATEGIES = [Greedy(), Beam(3, best=3), Beam(2, length_penalty=0.0), Sampling(seed=3, best=2)]


def prompts():
    return [tuple(ids[:length]) for ids, length in zip(PROMPTS.tolist(), LENGTHS.tolist(), strict=True)]


class PrefixState:
    """The state of a table: the tokens that each row has read."""

    def __init__(self, ids):
        self.ids = ids

    def reordered(self, entries):
        return PrefixState([self.ids[row] for row in entries.tolist()])


class PromptedTable(Decoder):
    """Next-token table by prefix, which includes the prompt; only the end token is special."""

    def __init__(self, next_logits):
        super().__init__()
        self.next_logits, self.end_id, self.pad_id, self.start_id = next_logits, END, None, None
        self.place = nn.Parameter(torch.zeros(()))

    def prefill(self, prompts, *, lengths=None):
        ids = [row[:length] for row, length in zip(prompts.tolist(), lengths.tolist(), strict=True)]
        return torch.tensor([row[-1] for row in ids]), PrefixState([row[:-1] for row in ids])

    def step(self, tokens, state):
        read = PrefixState([[*ids, token] for ids, token in zip(state.ids, tokens.tolist(), strict=True)])
        return torch.from_numpy(np.stack([self.next_logits((), tuple(ids)) for ids in read.ids])), read

    def max_new_tokens(self, lengths):
        return None


class LanguageModelState:
    def __init__(self, caches):
        self.caches = caches

    def reordered(self, entries):
        return LanguageModelState([cache.reordered(entries) for cache in self.caches])


class LanguageModel(Decoder):
    """Two blocks without cross-attention; their keys and values are paged, since prompts differ in length."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(3)
        self.end_id, self.pad_id, self.start_id = END, 0, None
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            decoder_block(WIDTH, HEADS, 17, norm="pre", cross_attention=False, dropout=0.3, **options) for _ in range(2)
        )
        self.pools = [PagePool(HEADS, WIDTH // HEADS, page_size=3, dtype=torch.float64) for _ in self.blocks]
        self.double().eval()

    def forward(self, ids):
        """Return logits (batch, length, vocabulary) of all positions at once."""
        tokens = self.embedding(ids)
        for block in self.blocks:
            tokens = block(tokens, mask=masks.causal())
        return tokens @ self.embedding.weight.T

    def prefill(self, prompts, *, lengths=None):
        caches = [PagedCache.empty(pool, 0) for pool in self.pools]
        for prompt, length in zip(prompts, lengths.tolist(), strict=True):
            alone = LanguageModelState([DecoderCache(PagedCache.empty(pool, 1)) for pool in self.pools])
            if length > 1:
                _, alone = self.read(prompt[None, : length - 1], alone)
            caches = [cache.joined(other.own) for cache, other in zip(caches, alone.caches, strict=True)]
        return prompts[torch.arange(len(prompts)), lengths - 1], LanguageModelState(list(map(DecoderCache, caches)))

    def step(self, tokens, state):
        hidden, state = self.read(tokens[:, None], state)
        return hidden[:, 0] @ self.embedding.weight.T, state

    def max_new_tokens(self, lengths):
        return LONGEST - lengths

    def read(self, ids, state):
        tokens, caches = self.embedding(ids), []
        for block, known in zip(self.blocks, state.caches, strict=True):
            tokens, cache = block(tokens, mask=masks.causal(), cache=known)
            caches.append(cache)
        return tokens, LanguageModelState(caches)


def next_log_probabilities(model, prompt):
    """Return the function that oracles need: log-probabilities after a prompt and more tokens, without a cache."""

    def log_probs_of(ids):
        with torch.no_grad():
            return model(torch.tensor([[*prompt, *ids]]))[0, -1].log_softmax(-1).numpy()

    return log_probs_of


def assert_equal_hypotheses(hypotheses, expected):
    assert [(one.ids, one.finished) for one in hypotheses] == [(one.ids, one.finished) for one in expected]
    assert [one.score for one in hypotheses] == pytest.approx([one.score for one in expected], abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_beam_continues_prompts_of_different_lengths(seed):
    next_logits = random_table(VOCABULARY, seed)
    hypotheses = Beam(4, best=4, length_penalty=0.6, patience=np.inf).search(
        PromptedTable(next_logits), PROMPTS, LENGTHS, max_tokens=5
    )
    for prompt, found in zip(prompts(), hypotheses, strict=True):
        expected = oracle.beam(
            lambda ids, prompt=prompt: log_softmax(next_logits((), (*prompt, *ids))), END, (), 5, 4, 0.6
        )
        assert_equal_hypotheses(found, expected[:4])


@pytest.mark.parametrize("position", [None, positions.Rotary(WIDTH // HEADS), positions.ALiBi(HEADS)])
class TestLanguageModel:
    @pytest.mark.parametrize("width", [1, 3])
    def test_beam_equals_that_without_a_cache(self, position, width):
        model = LanguageModel(position=position)
        hypotheses = Beam(width, best=width, patience=np.inf).search(model, PROMPTS, LENGTHS, max_tokens=5)
        for prompt, those in zip(prompts(), hypotheses, strict=True):
            assert_equal_hypotheses(
                those, oracle.beam(next_log_probabilities(model, prompt), END, (0,), 5, width, 0.6)[:width]
            )

    def test_greedy_search_takes_the_likeliest_token(self, position):
        model = LanguageModel(position=position)
        hypotheses = Greedy().search(model, PROMPTS, LENGTHS, max_tokens=5)
        for prompt, (one,) in zip(prompts(), hypotheses, strict=True):
            next_logits = next_log_probabilities(model, prompt)
            for place, token in enumerate([*one.ids, END] if one.finished else one.ids):
                logits = next_logits(one.ids[:place])
                assert token == 1 + logits[1:].argmax()  # 0 is padding

    @pytest.mark.parametrize("search", slow_except([STRATEGIES[1], STRATEGIES[3]], STRATEGIES), ids=repr)
    def test_log_probabilities_equal_those_without_a_cache(self, position, search):
        model = LanguageModel(position=position)
        for prompt, those in zip(prompts(), search.search(model, PROMPTS, LENGTHS, max_tokens=5), strict=True):
            next_logits = next_log_probabilities(model, prompt)
            for one in those:
                ids = [*one.ids, *([END] if one.finished else [])]
                total = sum(next_logits(ids[:place])[token] for place, token in enumerate(ids))
                assert one.log_probability == pytest.approx(total, abs=1e-10)


def test_positions_limit_the_number_of_tokens():
    model = LanguageModel()
    (one,) = Beam(1, length_penalty=0.0).search(model, torch.full((1, 11), 5), torch.tensor([11]))[0]
    assert len(one.ids) + one.finished <= 2
    with pytest.raises(ShapeError, match=r"no positions left[\s\S]*13 tokens"):
        Greedy().search(model, torch.full((1, 13), 5), torch.tensor([13]))


def test_coverage_penalty_without_a_source_is_refused():
    with pytest.raises(RefusedError, match="coverage_penalty needs a model with a source"):
        Beam(2, coverage_penalty=0.2).search(LanguageModel(), PROMPTS, LENGTHS, max_tokens=3)
