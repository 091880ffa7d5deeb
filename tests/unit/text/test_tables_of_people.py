"""Tables as pandas, Excel, Tatoeba, Kaggle, OPUS and people write them: the columns that are read, or a refusal."""

from __future__ import annotations

import csv
import io
from contextlib import closing
from itertools import product

import pytest

from pair_files import write
from regard.errors import DataError, RegardError
from regard.log import notes_to
from regard.text.labelled import LabelFormat, LabelledText, read_labelled
from regard.text.line_reader import LineReader
from regard.text.pairs import Pair, PairFormat, read_pairs

ENGLISH = [
    "The small dog sleeps.", "Where is the station?", "I would like a cup of tea.", "It rained all day, and we stayed.",
    "She reads.", "We have three children.", "The train leaves at seven.", "Nothing happened.", "Open the window!",
    "He bought bread and milk.", "They live near the sea.", "Do you speak French?", "My brother is older than I am.",
]  # fmt: skip
FRENCH = [
    "Le petit chien dort.", "O\u00f9 est la gare ?", "Je voudrais une tasse de th\u00e9.",
    "Il a plu toute la journ\u00e9e, et nous sommes rest\u00e9s.", "Elle lit.", "Nous avons trois enfants.",
    "Le train part \u00e0 sept heures.", "Rien ne s'est pass\u00e9.", "Ouvre la fen\u00eatre !",
    "Il a achet\u00e9 du pain et du lait.", "Ils habitent pr\u00e8s de la mer.", "Parlez-vous fran\u00e7ais ?",
    "Mon fr\u00e8re est plus \u00e2g\u00e9 que moi.",
]  # fmt: skip
ROWS = len(ENGLISH)
PAIRS = list(zip(ENGLISH, FRENCH, strict=True))
REVERSED = [(target, source) for source, target in PAIRS]

COLUMNS = {
    "en": ENGLISH,
    "fr": FRENCH,
    "index": [str(number) for number in range(ROWS)],
    "numbers": [str(number) for number in range(1, ROWS + 1)],
    "ids": [str(1276 + 37 * number) for number in range(ROWS)],
    "ids_of_fr": [str(2481 + 53 * number) for number in range(ROWS)],
    "keys": [f"a{number}" for number in range(1, ROWS + 1)],
    "hashes": [f"{number * 2654435761 % 2**32:08x}{number}" for number in range(ROWS)],
    "scores": [f"{1 + number / 64:.6f}" for number in range(ROWS)],
    "urls": [f"https://example.org/page/{number}" for number in range(ROWS)],
    "files": [f"corpus/doc-{number}.xml" for number in range(ROWS)],
    "mails": [f"user{number}@example.org" for number in range(ROWS)],
    "dates": [f"2024-03-{number + 1:02d}" for number in range(ROWS)],
    "domains": [("news", "web")[number % 2] for number in range(ROWS)],
    "source_lang": ["eng"] * ROWS,
    "target_lang": ["fra"] * ROWS,
    "licences": [f"CC-BY 2.0 (France) Attribution: tatoeba.org #{number} (CM)" for number in range(ROWS)],
    "blank": [""] * ROWS,
    "labels": [("pos", "neg", "neutral")[number % 3] for number in range(ROWS)],
    "stars": [str(1 + number % 5) for number in range(ROWS)],
    "titles": [
        "Dog",
        "Way",
        "Tea",
        "Rain",
        "Reading",
        "Family",
        "Trip",
        "Nothing",
        "Air",
        "Food",
        "Sea",
        "Talk",
        "Kin",
    ],
    "articles": [" ".join(ENGLISH[number:] + ENGLISH[:number]) for number in range(ROWS)],
}


def table(columns, header=None, *, separator=",", quoting=csv.QUOTE_MINIMAL, before=""):
    """The text of a table with these columns."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator="\r\n")
    if header is not None:
        writer.writerow(header)
    writer.writerows(zip(*(COLUMNS[name] for name in columns), strict=True))
    return before + text.getvalue()


def read(path, **where):
    said = []
    with notes_to(said.append):
        found = list(read_pairs([path], PairFormat(**where)))
    return [(one.source, one.target) for one in found if isinstance(one, Pair)], said


HEADERS = [  # the columns, and the names that people give them, but for none
    (("en", "fr"), [("en", "fr"), ("English", "French"), ("source", "target"), ("English sentence", "French sentence"),
                    ("text_en", "text_fr"), ("Klingon text", "Elvish text"), ("anglais", "fran\u00e7ais"), None]),
    (("index", "en", "fr"), [("", "en", "fr"), ("Unnamed: 0", "en", "fr"), ("#", "English", "French"), None,
                             ("", "English sentence", "French sentence"), ("", "klingon", "elvish")]),
    (("numbers", "en", "fr"), [("No.", "English", "French"), ("ID", "English sentence", "French sentence"), None,
                               ("Sr. No.", "English", "French"), ("id", "english_text", "french_text")]),
    (("keys", "en", "fr"), [("key", "en", "fr"), ("id", "English", "French"), None, ("", "x", "y")]),
    (("hashes", "en", "fr"), [("hash", "en", "fr"), None]),
    (("en", "fr", "licences"), [None, ("English", "French", "Attribution")]),
    (("ids", "en", "ids_of_fr", "fr"), [None, ("id", "eng", "id_fra", "fra")]),
    (("scores", "en", "fr"), [None, ("score", "en", "fr"), ("laser_score", "src", "tgt")]),
    (("en", "fr", "scores"), [None, ("src", "tgt", "score"), ("src_text", "tgt_text", "score")]),
    (("urls", "urls", "en", "fr", "scores"), [None, ("url1", "url2", "text1", "text2", "bleualign")]),
    (("files", "en", "fr"), [None, ("document", "en", "fr")]),
    (("mails", "dates", "en", "fr"), [None, ("Email", "Timestamp", "English", "French")]),
    (("domains", "en", "fr"), [None, ("domain", "en", "fr"), ("source", "en", "fr")]),
    (("source_lang", "target_lang", "en", "fr"), [None, ("sourceLang", "targetLang", "sourceString", "targetString")]),
    (("index", "blank", "en", "fr", "blank"), [None, ("", "", "English", "French", "")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "header"), [(columns, header) for columns, headers in HEADERS for header in headers]
)
def test_the_two_columns_of_sentences_are_found(tmp_path, columns, header):
    """Each is read with every separator and with all cells in quotes, and its columns are reported."""
    for number, (separator, quoting) in enumerate(product(",;\t", (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))):
        text = table(columns, header, separator=separator, quoting=quoting)
        pairs, said = read(write(tmp_path / f"{number}.csv", text))
        assert pairs == PAIRS
        assert f"source from column {columns.index('en') + 1}" in said[0]
        assert said[0].endswith("has the names of the columns" if header else "is a pair")


@pytest.mark.parametrize("suffix", [".tsv", ".tab", ".tsv.gz"])
def test_tables_with_tabs(tmp_path, suffix):
    for columns, headers in HEADERS:
        for header in headers:
            text = table(columns, header, separator="\t", quoting=csv.QUOTE_NONE)
            assert read(write(tmp_path / f"pairs{suffix}", text))[0] == PAIRS


@pytest.mark.parametrize(
    ("columns", "header", "where"),
    [
        (("index", "fr", "en"), ("", "fr", "en"), {"source": "en", "target": "fr"}),
        (("numbers", "fr", "en"), ("ID", "French sentence", "English sentence"), {"source": "en", "target": "fr"}),
        (("numbers", "fr", "en"), ("ID", "French sentence", "English sentence"), {"target": "fr"}),
        (("fr", "en"), ("Fran\u00e7ais", "Anglais"), {"target": "fr"}),
        (("keys", "fr", "en"), ("k", "text_fr", "text_en"), {"source": "en", "target": "fr"}),
        (("numbers", "fr", "en"), ("n", "target", "source"), {}),
        (("numbers", "fr", "en"), ("n", "target_text", "source_text"), {}),
        (("numbers", "fr", "en"), ("n", "words", "digits"), {"columns": ("digits", "words")}),
        (("numbers", "fr", "en"), ("n", "Words", "digits"), {"columns": (3, "words")}),
        (("numbers", "fr", "en"), None, {"columns": (3, 2)}),
        (("numbers", "fr", "en"), ("n", "x", "y"), {"columns": (3, 2)}),
    ],
)  # fmt: skip
def test_languages_and_columns_give_the_direction(tmp_path, columns, header, where):
    assert read(write(tmp_path / "a.csv", table(columns, header)), **where)[0] == PAIRS


REFUSED = [
    (("index", "en"), ("", "en"), {}),
    (("index", "en"), None, {}),
    (("keys", "en"), ("id", "text"), {}),
    (("en", "scores"), None, {}),
    (("en", "labels"), ("text", "label"), {"source": "en", "target": "fr"}),
    (("index", "scores", "dates"), None, {}),
    (("en", "fr", "articles"), None, {}),
    (("en", "fr", "titles"), ("a", "b", "c"), {}),
    (("index", "titles", "articles"), ("", "title", "article"), {}),
    (("index", "en", "fr"), ("", "text", "translation"), {"source": "en", "target": "de"}),
    (("en", "fr"), ("en", "fr"), {"source": "foo"}),
    (("en", "fr"), ("en", "fr"), {"source": "en", "target": "foo"}),
    (("en", "fr"), ("Klingon text", "Elvish text"), {"source": "foo"}),
    (("index", "en", "fr"), ("", "en", "fr"), {"target": "foo"}),
    (("index", "en", "fr"), ("no", "en", "fr"), {"source": "en", "target": "no"}),
    (("index", "en", "fr"), ("id", "en", "fr"), {"columns": ("en", "de")}),
]


@pytest.mark.parametrize(("columns", "header", "where"), REFUSED)
def test_columns_that_do_not_follow_are_refused_with_the_way_out(tmp_path, columns, header, where):
    with pytest.raises(DataError, match=r"column(.|\n)*columns="):
        read(write(tmp_path / "a.csv", table(columns, header)), **where)


@pytest.mark.parametrize("before", ["sep=;\r\n", '"sep=;"\r\n', "\ufeffsep=;\n", "SEP=;\n"])
def test_the_line_of_excel_for_its_separator_is_no_row(tmp_path, before):
    text = table(("index", "en", "fr"), ("", "en", "fr"), separator=";", before=before)
    assert read(write(tmp_path / "a.csv", text))[0] == PAIRS
    assert read(write(tmp_path / "b.csv", text.replace(";", "|", 1).replace(";", "|")))[0] == PAIRS
    labelled = table(("labels", "en"), ("label", "text"), separator=";", before=before)
    texts, _ = read_labels(write(tmp_path / "c.csv", labelled))
    assert texts == list(zip(ENGLISH, COLUMNS["labels"], strict=True))
    assert read_lines(tmp_path / "c.csv", "text")[0] == ENGLISH


def test_the_line_of_excel_belongs_to_the_input_that_is_resumed(tmp_path):
    hashes = []
    for separator in (";", ","):
        path = write(tmp_path / "a.csv", f"sep={separator}\ntext;x,y\n1;2,3\n")
        hashes.append(read_lines(path, "1")[1])
    assert hashes == [[b"sep=;\ntext;x,y\n1;2,3\n"], [b"sep=,\ntext;x,y\n1;2,3\n"]]


def test_a_table_with_tabs_may_name_its_separator(tmp_path):
    text = table(("en", "fr"), ("en", "fr"), separator="\t", quoting=csv.QUOTE_NONE, before="sep=\t\n")
    assert read(write(tmp_path / "a.tsv", text))[0] == PAIRS
    assert (
        read(write(tmp_path / "b.tsv", table(("en", "fr"), ("en", "fr"), separator=";", before="sep=;\n")))[0] == PAIRS
    )


# Labelled texts


def read_labels(path, columns=None):
    said = []
    with notes_to(said.append):
        found = list(read_labelled([path], LabelFormat(columns, "one")))
    return [(one.text, one.labels[0]) for one in found if isinstance(one, LabelledText)], said


LABEL_HEADERS = [
    (("en", "labels"), [("text", "label"), ("phrase", "emotion"), ("comment_text", "toxic"), None]),
    (("labels", "en"), [("label", "text"), ("emotion", "phrase"), ("v1", "v2"), None]),
    (("stars", "en"), [("stars", "review"), ("rate", "opinion"), None]),
    (("index", "en", "labels"), [("", "text", "label"), ("Unnamed: 0", "statement", "status"), None]),
    (("index", "en", "labels"), [("id", "text", "label")]),
    (("labels", "en", "blank", "blank"), [("v1", "v2", "", ""), None]),
    (("keys", "labels", "dates", "en"), [("id", "airline_sentiment", "created", "text"), None]),
    (("source_lang", "en", "labels"), [("lang", "review", "label")]),
]


@pytest.mark.parametrize(
    ("columns", "header"), [(columns, header) for columns, headers in LABEL_HEADERS for header in headers]
)
def test_text_and_label_are_found(tmp_path, columns, header):
    labels = COLUMNS["labels" if "labels" in columns else "stars"]
    texts, said = read_labels(write(tmp_path / "a.csv", table(columns, header)))
    assert texts == list(zip(ENGLISH, labels, strict=True))
    assert not said or said[0].endswith("has the names of the columns" if header else "is a text")


@pytest.mark.parametrize(
    ("columns", "header"),
    [(("index", "en"), None), (("en", "scores", "stars", "labels"), None), (("en", "fr", "labels"), ("a", "b", "c")),
     (("index", "numbers"), ("text", "label"))],
)  # fmt: skip
def test_columns_of_labels_that_do_not_follow_are_refused(tmp_path, columns, header):
    if header == ("text", "label"):  # names count, whatever the columns hold
        assert len(read_labels(write(tmp_path / "a.csv", table(columns, header)))[0]) == ROWS
        return
    with pytest.raises(DataError, match=r"ambiguous(.|\n)*columns="):
        read_labels(write(tmp_path / "a.csv", table(columns, header)))


# Texts alone


def read_lines(path, field=None):
    """The texts of a file and their bytes, and what is said about the choice of the field."""
    with closing(LineReader(path, field=field)) as reader:
        note = reader.choose_field()
        lines = list(reader)
    return [line.text for line in lines], [line.raw for line in lines], note


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        (("index", "en"), ("", "text")), (("index", "en"), ("", "abstract")), (("index", "en"), None),
        (("labels", "en"), ("label", "review")), (("labels", "en"), ("emotion", "phrase")), (("labels", "en"), None),
        (("keys", "dates", "en", "labels"), ("id", "date", "tweet", "label")), (("en",), ("sentence",)),
        (("en",), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["guess", "number"])
def test_the_column_of_texts_is_found_and_reported(tmp_path, columns, header, by):
    path = write(tmp_path / "a.csv", table(columns, header))
    number = columns.index("en") + 1
    texts, _, note = read_lines(path, None if by == "guess" else str(number))
    assert texts == ENGLISH
    assert note.endswith("is the name of the column" if header else "is a text")


@pytest.mark.parametrize("columns", [("en", "fr"), ("index", "scores"), ("titles", "articles", "labels")])
def test_several_columns_of_texts_are_refused(tmp_path, columns):
    with pytest.raises(DataError, match=r"ambiguous which column(.|\n)*field="):
        read_lines(write(tmp_path / "a.csv", table(columns)))


def test_a_field_of_json_is_found(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"id": "x7", "n": 3, "body": "Go."}\n{"id": "x8", "n": 4, "body": "Hi."}\n')
    texts, _, note = read_lines(path)
    assert texts == ["Go.", "Hi."]
    assert "'body'" in note
    with pytest.raises(DataError, match="ambiguous"):
        read_lines(write(tmp_path / "b.jsonl", '{"one": "Go away.", "two": "Va !"}\n'))


def test_identifiers_are_no_field_of_a_pair(tmp_path):
    one = '{"id": "a1", "text": "Go."}\n{"id": "a2", "text": "Hi."}\n'
    with pytest.raises(DataError, match="ambiguous which fields"):
        read(write(tmp_path / "a.jsonl", one))
    both = '{"id": "a1", "x": "Go.", "y": "Va !"}\n{"id": "a2", "x": "Hi.", "y": "Salut !"}\n'
    pairs, said = read(write(tmp_path / "b.jsonl", both))
    assert pairs == [("Go.", "Va !"), ("Hi.", "Salut !")]
    assert "'x'" in said[0]
    assert read(tmp_path / "b.jsonl", columns=("y", "x"))[0] == [(target, source) for source, target in pairs]
    half = '{"id": "a3", "x": "Half \\ud800.", "y": "Moitié."}\n'  # half a character, of which no file can be written
    assert read(write(tmp_path / "c.jsonl", both + half))[0] == pairs


# Word lists and other short cells, where nothing but names tells


@pytest.mark.parametrize("rows", ["dog,chien\ncat,chat\nhouse,maison\n", "Hund,dog\nKatze,cat\n", "no,non\nyes,oui\n"])
def test_a_list_of_words_without_a_heading_is_read_whole(tmp_path, rows):
    pairs, said = read(write(tmp_path / "a.csv", rows))
    assert pairs == [tuple(row.split(",")) for row in rows.split()]
    assert said[0].endswith("the first row is a pair")


@pytest.mark.parametrize("header", ["English,French", "en,fr", "source,target", "Deutsch,English"])
def test_a_list_of_words_with_names_of_languages(tmp_path, header):
    assert read(write(tmp_path / "a.csv", f"{header}\ndog,chien\ncat,chat\n"))[0] == [("dog", "chien"), ("cat", "chat")]


def test_dates_may_be_translated(tmp_path):
    rows = [
        ("07 Sep 1981", "1 9 8 1 - 0 9 - 0 7"),
        ("03.05.2012", "2 0 1 2 - 0 5 - 0 3"),
        ("May 03, 2012", "2012-05-03"),
    ]
    path = write(tmp_path / "a.tsv", "".join(f"{source}\t{target}\n" for source, target in rows))
    assert read(path)[0] == rows


def test_repeated_sentences_are_no_labels_where_they_are_the_only_texts(tmp_path):
    text = "".join(f"{number},Yes.,Oui.\n" for number in range(7))
    assert read(write(tmp_path / "a.csv", text))[0] == [("Yes.", "Oui.")] * 7


def test_errors_while_reading_ahead_come_in_their_place(tmp_path):
    """Rows before the damage of a compressed file are read."""
    import gzip

    content = gzip.compress(table(("en", "fr")).encode() * 500)
    (tmp_path / "a.csv.gz").write_bytes(content[:-9])
    found = []
    with pytest.raises(RegardError, match="cannot be read to its end"):
        found += read_pairs([tmp_path / "a.csv.gz"])
    entries = read_pairs([tmp_path / "a.csv.gz"])
    assert (next(entries).source, next(entries).source) == tuple(ENGLISH[:2])


def test_numbers_in_columns_of_usual_names_are_texts(tmp_path):
    """The message about ambiguous columns advises these names."""
    text = "source,target\n" + "".join(
        f"{number},{word}\n" for number, word in enumerate(("zero", "one", "two", "six"))
    )
    pairs, said = read(write(tmp_path / "a.csv", text))
    assert pairs == [("0", "zero"), ("1", "one"), ("2", "two"), ("3", "six")]
    assert said[0].endswith("has the names of the columns")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("id,title\n1,Yes.\n2,No.\n3,Go.\n", "columns=(1, 2)"),
        ("a,b,c,d\n1,2,3,4\n2,3,4,5\n", "columns=(2, 3)"),
        ("en\nYes.\nNo.\n", "add the column of the translation"),
    ],
)
def test_the_advice_names_columns_that_the_table_has(tmp_path, text, advice):
    with pytest.raises(DataError) as error:
        read(write(tmp_path / "a.csv", text))
    assert advice in error.value.do
