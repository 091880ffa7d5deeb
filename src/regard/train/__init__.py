"""The loop, and what it needs: batches, schedules, checkpoints, metrics."""
