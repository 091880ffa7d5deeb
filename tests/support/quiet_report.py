"""A report of training that is not shown; it keeps the samples of validations."""

from regard.train.reports import Report


class QuietReport(Report):
    def __init__(self):
        self.shown = []

    def numbers(self, step, kind, values):
        pass

    def samples(self, step, lines):
        self.shown += lines

    def say(self, message):
        pass

    def close(self):
        pass
