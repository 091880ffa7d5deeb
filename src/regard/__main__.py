"""``python -m regard``: the command, where a launcher of processes wants a module."""

from regard.cli.app import main

main()
