"""What can be learned: one folder for each task, with its recipe, batches, loss, validation and model."""
