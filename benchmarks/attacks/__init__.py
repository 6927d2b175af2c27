"""Attacks on vertical runs, which demonstrate what information one party can still get about other parties."""
