"""Objectives and their closed-form derivatives."""
