"""Losses and objectives with closed-form derivatives."""
