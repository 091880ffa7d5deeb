"""Cases in files: the readers on the page, in other languages, read what was written."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from docs.pages import ROOT, blocks
from regard.conformance import cases_of
from regard.conformance.vectors import write_vectors
from regard.errors import OptionError

MAIN = {
    "cpp": """
#include <cstdio>
int main(int, char** words) {
    for (const auto& [name, tensor] : read_vectors(words[1])) {
        double sum = 0;
        for (double number : tensor.numbers) sum += number;
        std::printf("%s %zu %zu %.17g\\n", name.c_str(), tensor.shape.size(), tensor.numbers.size(), sum);
    }
}
""",
    "rust": """
fn main() {
    for (name, tensor) in read_vectors(&std::env::args().nth(1).unwrap()).unwrap() {
        let sum: f64 = tensor.numbers.iter().fold(0.0, |sum, number| sum + number);
        println!("{} {} {} {:e}", name, tensor.shape.len(), tensor.numbers.len(), sum);
    }
}
""",
}
COMPILERS = {"cpp": ("g++", "-std=c++17", "-O1"), "rust": ("rustc", "--edition=2021")}
FOUND = [language for language, command in COMPILERS.items() if shutil.which(command[0])]


@pytest.mark.slow
@pytest.mark.parametrize("language", FOUND)
def test_readers_on_the_page(language, tmp_path):
    cases = [case for case in cases_of("dot_product") if case.poison == ""][::9]
    write_vectors(cases, tmp_path / "cases.safetensors")
    (block,) = blocks(ROOT / "docs" / "conforming.md", language)
    source, program = tmp_path / f"reader.{'rs' if language == 'rust' else language}", tmp_path / "reader"
    source.write_text(block.text + MAIN[language], encoding="utf-8")
    subprocess.run([*COMPILERS[language], str(source), "-o", str(program)], check=True, timeout=300)
    lines = subprocess.run(
        [program, tmp_path / "cases.safetensors"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    found = {name: (int(rank), int(count), float(total)) for name, rank, count, total in map(str.split, lines)}
    tensors = load_file(tmp_path / "cases.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        rank, count, total = found[name]
        assert (rank, count) == (tensor.ndim, tensor.size)
        np.testing.assert_allclose(total, tensor.ravel().cumsum()[-1] if tensor.size else 0.0, rtol=1e-12, atol=1e-12)


def test_both_formats_have_the_same_tensors(tmp_path):
    cases = cases_of("gated_delta")[2:6]
    for suffix in (".safetensors", ".npz"):
        write_vectors(cases, tmp_path / f"cases{suffix}")
    tensors = load_file(tmp_path / "cases.safetensors")
    with np.load(tmp_path / "cases.npz") as archive:
        assert {*archive.files} == {*tensors, "names"}
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(archive[name], tensor)
        assert archive["names"].tolist() == [case.name for case in cases]
    np.testing.assert_array_equal(tensors["1/expected/output"], cases[1].expected.output)
    assert {
        "1/query",
        "1/log_decay",
        "1/state",
        "1/scale",
        "1/upstream",
        "1/bound/beta",
        "1/expected/state",
    } <= tensors.keys()


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(OptionError, match="does not say what to write"):
        write_vectors([], Path("cases.bin"))
