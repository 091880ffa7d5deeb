"""Encoder and decoder blocks against torch's layers and the oracle."""
