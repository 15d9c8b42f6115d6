"""Gradient inversion: one client's gradient or update to its batch."""
