"""The five promises, tested for every mechanism of the catalogue x mask x implementation x dtype.

``mask_cases`` has the sizes and the masks, each mask with its own oracle; ``regard.conformance.mechanism_oracles`` the
oracle of each mechanism; ``claims`` the list of claims, from which the tests and the page of ``promise_table`` are
generated.
"""
