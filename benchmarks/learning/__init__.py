"""What each mechanism learns: the same small classifiers, trained with `regard train classify`."""
