"""``python -m benchmarks.translation NAME``: train a translator by configs/NAME.toml, evaluate it, write the result.

The data is not part of the repository: --data is its folder. An interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.translation import results
from benchmarks.translation.config import NAMES, Config
from benchmarks.translation.measure import TRAINING_KEYS, describe_run, measure_translator
from benchmarks.translation.train import train_model


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translation",
        description="Train and evaluate translators.",
        epilog="Then `python -m benchmarks.translation.report` writes docs/results.md.",
    )
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="name", help=f"config: {', '.join(NAMES)}")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="folder of the data: multi30k/, tatoeba/ and others"
    )
    parser.add_argument("--out", type=Path, default=Path("trained"), metavar="FOLDER", help="folder for the models")
    parser.add_argument("--minutes", type=float, metavar="M", help="training time instead of the config's")
    parser.add_argument("--only-measure", action="store_true", help="do not train; evaluate an existing model")
    return parser.parse_args()


def main() -> int:
    """Train and evaluate the given configs."""
    asked = parse_options()
    for name in asked.names:
        config = Config.read(name)
        model = asked.out / name
        if asked.only_measure:
            earlier = results.read(name)
            if earlier is None:
                raise SystemExit(f"{name} has no result yet: leave out --only-measure")
            of_training = {key: earlier[key] for key in TRAINING_KEYS}
            found = earlier | measure_translator(config, asked.data, model) | of_training
        else:
            began = time.monotonic()
            memory = train_model(config, asked.data, model, minutes=asked.minutes)
            print(f"trained in {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
            found = measure_translator(config, asked.data, model) | describe_run(model, memory)
        print(json.dumps(found, indent=2, ensure_ascii=False))
        results.write(name, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
