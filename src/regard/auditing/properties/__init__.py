"""The properties of an audit, a file for each family; ``table`` lists all."""
