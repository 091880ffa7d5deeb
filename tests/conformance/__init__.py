"""The five promises, tried on every mechanism of the catalogue x mask x implementation x dtype.

``trials`` has the sizes and the masks, each mask with an oracle of its own; ``oracle_of`` the oracle of each
mechanism; ``claims`` the list of what is claimed, from which the tests are made and ``promise_table`` is written.
"""
