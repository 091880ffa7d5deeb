"""``python -m regard``: the command as a module, for process launchers such as torchrun."""

from regard.cli.app import main

main()
