"""Figures of the pages, drawn from stored results: one module for each subject. Nothing here computes."""
