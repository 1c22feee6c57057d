"""Accuracy of the exported graphs against the CPU model."""
