"""Training tasks: one folder for each, with its recipe, batches, loss, validation and model."""
