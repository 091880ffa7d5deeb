"""A report of training that is not shown, and keeps what it was given."""

from regard.train.reports import Report


class QuietReport(Report):
    def __init__(self):
        self.shown, self.messages, self.records = [], [], []

    def numbers(self, step, kind, values):
        self.records.append((step, kind, dict(values)))

    def samples(self, step, lines):
        self.shown += lines

    def say(self, message):
        self.messages.append(message)

    def close(self):
        pass
