"""The command has torch's threads sleep while they wait, unless the user chose something."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys
from regard.cli.app import main
sys.argv = ["regard", "--version"]
try:
    main()
except SystemExit:
    names = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys()
    print(json.dumps({name: os.environ[name] for name in names}))
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "1000"}, {"GOMP_SPINCOUNT": "1000"}),
        ({"KMP_BLOCKTIME": "10"}, {"KMP_BLOCKTIME": "10"}),
    ],
)
def test_wait_policy(variables, expected):
    known = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=known | variables
    )
    assert json.loads(result.stdout.splitlines()[-1]) == expected
