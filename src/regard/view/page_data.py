"""JSON data of a page: each text with its kinds of attention, layer by layer.

A text alone has one kind. A translation has up to three: from target to source, and within each side.
All have the same form, queries x keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regard.escape_text import direction_of, escape_text
from regard.language import translate_message
from regard.text.unknown_words import UNKNOWN_WORDS_ADVICE
from regard.view.attention_layer import AttentionLayer, choose_encoding
from regard.view.findings import findings, strongest_pieces, weight_of_pair
from regard.view.head_patterns import HeadPattern, pattern_label
from regard.view.head_statistics import HeadStatistics, describe_uniform, statistics_of
from regard.view.head_weights import opening_place
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.pack import ALPHABET, Json
from regard.view.pack_own_steps import MAX_STATE_BYTES, bytes_of_states, pack_states
from regard.view.projections import LETTERS, MAX_BYTES
from regard.view.reading import Answer, PairReading, Reading, Tokens
from regard.view.shared_words import shared_words
from regard.view.shares import MAX_LABELS, MAX_WORDS, answer_words
from regard.view.window_reading import WindowReading
from regard.view.without_marks import has_marks, mass_of_marks, without_marks
from regard.view.word_pairs import Finding, WordPairs, word_pairs
from regard.view.words_from_tokens import Word, is_mostly_unknown, unknown_words_note, words_note, words_of

MAX_SHARED_WORDS = 200  # maximum number of shared words, counted once per pair of texts, on a page

PairsByText = Mapping[int, tuple[Reading, WordPairs]]
"""Self-attention of one kind and the pairs of words, by the number of the text."""


def build_page_data(readings: Sequence[Reading | PairReading], model: str, room: int) -> Json:
    """Build all data that the page's script reads, with vectors of at most ``room`` characters if possible."""
    everything = [reading for shown in readings for reading in shown.attentions.values()]
    letters, largest_error = choose_encoding([layer for reading in everything for layer in reading.layers], room)
    shared = shared_words([shown for shown in readings if isinstance(shown, Reading)])
    return {
        "model": escape_text(model),
        "letters": letters,
        "alphabet": ALPHABET,
        "largest_error": largest_error,
        "texts": _texts(readings, letters),
        "shared": [
            {
                "word": escape_text(word.word),
                "first": word.first,
                "second": word.second,
                "cosines": [round(cosine, 5) for cosine in word.cosines],
            }
            for word in shared[:MAX_SHARED_WORDS]
        ],
    }


def _texts(readings: Sequence[Reading | PairReading], letters: int) -> list[Json]:
    texts: list[Json] = [{"attentions": []} for _ in readings]
    layers = [layer for shown in readings for reading in shown.attentions.values() for layer in reading.layers]
    fit = projections_fit(layers)
    states = [layer.states for layer in layers if isinstance(layer, LayerWeights)]
    states_fit = sum(bytes_of_states(known) for known in states if known is not None) <= MAX_STATE_BYTES
    for kind in dict.fromkeys(kind for reading in readings for kind in reading.attentions):
        own = {
            number: reading.attentions[kind] for number, reading in enumerate(readings) if kind in reading.attentions
        }
        pairs = {number: (reading, word_pairs(reading)) for number, reading in own.items() if reading.keys is None}
        for number, reading in own.items():
            data = attention_data(reading, letters)
            for packed, layer in zip(data["layers"], reading.layers, strict=True):
                packed |= projection_data(layer, fit=fit) | _state_data(layer, fit=states_fit)
            opening = opening_data(readings[number], reading)
            texts[number]["attentions"].append(
                {"kind": kind, **data, **opening, "findings": findings_data(number, pairs)}
            )
    for text, shown in zip(texts, readings, strict=True):
        text |= {"title": escape_text(shown.title), "direction": direction_of(shown.title)}
        if isinstance(shown, PairReading):
            text["forced"] = shown.forced
        elif shown.answer is not None:
            text |= {"answer": _answer(shown, shown.answer)}
    return texts


def projections_fit(layers: Sequence[AttentionLayer]) -> bool:
    """Whether the projections of all layers of a page are small enough for it."""
    return _bytes_of_all_projections(layers) <= MAX_BYTES


def bytes_of_projections(layers: Sequence[AttentionLayer]) -> int:
    """The size of the projections that a page of these layers has."""
    size = _bytes_of_all_projections(layers)
    return size if size <= MAX_BYTES else 0


def _bytes_of_all_projections(layers: Sequence[AttentionLayer]) -> int:
    projections = [layer.projections for layer in layers if isinstance(layer, LayerReading | WindowReading)]
    return LETTERS * sum(known.size for known in projections if known is not None)


def projection_data(layer: AttentionLayer, *, fit: bool) -> Json:
    """Encode how queries and keys were computed, or why that is not shown: "size" or "unknown"."""
    if isinstance(layer, LayerWeights):
        return {}
    if not isinstance(layer, LayerReading | WindowReading):
        return {"unread": "unknown"}
    if layer.projections is None or not fit:
        return {"unread": "unknown" if layer.projections is None else "size"}
    return {"read": layer.projections.pack()}


def _state_data(layer: AttentionLayer, *, fit: bool) -> Json:
    """Encode the updates of a state, or that they are too large."""
    if not isinstance(layer, LayerWeights) or layer.states is None:
        return {}
    return {"states": pack_states(layer.states)} if fit else {"unstated": "size"}


def opening_data(reading: Reading | PairReading, shown: Reading) -> Json:
    """Encode where the page opens one kind of attention."""
    place = opening_place(reading, shown)
    return {"opening": {"layer": place.layer, "head": place.head, "query": place.token}}


def _answer(reading: Reading, answer: Answer) -> Json:
    """Encode the most probable labels, and the words that the answer was computed from."""
    return {
        "pooling": answer.pooling,
        "several": answer.several,
        "has_label": answer.has_label,
        "labels": [[escape_text(label), round(share, 6)] for label, share in answer.probabilities[:MAX_LABELS]],
        "words": [[escape_text(word), round(share, 6)] for word, share in answer_words(reading)[:MAX_WORDS]],
    }


def attention_data(reading: Reading, letters: int) -> Json:
    """Encode the tokens, layers and statistics of one kind of attention."""
    masks: list[str] = []
    words = [*words_of(reading.tokens), *([] if reading.keys is None else words_of(reading.keys))]
    return {
        "direction": direction_of(reading.tokens.text),
        "key_direction": direction_of(reading.key_tokens.text),
        **_tokens_and_words("", reading.tokens),
        **({} if reading.keys is None else _tokens_and_words("key_", reading.keys)),
        "dropped": reading.dropped,
        **({} if reading.sink is None else {"sink": reading.sink}),
        "vocabulary": unknown_words_note(words),
        **({"word_note": note} if (note := words_note(reading)) else {}),
        **({"advice": translate_message(UNKNOWN_WORDS_ADVICE)} if is_mostly_unknown(words) else {}),
        "layers": [layer.pack(masks, letters) for layer in reading.layers],
        "masks": masks,
        "statistics": _statistics(reading),
        **({"unmarked": _unmarked_data(reading)} if has_marks(reading) else {}),
    }


def _unmarked_data(reading: Reading) -> Json:
    """Encode the statistics of the heads without marks, and the share of attention that marks get in each head."""
    return {
        "statistics": _statistics(without_marks(reading)),
        "hidden": [round(float(mass), 4) for mass in mass_of_marks(reading)],
    }


def _tokens_and_words(prefix: str, tokens: Tokens) -> Json:
    """Encode the tokens, and the words made of several tokens."""
    words = [word for word in words_of(tokens) if len(word.pieces) > 1]
    return {
        f"{prefix}tokens": token_entries(tokens, words),
        f"{prefix}words": [escape_text(word.text) for word in words],
    }


def token_entries(tokens: Tokens, words: Sequence[Word]) -> list[Json | str]:
    """Encode tokens: the text alone for one that follows a space and has nothing else to say."""
    word_of = {token: number for number, word in enumerate(words) for token in word.pieces}
    end = 0
    shown: list[Json | str] = []
    for token, (start, stop) in enumerate(tokens.spans):
        special = tokens.special[token]
        gap = special or (token > 0 and tokens.special[token - 1]) or any(map(str.isspace, tokens.text[end:start]))
        end = end if special else stop
        surface, piece = escape_text(tokens.surface(token)), escape_text(tokens.pieces[token])
        entry: Json = {"surface": surface}
        entry |= {"piece": piece} if piece != surface else {}
        entry |= {"gap": 1} if gap and token else {}
        entry |= {"special": 1} if special else {}
        entry |= {"word": word_of[token]} if token in word_of else {}
        entry |= {"unknown": 1} if tokens.is_unknown(token) else {}
        shown.append(surface if entry == {"surface": surface, "gap": 1} else entry)  # most tokens begin a word
    return shown


def _statistics(reading: Reading) -> Json:
    """Encode a table of ten-thousandths with one row per head, in order; columns are named once, to save space."""
    heads = statistics_of(reading)
    return statistics_table(heads, describe_uniform(reading, heads), is_alone=reading.keys is None)


def statistics_table(heads: Sequence[HeadStatistics], uniform: str, *, is_alone: bool) -> Json:
    """Encode the statistics of heads; ``is_alone`` says whether a text attends to itself."""
    # Positions in two texts are not comparable, so there is no distance and no neighbour.
    places = ("distance", "itself", "previous", "next") if is_alone else ()
    names = ("entropy", *places)
    special = list(heads[0].special) if heads else []
    return {
        "uniform": uniform,
        "columns": [*names, *map(escape_text, special)],
        "rows": [_statistics_row(head, names, special) for head in heads],
        "patterns": [
            None if head.pattern is None else [pattern_label(head.pattern.name), *_thousandths(head.pattern)]
            for head in heads
        ],
    }


def _thousandths(pattern: HeadPattern) -> tuple[int, int]:
    """The score of a pattern, and of uniform attention."""
    return round(1e3 * pattern.score), round(1e3 * pattern.chance)


def _statistics_row(statistics: HeadStatistics, names: Sequence[str], special: Sequence[str]) -> list[int]:
    numbers: list[float] = [getattr(statistics, name) for name in names] + [
        statistics.special[name] for name in special
    ]
    return [round(1e4 * number) for number in numbers]


def findings_data(number: int, texts: PairsByText) -> list[Json]:
    """Findings of a text that attends to itself; between two texts the whole alignment is shown instead."""
    return [_finding(finding, number, texts) for finding in findings(texts[number][1])] if number in texts else []


def _finding(finding: Finding, number: int, texts: PairsByText) -> Json:
    reading, pairs = texts[number]
    query, key = pairs.query_words[finding.query_word], pairs.key_words[finding.key_word]
    # For a word of several tokens, the page opens the one that shows the finding best.
    asks, gets = strongest_pieces(reading, query, key, finding.looks[0].layer, finding.looks[0].head)
    return {
        "from": escape_text(query.label),
        "to": escape_text(key.label),
        "query": asks,
        "key": gets,
        "pieces": [len(query.pieces), len(key.pieces)],
        "looks": [
            {"layer": look.layer, "head": look.head, "weight": round(look.weight, 6), "usual": round(look.usual, 6)}
            for look in finding.looks
        ],
        "first_choice": finding.first_choice,
        "heads": finding.heads,
        "elsewhere": _weights_in_other_texts(finding, number, texts),
    }


def _weights_in_other_texts(finding: Finding, number: int, texts: PairsByText) -> list[Json]:
    """Weights of the finding's head for the first occurrence of the same two words, in up to three other texts."""
    query = texts[number][1].query_words[finding.query_word].text.casefold()
    key = texts[number][1].key_words[finding.key_word].text.casefold()
    strongest = finding.looks[0]
    shown: list[Json] = []
    for other, (reading, words) in texts.items():
        asks = next((word for word in words.query_words if word.text.casefold() == query), None)
        gets = next((word for word in words.key_words if word.text.casefold() == key), None)
        if other == number or asks is None or gets is None or len(shown) == 3:
            continue
        weight = weight_of_pair(reading, asks, gets, strongest.layer, strongest.head)
        shown.append({"text": other, "weight": round(weight, 6)})
    return shown
