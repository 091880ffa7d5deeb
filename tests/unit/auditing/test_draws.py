"""Random numbers: in eval mode one finding and no other; in training mode leaks are found while dropout draws."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from regard.auditing.draws import DrawsByFeature, MeanDraws, find_draws_of_rows

WIDTH, VOCABULARY = 12, 31


class Experts(nn.Module):
    """Two experts with dropout inside: how many numbers each draws depends on which tokens it gets."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)) for _ in range(2))

    def forward(self, hidden):
        choice, output = self.router(hidden).argmax(-1), torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            output[choice == number] = expert(hidden[choice == number])
        return output


class Decoder(nn.Module):
    is_causal = True

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.tokens, self.output = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.dropout, self.experts = nn.Dropout(0.25), Experts()

    def forward(self, ids, mask=None):
        hidden = self.tokens(ids)
        length = ids.shape[1]
        scores = (hidden @ hidden.transpose(1, 2) / WIDTH**0.5).masked_fill(
            torch.ones(length, length).triu(1).bool(), -torch.inf
        )
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None] & ~torch.eye(length, dtype=torch.bool), -torch.inf)
        weights = scores.softmax(-1)
        if self.fault == "dropout in eval mode":
            weights = nn.functional.dropout(weights, 0.25)
        if self.fault == "noise in eval mode":
            hidden = hidden + 0.1 * torch.randn_like(hidden)
        if self.fault == "drop path in eval mode":
            hidden = hidden * (0.75 + torch.rand(len(ids), 1, 1)).floor() / 0.75
        hidden = hidden + self.experts(weights @ hidden)
        dropped = self.dropout(hidden)
        if self.fault == "leaks while dropout draws":
            dropped = dropped + (dropped == 0) * hidden.mean(1, keepdim=True)
        return self.output(dropped)


def audit(fault, **options):
    torch.manual_seed(3)
    return regard.audit(Decoder(fault).eval(), torch.randint(0, VOCABULARY, (1, 11)), **options)


def test_experts_with_dropout_hold_in_training_mode():
    report = audit("", skip=["bfloat16"])
    assert report.leaks == (), str(report)
    assert report["causal in training mode"].verdict == "holds"
    assert not any("random numbers are drawn" in note for note in report.notes)


def test_a_leak_while_dropout_draws_is_found():
    report = audit("leaks while dropout draws", skip=["bfloat16"])
    assert [result.name for result in report.leaks] == ["causal in training mode"]
    assert report["causal"].verdict == "holds"


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("dropout in eval mode", "as by functional.dropout without training=self.training"),
        ("noise in eval mode", "by randn_like"),
        ("drop path in eval mode", "by rand"),
    ],
)
def test_random_numbers_in_eval_mode_are_one_finding(fault, cause):
    report = audit(fault, skip=["bfloat16"])
    assert [result.name for result in report.leaks] == ["random numbers"], str(report)
    assert report.leaks[0].leak.cause == f"random numbers are drawn in eval mode, {cause}"
    assert any("random numbers are drawn in eval mode" in note for note in report.notes)
    assert {report[name].verdict for name in ("causal", "padding right", "padding left", "batch")} == {"holds"}


def test_means_of_draws():
    ones = torch.ones(3, 5, 7)
    with MeanDraws():
        assert torch.equal(nn.functional.dropout(ones, 0.3), ones)
        assert torch.equal(torch.native_dropout(ones, 0.3, True)[0], ones)
        assert torch.equal(torch.rand(3, 5), torch.full((3, 5), 0.5))
        assert torch.equal(torch.empty(3, 5).uniform_(1, 4), torch.full((3, 5), 2.5))
        assert torch.equal(
            torch.bernoulli(torch.tensor([[0.25], [0.5], [0.75]])), torch.tensor([[0.25], [0.5], [0.75]])
        )
        assert torch.empty(3, 5, dtype=torch.bool).bernoulli_(0.9).all()


def test_normal_numbers_of_rows_are_means_and_random_features_stay_the_same():
    def draw(rows):
        noise, others = torch.randn(rows, 5), torch.empty(rows, 5).normal_(2.0, 1.0)
        return noise, others, *(helper(6) for _ in range(2)), helper(rows)

    def helper(rows):
        return torch.randn(rows, 4)

    def run(rows, around):
        with around():
            return call(rows)

    def call(rows):
        return draw(rows)

    places = find_draws_of_rows(run)
    features = []
    for rows in (1, 3, 6):
        torch.manual_seed(rows)
        noise, others, first, second, last = run(rows, lambda: MeanDraws(places))
        assert not noise.any()
        assert not last.any(), "the helper's other caller"
        assert torch.equal(others, torch.full((rows, 5), 2.0))
        assert torch.equal(first, second)
        features.append(first)
    assert features[0].std() > 0.1
    assert all(torch.equal(features[0], other) for other in features)


class Hashed(nn.Module):
    """Attention among tokens of a bucket, of random rotations whose first dimension is of heads and not of rows."""

    def __init__(self):
        super().__init__()
        self.tokens, self.output = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        hidden = self.tokens(ids)
        heads = hidden.unflatten(-1, (4, 3))
        buckets = torch.einsum("blhd,hdr->blhr", heads, torch.randn(4, 3, 2).to(hidden)).argmax(-1)
        same = (buckets[:, :, None] == buckets[:, None]).to(hidden)
        return self.output(torch.einsum("blmh,bmhd->blhd", same, heads).flatten(2))


def test_random_features_do_not_mix_the_rows_of_a_batch():
    torch.manual_seed(3)
    report = regard.audit(Hashed().eval(), torch.randint(0, VOCABULARY, (1, 11)), causal=False, skip=["bfloat16"])
    assert [result.name for result in report.leaks] == ["random numbers"], str(report)
    assert report["batch"].verdict == "holds"


def test_draws_by_feature_are_the_same_for_rows_and_tokens():
    ones = torch.ones(3, 5, 101)
    with DrawsByFeature():
        dropped = nn.functional.dropout(ones, 0.3)
        fewer = nn.functional.dropout(ones[:1, :2], 0.3)
        native = torch.native_dropout(ones, 0.3, True)[0]
    assert torch.equal(dropped, dropped[:1, :1].expand_as(dropped))
    assert torch.equal(fewer, dropped[:1, :2])
    for result in (dropped, native):
        assert 15 < int((result[0, 0] == 0).sum()) < 50
        assert torch.allclose(result[result != 0], torch.tensor(1 / 0.7))
    with DrawsByFeature():
        assert torch.equal(torch.native_dropout(ones, 0.3, False)[0], ones)
